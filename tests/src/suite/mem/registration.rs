//! The same memory again and again, sizes of all sorts, ends of all sorts: nothing grows.

use symmem_hal::types::{Bytes, RankSet};
use symmem_hal::{Device, Fault as _, Kind, Wait};
use symmem_mem::{RendezvousError, Tensor, collect, launch};

use super::{bytes_view, exchange_marks, meet_in};
use crate::runner::{Context, Test, Verdict};
use crate::support::eventually;
use crate::support::observe::Holdings;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(ten_thousand_times_is_once),
    test!(sizes_up_and_down),
    test!(one_rank_larger_is_found_at_once).at_least(2),
    test!(memory_outlives_a_hundred_groups),
    test!(leaving_twice_is_leaving_once),
    test!(ended_groups_let_go_of_memory_that_lives_on),
    test!(another_backend_on_one_rank_is_found).local(),
];

fn ten_thousand_times_is_once(context: &Context) -> Verdict {
    let group = context.group()?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[100])?;
    let first = group.rendezvous(&tensor, &group.wait())?;
    let before = Holdings::of_all_ranks(context)?;
    for n in 0..10_000 {
        let part = tensor.slice(n % 100, 1)?;
        let handle = group.rendezvous(&part, &Wait::millis(0))?;
        check_eq!(handle.ordinal(), first.ordinal());
        check_eq!(group.symmetric(&part)?.offset(), Bytes::new(4 * (n % 100)));
    }
    before.check_no_more(context)?;
    exchange_marks(context, &group, &first, &tensor, 1)
}

fn sizes_up_and_down(context: &Context) -> Verdict {
    let group = context.group()?;
    collect();
    let before = Holdings::of_all_ranks(context)?;
    let up: Vec<u64> = (0..20).map(|n| 1 << n).collect();
    let mut down = up.clone();
    down.reverse();
    let around: Vec<u64> = [4095, 4096, 4097, 0, 1, 65_535, 65_537].to_vec();
    for sizes in [up, down, around] {
        let views =
            sizes.iter().map(|bytes| bytes_view(context, *bytes)).collect::<Result<Vec<_>, _>>()?;
        for view in &views {
            let handle = group.rendezvous(view, &group.wait())?;
            check_eq!(handle.buffer_size(), view.bytes());
        }
        meet_in(&group)?;
    }
    check!(eventually(|| collect() == Bytes::ZERO), "{} are still retired", collect());
    before.check_no_more(context)
}

fn one_rank_larger_is_found_at_once(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    for (odd, others) in [(1001, 1000), (999, 1000), (0, 1), (1 << 20, 1)] {
        let bytes = if context.rank() == last { odd } else { others };
        let error = check_err!(
            group.rendezvous(bytes_view(context, bytes)?, &group.wait()),
            RendezvousError::Mismatch(_)
        );
        check_eq!(error.kind(), Kind::Disagreement);
        check_eq!(error.ranks(), RankSet::one(last));
        let text = error.to_string();
        check!(text.contains(&odd.to_string()) && text.contains(&others.to_string()), "{text}");
        context.same("verdict", text);
    }
    let tensor = Tensor::<u32>::zeros(context.device(), &[100])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    exchange_marks(context, &group, &handle, &tensor, 1)
}

/// Groups of one and the same list of ranks come and go; one allocation is symmetric in each.
fn memory_outlives_a_hundred_groups(context: &Context) -> Verdict {
    let tensor = Tensor::<u32>::zeros(context.device(), &[1000])?;
    let round = |round| -> Verdict {
        let group = context.group()?;
        let handle = group.rendezvous(&tensor, &group.wait())?;
        check_eq!(handle.ordinal(), 1);
        exchange_marks(context, &group, &handle, &tensor, round)
    };
    round(0)?;
    let before = Holdings::of_all_ranks(context)?;
    for n in 1..=100 {
        context.step(format_args!("group {n}"));
        round(n)?;
    }
    before.check_no_more(context)
}

fn leaving_twice_is_leaving_once(context: &Context) -> Verdict {
    let group = context.group()?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[100])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    exchange_marks(context, &group, &handle, &tensor, 1)?;
    for _ in 0..3 {
        group.leave();
        let error =
            check_err!(group.rendezvous(&tensor, &group.wait()), RendezvousError::Failed(_));
        check_eq!(error.kind(), Kind::Stale);
    }
    // What is mapped stays so for whoever holds it.
    let theirs = Tensor::<u32>::try_from(handle.remote(context.neighbour(&group, 1)?)?)?;
    check_eq!(theirs.to_vec()?.len(), 100);
    context.meet()?;
    drop((group, handle));
    // The allocation is as good as ever in another group.
    let group = context.group()?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    exchange_marks(context, &group, &handle, &tensor, 2)
}

/// A group's end unmaps the peers' memory, although this rank's own stays.
fn ended_groups_let_go_of_memory_that_lives_on(context: &Context) -> Verdict {
    let tensor = Tensor::<u32>::zeros(context.device(), &[1000])?;
    let before = Holdings::of_all_ranks(context)?;
    let group = context.group()?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    exchange_marks(context, &group, &handle, &tensor, 1)?;
    drop((handle, group));
    before.check_no_more(context)?;
    check_eq!(tensor.to_vec()?.len(), 1000);
    Ok(())
}

/// One of two ranks would have a device whose memory the other cannot reach.
fn another_backend_on_one_rank_is_found(_: &Context) -> Verdict {
    let devices = vec![Device::host(), Device::stub(0)];
    let made = launch::Threads::new(2).devices(devices).run(|_| ());
    let error = check_err!(made, RendezvousError::Mismatch(_));
    check_eq!(error.kind(), Kind::Disagreement);
    let text = error.to_string();
    check!(
        text.ends_with("the backend, of which all must have one: host on rank 0, stub on rank 1"),
        "{text}"
    );
    Ok(())
}
