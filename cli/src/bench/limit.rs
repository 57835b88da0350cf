//! What this machine could do at best, measured by the same ranks in the same run.
//!
//! - The *copy* of a size: every rank copies so many bytes of its own memory, by `memcpy`, all at
//!   once and back to back; where ranks move different amounts, each as many as its own tokens have. An operation on messages of that size, after which every rank holds as
//!   much, moves at least that; so this bounds its time from below, and its bandwidth from above.
//!   Where an operation writes past the caches and `memcpy` does not, or leaves data in a cache that
//!   two ranks share, it can come out a little better.
//! - The *floor*: one isolated barrier. No operation in which a rank needs something of every other
//!   takes less than telling each other that it is there.
//! - The *link*, of GPUs: every rank's copy engine writes a large buffer to the next rank's memory,
//!   all at once and back to back, so with two ranks in both directions. What an operation moves
//!   between ranks, its bus bandwidth, is compared with that.
//!
//! Of a device in software nothing is measured.

use std::cell::RefCell;
use std::hint::black_box;

use symmem::hal::types::BackendKind;
use symmem::prelude::*;

use super::member::{Member, RankError};
use super::report::{Report, Row};
use super::timing::{Pace, Ready, Separation, Timing};

/// A size, and what a rank moves of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The same on every rank.
    pub bytes: Bytes,
    /// What this rank copies.
    pub own: Bytes,
}

impl From<Bytes> for Size {
    fn from(bytes: Bytes) -> Self {
        Size { bytes, own: bytes }
    }
}

/// Measures the floor, and the copy of each size. Collective.
pub fn measure(
    member: &Member<'_>,
    sizes: &[Size],
    pace: Pace,
    report: &mut dyn FnMut(Report),
) -> Result<(), RankError> {
    let pace = pace.quarter();
    match member.group.device().kind() {
        BackendKind::Host => copies(member, sizes, pace, report)?,
        BackendKind::Cuda => link(member, pace, report)?,
        _ => return Ok(()),
    }
    // Last, when the ranks have found their cores.
    let floor =
        Timing::take(member, pace, Separation::None, &mut Ready(&|| member.issue_barrier()))?;
    report(Report::Floor(floor));
    Ok(())
}

/// Far more than any cache holds, and than it takes for the start of a copy not to count.
const LINK: Bytes = Bytes::mib(128);

fn link(member: &Member<'_>, pace: Pace, report: &mut dyn FnMut(Report)) -> Result<(), RankError> {
    let group = member.group;
    let whole = |of: &Allocation| View::new(of, Bytes::ZERO, DType::U8, Layout::flat(LINK.get()));
    let source = member.allocate(LINK, false)?;
    let target = member.allocate(LINK, true)?;
    let (source, target) = (whole(&source)?, group.symmetric(&whole(&target)?)?);
    let next = group.rank_at((member.rank() + 1) % member.ranks())?;
    let issue = || Ok(target.put(&source, next).on(&member.stream)?);
    let timing = Timing::take(member, pace, Separation::Barrier, &mut Ready(&issue))?;
    // Nobody lets go of memory that a peer still writes to.
    member.barrier()?;
    let (bytes, algorithm) = (LINK.get(), "copy".into());
    report(Report::Link(Row { bytes, algorithm, checked: false, routed: None, timing }));
    Ok(())
}

fn copies(
    member: &Member<'_>,
    sizes: &[Size],
    pace: Pace,
    report: &mut dyn FnMut(Report),
) -> Result<(), RankError> {
    let largest = sizes.iter().map(|size| size.own.get()).max().unwrap_or_default();
    let largest = usize::try_from(largest).unwrap_or_default();
    // Ones, since zeros would be pages that the system has yet to find.
    let (source, mut copy) = (vec![1u8; largest], vec![1u8; largest]);
    for size in sizes {
        let range = ..usize::try_from(size.own.get()).unwrap_or_default();
        let copy = RefCell::new(&mut copy[range]);
        let issue = || {
            black_box(&mut *copy.borrow_mut()).copy_from_slice(black_box(&source[range]));
            Ok(())
        };
        let timing = Timing::take(member, pace, Separation::Barrier, &mut Ready(&issue))?;
        let (bytes, algorithm) = (size.bytes.get(), "memcpy".into());
        report(Report::Copy(Row { bytes, algorithm, checked: false, routed: None, timing }));
    }
    Ok(())
}
