//! Ranks that leave.

use symmem_hal::{Fault as _, Kind, Wait};
use symmem_mem::{Failure, RendezvousError, Tensor};

use super::exchange_marks;
use crate::runner::{Context, Test, Verdict};
use crate::support::eventually;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(who_has_left_takes_no_part),
    test!(who_stays_is_told).at_least(2),
    test!(a_group_ends_with_its_last_holder).at_least(2),
];

fn who_has_left_takes_no_part(context: &Context) -> Verdict {
    let group = context.group()?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[10])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    exchange_marks(context, &group, &handle, &tensor, 1)?;
    group.check()?;
    group.leave();
    group.leave();
    check_eq!(check_err!(group.check(), Failure::Left), Failure::Left);
    check_eq!(check_err!(group.clone().check(), Failure::Left).kind(), Kind::Stale);
    let fresh = Tensor::<u32>::zeros(context.device(), &[10])?;
    let found = group.rendezvous(&fresh, &Wait::millis(0));
    check_err!(found, RendezvousError::Failed(Failure::Left));
    // What was mapped stays readable.
    for rank in group.ranks() {
        let theirs = Tensor::<u32>::try_from(handle.remote(rank)?)?.to_vec()?;
        check_eq!(theirs, [super::mark(rank.index() as u32, 1); 10]);
    }
    context.meet()
}

fn who_stays_is_told(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    context.meet()?;
    if context.rank() == last {
        group.leave();
    } else {
        let told = eventually(|| group.status().gone(last).is_some());
        check!(told, "rank {last} has left, and this rank does not know");
        check_eq!(group.status().gone(last), Some(symmem_mem::liveness::Gone::Left));
        // That alone is no failure: the rest may have no need of that rank.
        group.check()?;
        let tensor = Tensor::<u32>::zeros(context.device(), &[10])?;
        let found = group.rendezvous(&tensor, &Wait::millis(300));
        let error = check_err!(found, RendezvousError::Exchange(_) | RendezvousError::Failed(_));
        check!(error.ranks().contains(last), "{error} does not name rank {last}");
    }
    context.meet()
}

fn a_group_ends_with_its_last_holder(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    let tensor = Tensor::<u32>::zeros(context.device(), &[10])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    context.meet()?;
    if context.rank() == last {
        drop(group);
        context.meet()?;
        // The handle holds the group: to the others this rank is a member still.
        context.meet()?;
        drop(handle);
        context.meet()?;
    } else {
        context.meet()?;
        check_eq!(group.status().gone(last), None);
        context.meet()?;
        context.meet()?;
        check!(eventually(|| group.status().gone(last).is_some()), "rank {last} is still there");
    }
    context.meet()
}
