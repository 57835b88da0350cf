//! From a checked request to kernels.
#![allow(unsafe_code, reason = "launches kernels")]

use std::sync::Arc;

use symmem_hal::types::{Bytes, DType, ReduceOp};
use symmem_hal::{Capture, DevicePtr, Function, Grid, KeepAlive, LoadError, Stream, Wait};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{Completion, Failure, Group};
use symmem_sync::gpu::SymmemLane;
use symmem_sync::{Capacities, Issue, Lane, LaneError, Steps};

use super::multimem::{Addresses, is_open_to, multimem};
use super::plan::{EVERY_RANK, GpuBlock, GpuPlan};
use super::shape::{self, Cut, Room};
use super::units::{Kernels, Moving, Reducing, Widths, is_common};
use crate::call::{Access, Block, CallError, Pitch, Refused, Request, Symmetric};
use crate::choice::Algorithm;

/// What of a call's memory is reached into on peers, where it is symmetric.
pub(crate) fn access(algorithm: Algorithm, request: &Request<'_>) -> Access {
    use Operation::{AllGather, AllReduce, AllToAll, AllToAllNd, Broadcast, ReduceScatter};
    match (request.operation, algorithm) {
        _ if request.is_staged => Access::Staged,
        (AllReduce, Algorithm::TwoShot) => Access::Write,
        (AllGather, Algorithm::LowContention) => Access::Read,
        // A part with gaps would be a copy for each of its runs.
        (ReduceScatter, Algorithm::LowContention) if request.geometry.rows <= 1 => Access::Read,
        (AllGather | Broadcast | AllToAll | AllToAllNd, Algorithm::OneShot) => Access::Write,
        _ => Access::Staged,
    }
}

/// What a rank receives in all, in bytes, where lines are the fastest way to have all inputs: less is over
/// before they pay. More is reduced in slices, for more than two ranks as soon as that moves less in the
/// time of two more steps.
///
/// Measured on two H200, bf16, 2026-11, in us by packets, pushes or a two-shot and by lines: 3.2 and 3.6 at 128
/// KiB, 5.3 and 4.3 at 512 KiB, 7.5 and 5.8 at 1 MiB, 11.0 and 9.3 at 2 MiB, 17.9 and 15.3 at 4 MiB, 29.6 and 27.3
/// at 8 MiB. Of more ranks, by what they receive.
fn sizes_for_lines(ranks: usize) -> core::ops::RangeInclusive<u64> {
    192 << 10..=if ranks <= 2 { 8 << 20 } else { 2 << 20 }
}

/// Whether an all-reduce is of a size for lines, and of what those can carry: whole vectors.
pub(crate) fn is_size_for_lines(request: &Request<'_>, capacities: &Capacities) -> bool {
    let (bytes, ranks) = (request.geometry.part(), capacities.world());
    let received = bytes.saturating_mul(ranks.saturating_sub(1) as u64);
    request.operation == Operation::AllReduce
        && sizes_for_lines(ranks).contains(&received)
        && bytes.is_multiple_of(16)
        && request.op.is_some_and(|op| is_common(request.input.dtype(), op))
        && shape::line_count(bytes) <= capacities.line_count().into()
}

/// Whether input and output lie at multiples of 16 on every rank, as far as the ranks agree on that:
/// what travels must not depend on one rank's addresses.
pub(crate) fn is_aligned_everywhere(memory: [Option<Symmetric>; 2]) -> bool {
    let aligned = |s: &Symmetric| s.offset.get().is_multiple_of(16) && s.step.is_multiple_of(16);
    memory.iter().all(|symmetric| symmetric.as_ref().is_some_and(aligned))
}

/// One call to be launched.
pub(crate) struct Launching<'a> {
    pub kernels: &'a Kernels,
    pub group: &'a Group,
    pub lane: &'a Lane<'a>,
    pub stream: &'a Stream,
    pub wait: &'a Wait,
    pub request: &'a Request<'a>,
    pub algorithm: Algorithm,
    pub signature: Signature,
    /// The symmetric memory that ranks compare: input and output.
    pub compared: [Option<Symmetric>; 2],
    /// What peers' memory is reached into, if any is.
    pub direct: Option<Symmetric>,
}

/// What a call becomes.
enum Way<'k> {
    /// One kernel.
    Kernel(Function, Cut),
    /// A kernel in which ranks meet, copies from peers by copy engines, a kernel at the end.
    Copies(&'k Moving),
    /// The same, of pieces of parts that are reduced where they were copied to.
    ReducedCopies(&'k Moving, &'k Reducing),
}

/// Launches a call. `keep` gives what it needs to stay.
pub(crate) fn launch(
    call: &Launching<'_>,
    keep: impl Fn() -> Vec<KeepAlive>,
) -> Result<(), Refused> {
    let Launching { group, lane, stream, wait, request, algorithm, signature, .. } = *call;
    let addresses = match algorithm {
        Algorithm::Multimem => multimem(group, request).map_err(CallError::from)?,
        _ => Addresses::own(request),
    };
    let room = Room { blocks: lane.max_grid(), staging: lane.layout().chunk_capacity().get() };
    let plain = is_plain(call);
    let way = call.way(room, plain)?;
    let first = match &way {
        Way::Kernel(function, _) => *function,
        Way::Copies(moving) | Way::ReducedCopies(moving, _) => moving.meet,
    };
    let list = match (&way, &*request.blocks) {
        (Way::Kernel(_, cut), [_, ..]) => {
            Some(Arc::new(device_blocks(group, &request.blocks, cut.chunk)?))
        }
        _ => None,
    };
    let geometry = request.geometry;
    let cut = match &way {
        Way::Kernel(_, cut) => *cut,
        _ => shape::direct(geometry.part(), room),
    };
    let pitch = |pitch: Pitch| Pitch {
        // One run has no next one.
        stride: if geometry.rows <= 1 { geometry.row } else { pitch.stride },
        ..pitch
    };
    let plan = |lane: &SymmemLane| GpuPlan {
        lane: *lane,
        input: addresses.input,
        output: addresses.output,
        bytes: geometry.part(),
        row: geometry.row,
        input_pitch: pitch(geometry.input),
        output_pitch: pitch(geometry.output),
        peers: call.direct.map_or(DevicePtr::NULL, |direct| direct.peers),
        peer_offset: call.direct.map_or(0, |direct| direct.offset.get()),
        peer_step: call.direct.map_or(0, |direct| direct.step),
        slice: cut.slice,
        chunk: cut.chunk,
        rounds: cut.rounds,
        last: cut.last,
        slots: cut.slots,
        ahead: cut.ahead,
        root: request.root.map_or(EVERY_RANK, |root| root as u32),
        receives: request.is_receiver.into(),
        group_completion: (group.options().completion == Completion::Group).into(),
        plain: plain.into(),
        blocks: list.as_ref().map_or(DevicePtr::NULL, |list| list.base()),
        block_count: request.blocks.len() as u64,
        op: request.op.map_or(0, |op| op.code().into()),
        reserved: 0,
    };
    let steps = |lane: &SymmemLane, steps: &mut Steps<'_>| {
        let plan = plan(lane);
        // SAFETY: the promise of this function's own `issue_steps` below.
        unsafe { call.enqueue(&way, &plan, steps) }
    };
    let issue = Issue { stream, wait, function: first, operation: request.operation, signature };
    let keep = || {
        let mut kept = keep();
        kept.extend(list.iter().map(|list| list.clone() as KeepAlive));
        kept
    };
    // SAFETY: every kernel of this crate takes a GpuPlan. Input, output, source and blocks' outputs are
    // views that `keep` holds, of as many bytes as the plan says; so does it the list of blocks and the
    // mappings of peers' memory. The grid has at most as many blocks as the lane, and its chunks fit in
    // the lane's staging (`shape`).
    unsafe { lane.issue_steps(issue, steps, keep) }?;
    Ok(())
}

impl<'a> Launching<'a> {
    fn way(&self, room: Room, plain: bool) -> Result<Way<'a>, Refused> {
        let Launching { kernels, group, stream, request, algorithm, .. } = *self;
        let (part, world) = (request.geometry.part(), group.size());
        let may_load = || stream.capture() == Capture::None;
        let reaches = |access| self.direct.is_some_and(|direct| direct.access == access);
        if algorithm == Algorithm::Multimem {
            let kernels = loaded(kernels.switched(false), || kernels.switched(may_load()))?;
            // Of an all-reduce, each rank has a slice; else this rank has a part, if it has any.
            let slice = match request.operation {
                Operation::AllReduce => shape::slice(part, world),
                _ => part,
            };
            return Ok(Way::Kernel(kernels.function(request), shape::switched(slice, room)));
        }
        let moving = || loaded(kernels.moving(false), || kernels.moving(may_load()));
        let Some(op) = request.op else {
            let moving = moving()?;
            return Ok(match algorithm {
                Algorithm::Packet => Way::Kernel(moving.packets, shape::packets(part, room)),
                _ if reaches(Access::Read) => Way::Copies(moving),
                _ if reaches(Access::Write) => {
                    Way::Kernel(moving.direct, shape::direct(part, room))
                }
                _ => Way::Kernel(moving.staged, shape::pushed(part, room)),
            });
        };
        let dtype = request.input.dtype();
        let reducing =
            loaded(kernels.reducing(dtype, op, false), || kernels.reducing(dtype, op, may_load()))?;
        let of = |widths: Widths| {
            if plain && part.is_multiple_of(16) { widths.whole } else { widths.any }
        };
        Ok(match algorithm {
            _ if request.is_of_blocks() => {
                let chunks = |chunk: u64| {
                    request.blocks.iter().map(|block| block.bytes().div_ceil(chunk)).sum()
                };
                Way::Kernel(reducing.blocks, shape::blocks(part, chunks, room))
            }
            Algorithm::Packet => match reducing.lines {
                Some(lines) if self.has_lines() => Way::Kernel(lines, shape::lines(part, room)),
                _ => Way::Kernel(of(reducing.packets), shape::packets(part, room)),
            },
            _ if reaches(Access::Read) => Way::ReducedCopies(moving()?, reducing),
            _ if reaches(Access::Write) => {
                Way::Kernel(of(reducing.two_shot), shape::two_shot(part, world, room))
            }
            _ => Way::Kernel(of(reducing.pushed), shape::pushed(part, room)),
        })
    }

    fn has_lines(&self) -> bool {
        is_size_for_lines(self.request, self.lane.layout()) && is_aligned_everywhere(self.compared)
    }

    /// Enqueues all that a call is.
    ///
    /// # Safety
    ///
    /// As [`Lane::issue_steps`]; the plan is of this call and of its way.
    unsafe fn enqueue(
        &self,
        way: &Way<'_>,
        plan: &GpuPlan,
        steps: &mut Steps<'_>,
    ) -> Result<(), LaneError> {
        let part = Bytes(plan.bytes);
        let source = self.request.source.filter(|_| plan.bytes > 0);
        if let Some(source) = &source {
            // SAFETY: both hold a part and are apart (`Collective::request`). No peer touches the
            // input.
            unsafe { steps.copy(&[(self.request.input.ptr(), source.ptr(), part)]) }?;
        }
        match way {
            Way::Kernel(function, cut) => {
                let grid = Grid {
                    blocks: cut.blocks,
                    threads: cut.threads(),
                    // Between kernels alone.
                    dependent: source.is_none(),
                    ..Grid::default()
                };
                // SAFETY: the caller's promise.
                unsafe { steps.launch(*function, grid, plan) }
            }
            // SAFETY: the caller's promise.
            Way::Copies(moving) => unsafe { self.copies(moving, plan, steps) },
            // SAFETY: the caller's promise.
            Way::ReducedCopies(moving, reducing) => unsafe {
                self.reduced_copies(moving, reducing, plan, steps)
            },
        }
    }
}

/// What is loaded, or loaded now; a capture ends where something would have to be.
fn loaded<'k, T>(
    found: Result<Option<&'k T>, LoadError>,
    load: impl FnOnce() -> Result<Option<&'k T>, LoadError>,
) -> Result<&'k T, Refused> {
    if let Ok(Some(kernels)) = found {
        return Ok(kernels);
    }
    let kernels = load().map_err(CallError::from)?;
    let hint = "call prepare with the element type and the operator before the capture";
    kernels.ok_or(Refused::Failed(Failure::NotPrepared(hint)))
}

/// Loads the kernels of reductions, those that move data, and those by the switch where the group may
/// come to ask for it.
pub(crate) fn prepare(
    kernels: &Kernels,
    group: &Group,
    wanted: &[(DType, ReduceOp)],
) -> Result<(), CallError> {
    kernels.moving(true)?;
    if is_open_to(group) {
        kernels.switched(true)?;
    }
    for (dtype, op) in wanted {
        op.check(*dtype)?;
        kernels.reducing(*dtype, *op, true)?;
    }
    Ok(())
}

/// Whether all parts are without gaps and begin at multiples of 16, in memory of peers too.
fn is_plain(call: &Launching<'_>) -> bool {
    let request = call.request;
    let geometry = &request.geometry;
    let flat = |pitch: Pitch| {
        (geometry.rows <= 1 || pitch.stride == geometry.row) && pitch.step.is_multiple_of(16)
    };
    let there = call.direct.is_none_or(|direct| {
        direct.offset.get().is_multiple_of(16) && direct.step.is_multiple_of(16)
    });
    let here = [request.input.ptr(), request.output.ptr()].iter().all(|ptr| ptr.get() % 16 == 0);
    here && there && flat(geometry.input) && flat(geometry.output)
}

/// The list of blocks in memory of the device.
fn device_blocks(
    group: &Group,
    blocks: &[Block],
    chunk: u64,
) -> Result<symmem_hal::Memory, CallError> {
    let mut first = 0;
    let list: Vec<GpuBlock> = blocks
        .iter()
        .map(|block| {
            let of = GpuBlock {
                first,
                at: block.at,
                bytes: block.bytes(),
                row: block.row,
                stride: block.stride,
                output: block.output,
                owner: block.owner,
                output_stride: block.output_stride,
            };
            first += of.bytes.div_ceil(chunk);
            of
        })
        .collect();
    let bytes: &[u8] = bytemuck::cast_slice(&list);
    let memory = group.device().allocate_private(Bytes::from(bytes.len())).map_err(Arc::new)?;
    memory.write(Bytes::ZERO, bytes).map_err(symmem_sync::PrepareError::from)?;
    Ok(memory)
}
