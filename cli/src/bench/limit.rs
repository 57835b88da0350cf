//! What this machine could do at best, measured by the same ranks in the same run.
//!
//! - The *copy* of a size: every rank copies its right neighbour's memory into its own, all at once
//!   and back to back. An operation on messages of that size, after which every rank holds what
//!   others had, moves at least as much; so this bounds its time from below, and its bandwidth from
//!   above. Where the operation writes past the cache and the copy does not, it can be a little
//!   better than this.
//! - The *floor*: one isolated barrier. No operation in which a rank needs something of every other
//!   takes less than telling each other that it is there.
//!
//! Only where the CPU reaches the memory: a device's limits are another matter.

use symmem::hal::types::{BackendKind, Bytes};
use symmem::prelude::*;

use super::member::{Member, RankError};
use super::report::{Report, Row};
use super::timing::{Pace, Separation, Timing};

/// Measures the floor, and the copy of each size. Collective.
pub fn measure(
    member: &Member<'_>,
    sizes: &[Bytes],
    pace: Pace,
    report: &mut dyn FnMut(Report),
) -> Result<(), RankError> {
    if member.group.device().kind() != BackendKind::Host {
        return Ok(());
    }
    let pace = pace.quarter();
    let floor = Timing::take(member, pace, Separation::None, &mut || member.issue_barrier())?;
    report(Report::Floor(floor));
    let largest = sizes.iter().copied().max().unwrap_or_default();
    let tensor = Tensor::<u8>::zeros(member.group.device(), &[largest.get()])?;
    let memory = member.group.rendezvous(&tensor, &member.group.wait())?;
    let neighbour = member.group.rank_at((member.rank() + 1) % member.ranks())?;
    let theirs = memory.remote(neighbour)?;
    let mut mine = vec![0u8; usize::try_from(largest.get()).unwrap_or_default()];
    for size in sizes {
        let theirs = theirs.slice(0, size.get())?;
        let mine = &mut mine[..usize::try_from(size.get()).unwrap_or_default()];
        let timing =
            Timing::take(member, pace, Separation::Barrier, &mut || Ok(theirs.read(mine)?))?;
        report(Report::Copy(Row { bytes: size.get(), algorithm: "copy".into(), timing }));
    }
    Ok(())
}
