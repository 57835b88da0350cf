//! One operation on a lane, for an executor.
#![allow(unsafe_code, reason = "makes an atomic of the count of an operation's runs")]

use core::sync::atomic::{AtomicU64, Ordering};

use symmem_hal::types::{Bytes, RankSet};
use symmem_hal::{DevicePtr, LaunchContext};
use symmem_mem::call::Issued;

use super::HostMemory;
use super::memory::Words;
use super::wait::{Limits, Stopped, Waiter, ring_all};
use crate::protocol::control::{self, Cause, Look, Reason, Record, Verdict};
use crate::protocol::lane::{self, Agreed, Phase};
use crate::protocol::{
    Call, ControlMemory, Entry, Epoch, Header, LaneMemory, Mismatch, Operation, Parity, Peers,
    Progress, Refused, Seat,
};
use crate::stalls::{self, Step};

/// What every kernel of a lane operation is given first.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct LaneArgs {
    /// The table of the group's workspace.
    pub table: DevicePtr,
    /// What the caller says of the call; see [`Signature`](symmem_mem::call::Signature).
    pub signature: u64,
    /// How many operations this rank has issued on the lane, this one included, if it is none in a
    /// graph.
    pub issue: u64,
    /// Where the runs of an operation in a graph are counted, in a u64 that its kernels alone touch;
    /// null for any other.
    pub runs: DevicePtr,
    /// The lane.
    pub lane: u32,
    /// The operation's code.
    pub operation: u32,
}

/// An operation that ended early. Its reason is recorded in the control pages, for whoever asks the
/// group; the kernel just returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

/// One operation under way on this rank.
///
/// Begun, it may store into this rank's packets and staging. What peers stored may be read after
/// [`agree`](Self::agree) and the packet's or flag's arrival. [`finish`](Self::finish) ends it
/// after the last read; dropping it instead leaves the lane dead, which is what a failure does.
pub struct Session<'a> {
    memory: &'a Words<'a>,
    args: LaneArgs,
    waiter: Waiter<'a>,
    operation: Operation<'a, Words<'a>>,
    agreed: Option<Agreed>,
    /// Something was stored that sleeping peers have not been woken for.
    unrung: bool,
}

impl core::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Session")
            .field("args", &self.args)
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

impl<'a> Session<'a> {
    /// Enters the lane, waits until this rank may store, publishes the call's header. `feeds` and
    /// `consumes` are the ranks whose data moves from and to this one.
    ///
    /// # Errors
    ///
    /// [`Ended`]: the lane is closed or busy, or the wait ended early.
    pub fn begin(
        context: &'a LaunchContext<'_>,
        memory: &'a HostMemory<'a>,
        args: LaneArgs,
        feeds: Peers<'a>,
        consumes: Peers<'a>,
    ) -> Result<Self, Ended> {
        let memory = &memory.0;
        let seat = Seat { block: 0, grid: 1, checked: memory.layout().checked != 0 };
        let issue = issue_word(context, args).ok_or(Ended)?;
        let header = Header { signature: args.signature, issue };
        let mut waiter = Waiter::new(context, memory);
        stalls::at(memory, Step::Enter);
        let mut arrival = match lane::enter(memory, seat, Call { header, feeds, consumes }) {
            Ok(arrival) => arrival,
            Err(refused) => return Err(refuse(memory, &waiter, args, refused)),
        };
        let epoch = arrival.epoch();
        stalls::at(memory, Step::AwaitReaders);
        let clear = match waiter.until(&mut arrival, |a| a.poll(), look(memory)) {
            Ok(clear) => clear,
            Err(stopped) => {
                let missing = arrival.missing();
                return Err(stop(memory, &waiter, args, epoch, stopped, missing));
            }
        };
        stalls::at(memory, Step::PublishHeader);
        let operation = arrival.publish(clear);
        Ok(Session { memory, args, waiter, operation, agreed: None, unrung: true })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        ControlMemory::rank(self.memory)
    }

    /// The number of ranks.
    #[must_use]
    pub fn world(&self) -> usize {
        ControlMemory::world(self.memory)
    }

    /// The epoch of the operation.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.operation.epoch()
    }

    /// The staging of a rank for this epoch and a chunk: read a peer's after its flag, write only
    /// this rank's own.
    ///
    /// Holds [`Capacities::chunk_capacity`](crate::Capacities::chunk_capacity) bytes twice: for a chunk of
    /// input, and for a result. Null for a rank that the group does not have.
    #[must_use]
    pub fn staging(&self, rank: usize, chunk: usize) -> *mut u8 {
        if rank >= self.world() {
            return core::ptr::null_mut();
        }
        let step = if rank == self.rank() { Step::WriteStaging } else { Step::ReadStaging };
        stalls::at(self.memory, step);
        let parity: Parity = self.epoch().parity();
        self.memory.staging(rank, parity, chunk)
    }

    /// Stores one packet for all readers.
    ///
    /// # Errors
    ///
    /// [`Ended`] where the lane has no such packet: nothing is stored.
    pub fn put_packet(&mut self, index: usize, data: u64) -> Result<(), Ended> {
        if index >= LaneMemory::packets(self.memory) {
            return Err(Ended);
        }
        stalls::at(self.memory, Step::PutPacket);
        self.operation.put(index, data);
        self.unrung = true;
        Ok(())
    }

    /// The packet of a peer.
    ///
    /// # Errors
    ///
    /// [`Ended`] where the wait ended early.
    pub fn await_packet(&mut self, index: usize, writer: usize) -> Result<u64, Ended> {
        if index >= LaneMemory::packets(self.memory) || writer >= self.world() {
            return Err(Ended);
        }
        stalls::at(self.memory, Step::PollPacket);
        // The common case: it is there.
        if let Progress::Ready(data) = self.operation.poll_packet(index, writer) {
            return Ok(data);
        }
        self.ring();
        let poll = |o: &mut Operation<'a, _>| Ok(o.poll_packet(index, writer));
        let ended = self.waiter.until(&mut self.operation, poll, look(self.memory));
        ended.map_err(|stopped| {
            let epoch = self.operation.epoch();
            stop(self.memory, &self.waiter, self.args, epoch, stopped, RankSet::one(writer))
        })
    }

    /// Tells all readers that everything up to `step` is stored. Steps ascend from 1.
    pub fn raise(&mut self, step: u32) {
        stalls::at(self.memory, Step::RaiseFlag);
        self.operation.raise(step);
        self.unrung = true;
        self.ring();
    }

    /// Waits until every peer has raised `step`.
    ///
    /// # Errors
    ///
    /// [`Ended`] where the wait ended early.
    pub fn await_all(&mut self, step: u32) -> Result<(), Ended> {
        let me = self.rank();
        (0..self.world()).filter(|w| *w != me).try_for_each(|writer| self.await_flag(writer, step))
    }

    /// Waits until a peer has raised `step`.
    ///
    /// # Errors
    ///
    /// [`Ended`] where the wait ended early.
    pub fn await_flag(&mut self, writer: usize, step: u32) -> Result<(), Ended> {
        if writer >= self.world() {
            return Err(Ended);
        }
        stalls::at(self.memory, Step::AwaitFlag);
        if let Progress::Ready(()) = self.operation.poll_flag(writer, step) {
            return Ok(());
        }
        self.ring();
        let poll = |o: &mut Operation<'a, _>| Ok(o.poll_flag(writer, step));
        let ended = self.waiter.until(&mut self.operation, poll, look(self.memory));
        ended.map_err(|stopped| {
            let (me, operation) = (self.rank(), &self.operation);
            let missing = (0..self.world())
                .filter(|w| *w != me && operation.poll_flag(*w, step) != Progress::Ready(()));
            let (epoch, missing) = (operation.epoch(), missing.collect());
            stop(self.memory, &self.waiter, self.args, epoch, stopped, missing)
        })
    }

    /// Waits until every peer whose data this rank consumes has shown the same call. Before this,
    /// nothing of theirs has a meaning.
    ///
    /// # Errors
    ///
    /// [`Ended`]: a peer's call differs, or the wait ended early.
    pub fn agree(&mut self) -> Result<(), Ended> {
        if self.agreed.is_some() {
            return Ok(());
        }
        self.ring();
        stalls::at(self.memory, Step::Compare);
        let poll = |o: &mut Operation<'a, _>| o.poll_headers();
        match self.waiter.until(&mut self.operation, poll, look(self.memory)) {
            Ok(agreed) => {
                self.agreed = Some(agreed);
                Ok(())
            }
            Err(stopped) => {
                let (epoch, missing) = (self.operation.epoch(), self.operation.missing());
                Err(stop(self.memory, &self.waiter, self.args, epoch, stopped, missing))
            }
        }
    }

    /// Ends the operation, after the last read of what peers stored.
    ///
    /// # Errors
    ///
    /// As [`agree`](Self::agree), where that was not called.
    pub fn finish(mut self) -> Result<(), Ended> {
        self.agree()?;
        let agreed = self.agreed.take().ok_or(Ended)?;
        self.ring();
        if self.epoch().scrub_due() {
            stalls::at(self.memory, Step::Scrub);
        }
        stalls::at(self.memory, Step::Exit);
        let _ = self.operation.exit(agreed);
        Ok(())
    }

    fn ring(&mut self) {
        if core::mem::take(&mut self.unrung) {
            ring_all(self.memory);
        }
    }
}

/// What a wait of a phase looks at when it has missed.
fn look<P: Phase>(memory: &Words<'_>) -> impl Fn(&P, usize, Limits) -> Result<Look, Mismatch> {
    let page = memory.control(ControlMemory::rank(memory));
    move |phase, writer, limits| match &page {
        Some(page) => phase.look(writer, page, limits.cancelled, limits.overdue),
        None => Ok(Look::default()),
    }
}

/// Which issue of its call this is; counts a run of an operation in a graph. `None` where the count's
/// address means nothing.
fn issue_word(context: &LaunchContext<'_>, args: LaneArgs) -> Option<u64> {
    if args.runs.is_null() {
        return Some(args.issue);
    }
    let word = context.resolve(args.runs, Bytes(8))?;
    // SAFETY: eight aligned bytes that the lane made for this operation and the graph keeps mapped;
    // only ever used as an atomic.
    let runs = unsafe { AtomicU64::from_ptr(word.cast()) };
    // Runs of one operation follow each other, so that nobody counts beside this.
    Some(Issued::REPLAY | (runs.fetch_add(1, Ordering::Relaxed) + 1))
}

fn refuse(memory: &Words<'_>, waiter: &Waiter<'_>, args: LaneArgs, refused: Refused) -> Ended {
    match refused {
        Refused::Busy { .. } => {
            give_up(memory, waiter.patience(), args, None, Reason::LaneBusy, None, RankSet::new());
        }
        // The lane has its reason; the launch of the graph has none yet.
        Refused::Failed | Refused::Retired if !args.runs.is_null() => {
            memory.stale().store(1, Ordering::Release);
        }
        Refused::Failed | Refused::Retired => {}
    }
    Ended
}

/// Reports why an operation stops, and closes the lane on this rank.
fn stop(
    memory: &Words<'_>,
    waiter: &Waiter<'_>,
    args: LaneArgs,
    epoch: Epoch,
    stopped: Stopped<Mismatch>,
    missing: RankSet,
) -> Ended {
    match stopped {
        Stopped::Without(Cause::Aborted) => {
            // Somebody has reported; it is in this rank's page.
            Entry::fail(memory.entry());
        }
        Stopped::Without(Cause::Lost(rank)) => {
            let page = memory.control(ControlMemory::rank(memory));
            let left = page.is_some_and(|page| page.has_left(rank));
            let reason = if left { Reason::PeerLeft } else { Reason::PeerLost };
            give_up(memory, waiter.patience(), args, Some(epoch), reason, Some(rank), missing);
        }
        Stopped::Without(Cause::Cancelled) => {
            give_up(memory, waiter.patience(), args, Some(epoch), Reason::Cancelled, None, missing);
        }
        Stopped::Without(Cause::Overdue) => {
            give_up(memory, waiter.patience(), args, Some(epoch), Reason::TimedOut, None, missing);
        }
        Stopped::Found(Mismatch { rank, epoch, difference }) => {
            let reason = Reason::CallMismatch(difference);
            give_up(
                memory,
                waiter.patience(),
                args,
                Some(epoch),
                reason,
                Some(rank),
                RankSet::new(),
            );
        }
    }
    Ended
}

/// Gives another rank the time to write what it has claimed, as long as it lives: it needs a turn of
/// the scheduler for it, or to be continued after a stop.
fn for_a_while(
    memory: &Words<'_>,
    mut patient: impl FnMut() -> bool,
    writer: impl Fn() -> Option<usize>,
    mut done: impl FnMut() -> bool,
) {
    let page = memory.control(ControlMemory::rank(memory));
    while !done() && patient() {
        let gone = page.zip(writer()).is_some_and(|(page, writer)| page.is_lost(writer));
        if gone {
            // It may have come between the two looks.
            done();
            return;
        }
        std::thread::yield_now();
    }
}

#[cold]
fn give_up(
    memory: &Words<'_>,
    mut patient: impl FnMut() -> bool,
    args: LaneArgs,
    epoch: Option<Epoch>,
    reason: Reason,
    culprit: Option<usize>,
    missing: RankSet,
) {
    stalls::at(memory, Step::Report);
    let record = Record {
        reason,
        reporter: ControlMemory::rank(memory),
        culprit,
        lane: args.lane,
        operation: args.operation,
        epoch,
        missing,
    };
    let reported = match control::give_up(memory, &record) {
        Verdict::Failed(reported) => reported,
        Verdict::Adopting => {
            let adopted = || control::adopt(memory).is_some();
            for_a_while(memory, &mut patient, || control::reporter(memory), adopted);
            control::settle(memory, &record)
        }
    };
    let own = memory.control(ControlMemory::rank(memory));
    let kept = || control::keep(memory, &reported);
    for_a_while(memory, &mut patient, || own?.claimant(), kept);
    Entry::fail(memory.entry());
    ring_all(memory);
}

/// Reports that the last calls of two ranks on a lane differ, and closes the lane on this rank. Waits
/// for another rank's report as long as the caller has patience.
pub(super) fn report_mismatch(
    memory: &Words<'_>,
    patient: impl FnMut() -> bool,
    lane: u32,
    Mismatch { rank, epoch, difference }: Mismatch,
) {
    // The operation's code is in the calls.
    let args = LaneArgs { lane, ..bytemuck::Zeroable::zeroed() };
    let reason = Reason::CallMismatch(difference);
    give_up(memory, patient, args, Some(epoch), reason, Some(rank), RankSet::new());
}
