//! Signals and barriers as kernels.
#![allow(unsafe_code, reason = "kernels read their argument block and follow its addresses")]

use core::convert::Infallible;
use core::sync::atomic::{AtomicU32, Ordering};

use symmem_hal::types::{Bytes, RankSet};
use symmem_hal::{DevicePtr, Kernel, KernelSet, LaunchContext, shm};

use super::memory::Words;
use super::session;
use super::wait::{Limits, Stopped, Waiter, patience, ring, ring_all};
use crate::protocol::barrier::{Barrier, Channel, Reset};
use crate::protocol::control::{Cause, Look};
use crate::protocol::lane::LookedBack;
use crate::protocol::{ControlMemory, Epoch, LaneMemory, Progress, SignalMemory, Word, lane, slot};
use crate::signals::{SignalCall, fault};
use crate::stalls::{self, Step};

/// The kernels of this crate.
pub(crate) static KERNELS: KernelSet = KernelSet {
    name: "symmem-sync",
    kernels: &[
        Kernel { name: "barrier", args: size_of::<SignalArgs>(), host: barrier },
        Kernel { name: "put_signal", args: size_of::<SignalArgs>(), host: put_signal },
        Kernel { name: "put_with_signal", args: size_of::<PutArgs>(), host: put_with_signal },
        Kernel { name: "wait_signal", args: size_of::<SignalArgs>(), host: wait_signal },
        Kernel { name: "open_lanes", args: size_of::<SignalArgs>(), host: open_lanes },
        Kernel { name: "look_back", args: size_of::<SignalArgs>(), host: look_back },
        Kernel { name: "reset_channel", args: size_of::<SignalArgs>(), host: reset_channel },
    ],
};

/// Arguments of barrier, put and wait.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct SignalArgs {
    pub table: DevicePtr,
    pub channel: u32,
    /// The other rank of a put or wait.
    pub peer: u32,
}

/// Arguments of a put of data with its signal. Begins as those of a put.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct PutArgs {
    pub signal: SignalArgs,
    pub source: DevicePtr,
    pub target: DevicePtr,
    pub bytes: u64,
}

/// Reads the block and follows its table.
///
/// # Safety
///
/// As for [`HostFn`](symmem_hal::HostFn), of a kernel whose arguments begin with [`SignalArgs`].
unsafe fn open<'a>(
    context: &'a LaunchContext<'_>,
    args: *const u8,
) -> Option<(SignalArgs, Words<'a>)> {
    // SAFETY: the caller's promise.
    let args = unsafe { *args.cast::<SignalArgs>() };
    // SAFETY: launches of this crate pass the group's table and keep its regions.
    let memory = unsafe { Words::new(context, args.table, 0) }?;
    Some((args, memory))
}

fn load(words: [&AtomicU32; 3]) -> Channel {
    Channel::decode(words.map(|w| w.load(Ordering::Relaxed)))
}

fn store(words: [&AtomicU32; 3], channel: Channel) {
    for (word, value) in words.into_iter().zip(channel.encode()) {
        word.store(value, Ordering::Relaxed);
    }
}

/// What a wait looks at when it has missed. A failure of the group is none of a channel's.
fn look(memory: &Words<'_>, missing: RankSet, limits: Limits) -> Look {
    let page = memory.control(SignalMemory::rank(memory));
    let lost = page.and_then(|page| missing.iter().find(|rank| page.is_lost(*rank)));
    Look { aborted: false, lost, cancelled: limits.cancelled, overdue: limits.overdue }
}

/// Reports a wait that ended early, and breaks the channel.
fn give_up(
    context: &LaunchContext<'_>,
    memory: &Words<'_>,
    call: SignalCall,
    args: SignalArgs,
    stopped: Stopped<Infallible>,
    missing: &RankSet,
) {
    let Stopped::Without(cause) = stopped;
    let (kind, ranks) = match cause {
        Cause::Lost(rank) => (fault::LOST, &RankSet::one(rank)),
        Cause::Cancelled => (fault::CANCELLED, missing),
        Cause::Overdue | Cause::Aborted => (fault::TIMED_OUT, missing),
    };
    report(context, memory, call, args.channel, kind, ranks);
    let words = memory.channel(args.channel as usize);
    let mut channel = load(words);
    channel.fail();
    store(words, channel);
}

fn report(
    context: &LaunchContext<'_>,
    memory: &Words<'_>,
    call: SignalCall,
    channel: u32,
    kind: u32,
    ranks: &RankSet,
) {
    let (mask, word, any) = memory.fault(channel);
    for (i, m) in mask.iter().enumerate() {
        let bits = (0..64).filter(|b| ranks.contains(i * 64 + b)).fold(0, |acc, b| acc | 1 << b);
        m.store(bits, Ordering::Relaxed);
    }
    word.store(fault::encode(call, kind, channel), Ordering::Release);
    any.store(1, Ordering::Release);
    context.stop();
}

unsafe fn open_lanes(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: as in `barrier`.
    let Some((args, first)) = (unsafe { open(context, args) }) else { return };
    let completed = Epoch::new(first.layout().first_epoch).unwrap_or(Epoch::FRESH);
    for index in 0..first.layout().lanes {
        // SAFETY: as in `open`.
        if let Some(memory) = unsafe { Words::new(context, args.table, index) } {
            lane::initialise(&memory, completed);
        }
    }
    ring_all(&first);
}

unsafe fn barrier(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: this kernel's arguments are SignalArgs (KERNELS).
    let Some((args, memory)) = (unsafe { open(context, args) }) else { return };
    let index = args.channel as usize;
    let mut channel = load(memory.channel(index));
    stalls::at(&memory, Step::Arrive);
    let Ok(mut barrier) = Barrier::arrive(&memory, index, &mut channel) else {
        return report(
            context,
            &memory,
            SignalCall::Barrier,
            args.channel,
            fault::BROKEN,
            &RankSet::new(),
        );
    };
    ring_all(&memory);
    stalls::at(&memory, Step::AwaitArrivals);
    let mut waiter = Waiter::new(context, &memory);
    let ended = waiter.until(
        &mut barrier,
        |b| Ok(b.poll()),
        |b, _, limits| Ok(look(&memory, b.missing(), limits)),
    );
    let missing = if ended.is_err() { barrier.missing() } else { RankSet::new() };
    store(memory.channel(index), channel);
    if let Err(stopped) = ended {
        return give_up(context, &memory, SignalCall::Barrier, args, stopped, &missing);
    }
    // Every rank has come here after what it issued before.
    let patient = patience(context.wait(), waiter.deadline());
    compare_last_calls(context, memory, patient);
}

unsafe fn look_back(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: as in `barrier`.
    if let Some((_, memory)) = unsafe { open(context, args) } {
        // Whoever leaves waits for nobody.
        compare_last_calls(context, memory, || false);
    }
}

/// Fails the group where the last calls of two ranks on a lane differ. That of a rank whose data
/// nobody consumed is compared by the next operation, and there may be none. The launch is stopped
/// where the group has failed, by this or before.
fn compare_last_calls(
    context: &LaunchContext<'_>,
    mut memory: Words<'_>,
    patient: impl FnMut() -> bool,
) {
    if memory.control(SignalMemory::rank(&memory)).is_none_or(|page| page.is_aborted()) {
        return context.stop();
    }
    for lane in 0..memory.layout().lanes {
        memory.turn_to(lane);
        // Of a lane that was not used since, all is known.
        let (next, compared) = (memory.epoch_copy(0).load_acquire(), memory.compared());
        if compared.load(Ordering::Relaxed) == next {
            continue;
        }
        match lane::look_back(&memory) {
            Ok(LookedBack::All) => compared.store(next, Ordering::Relaxed),
            Ok(LookedBack::Part) => {}
            Err(mismatch) => {
                session::report_mismatch(&memory, patient, lane, mismatch);
                return context.stop();
            }
        }
    }
}

unsafe fn put_signal(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: as in `barrier`.
    let Some((args, memory)) = (unsafe { open(context, args) }) else { return };
    let peer = args.peer as usize;
    let word = memory.slot(args.channel as usize, SignalMemory::rank(&memory), peer);
    stalls::at(&memory, Step::AwaitEmpty);
    let fill = || stalls::at(&memory, Step::FillSlot);
    on_slot(context, &memory, SignalCall::Put, args, || slot::poll_put_after(word, fill));
}

unsafe fn put_with_signal(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: this kernel's arguments are PutArgs (KERNELS), which begin with SignalArgs.
    let (put, opened) = unsafe { (*args.cast::<PutArgs>(), open(context, args)) };
    let Some((args, memory)) = opened else { return };
    let bytes = Bytes(put.bytes);
    let ranges = (context.resolve(put.source, bytes), context.resolve(put.target, bytes));
    let ((Some(source), Some(target)), Some(length)) = (ranges, bytes.to_usize()) else {
        return context.stop();
    };
    // SAFETY: both are ranges of views, which the launch keeps mapped. Others may be at them: the
    // copy is by atomics.
    let copy = || unsafe { shm::copy_between(source, target, length) };
    stalls::at(&memory, Step::AwaitEmpty);
    let put = || {
        stalls::at(&memory, Step::PutData);
        copy();
        stalls::at(&memory, Step::FillSlot);
    };
    let peer = args.peer as usize;
    let word = memory.slot(args.channel as usize, SignalMemory::rank(&memory), peer);
    let step = || slot::poll_put_after(word, put);
    on_slot(context, &memory, SignalCall::PutWithSignal, args, step);
}

unsafe fn wait_signal(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: as in `barrier`.
    let Some((args, memory)) = (unsafe { open(context, args) }) else { return };
    let peer = args.peer as usize;
    let word = memory.slot(args.channel as usize, peer, SignalMemory::rank(&memory));
    stalls::at(&memory, Step::AwaitFull);
    let take = || stalls::at(&memory, Step::EmptySlot);
    on_slot(context, &memory, SignalCall::Wait, args, || slot::poll_wait_before(word, take));
}

/// Polls a slot until its step is made, and wakes the other side.
fn on_slot(
    context: &LaunchContext<'_>,
    memory: &Words<'_>,
    call: SignalCall,
    args: SignalArgs,
    mut step: impl FnMut() -> bool,
) {
    if load(memory.channel(args.channel as usize)).is_broken() {
        return report(context, memory, call, args.channel, fault::BROKEN, &RankSet::new());
    }
    let writer = args.peer as usize;
    let poll =
        |(): &mut ()| Ok(if step() { Progress::Ready(()) } else { Progress::Pending { writer } });
    let ended = Waiter::new(context, memory)
        .until(&mut (), poll, |(), writer, limits| Ok(look(memory, RankSet::one(writer), limits)));
    match ended {
        Ok(()) => ring(memory, writer),
        Err(stopped) => give_up(context, memory, call, args, stopped, &RankSet::one(writer)),
    }
}

unsafe fn reset_channel(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: as in `barrier`.
    let Some((args, memory)) = (unsafe { open(context, args) }) else { return };
    let index = args.channel as usize;
    let mut channel = load(memory.channel(index));
    stalls::at(&memory, Step::Reset);
    let mut reset = Reset::begin(&memory, index, &mut channel);
    stalls::at(&memory, Step::AwaitReset);
    let poll = |r: &mut Reset<'_, _>| {
        let progress = r.poll();
        // Each poll may have published the next step of the reset.
        ring_all(&memory);
        Ok(progress)
    };
    let ended = Waiter::new(context, &memory)
        .until(&mut reset, poll, |r, _, limits| Ok(look(&memory, r.missing(), limits)));
    let missing = if ended.is_err() { reset.missing() } else { RankSet::new() };
    store(memory.channel(index), channel);
    if let Err(stopped) = ended {
        give_up(context, &memory, SignalCall::Reset, args, stopped, &missing);
    }
}
