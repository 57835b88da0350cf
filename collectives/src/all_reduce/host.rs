//! The all-reduce on a CPU.
//!
//! Chunks and slices are multiples of 128 bytes from the logical start, functions of the count and
//! the agreed workspace alone.
#![allow(unsafe_code, reason = "a kernel: reads its argument block and follows its addresses")]

use smallvec::SmallVec;
use symmem_hal::types::{Bytes, DType, ReduceOp};
use symmem_hal::{DevicePtr, Kernel, KernelSet, LaunchContext};
use symmem_sync::host::{Ended, HostMemory, Session};
use symmem_sync::protocol::Peers;

use super::plan::Plan;
use crate::choice::Algorithm;
use crate::numerics::Reducer;

/// The kernels of this crate.
pub(super) static KERNELS: KernelSet = KernelSet {
    name: "symmem-collectives",
    kernels: &[Kernel { name: "all_reduce", args: size_of::<Plan>(), host: all_reduce }],
};

/// What slices and chunks are multiples of.
const UNIT: usize = 128;

/// Bytes that the packet algorithm reduces at a time.
const TILE: usize = 256;

/// Addresses of all ranks' inputs for one slice, by rank. Up to 16 without an allocation.
type Sources = SmallVec<[*const u8; 16]>;

unsafe fn all_reduce(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: this kernel's arguments are a Plan (KERNELS, `launch`).
    let plan = unsafe { *args.cast::<Plan>() };
    // SAFETY: the lane gave the table of its group, whose regions it keeps mapped.
    let memory = unsafe { HostMemory::new(context, plan.lane.table, plan.lane.lane) };
    let work = Work::new(context, &plan);
    if let (Some(memory), Some(work)) = (memory, work) {
        // How it ended early is in the control page.
        if work.run(context, &memory).is_err() {
            context.stop();
        }
    } else {
        context.stop();
        // Every address was checked or mapped by the layers above, so this is a bug of theirs; the
        // peers' deadline ends the operation.
        tracing::error!(?plan, "an all-reduce was launched with addresses that mean nothing");
    }
}

/// One all-reduce, its addresses followed.
struct Work<'p> {
    plan: &'p Plan,
    reducer: Reducer,
    input: *const u8,
    output: *mut u8,
    bytes: usize,
    size: usize,
}

impl<'p> Work<'p> {
    fn new(context: &LaunchContext<'_>, plan: &'p Plan) -> Option<Self> {
        let dtype = DType::from_code(u8::try_from(plan.dtype).ok()?)?;
        let op = ReduceOp::from_code(u8::try_from(plan.op).ok()?)?;
        let size = dtype.size();
        let bytes = usize::try_from(plan.count).ok()?.checked_mul(size)?;
        // No address is followed where there are no elements; an empty slice has none.
        let follow = |ptr: DevicePtr| {
            if bytes == 0 {
                Some(core::ptr::dangling_mut())
            } else {
                context.resolve(ptr, Bytes::from(bytes))
            }
        };
        Some(Work {
            plan,
            reducer: Reducer::new(dtype, op).ok()?,
            input: follow(plan.input)?.cast_const(),
            output: follow(plan.output)?,
            bytes,
            size,
        })
    }

    fn run(&self, context: &LaunchContext<'_>, memory: &HostMemory<'_>) -> Result<(), Ended> {
        if memory.layout().world() == 1 {
            self.reduce(&[self.input], self.output, self.bytes);
            return Ok(());
        }
        let mut session = Session::begin(context, memory, self.plan.lane, Peers::All, Peers::All)?;
        let raised = if self.bytes == 0 {
            0
        } else if self.plan.algorithm == u32::from(Algorithm::Packet.code()) {
            self.packets(&mut session)?
        } else if self.plan.algorithm == u32::from(Algorithm::OneShot.code()) {
            self.one_shot(&mut session, memory)?
        } else if self.plan.peers.is_null() {
            self.two_shot(&mut session, memory)?
        } else {
            self.two_shot_direct(&mut session, context, memory)?
        };
        if self.plan.group_completion != 0 {
            session.raise(raised + 1);
            session.await_all(raised + 1)?;
        }
        session.finish()
    }

    /// Every rank's input travels in packets and is reduced a tile at a time.
    fn packets(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let (me, world) = (session.rank(), session.world());
        for (index, start) in (0..self.bytes).step_by(8).enumerate() {
            let mut data = [0; 8];
            let length = (self.bytes - start).min(8);
            // SAFETY: start + length <= bytes, the length of the input.
            unsafe {
                core::ptr::copy_nonoverlapping(self.input.add(start), data.as_mut_ptr(), length)
            };
            session.put_packet(index, u64::from_ne_bytes(data))?;
        }
        session.agree()?;
        let mut tiles: SmallVec<[[u8; TILE]; 16]> = SmallVec::from_elem([0; TILE], world);
        for start in (0..self.bytes).step_by(TILE) {
            let length = (self.bytes - start).min(TILE);
            let mut sources = Sources::new();
            for (writer, tile) in tiles.iter_mut().enumerate() {
                if writer == me {
                    // SAFETY: start < bytes.
                    sources.push(unsafe { self.input.add(start) });
                    continue;
                }
                for (index, word) in tile.chunks_exact_mut(8).take(length.div_ceil(8)).enumerate() {
                    let data = session.await_packet(start / 8 + index, writer)?;
                    word.copy_from_slice(&data.to_ne_bytes());
                }
                sources.push(tile.as_ptr());
            }
            // SAFETY: start < bytes.
            self.reduce(&sources, unsafe { self.output.add(start) }, length);
        }
        Ok(0)
    }

    /// Every rank stages its input and reduces all of them, chunk by chunk.
    ///
    /// Chunk k may overwrite chunk k - 2: every peer raised k - 1 only after it reduced k - 2.
    fn one_shot(&self, session: &mut Session<'_>, memory: &HostMemory<'_>) -> Result<u32, Ended> {
        let chunk = usize_of(memory.layout().chunk_capacity());
        let mut step = 0;
        for (k, start) in (0..self.bytes).step_by(chunk).enumerate() {
            let length = (self.bytes - start).min(chunk);
            step = k as u32 + 1;
            self.stage(session, k, start, 0, length);
            session.raise(step);
            session.agree()?;
            session.await_all(step)?;
            let sources = self.staged(session, k, start, 0);
            // SAFETY: start < bytes.
            self.reduce(&sources, unsafe { self.output.add(start) }, length);
        }
        Ok(step)
    }

    /// Every rank stages its input, reduces its slice of each chunk into its staging, and gathers
    /// the others'.
    ///
    /// Chunk k uses the input area 2k + 1 and the result area 2k + 2 of its staging. Both may
    /// overwrite chunk k - 2: a peer raises 2k - 1 only after it gathered k - 2.
    fn two_shot(&self, session: &mut Session<'_>, memory: &HostMemory<'_>) -> Result<u32, Ended> {
        let (me, world) = (session.rank(), session.world());
        let chunk = usize_of(memory.layout().chunk_capacity());
        let mut step = 0;
        for (k, start) in (0..self.bytes).step_by(chunk).enumerate() {
            let length = (self.bytes - start).min(chunk);
            let slices = Slices::new(length, world);
            step = 2 * k as u32 + 1;
            let (from, count) = slices.of(me);
            // Nobody else reads this rank's own slice.
            self.stage(session, k, start, 0, from);
            self.stage(session, k, start, from + count, length);
            session.raise(step);
            session.agree()?;
            session.await_all(step)?;
            let sources = self.staged(session, k, start + from, from);
            // SAFETY: the result area is the second half of the staging, `chunk` bytes.
            let result = unsafe { session.staging(me, k).add(chunk + from) };
            self.reduce(&sources, result, count);
            step += 1;
            session.raise(step);
            for writer in rotated(me, world) {
                session.await_flag(writer, step)?;
                let (from, count) = slices.of(writer);
                // SAFETY: the slice lies in the writer's result area, complete since its flag was
                // awaited, and in the output, which has `bytes` bytes.
                unsafe {
                    copy(
                        session.staging(writer, k).add(chunk + from),
                        self.output.add(start + from),
                        count,
                    )
                };
            }
        }
        Ok(step)
    }

    /// As `two_shot`, with inputs read where they lie, since they are symmetric memory.
    ///
    /// A rank returns only after every peer's last step, which the peer raised after its last read
    /// of this rank's input. In place: a slice's piece is stored into an output only after its
    /// owner raised it, and so read all inputs there.
    fn two_shot_direct(
        &self,
        session: &mut Session<'_>,
        context: &LaunchContext<'_>,
        memory: &HostMemory<'_>,
    ) -> Result<u32, Ended> {
        let (me, world) = (session.rank(), session.world());
        let inputs = self.peer_inputs(context, world).ok_or(Ended)?;
        let piece = 2 * usize_of(memory.layout().chunk_capacity());
        let slices = Slices::new(self.bytes, world);
        session.raise(1);
        session.agree()?;
        session.await_all(1)?;
        let mut step = 1;
        // The first slice is the longest, so its pieces are the most.
        for (k, at) in (0..slices.of(0).1).step_by(piece).enumerate() {
            step += 1;
            let (from, count) = slices.piece(me, at, piece);
            // SAFETY: the piece lies in every rank's input, which has `bytes` bytes.
            let sources: Sources = inputs.iter().map(|input| unsafe { input.add(from) }).collect();
            self.reduce(&sources, session.staging(me, k), count);
            session.raise(step);
            for writer in rotated(me, world) {
                session.await_flag(writer, step)?;
                let (from, count) = slices.piece(writer, at, piece);
                // SAFETY: as in `two_shot`; the whole staging holds results here.
                unsafe { copy(session.staging(writer, k), self.output.add(from), count) };
            }
        }
        Ok(step)
    }

    /// Where each rank's input lies, by rank.
    fn peer_inputs(&self, context: &LaunchContext<'_>, world: usize) -> Option<Sources> {
        let table = context.resolve(self.plan.peers, Bytes(8 * world as u64))?;
        (0..world)
            .map(|rank| {
                // SAFETY: the table holds an address a rank; it was written once, at rendezvous.
                let base = unsafe { table.cast::<DevicePtr>().add(rank).read_unaligned() };
                let input = base.checked_add(Bytes(self.plan.peer_offset))?;
                Some(context.resolve(input, Bytes::from(self.bytes))?.cast_const())
            })
            .collect()
    }

    /// Copies bytes `from..to` of the chunk that begins at `start` into this rank's staging.
    fn stage(&self, session: &Session<'_>, k: usize, start: usize, from: usize, to: usize) {
        let staging = session.staging(session.rank(), k);
        // SAFETY: from <= to <= the chunk's length, which is within the input and fits in a
        // staging. Peers finished with what was there (see the callers).
        unsafe { copy(self.input.add(start + from), staging.add(from), to - from) };
    }

    /// Where each rank's staged chunk lies, `from` bytes in; this rank's own where it came from,
    /// `start` bytes into the input.
    fn staged(&self, session: &Session<'_>, k: usize, start: usize, from: usize) -> Sources {
        let own = session.rank();
        (0..session.world())
            .map(|rank| {
                if rank == own {
                    // SAFETY: `start` is within the input, or one past it for an empty slice.
                    unsafe { self.input.add(start.min(self.bytes)) }
                } else {
                    // SAFETY: `from` is within a chunk, which fits in a staging.
                    unsafe { session.staging(rank, k).add(from) }.cast_const()
                }
            })
            .collect()
    }

    fn reduce(&self, sources: &[*const u8], output: *mut u8, bytes: usize) {
        // SAFETY: each source and the output have `bytes` bytes (every caller computes them so),
        // aligned to the element: slices are multiples of 128 bytes from aligned starts. Sources
        // overlap the output only as this rank's own input in place, exactly. What a peer wrote
        // happens before: its flag or packets were awaited, by acquire, after it released them.
        unsafe { self.reducer.reduce(sources, output, bytes / self.size) };
    }
}

/// Copies between memories that do not overlap, or are the same.
///
/// # Safety
///
/// `bytes` bytes can be read at `from` and written at `to`; nobody writes the former or touches the
/// latter meanwhile, by the protocol of the caller.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if !core::ptr::eq(from, to) {
        // SAFETY: the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(from, to, bytes) };
    }
}

/// All ranks from the one after `me` on, and `me` last, so that ranks do not all read one rank's
/// memory at once.
fn rotated(me: usize, world: usize) -> impl Iterator<Item = usize> {
    (1..world).map(move |i| (me + i) % world).chain([me])
}

fn usize_of(bytes: Bytes) -> usize {
    bytes.to_usize().unwrap_or(usize::MAX)
}

/// A range of bytes cut into a slice for each rank: all but the last ones equal, multiples of 128.
#[derive(Clone, Copy, Debug)]
struct Slices {
    bytes: usize,
    slice: usize,
}

impl Slices {
    fn new(bytes: usize, world: usize) -> Self {
        Slices { bytes, slice: bytes.div_ceil(world).next_multiple_of(UNIT) }
    }

    /// Where a rank's slice begins, and its length.
    fn of(self, rank: usize) -> (usize, usize) {
        let from = (rank * self.slice).min(self.bytes);
        (from, (self.bytes - from).min(self.slice))
    }

    /// Where the part of a rank's slice that begins `at` bytes into it lies, and its length.
    fn piece(self, rank: usize, at: usize, piece: usize) -> (usize, usize) {
        let (from, length) = self.of(rank);
        let at = at.min(length);
        (from + at, (length - at).min(piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_tile_the_range() {
        for world in 1..10 {
            for bytes in [0, 1, 127, 128, 129, 1000, 1024, 12_345] {
                let slices = Slices::new(bytes, world);
                let mut end = 0;
                for rank in 0..world {
                    let (from, length) = slices.of(rank);
                    assert_eq!(from, end);
                    assert!(from % UNIT == 0 || length == 0);
                    end += length;
                    let (mut at, mut seen) = (0, 0);
                    while at < slices.of(0).1 {
                        let (start, count) = slices.piece(rank, at, 256);
                        assert_eq!(start, from + seen);
                        seen += count;
                        at += 256;
                    }
                    assert_eq!(seen, length);
                }
                assert_eq!(end, bytes);
            }
        }
    }
}
