//! Nothing is left behind.

use symmem_hal::types::Bytes;
use symmem_mem::{Tensor, collect};

use super::exchange_marks;
use crate::runner::{Context, Test, Verdict};
use crate::support::eventually;
use crate::support::observe::Holdings;
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(memory_waits_for_those_who_have_it_mapped).at_least(2),
    test!(memory_outlives_its_handle).at_least(2),
    test!(nothing_is_left_of_a_hundred_groups),
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

fn nothing_is_left_of_a_hundred_groups(context: &Context) -> Verdict {
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
    for n in 1..=100 {
        context.step(format_args!("round {n}"));
        round(n)?;
    }
    context.meet()?;
    check!(retired_becomes(0), "{} are still retired", collect());
    before.check_no_more(context)
}
