//! Kernels of a user's own: steps on words of memory, a gate that the test opens, and an operation on
//! a lane. Twice: as functions for backends that run those, and for GPUs as a source on the public
//! headers.
#![allow(unsafe_code, reason = "kernels read their argument block and follow its addresses")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

#[cfg(feature = "cuda")]
use symmem_hal::kernels::{KernelSource, SYMMEM_CUH, Unit};
use symmem_hal::types::{Bytes, DType, Layout, Rank};
use symmem_hal::{
    Device, DevicePtr, Function, KeepAlive, Kernel, KernelSet, Launch, LaunchContext, Stream,
};
#[cfg(feature = "cuda")]
use symmem_hal::{Grid, types::BackendKind};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{Allocation, Group, SymmetricMemory, View};
#[cfg(feature = "cuda")]
use symmem_sync::gpu::{SYMMEM_LANE_CUH, SYMMEM_STALLS_CUH, SYMMEM_SYNC_CUH, SymmemLane};
use symmem_sync::host::{Ended, HostMemory, LaneArgs, Session};
use symmem_sync::protocol::Peers;
use symmem_sync::{Issue, Lane, LaneError};

use crate::runner::{PATIENT, TestError, Verdict};

static KERNELS: KernelSet = KernelSet {
    name: "symmem-tests",
    kernels: &[
        Kernel { name: "hold", args: size_of::<Step>(), host: hold },
        Kernel { name: "add", args: size_of::<Step>(), host: add },
        Kernel { name: "copy", args: size_of::<Step>(), host: copy },
        Kernel { name: "exchange", args: size_of::<Exchange>(), host: exchange },
    ],
};

#[cfg(feature = "cuda")]
static SOURCE: KernelSource = KernelSource {
    name: "symmem-tests",
    file: ("steps.cu", include_str!("../../../kernels/steps.cu")),
    headers: &[SYMMEM_CUH, SYMMEM_LANE_CUH, SYMMEM_SYNC_CUH, SYMMEM_STALLS_CUH],
};

/// One warp for an operation's headers, one for its data.
#[cfg(feature = "cuda")]
const GRID: Grid = Grid { blocks: 1, threads: 64, shared: 0, dependent: false, cooperative: false };

/// A step on one word, with a number or another word.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Step {
    word: DevicePtr,
    other: u64,
}

/// Every rank's word, gathered by every rank.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Exchange {
    lane: LaneArgs,
    input: DevicePtr,
    output: DevicePtr,
}

/// The same, of a GPU.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct DeviceExchange {
    lane: SymmemLane,
    input: DevicePtr,
    output: DevicePtr,
}

fn word<'a>(context: &'a LaunchContext<'_>, at: DevicePtr) -> Option<&'a AtomicU64> {
    let at = context.resolve(at, Bytes::new(8))?;
    // SAFETY: every address that these kernels are given is that of an aligned u64 in memory that the
    // launch keeps mapped, and all use it as an atomic.
    Some(unsafe { AtomicU64::from_ptr(at.cast()) })
}

/// Reads the argument block of a kernel that takes `A`.
///
/// # Safety
///
/// As for [`HostFn`](symmem_hal::HostFn).
unsafe fn read<A: bytemuck::Pod>(args: *const u8) -> A {
    // SAFETY: the caller's promise.
    unsafe { *args.cast() }
}

/// Waits until the word is not 0.
unsafe fn hold(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: as `KERNELS` says.
    let args: Step = unsafe { read(args) };
    let Some(gate) = word(context, args.word) else { return context.stop() };
    let deadline = context.deadline();
    while gate.load(Ordering::Acquire) == 0 && Instant::now() < deadline {
        std::thread::yield_now();
    }
}

/// Multiplies the word by 10 and adds a number: the digits tell the order of steps.
unsafe fn add(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: as `KERNELS` says.
    let args: Step = unsafe { read(args) };
    let Some(word) = word(context, args.word) else { return context.stop() };
    word.store(word.load(Ordering::Acquire) * 10 + args.other, Ordering::Release);
}

/// Copies another word to the word.
unsafe fn copy(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: as `KERNELS` says.
    let args: Step = unsafe { read(args) };
    let words = word(context, args.word).zip(word(context, DevicePtr::new(args.other)));
    let Some((to, from)) = words else { return context.stop() };
    to.store(from.load(Ordering::Acquire), Ordering::Release);
}

unsafe fn exchange(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: as `KERNELS` says.
    let args: Exchange = unsafe { read(args) };
    // SAFETY: the lane gave the table of its group, whose regions it keeps mapped.
    let memory = unsafe { HostMemory::new(context, args.lane.table, args.lane.lane) };
    if memory.is_none_or(|memory| gather(context, &memory, args).is_err()) {
        context.stop();
    }
}

fn gather(
    context: &LaunchContext<'_>,
    memory: &HostMemory<'_>,
    args: Exchange,
) -> Result<(), Ended> {
    let at = |rank: usize| word(context, DevicePtr::new(args.output.get() + 8 * rank as u64));
    let mine = word(context, args.input).ok_or(Ended)?.load(Ordering::Acquire);
    if memory.layout().world() == 1 {
        at(0).ok_or(Ended)?.store(mine, Ordering::Release);
        return Ok(());
    }
    let mut session = Session::begin(context, memory, args.lane, Peers::All, Peers::All)?;
    session.put_packet(0, mine)?;
    session.agree()?;
    for rank in 0..session.world() {
        let theirs = if rank == session.rank() { mine } else { session.await_packet(0, rank)? };
        at(rank).ok_or(Ended)?.store(theirs, Ordering::Release);
    }
    session.finish()
}

/// One u64 of device memory.
#[derive(Clone, Debug)]
pub(super) struct Word {
    view: View,
}

impl Word {
    /// A word of its own allocation: 0.
    #[track_caller]
    pub(super) fn new(device: &Device) -> Result<Self, TestError> {
        let allocation = Allocation::new(device, Bytes::new(8))?;
        Ok(Word { view: View::new(&allocation, Bytes::ZERO, DType::U64, Layout::flat(1))? })
    }

    /// Makes it symmetric; collective.
    #[track_caller]
    pub(super) fn share(&self, group: &Group) -> Result<SymmetricMemory, TestError> {
        Ok(group.rendezvous(&self.view, &group.wait())?)
    }

    /// A rank's word of shared ones.
    #[track_caller]
    pub(super) fn of(shared: &SymmetricMemory, rank: Rank) -> Result<Self, TestError> {
        Ok(Word { view: shared.remote(rank)? })
    }

    pub(super) fn view(&self) -> &View {
        &self.view
    }

    #[track_caller]
    pub(super) fn get(&self) -> Result<u64, TestError> {
        let mut value = [0];
        self.view.read(&mut value)?;
        Ok(value[0])
    }

    #[track_caller]
    pub(super) fn set(&self, value: u64) -> Verdict {
        Ok(self.view.write(&[value])?)
    }
}

/// The kernels, on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    hold: Function,
    add: Function,
    copy: Function,
    exchange: Function,
}

impl Kernels {
    #[track_caller]
    pub(super) fn new(device: &Device) -> Result<Self, TestError> {
        #[cfg(feature = "cuda")]
        if device.kind() == BackendKind::Cuda {
            let module = device.compile(&Unit { source: &SOURCE, defines: &[] })?;
            let step = |name| module.device_function(name, size_of::<Step>());
            return Ok(Kernels {
                hold: step("hold")?,
                add: step("add")?,
                copy: step("copy")?,
                exchange: module.device_function("exchange", size_of::<DeviceExchange>())?,
            });
        }
        let module = device.load(&KERNELS)?;
        Ok(Kernels {
            hold: module.function("hold")?,
            add: module.function("add")?,
            copy: module.function("copy")?,
            exchange: module.function("exchange")?,
        })
    }

    #[track_caller]
    fn step(stream: &Stream, function: Function, words: &[&Word], other: u64) -> Verdict {
        let args = Step { word: words[0].view.ptr(), other };
        let keep: Vec<KeepAlive> =
            words.iter().map(|w| Arc::new(w.view.clone()) as KeepAlive).collect();
        // SAFETY: the kernel takes a Step; its addresses are of words that `keep` holds.
        unsafe { stream.launch(Launch::new(function, &args, &PATIENT, &keep)) }?;
        Ok(())
    }

    /// Holds a stream up until the word is set.
    #[track_caller]
    pub(super) fn hold(&self, stream: &Stream, gate: &Word) -> Verdict {
        Self::step(stream, self.hold, &[gate], 0)
    }

    /// Adds a digit to a word.
    #[track_caller]
    pub(super) fn add(&self, stream: &Stream, word: &Word, digit: u64) -> Verdict {
        Self::step(stream, self.add, &[word], digit)
    }

    /// Copies a word to another.
    #[track_caller]
    pub(super) fn copy(&self, stream: &Stream, to: &Word, from: &Word) -> Verdict {
        Self::step(stream, self.copy, &[to, from], from.view.ptr().get())
    }
}

/// An operation by which every rank gets every rank's word, with memory for it.
#[derive(Debug)]
pub(super) struct Gather {
    kernels: Kernels,
    rank: u64,
    pub(super) input: Word,
    output: View,
}

impl Gather {
    #[track_caller]
    pub(super) fn new(group: &Group) -> Result<Self, TestError> {
        let (device, world) = (group.device(), group.size() as u64);
        let output = Allocation::new(device, Bytes::new(8 * world))?;
        Ok(Gather {
            kernels: Kernels::new(device)?,
            rank: group.rank().index() as u64,
            input: Word::new(device)?,
            output: View::new(&output, Bytes::ZERO, DType::U64, Layout::flat(world))?,
        })
    }

    /// Issues it; `tag` must be equal on every rank.
    pub(super) fn issue(
        &self,
        lane: Lane<'_>,
        stream: &Stream,
        wait: &symmem_hal::Wait,
        tag: u64,
    ) -> Result<(), LaneError> {
        let issue = Issue {
            stream,
            wait,
            function: self.kernels.exchange,
            operation: Operation::Custom,
            signature: Signature::new(Operation::Custom, None, None, &[tag, lane.index().into()]),
        };
        let (input, output) = (&self.input.view, &self.output);
        #[cfg(feature = "cuda")]
        if self.kernels.exchange.backend() == BackendKind::Cuda {
            let args = |lane| DeviceExchange { lane, input: input.ptr(), output: output.ptr() };
            let keep = || vec![input.keep_alive(), output.keep_alive()];
            // SAFETY: as below.
            return unsafe { lane.issue_device(issue, GRID, args, keep) };
        }
        let args = |lane| Exchange { lane, input: input.ptr(), output: output.ptr() };
        // SAFETY: the kernel takes an Exchange; its words are of views that `keep` holds.
        unsafe { lane.issue(issue, args, || vec![input.keep_alive(), output.keep_alive()]) }
    }

    /// Says what this rank gives in a round.
    #[track_caller]
    pub(super) fn offer(&self, round: u64) -> Verdict {
        self.input.set(Self::word(self.rank, round))
    }

    fn word(rank: u64, round: u64) -> u64 {
        (round + 1) << 32 | rank
    }

    /// What has come, by rank.
    #[track_caller]
    pub(super) fn found(&self) -> Result<Vec<u64>, TestError> {
        let mut found = vec![0; self.output.count() as usize];
        self.output.read(&mut found)?;
        Ok(found)
    }

    /// That every rank's word of a round has come, and nothing else.
    #[track_caller]
    pub(super) fn check(&self, round: u64) -> Verdict {
        let found = self.found()?;
        let expected: Vec<u64> =
            (0..found.len() as u64).map(|rank| Self::word(rank, round)).collect();
        crate::check_eq!(found, expected, "round {round}");
        Ok(())
    }
}
