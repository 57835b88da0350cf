//! Nothing is left behind.

use rustix::process::Resource;
use symmem_hal::types::Bytes;
use symmem_mem::{Tensor, collect};

use super::exchange_marks;
use super::limits::Limited;
use crate::runner::{Context, Mode, Test, Verdict, options};
use crate::support::eventually;
use crate::support::observe::Holdings;
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(memory_waits_for_those_who_have_it_mapped).at_least(2),
    test!(memory_outlives_its_handle).at_least(2),
    test!(nothing_is_left_of_a_thousand_groups),
    test!(ten_thousand_allocations_registered_and_freed),
    test!(twenty_overlapping_groups_under_1024_descriptors).at_least(2),
];

/// That the retire list comes to hold this much. Released memory is told of by other ranks.
pub(super) fn retired_becomes(bytes: u64) -> bool {
    eventually(|| collect() == Bytes::new(bytes))
}

fn memory_waits_for_those_who_have_it_mapped(context: &Context) -> Verdict {
    const BYTES: u64 = 40_000;
    let group = context.group()?;
    check!(retired_becomes(0), "{} are retired from before", collect());
    context.meet()?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[BYTES / 4])?;
    tensor.write(&vec![7u32; (BYTES / 4) as usize])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    context.meet()?;
    if context.rank() == 0 {
        drop((tensor, handle));
        // Nobody has let go of it, so it stays.
        check_eq!(collect(), Bytes::new(BYTES));
        context.meet()?;
        context.meet()?;
        check!(retired_becomes(0), "{} are still retired", collect());
    } else {
        context.meet()?;
        let theirs = Tensor::<u32>::try_from(handle.remote(group.rank_at(0)?)?)?;
        check!(theirs.to_vec()?.iter().all(|x| *x == 7), "dropped memory has changed");
        drop((theirs, tensor, handle));
        context.meet()?;
    }
    context.meet()?;
    check!(retired_becomes(0), "{} are still retired", collect());
    context.meet()
}

fn memory_outlives_its_handle(context: &Context) -> Verdict {
    let group = context.group()?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[100])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    exchange_marks(context, &group, &handle, &tensor, 1)?;
    let theirs = Tensor::<u32>::try_from(handle.remote(context.neighbour(&group, 1)?)?)?;
    let before = theirs.to_vec()?;
    drop((tensor, handle, group));
    // The view alone holds the mapping, whatever became of the group and the owner.
    context.meet()?;
    collect();
    check_eq!(theirs.to_vec()?, before);
    context.meet()
}

/// A tenth of them where there are many ranks, unless long runs were asked for.
fn nothing_is_left_of_a_thousand_groups(context: &Context) -> Verdict {
    let rounds = if context.size() <= 2 || context.soak() { 1000 } else { 100 };
    let round = |round| -> Verdict {
        let group = context.group()?;
        let tensor = Tensor::<u32>::zeros(context.device(), &[2000])?;
        let handle = group.rendezvous(&tensor, &group.wait())?;
        exchange_marks(context, &group, &handle, &tensor, round)
    };
    // What is made once and kept.
    round(0)?;
    check!(retired_becomes(0), "{} are retired from before", collect());
    let before = Holdings::of_all_ranks(context)?;
    for n in 1..=rounds {
        context.step(format_args!("round {n}"));
        round(n)?;
    }
    context.meet()?;
    check!(retired_becomes(0), "{} are still retired", collect());
    before.check_no_more(context)
}

/// Fresh memory each time; a twentieth of them unless long runs were asked for.
fn ten_thousand_allocations_registered_and_freed(context: &Context) -> Verdict {
    let rounds = if context.soak() { 10_000 } else { 500 };
    let group = context.group()?;
    let round = || -> Verdict {
        let tensor = Tensor::<u32>::zeros(context.device(), &[100])?;
        group.rendezvous(&tensor, &group.wait())?;
        Ok(())
    };
    round()?;
    context.meet()?;
    check!(retired_becomes(0), "{} are retired from before", collect());
    let before = Holdings::of_all_ranks(context)?;
    (0..rounds).try_for_each(|_| round())?;
    context.meet()?;
    check!(retired_becomes(0), "{} are still retired", collect());
    before.check_no_more(context)
}

/// Each of most of the ranks, all at once: links are for pairs of processes, not for groups.
fn twenty_overlapping_groups_under_1024_descriptors(context: &Context) -> Verdict {
    let world = context.world()?;
    let size = context.size();
    let before = Holdings::of_all_ranks(context)?;
    // Of the process, which may be all ranks.
    let limited = (context.mode() == Mode::Processes || context.rank() == 0)
        .then(|| Limited::to(Resource::Nofile, 1024))
        .transpose()?;
    context.meet()?;
    let most = (3 * size).div_ceil(4).max(2);
    let mut groups = Vec::new();
    for first in 0..20 {
        let members: Vec<_> = (first..first + most).map(|rank| rank % size).collect();
        if !members.contains(&context.rank()) {
            continue;
        }
        context.step(format_args!("ranks {members:?}"));
        let members = world.ranks().filter(|rank| members.contains(&rank.index()));
        let made = world.subgroup(members).options(options(size));
        groups.push((first as u32, made.create(&world.wait())?));
    }
    // One after the other, with memory.
    for (first, group) in &groups {
        let tensor = Tensor::<u32>::zeros(context.device(), &[100])?;
        let handle = group.rendezvous(&tensor, &group.wait())?;
        exchange_marks(context, group, &handle, &tensor, *first)?;
    }
    drop(groups);
    context.meet()?;
    check!(retired_becomes(0), "{} are still retired", collect());
    drop(limited);
    before.check_no_more(context)
}
