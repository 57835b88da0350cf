//! What the executors for a CPU are made of.
#![allow(unsafe_code, reason = "follows addresses; copies memory that peers write")]

use smallvec::{Array, SmallVec};
use symmem_hal::types::Bytes;
use symmem_hal::{DevicePtr, HostFn, Kernel, KernelSet, LaunchContext};
use symmem_mem::call::Operation;
use symmem_sync::host::{Ended, HostMemory, LaneArgs, Session};

use crate::all_to_all_vdev::{self, HostPlan};
use crate::landing;
use crate::landing::plan::{ReceiveBackPlan, ReceivePlan, SendBackPlan, SendPlan};
use crate::routing::{self, CombinePlan, DispatchPlan, OnHost};
use crate::verdict::{Finding, Record};

/// The operations of this crate.
pub(crate) const OPERATIONS: [Operation; 9] = [
    Operation::AllToAllVdev,
    Operation::AllToAllVdev2d,
    Operation::AllToAllVdev2dOffset,
    Operation::Dispatch,
    Operation::Combine,
    Operation::DispatchSend,
    Operation::DispatchReceive,
    Operation::CombineSend,
    Operation::CombineReceive,
];

const fn kernel_of(operation: Operation, args: usize, host: HostFn) -> Kernel {
    Kernel { name: operation.name(), args, host }
}

/// The kernels of this crate.
pub(crate) static KERNELS: KernelSet = KernelSet {
    name: "symmem-moe",
    kernels: &[
        kernel_of(OPERATIONS[0], size_of::<HostPlan>(), all_to_all_vdev::host::run),
        kernel_of(OPERATIONS[1], size_of::<HostPlan>(), all_to_all_vdev::host::run),
        kernel_of(OPERATIONS[2], size_of::<HostPlan>(), all_to_all_vdev::host::run),
        kernel_of(OPERATIONS[3], size_of::<OnHost<DispatchPlan>>(), routing::host::dispatch),
        kernel_of(OPERATIONS[4], size_of::<OnHost<CombinePlan>>(), routing::host::combine),
        kernel_of(OPERATIONS[5], size_of::<OnHost<SendPlan>>(), landing::host::run_send),
        kernel_of(OPERATIONS[6], size_of::<OnHost<ReceivePlan>>(), landing::host::run_receive),
        kernel_of(OPERATIONS[7], size_of::<OnHost<SendBackPlan>>(), landing::host::run_send_back),
        kernel_of(
            OPERATIONS[8],
            size_of::<OnHost<ReceiveBackPlan>>(),
            landing::host::run_receive_back,
        ),
    ],
};

/// A lane, for the length of one launch.
pub(crate) struct Lane<'a> {
    pub context: &'a LaunchContext<'a>,
    pub memory: &'a HostMemory<'a>,
    pub args: LaneArgs,
}

impl Lane<'_> {
    pub(crate) fn world(&self) -> usize {
        self.memory.layout().world()
    }

    pub(crate) fn me(&self) -> usize {
        self.memory.layout().rank()
    }

    /// Where an address of the plan lies. None is followed where there are no bytes.
    pub(crate) fn follow(&self, ptr: DevicePtr, bytes: u64) -> Result<*mut u8, Ended> {
        if bytes == 0 {
            return Ok(core::ptr::dangling_mut());
        }
        self.context.resolve(ptr, Bytes(bytes)).ok_or(Ended)
    }

    /// Where `bytes` bytes of a rank's symmetric memory begin, `offset` bytes into its allocation, by the
    /// table of all ranks' allocations.
    pub(crate) fn peer(
        &self,
        table: DevicePtr,
        rank: usize,
        offset: u64,
        bytes: u64,
    ) -> Result<*mut u8, Ended> {
        let table = self.follow(table, 8 * self.world() as u64)?;
        // SAFETY: the table holds an address a rank; it was written once, at rendezvous.
        let base = unsafe { table.cast::<DevicePtr>().add(rank).read_unaligned() };
        self.follow(base.checked_add(Bytes(offset)).ok_or(Ended)?, bytes)
    }

    /// Gives every rank the `count` words of each: this rank's are in its place of `all`. By packets where
    /// they fit, else through staging, a piece at a time. Returns how many steps were raised.
    pub(crate) fn gather(
        &self,
        session: &mut Session<'_>,
        all: &mut [u64],
        count: usize,
    ) -> Result<u32, Ended> {
        let (me, world, room) = (self.me(), self.world(), self.memory.layout().capacities());
        let peers = move || (1..world).map(move |i| (me + i) % world);
        if count as u64 * 8 <= room.packet_capacity().get() {
            for (i, word) in all[me * count..][..count].iter().enumerate() {
                session.put_packet(i, *word)?;
            }
            session.agree()?;
            for peer in peers() {
                for (i, word) in all[peer * count..][..count].iter_mut().enumerate() {
                    *word = session.await_packet(i, peer)?;
                }
            }
            return Ok(0);
        }
        let piece = (room.chunk_capacity().get() / 8) as usize;
        session.agree()?;
        for (k, start) in (0..count).step_by(piece).enumerate() {
            let length = piece.min(count - start);
            let own = &all[me * count + start..][..length];
            // SAFETY: a piece fits in a staging. What was there two pieces before has been read by all:
            // each raised the step of the piece between them after that, and it was awaited.
            unsafe {
                let to = session.staging(me, k).cast();
                own.as_ptr().copy_to_nonoverlapping(to, length);
            }
            session.raise(k as u32 + 1);
            for peer in peers() {
                session.await_flag(peer, k as u32 + 1)?;
                let to = all[peer * count + start..][..length].as_mut_ptr();
                // SAFETY: as many words were stored there before the peer's step.
                unsafe {
                    session.staging(peer, k).cast::<u64>().copy_to_nonoverlapping(to, length)
                };
            }
        }
        Ok(count.div_ceil(piece) as u32)
    }

    /// Ends an operation that has raised steps up to `raised`, the same on every rank.
    pub(crate) fn finish(
        &self,
        mut session: Session<'_>,
        raised: u32,
        of_group: bool,
    ) -> Result<(), Ended> {
        if of_group {
            session.agree()?;
            session.raise(raised + 1);
            session.await_all(raised + 1)?;
        }
        session.finish()
    }
}

/// What every kernel of this crate does: follows the table of its group and runs `body`.
///
/// # Safety
///
/// `args` is what the lane gave for this launch.
pub(crate) unsafe fn kernel<P: core::fmt::Debug>(
    context: &LaunchContext<'_>,
    args: LaneArgs,
    plan: &P,
    body: impl FnOnce(&Lane<'_>, &P) -> Result<(), Ended>,
) {
    // SAFETY: the lane gave the table of its group, whose regions it keeps mapped.
    let memory = unsafe { HostMemory::new(context, args.table, args.lane) };
    let Some(memory) = memory else {
        context.stop();
        // Every address was checked or mapped by the layers above, so this is a bug of theirs; the peers'
        // deadline ends the operation.
        tracing::error!(?plan, "an operation was launched with addresses that mean nothing");
        return;
    };
    // How it ended early is in the control page.
    if body(&Lane { context, memory: &memory, args }, plan).is_err() {
        context.stop();
    }
}

/// Reads one word.
pub(crate) fn read_word(lane: &Lane<'_>, from: DevicePtr) -> Result<u64, Ended> {
    let from = lane.follow(from, 8)?;
    // SAFETY: as many bytes are there (`follow`), of this rank's own memory, which nobody writes during the
    // operation.
    Ok(unsafe { from.cast::<u64>().read_unaligned() })
}

/// Copies `count` words in.
pub(crate) fn read_words<T: bytemuck::Pod, A: Array<Item = T>>(
    lane: &Lane<'_>,
    from: DevicePtr,
    count: usize,
) -> Result<SmallVec<A>, Ended> {
    let bytes = (count * size_of::<T>()) as u64;
    let from = lane.follow(from, bytes)?;
    let mut words: SmallVec<A> = SmallVec::from_elem(T::zeroed(), count);
    // SAFETY: as many bytes are there (`follow`), of the caller's view, which nobody writes during the
    // operation.
    unsafe { from.cast_const().copy_to_nonoverlapping(words.as_mut_ptr().cast(), bytes as usize) };
    Ok(words)
}

/// Copies words out.
pub(crate) fn write_words<T: bytemuck::Pod>(
    lane: &Lane<'_>,
    to: DevicePtr,
    words: &[T],
) -> Result<(), Ended> {
    let bytes = size_of_val(words) as u64;
    let to = lane.follow(to, bytes)?;
    // SAFETY: as many bytes are there (`follow`), of a view that is this call's to write.
    unsafe { words.as_ptr().cast::<u8>().copy_to_nonoverlapping(to, bytes as usize) };
    Ok(())
}

/// Writes what became of a call into the lane's status record, unless the host has yet to take what is there.
pub(crate) fn record(
    lane: &Lane<'_>,
    status: DevicePtr,
    verdict: Option<(usize, Finding)>,
    dropped: u64,
) -> Result<(), Ended> {
    if verdict.is_none() && dropped == 0 {
        return Ok(());
    }
    let at = lane.follow(status, size_of::<Record>() as u64)?.cast::<Record>();
    // SAFETY: the record lies there for as long as the group, aligned to 8. Kernels of the lane write it one
    // after the other; the host reads words, and clears the rank alone.
    unsafe {
        let rank = core::sync::atomic::AtomicU64::from_ptr(&raw mut (*at).rank);
        let total = core::sync::atomic::AtomicU64::from_ptr(&raw mut (*at).dropped);
        total.fetch_add(dropped, core::sync::atomic::Ordering::Relaxed);
        if let Some((culprit, finding)) = verdict
            && rank.load(core::sync::atomic::Ordering::Acquire) == 0
        {
            (&raw mut (*at).finding).write_volatile(finding);
            rank.store(1 + culprit as u64, core::sync::atomic::Ordering::Release);
        }
    }
    Ok(())
}
