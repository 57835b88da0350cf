//! From a checked request to a kernel.
#![allow(unsafe_code, reason = "launches kernels")]

use symmem_collectives::CallError;
use symmem_hal::types::Bytes;
use symmem_hal::{Capture, Grid, KeepAlive};
use symmem_mem::Failure;
use symmem_mem::call::{Operation, Signature};
use symmem_sync::gpu::{SymmemLane, WARP_LINES, WARP_VECTORS};
use symmem_sync::{Capacities, Issue};

use super::plan::GpuPlan;
use super::units::{Kernel, Kernels};
use crate::all_to_all_vdev::{AllToAllVdevError, HEAD, Vdev};
use crate::call::{At, failed};

/// Warps of a block that move rows.
pub(super) const WORKERS: u64 = 8;

/// Threads of a block: of those warps, and one that exchanges headers and flags.
pub(super) const THREADS: u32 = 32 * (WORKERS as u32 + 1);

/// Bytes of output for which there is a block. Its warps have two pieces each then.
pub(super) const SHARE: u64 = 32 << 10;

/// What an operation says in a capture whose kernels were never loaded.
pub(super) const NOT_PREPARED: &str = "call prepare_moe before the capture";

/// Bytes of a rank's rows for others that go in lines, at most: with its splits, to whoever has yet to say where
/// they belong. More rows are faster stored there at once.
const LINE_BYTES: u64 = 8 << 20;

/// Bytes of an entry in staging: where the rows for one bin of one rank go.
const ENTRY: u64 = 32;

/// One call to be launched.
pub(crate) struct Launching<'a> {
    pub kernels: &'a Kernels,
    pub at: &'a At<'a>,
    pub operation: Operation,
    pub signature: Signature,
    pub plan: &'a Vdev,
    /// Bytes from the output's start to the end of its allocation: equal on every rank, as the output's own
    /// need not be.
    pub room: Bytes,
}

/// Launches a call. `keep` gives what it needs to stay.
pub(crate) fn launch(
    call: &Launching<'_>,
    keep: impl FnOnce() -> Vec<KeepAlive>,
) -> Result<(), AllToAllVdevError> {
    let Launching { kernels, at, operation, signature, plan, room } = *call;
    let world = at.group.size() as u64;
    let (splits, most) = (world * u64::from(plan.minor), most_splits(at.lane.layout()));
    if splits > most {
        return Err(AllToAllVdevError::TooManySplits { splits, most });
    }
    let may_load = at.stream.capture() == Capture::None;
    let function = kernels.get(Kernel::ALL_TO_ALL_VDEV, may_load).map_err(CallError::from)?;
    let function = function.ok_or(Failure::NotPrepared(NOT_PREPARED))?;
    let blocks = blocks(room.get(), at.lane.max_grid());
    let grid = Grid { blocks, threads: THREADS, dependent: true, ..Grid::default() };
    let issue = Issue { stream: at.stream, wait: at.wait, function, operation, signature };
    let most_lines = most_lines(at.lane.layout(), plan.row);
    let args = |lane: SymmemLane| GpuPlan { lane, vdev: *plan, most_lines, reserved: 0 };
    // SAFETY: the kernel takes a GpuPlan. Its addresses are of the caller's views, of as many bytes as it
    // says, which `keep` holds; of the mappings of peers' memory, which it holds too; and of the status
    // record, which it holds. What a rank tells of its splits and what it keeps of them fits in the lane
    // (`most_splits`), and the grid has at most as many blocks as that.
    unsafe { at.lane.issue_device(issue, grid, args, keep) }.map_err(failed)
}

/// Rows of one rank for another that go in lines, at most, which carry whole vectors: a function of agreed values
/// alone.
fn most_lines(capacities: &Capacities, row: u64) -> u64 {
    if row == 0 || !row.is_multiple_of(16) {
        return 0;
    }
    let room = u64::from(capacities.line_count()) / WARP_LINES * WARP_VECTORS * 16;
    room.min(LINE_BYTES / (capacities.world() as u64 - 1).max(1)) / row
}

/// A function of agreed values alone, since blocks of equal index meet.
fn blocks(output: u64, most: u32) -> u32 {
    u32::try_from(output.div_ceil(SHARE)).unwrap_or(u32::MAX).clamp(1, most.max(1))
}

/// Most splits of a rank for which there is room in each part of a lane's staging: for a message, and after
/// it for the entries of two ranks, which have one more than bins.
fn most_splits(capacities: &Capacities) -> u64 {
    let (staging, world) = (capacities.chunk_capacity().get(), capacities.world() as u64);
    let fixed = 8 * HEAD as u64 + (ENTRY - 1) + 2 * ENTRY;
    staging.saturating_sub(fixed) / (8 * world + 2 * ENTRY) * world
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_outputs_have_few_blocks() {
        for (bytes, expected) in
            [(0, 1), (1, 1), (SHARE, 1), (SHARE + 1, 2), (1 << 20, 32), (u64::MAX, 132)]
        {
            assert_eq!(blocks(bytes, 132), expected, "{bytes}");
        }
        assert_eq!(blocks(u64::MAX, 0), 1);
    }
}
