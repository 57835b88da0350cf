//! Kernels of routed rows: which, on which grid.
#![allow(unsafe_code, reason = "launches kernels")]

use symmem_collectives::CallError;
use symmem_hal::{Capture, Fault, Function, Grid, KeepAlive};
use symmem_mem::Failure;
use symmem_mem::call::{Operation, Signature};
use symmem_sync::{Capacities, Issue};

use super::launch::{NOT_PREPARED, SHARE, THREADS, WORKERS};
use super::plan::OnGpu;
use super::units::{Kernel, Kernels};
use crate::call::{At, failed};
use crate::landing::HalfError;
use crate::routing::RoutedError;
use crate::routing::plan::{CombinePlan, DispatchPlan, Payload};
use crate::routing::shape::{HEAD, Shape};

/// Bytes that a warp moves at a time.
const PIECE: u64 = 2048;

/// Elements that a warp quantises at a time.
const QUANTISED: u64 = 1024;

/// Bytes of a row that a warp sums at a time.
const COLUMNS: u64 = 512;

/// One call to be launched.
pub(crate) struct Calling<'a> {
    pub kernels: &'a Kernels,
    pub at: &'a At<'a>,
    pub signature: Signature,
}

impl Calling<'_> {
    fn function<E: Fault + From<CallError> + From<Failure>>(
        &self,
        kernel: Kernel,
    ) -> Result<Function, E> {
        let may_load = self.at.stream.capture() == Capture::None;
        let function = self.kernels.get(kernel, may_load).map_err(CallError::from)?;
        Ok(function.ok_or(Failure::NotPrepared(NOT_PREPARED))?)
    }

    fn issue(&self, function: Function, operation: Operation) -> Issue<'_> {
        let (stream, wait, signature) = (self.at.stream, self.at.wait, self.signature);
        Issue { stream, wait, function, operation, signature }
    }

    /// As many blocks as there is work for, of a number that is the same on every rank: blocks of equal index
    /// meet.
    fn grid(&self, blocks: u64) -> Grid {
        let most = self.at.lane.max_grid().max(1);
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).clamp(1, most);
        Grid { blocks, threads: THREADS, dependent: true, ..Grid::default() }
    }
}

/// Launches a dispatch. `keep` gives what it needs to stay.
pub(crate) fn dispatch(
    call: &Calling<'_>,
    plan: &DispatchPlan,
    keep: impl FnOnce() -> Vec<KeepAlive>,
) -> Result<(), RoutedError> {
    let at = call.at;
    let shape = plan.routed.shape(at.group.size());
    let most = most_bins(at.lane.layout());
    if shape.bins() as u64 > most {
        return Err(RoutedError::TooManyExperts { experts: shape.experts as u64, most });
    }
    let function = call.function::<RoutedError>(Kernel::DISPATCH)?;
    let payloads = &plan.payloads[..plan.payload_count as usize];
    let grid = call.grid(sending(&shape, payloads.iter().map(pieces).sum()));
    let issue = call.issue(function, Operation::Dispatch);
    // SAFETY: the kernel takes an OnGpu<DispatchPlan>. Its addresses are of the caller's views and of the
    // routing's own, of as many bytes as it says, which `keep` holds with the mappings of peers' memory and the
    // status record. What ranks tell each other fits in the lane's staging (`most_bins`), and the grid has at
    // most as many blocks as that.
    unsafe { at.lane.issue_device(issue, grid, |lane| OnGpu { lane, plan: *plan }, keep) }
        .map_err(failed)
}

/// Launches a combine.
pub(crate) fn combine(
    call: &Calling<'_>,
    plan: &CombinePlan,
    keep: impl FnOnce() -> Vec<KeepAlive>,
) -> Result<(), RoutedError> {
    let at = call.at;
    let shape = plan.routed.shape(at.group.size());
    let function = call.function::<RoutedError>(Kernel::COMBINE)?;
    let issue = call.issue(function, Operation::Combine);
    let grid = call.grid(summing(&shape, plan.row()));
    // SAFETY: the kernel takes an OnGpu<CombinePlan>. Its addresses are of the caller's views and of the
    // routing's own, of as many bytes as it says, which `keep` holds with the mappings of peers' memory. The
    // grid has at most as many blocks as the lane.
    unsafe { at.lane.issue_device(issue, grid, |lane| OnGpu { lane, plan: *plan }, keep) }
        .map_err(failed)
}

/// Launches a half, of a landing of this shape and this many bytes a row.
pub(crate) fn half<P: bytemuck::Pod>(
    call: &Calling<'_>,
    operation: Operation,
    shape: &Shape,
    row: u64,
    plan: P,
    keep: impl FnOnce() -> Vec<KeepAlive>,
) -> Result<(), HalfError> {
    let at = call.at;
    let (kernel, blocks) = match operation {
        Operation::DispatchSend => (Kernel::DISPATCH_SEND, sending(shape, row.div_ceil(PIECE))),
        Operation::DispatchReceive => (Kernel::DISPATCH_RECEIVE, 1),
        Operation::CombineSend => {
            (Kernel::COMBINE_SEND, shape.capacity.saturating_mul(row).div_ceil(SHARE))
        }
        _ => (Kernel::COMBINE_RECEIVE, summing(shape, row)),
    };
    let issue = call.issue(call.function::<HalfError>(kernel)?, operation);
    let grid = call.grid(blocks);
    // SAFETY: the kernel of the operation takes an OnGpu of this plan. Its addresses are of the caller's views
    // and of the landing's own, of as many bytes as it says, which `keep` holds with the mappings of peers'
    // memory and the status record. The grid has at most as many blocks as the lane.
    unsafe { at.lane.issue_device(issue, grid, |lane| OnGpu { lane, plan }, keep) }.map_err(failed)
}

/// Pieces of a row.
fn pieces(payload: &Payload) -> u64 {
    payload.row.div_ceil(if payload.dtype == 0 { PIECE } else { QUANTISED })
}

/// Blocks that send the most tokens that a rank may have, of so many pieces each: two pieces for each warp.
fn sending(shape: &Shape, pieces: u64) -> u64 {
    let copies = shape.choices.min(shape.world) as u64;
    (shape.tokens * copies).saturating_mul(pieces).div_ceil(2 * WORKERS)
}

/// Blocks that sum rows of so many bytes.
fn summing(shape: &Shape, row: u64) -> u64 {
    shape.tokens.saturating_mul(row.div_ceil(COLUMNS)).div_ceil(WORKERS)
}

/// Most bins for whose counts there is room in a part of a lane's staging.
fn most_bins(capacities: &Capacities) -> u64 {
    (capacities.chunk_capacity().get() / 8).saturating_sub(HEAD as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use crate::gpu::units::{COMBINE_CUH, MESSAGES_CUH, ROUTING_CUH};

    #[test]
    fn few_tokens_have_few_blocks() {
        let shape = Shape {
            world: 2,
            experts: 8,
            choices: 4,
            tokens: 8,
            capacity: 64,
            layout: Layout::Compact { align: 0 },
        };
        assert_eq!((sending(&shape, 0), sending(&shape, 1), sending(&shape, 7)), (0, 1, 7));
        assert_eq!((summing(&shape, 0), summing(&shape, 512), summing(&shape, 513)), (0, 1, 2));
        let many = Shape { tokens: u64::from(u32::MAX), ..shape };
        assert_eq!(sending(&many, u64::MAX), u64::MAX.div_ceil(2 * WORKERS));
    }

    #[test]
    fn pieces_are_those_of_the_kernels() {
        let text = [MESSAGES_CUH.1, ROUTING_CUH.1].concat();
        assert!(text.contains(&format!("constexpr u32 PIECE = {PIECE};")));
        assert!(text.contains(&format!("QUANTISED = {QUANTISED};")));
        assert!(COMBINE_CUH.1.contains(&format!("COLUMNS = {COLUMNS};")));
    }
}
