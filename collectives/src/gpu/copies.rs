//! Operations whose payload is moved by copy engines: the processors of a device, but for the two
//! kernels at the ends, are left to other work.
//!
//! Ranks copy from peers' inputs, never into peers' memory: what a copy engine has been told cannot be
//! taken back once ranks have not met, and then only this rank's own output is wrong.
#![allow(unsafe_code, reason = "launches kernels and copies")]

use smallvec::SmallVec;
use symmem_hal::types::Bytes;
use symmem_hal::{DevicePtr, Grid};
use symmem_sync::{LaneError, Steps};

use super::launch::Launching;
use super::plan::GpuPlan;
use super::shape;
use super::units::{Moving, Reducing};

/// `(to, from, bytes)`.
type Copies = SmallVec<[(DevicePtr, DevicePtr, Bytes); 8]>;

/// One block of two warps, of which one exchanges words.
const ENDS: Grid = Grid { blocks: 1, threads: 64, shared: 0, dependent: false, cooperative: false };

impl Launching<'_> {
    /// All ranks' parts into this rank's output.
    ///
    /// # Safety
    ///
    /// As [`Lane::issue_steps`](symmem_sync::Lane::issue_steps).
    pub(super) unsafe fn copies(
        &self,
        moving: &Moving,
        plan: &GpuPlan,
        steps: &mut Steps<'_>,
    ) -> Result<(), LaneError> {
        let (me, world) = (self.group.rank().index(), self.group.size());
        let mut copies = Copies::new();
        for rank in (1..=world).map(|i| (me + i) % world).filter(|_| plan.bytes > 0) {
            let to = at(plan.output, plan.output_pitch.step * rank as u64);
            let from = if rank == me { plan.input } else { self.peer(rank) };
            if to != from {
                copies.push((to, from, Bytes(plan.bytes)));
            }
        }
        // SAFETY: the kernels take a GpuPlan. Each rank's part goes to its own part of the output, from
        // memory that is mapped; peers keep theirs as it is until `part`.
        unsafe {
            steps.launch(moving.meet, ENDS, plan)?;
            if !copies.is_empty() {
                steps.copy(&copies)?;
            }
            steps.launch(moving.part, ENDS, plan)
        }
    }

    /// This rank's part of all ranks' inputs into its staging, a piece at a time, where they are
    /// reduced.
    ///
    /// # Safety
    ///
    /// As [`Lane::issue_steps`](symmem_sync::Lane::issue_steps).
    pub(super) unsafe fn reduced_copies(
        &self,
        moving: &Moving,
        reducing: &Reducing,
        plan: &GpuPlan,
        steps: &mut Steps<'_>,
    ) -> Result<(), LaneError> {
        let (me, world) = (self.group.rank().index(), self.group.size());
        let lane = &plan.lane;
        let own = plan.input_pitch.step * me as u64;
        let piece = lane.staging_unit;
        // SAFETY: the kernels take a GpuPlan. Between `meet` and `part` no peer stores into this rank's
        // staging: it has ended its operation before, and begins none after before this rank's word.
        unsafe { steps.launch(moving.meet, ENDS, plan) }?;
        let mut start = 0;
        while start < plan.bytes {
            let bytes = (plan.bytes - start).min(piece);
            let copies: Copies = (1..world)
                .map(|i| (me + i) % world)
                .map(|rank| {
                    // No rank has staging in its own memory.
                    let place = (rank - usize::from(rank > me)) as u64;
                    let to = at(lane.own, lane.staging + piece * place);
                    (to, at(self.peer(rank), own + start), Bytes(bytes))
                })
                .collect();
            let room = shape::Room { blocks: self.lane.max_grid(), staging: piece };
            let cut = shape::direct(bytes, room);
            let part = GpuPlan {
                input: at(plan.input, own + start),
                output: at(plan.output, start),
                bytes,
                row: bytes,
                slice: cut.slice,
                chunk: cut.chunk,
                rounds: cut.rounds,
                last: cut.last,
                ..*plan
            };
            let grid = Grid { blocks: cut.blocks, threads: cut.threads(), ..Grid::default() };
            // SAFETY: as above; a piece of each rank fits in its staging.
            unsafe {
                if !copies.is_empty() {
                    steps.copy(&copies)?;
                }
                steps.launch(reducing.staged, grid, &part)?;
            }
            start += bytes;
        }
        // SAFETY: as above.
        unsafe { steps.launch(moving.part, ENDS, plan) }
    }

    /// Where a peer's buffer begins here.
    fn peer(&self, rank: usize) -> DevicePtr {
        let view = self.request.input.view();
        let base = view.and_then(|view| self.group.peer_base(view, rank));
        // Symmetric memory is a view that every rank's mapping has (`Symmetric`).
        let (Some(base), Some(direct)) = (base, self.direct) else { return DevicePtr::NULL };
        at(base, direct.offset.get().wrapping_add(direct.step * rank as u64))
    }
}

fn at(base: DevicePtr, offset: u64) -> DevicePtr {
    base.checked_add(Bytes(offset)).unwrap_or(DevicePtr::NULL)
}
