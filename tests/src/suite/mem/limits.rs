//! Memory that the system does not give: an error when it is asked for, never a fault when it is
//! touched.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use symmem_hal::shm::{LimitSource, SegmentError};
use symmem_hal::types::{Bytes, RankSet};
use symmem_hal::{AllocError, Fault as _, Kind, Shareable};
use symmem_mem::{Allocation, RendezvousError, SubgroupError};

use super::bytes_view;
use crate::runner::{Context, Mode, ON_MEMORY_OF_THE_SYSTEM, Test, TestError, Verdict, options};
use crate::support::observe::Holdings;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(all_bytes_are_reserved_at_creation).local().only_on(ON_MEMORY_OF_THE_SYSTEM),
    test!(more_than_a_file_may_have_is_refused).local().isolated().only_on(ON_MEMORY_OF_THE_SYSTEM),
    test!(more_than_the_address_space_has_is_refused)
        .local()
        .isolated()
        .only_on(ON_MEMORY_OF_THE_SYSTEM),
    test!(one_rank_has_no_memory_for_the_group)
        .at_least(2)
        .only_as(&[Mode::Processes])
        .isolated()
        .only_on(ON_MEMORY_OF_THE_SYSTEM),
];

/// Lets this process have only so much of a resource, until it is dropped.
pub(super) struct Limited(Resource, Rlimit);

impl Limited {
    pub(super) fn to(resource: Resource, most: u64) -> Result<Self, TestError> {
        let before = getrlimit(resource);
        setrlimit(resource, Rlimit { current: Some(most), ..before })?;
        Ok(Limited(resource, before))
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Back to what it was cannot be refused.
        let _ = setrlimit(self.0, self.1);
    }
}

/// No touch can need a page that is not there: the file behind the memory has all its blocks before
/// anybody has written a byte.
fn all_bytes_are_reserved_at_creation(context: &Context) -> Verdict {
    for bytes in [1, 4096, 4097, 3 << 20] {
        let memory = context.device().allocate(Bytes::new(bytes))?;
        let Shareable::Fd(fd) = memory.export()? else {
            return Err(TestError::skipped("memory without a file"));
        };
        let found = rustix::fs::fstat(&fd)?;
        let reserved = u64::try_from(found.st_blocks)? * 512;
        check!(reserved >= bytes, "{reserved} of {bytes} bytes are reserved");
    }
    Ok(())
}

/// The error says what was needed, what is available, and which limit it is.
fn check_refused(context: &Context, source: LimitSource, needed: u64, available: u64) -> Verdict {
    let before = Holdings::now()?;
    let error =
        check_err!(Allocation::new(context.device(), Bytes::new(needed)), AllocError::Segment(_));
    check_eq!(error.kind(), Kind::Exhausted);
    let AllocError::Segment(SegmentError::Limit { needed: said, limit }) = &error else {
        return Err(TestError::failed(format!("not of a limit: {error}")));
    };
    check_eq!((*said, limit.source), (Bytes::new(needed), source));
    check!(limit.available <= Bytes::new(available), "{} available", limit.available);
    let text = error.to_string();
    for part in [said.to_string(), limit.available.to_string(), source.to_string()] {
        check!(text.contains(&part), "{text:?} does not say {part:?}");
    }
    check_eq!(Holdings::now()?, before);
    // What is within the limit is there, to its last byte.
    let view = bytes_view(context, 4096)?;
    view.slice(4095, 1)?.write(&[1u8])?;
    Ok(())
}

fn more_than_a_file_may_have_is_refused(context: &Context) -> Verdict {
    const MOST: u64 = 1 << 20;
    let limited = Limited::to(Resource::Fsize, MOST)?;
    check_refused(context, LimitSource::FileSize, MOST + 1, MOST)?;
    bytes_view(context, MOST)?;
    drop(limited);
    bytes_view(context, MOST + 1)?;
    Ok(())
}

fn more_than_the_address_space_has_is_refused(context: &Context) -> Verdict {
    const MORE: u64 = 64 << 20;
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').next().unwrap_or_default().parse()?;
    let used = pages * rustix::param::page_size() as u64;
    let limited = Limited::to(Resource::As, used + MORE)?;
    check_refused(context, LimitSource::AddressSpace, MORE + (8 << 20), MORE)?;
    drop(limited);
    bytes_view(context, MORE + (8 << 20))?;
    Ok(())
}

/// It says so, every other rank hears who it is at once, and nothing is left of the attempt.
fn one_rank_has_no_memory_for_the_group(context: &Context) -> Verdict {
    let world = context.world()?;
    let before = Holdings::of_all_ranks(context)?;
    for who in [context.size() - 1, 0] {
        context.step(format_args!("rank {who} has no memory"));
        let mine = context.rank() == who;
        let limited = mine.then(|| Limited::to(Resource::Fsize, 64 << 10)).transpose()?;
        let options = options(context.size());
        let made = world.subgroup(world.ranks()).options(options).create(&world.wait());
        drop(limited);
        let error =
            check_err!(made, SubgroupError::Rendezvous { cause: RendezvousError::Map { .. }, .. });
        context.found(&error);
        check_eq!(error.ranks(), RankSet::one(who));
        check_eq!(error.kind(), if mine { Kind::Exhausted } else { Kind::System });
        let text = error.to_string();
        check_eq!(text.contains("available under RLIMIT_FSIZE"), mine, "{text}");
        before.check_no_more(context)?;
        context.group()?;
    }
    Ok(())
}
