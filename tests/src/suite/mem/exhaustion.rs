//! Ranks that run out of descriptors.

use std::fs::File;
use std::os::fd::AsRawFd as _;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use symmem_hal::{Fault as _, Kind};
use symmem_mem::{Allocation, RendezvousError, Tensor};

use super::leaks::retired_becomes;
use super::{bytes_view, exchange_marks};
use crate::runner::{Context, Mode, ON_MEMORY_OF_THE_SYSTEM, PATIENT, Test, TestError, Verdict};
use crate::support::observe::Holdings;
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(an_allocation_lacks_a_descriptor)
        .only_as(&[Mode::Processes])
        .only_on(ON_MEMORY_OF_THE_SYSTEM),
    test!(a_rendezvous_lacks_descriptors)
        .ranks(2, 4)
        .only_as(&[Mode::Processes])
        .only_on(ON_MEMORY_OF_THE_SYSTEM)
        .isolated()
        .seconds(300),
];

/// Lets this process open only so many more descriptors, until it is dropped.
struct Starved(Rlimit);

impl Starved {
    fn but_for(more: usize) -> Result<Self, TestError> {
        let before = getrlimit(Resource::Nofile);
        // The limit is on the number that a descriptor gets, which is the lowest that is free.
        let held = (0..=more).map(|_| File::open("/dev/null")).collect::<Result<Vec<_>, _>>()?;
        let lowest = held.last().map(|file| u64::try_from(file.as_raw_fd())).transpose()?;
        setrlimit(Resource::Nofile, Rlimit { current: lowest, ..before })?;
        Ok(Starved(before))
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        // Back to what it was cannot be refused.
        let _ = setrlimit(Resource::Nofile, self.0);
    }
}

fn an_allocation_lacks_a_descriptor(context: &Context) -> Verdict {
    check!(retired_becomes(0), "memory is retired from before");
    let before = Holdings::of_all_ranks(context)?;
    let starved = Starved::but_for(0)?;
    let made = Allocation::new(context.device(), symmem_hal::types::Bytes::new(100));
    drop(starved);
    let Err(error) = made else { return Err(TestError::failed("allocated without a descriptor")) };
    check_eq!(error.kind(), Kind::Exhausted, "{error}");
    bytes_view(context, 100)?;
    check!(retired_becomes(0), "memory stays retired");
    before.check_no_more(context)
}

/// One rank lacks descriptors at each step of a rendezvous in turn: it says so, the others are told
/// within their deadline, nothing is left behind, and the next rendezvous of the group succeeds.
fn a_rendezvous_lacks_descriptors(context: &Context) -> Verdict {
    /// More than any step needs; where the ranks meet, a connection and memory of each.
    const ENOUGH: usize = 16;
    let group = context.group()?;
    let brief = symmem_hal::Wait::timeout(2 * context.brief());
    let before = Holdings::of_all_ranks(context)?;
    // Who leads the meetings may be any; of many ranks, two stand for all.
    let all = 0..context.size();
    for who in all.step_by((context.size() / 2).max(1)) {
        let mut failed = 0;
        for more in 0..=ENOUGH {
            context.step(format_args!("rank {who} has {more} descriptors"));
            let view = bytes_view(context, 100)?;
            context.meet()?;
            let starved = (context.rank() == who).then(|| Starved::but_for(more)).transpose()?;
            let found = group.rendezvous(&view, &brief);
            drop(starved);
            context.same(format_args!("{who} with {more} succeeds"), found.is_ok());
            if let Err(error) = &found {
                failed += 1;
                if context.rank() == who {
                    check_eq!(error.kind(), Kind::Exhausted, "with {more}: {error}");
                } else {
                    check_told(who, error)?;
                }
            }
            check!(found.is_err() || more > 0, "a rendezvous without descriptors");
            drop((found, view));
            context.meet()?;
            check!(retired_becomes(0), "memory stays retired");
            before.check_no_more(context)?;
            // The same process, and the same group.
            let tensor = Tensor::<u32>::zeros(context.device(), &[16])?;
            let handle = group.rendezvous(&tensor, &PATIENT)?;
            exchange_marks(context, &group, &handle, &tensor, 1)?;
        }
        check!((1..=ENOUGH).contains(&failed), "{failed} of {} failed", ENOUGH + 1);
    }
    group.check()?;
    Ok(())
}

/// What ranks learn that have descriptors themselves: that one lacks them, or that some do not come,
/// which are others than that one where it leads the meeting and turned them away.
fn check_told(who: usize, error: &RendezvousError) -> Verdict {
    let named = error.ranks().contains(who);
    match (error.kind(), error) {
        (Kind::Exhausted | Kind::TimedOut, _) => Ok(()),
        (_, RendezvousError::Map { .. }) if named => Ok(()),
        _ => Err(TestError::failed(format!("rank {who} lacks descriptors: {error}"))),
    }
}
