//! One launch of one operation, its addresses followed.
#![allow(unsafe_code, reason = "reads its argument block and follows its addresses")]

use smallvec::SmallVec;
use symmem_hal::types::{Bytes, DType, ReduceOp};
use symmem_hal::{DevicePtr, LaunchContext};
use symmem_sync::host::{Ended, HostMemory, Session};
use symmem_sync::protocol::Peers;

use super::parts::{Runs, copy, stream};
use crate::call::{Access, Block, Pitch, Plan};
use crate::choice::Algorithm;
use crate::numerics::Reducer;

/// Addresses by rank. Up to 16 without an allocation.
pub(crate) type Sources = SmallVec<[*const u8; 16]>;

/// One launch of one operation.
pub(crate) struct Work<'a> {
    pub plan: &'a Plan,
    pub me: usize,
    pub world: usize,
    /// Bytes of one part.
    pub part: usize,
    /// Bytes of a run.
    pub row: usize,
    /// Bytes of each part that are staged at a time.
    pub piece: usize,
    pub input: *mut u8,
    pub output: *mut u8,
    context: &'a LaunchContext<'a>,
    memory: &'a HostMemory<'a>,
}

/// What every kernel of this crate does: follows the addresses of its plan and runs `body`.
///
/// # Safety
///
/// As for [`HostFn`](symmem_hal::HostFn), of a kernel that takes a [`Plan`].
pub(crate) unsafe fn kernel(
    context: &LaunchContext<'_>,
    args: *const u8,
    body: impl FnOnce(&Work<'_>) -> Result<(), Ended>,
) {
    // SAFETY: the caller's promise: it outlives this call, and nobody writes it.
    let plan = unsafe { &*args.cast::<Plan>() };
    // SAFETY: the lane gave the table of its group, whose regions it keeps mapped.
    let memory = unsafe { HostMemory::new(context, plan.lane.table, plan.lane.lane) };
    match memory.as_ref().and_then(|memory| Work::new(context, memory, plan)) {
        // How it ended early is in the control page.
        Some(work) => {
            if body(&work).is_err() {
                context.stop();
            }
        }
        None => {
            context.stop();
            // Every address was checked or mapped by the layers above, so this is a bug of theirs;
            // the peers' deadline ends the operation.
            tracing::error!(?plan, "an operation was launched with addresses that mean nothing");
        }
    }
}

impl<'a> Work<'a> {
    fn new(
        context: &'a LaunchContext<'a>,
        memory: &'a HostMemory<'a>,
        plan: &'a Plan,
    ) -> Option<Self> {
        // No address is followed where there are no bytes; an empty slice has none.
        let follow = |ptr: DevicePtr, bytes: u64| {
            if bytes == 0 {
                Some(core::ptr::dangling_mut())
            } else {
                context.resolve(ptr, Bytes(bytes))
            }
        };
        Some(Work {
            plan,
            me: plan.rank as usize,
            world: memory.layout().world(),
            part: usize::try_from(plan.geometry.part()).ok()?,
            row: usize::try_from(plan.geometry.row).ok()?,
            piece: usize::try_from(plan.piece).ok()?,
            input: follow(plan.input, plan.input_bytes)?,
            output: follow(plan.output, plan.output_bytes)?,
            context,
            memory,
        })
    }

    /// Enters the lane. Data moves to `feeds` and from `consumes`.
    pub(crate) fn begin(
        &self,
        feeds: Peers<'a>,
        consumes: Peers<'a>,
    ) -> Result<Session<'a>, Ended> {
        // Who returns for the whole group has seen the whole group's calls.
        let consumes = if self.plan.group_completion != 0 { Peers::All } else { consumes };
        Session::begin(self.context, self.memory, self.plan.lane, feeds, consumes)
    }

    /// Ends an operation that has raised steps up to `raised`, the same on every rank.
    pub(crate) fn finish(&self, mut session: Session<'_>, raised: u32) -> Result<(), Ended> {
        if self.plan.group_completion != 0 {
            session.agree()?;
            session.raise(raised + 1);
            session.await_all(raised + 1)?;
        }
        session.finish()
    }

    /// The blocks of an operation that is given any.
    pub(crate) fn blocks(&self) -> Result<&'a [Block], Ended> {
        let count = usize::try_from(self.plan.block_count).map_err(|_| Ended)?;
        let bytes = Bytes::from(count * size_of::<Block>());
        let at = self.context.resolve(self.plan.blocks, bytes).ok_or(Ended)?;
        // SAFETY: the launch wrote as many there, and keeps them until the kernel returns; nobody
        // writes them meanwhile.
        Ok(unsafe { core::slice::from_raw_parts(at.cast_const().cast(), count) })
    }

    /// Where a block lies in this rank's input, which may be in an allocation of its own.
    pub(crate) fn input_of(&self, block: &Block) -> Result<Runs, Ended> {
        let stride = block.stride as usize;
        if block.bytes() == 0 {
            return Ok(Runs { base: core::ptr::dangling_mut(), stride });
        }
        let at = self.plan.input.checked_add(Bytes(block.at)).ok_or(Ended)?;
        let base = self.follow(at, block.extent(block.stride) as usize)?;
        Ok(Runs { base, stride })
    }

    /// Copies into an output, as the plan says how.
    ///
    /// # Safety
    ///
    /// As [`copy`], for runs of this operation's length.
    pub(crate) unsafe fn store(&self, from: Runs, to: Runs, start: usize, length: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.plan.streams {
                0 => copy(from, to, self.row, start, length),
                _ => stream(from, to, self.row, start, length),
            }
        }
    }

    /// Where an address of the plan lies.
    pub(crate) fn follow(&self, ptr: DevicePtr, bytes: usize) -> Result<*mut u8, Ended> {
        self.context.resolve(ptr, Bytes::from(bytes)).ok_or(Ended)
    }

    pub(crate) fn is(&self, algorithm: Algorithm) -> bool {
        self.plan.algorithm == u32::from(algorithm.code())
    }

    pub(crate) fn reaches(&self, access: Access) -> bool {
        self.plan.access == access as u32
    }

    pub(crate) fn root(&self) -> usize {
        self.plan.root as usize
    }

    pub(crate) fn reducer(&self) -> Option<Reducer> {
        let dtype = DType::from_code(u8::try_from(self.plan.dtype).ok()?)?;
        let op = ReduceOp::from_code(u8::try_from(self.plan.op).ok()?)?;
        Reducer::new(dtype, op).ok()
    }

    /// Copies the plan's source over the input, which no peer touches before this rank's header.
    pub(crate) fn copy_in(&self) -> Result<(), Ended> {
        if self.plan.source.is_null() || self.part == 0 {
            return Ok(());
        }
        let source = self.follow(self.plan.source, self.part)?;
        // SAFETY: both have a part's bytes and are apart (`Collective::request`); peers were done
        // with the input when the operation before it ended.
        unsafe { core::ptr::copy_nonoverlapping(source.cast_const(), self.input, self.part) };
        Ok(())
    }

    /// Sends this rank's input in packets, part after part.
    pub(crate) fn put_packets(&self, session: &mut Session<'_>) -> Result<(), Ended> {
        let bytes = self.slots() * self.part;
        let mut packed: SmallVec<[u8; 64]> = SmallVec::from_elem(0, bytes.next_multiple_of(8));
        for slot in 0..self.slots() {
            let base = packed[slot * self.part..].as_mut_ptr();
            let to = Runs { base, stride: self.row };
            // SAFETY: a part of the input, and room for one.
            unsafe { copy(self.input_part(slot), to, self.row, 0, self.part) };
        }
        let words = packed.as_chunks::<8>().0.iter();
        words.enumerate().try_for_each(|(i, word)| session.put_packet(i, u64::from_ne_bytes(*word)))
    }

    /// How many parts of the input differ.
    pub(crate) fn slots(&self) -> usize {
        self.plan.geometry.slots(self.world)
    }

    /// Which part of a rank's input is meant for a rank.
    pub(crate) fn slot(&self, rank: usize) -> usize {
        if self.plan.geometry.input.step == 0 { 0 } else { rank }
    }

    /// A part of this rank's input.
    pub(crate) fn input_part(&self, slot: usize) -> Runs {
        Self::runs(self.input, self.plan.geometry.input, slot)
    }

    /// Where the part from a rank goes in this rank's output.
    pub(crate) fn output_part(&self, rank: usize) -> Runs {
        Self::runs(self.output, self.plan.geometry.output, rank)
    }

    /// Part `index` of a buffer.
    pub(crate) fn runs(buffer: *mut u8, pitch: Pitch, index: usize) -> Runs {
        let base = buffer.wrapping_add(index * pitch.step as usize);
        Runs { base, stride: pitch.stride as usize }
    }

    /// Piece `k` of a part in a rank's staging, as a part of which only that piece is there.
    pub(crate) fn staged_part(&self, staging: *mut u8, slot: usize, k: usize) -> Runs {
        let base = staging.wrapping_add(slot * self.piece).wrapping_sub(k * self.piece);
        Runs { base, stride: self.row }
    }

    /// How many pieces a part has.
    pub(crate) fn pieces(&self) -> usize {
        self.part.div_ceil(self.piece.max(1))
    }

    /// Where piece `k` of a part begins, and its length.
    pub(crate) fn piece(&self, k: usize) -> (usize, usize) {
        let start = k * self.piece;
        (start, self.piece.min(self.part - start))
    }

    /// Where each rank's buffer begins that this rank reaches into, by rank.
    pub(crate) fn peers(&self) -> Result<Sources, Ended> {
        let plan = self.plan;
        let bytes = if self.reaches(Access::Read) { plan.input_bytes } else { plan.output_bytes };
        let of = |table: *mut u8, rank: usize| {
            // SAFETY: the table holds an address a rank; it was written once, at rendezvous.
            let base = unsafe { table.cast::<DevicePtr>().add(rank).read_unaligned() };
            let offset = plan.peer_offset + plan.peer_step * rank as u64;
            Some(self.context.resolve(base.checked_add(Bytes(offset))?, Bytes(bytes))?.cast_const())
        };
        let table = self.context.resolve(plan.peers, Bytes(8 * self.world as u64)).ok_or(Ended)?;
        (0..self.world).map(|rank| of(table, rank).ok_or(Ended)).collect()
    }

    /// All other ranks among `peers`, from the one after this on, so that ranks do not all reach
    /// for one rank's memory at once.
    pub(crate) fn others(&self, peers: Peers<'static>) -> impl Iterator<Item = usize> + use<> {
        let (me, world) = (self.me, self.world);
        (1..world).map(move |i| (me + i) % world).filter(move |rank| peers.contains(*rank))
    }
}
