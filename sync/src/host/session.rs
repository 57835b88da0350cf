//! One operation on a lane, for an executor.

use std::time::{Duration, Instant};

use symmem_hal::types::RankSet;
use symmem_hal::{DevicePtr, LaunchContext};

use super::HostMemory;
use super::wait::{Stopped, Waiter, ring_all};
use crate::protocol::control::{self, Cause, Reason, Record, Verdict};
use crate::protocol::lane::{self, Agreed};
use crate::protocol::{
    Call, ControlMemory, Entry, Epoch, Header, LaneMemory, Mismatch, Operation, Parity, Peers,
    Progress, Refused, Seat,
};

/// How long a rank that lost the race to report waits for the winner's record.
const ADOPTION: Duration = Duration::from_millis(100);

/// What every kernel of a lane operation is given first.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct LaneArgs {
    /// The table of the group's workspace.
    pub table: DevicePtr,
    /// What the caller says of the call; see [`Signature`](symmem_mem::call::Signature).
    pub signature: u64,
    /// How many operations this rank has issued on the lane.
    pub issue: u64,
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
    memory: &'a HostMemory<'a>,
    args: LaneArgs,
    waiter: Waiter<'a>,
    operation: Operation<'a, HostMemory<'a>>,
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
        let seat = Seat { block: 0, grid: 1, checked: memory.layout().checked != 0 };
        let header = Header { signature: args.signature, issue: args.issue };
        let mut waiter = Waiter::new(context, memory, true);
        let mut arrival = match lane::enter(memory, seat, Call { header, feeds, consumes }) {
            Ok(arrival) => arrival,
            Err(refused) => return Err(refuse(memory, args, refused)),
        };
        let epoch = arrival.epoch();
        let clear = match waiter.until(|| arrival.poll()) {
            Ok(clear) => clear,
            Err(stopped) => return Err(stop(memory, args, epoch, stopped, arrival.missing())),
        };
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
    #[must_use]
    pub fn staging(&self, rank: usize, chunk: usize) -> *mut u8 {
        let parity: Parity = self.epoch().parity();
        self.memory.staging(rank, parity, chunk)
    }

    /// Stores one packet for all readers. `index` is below the layout's packets.
    pub fn put_packet(&mut self, index: usize, data: u64) {
        debug_assert!(index < LaneMemory::packets(self.memory));
        self.operation.put(index, data);
        self.unrung = true;
    }

    /// The packet of a peer.
    ///
    /// # Errors
    ///
    /// [`Ended`] where the wait ended early.
    pub fn await_packet(&mut self, index: usize, writer: usize) -> Result<u64, Ended> {
        // The common case: it is there.
        if let Some(data) = self.operation.poll_packet(index, writer) {
            return Ok(data);
        }
        self.ring();
        let operation = &self.operation;
        let poll = || {
            Ok::<_, Mismatch>(match operation.poll_packet(index, writer) {
                Some(data) => Progress::Ready(data),
                None => Progress::Pending { writer },
            })
        };
        self.waiter.until(poll).map_err(|stopped| {
            stop(self.memory, self.args, self.operation.epoch(), stopped, RankSet::one(writer))
        })
    }

    /// Tells all readers that everything up to `step` is stored. Steps ascend from 1.
    pub fn raise(&mut self, step: u32) {
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
        if self.operation.poll_flag(writer, step) {
            return Ok(());
        }
        self.ring();
        let operation = &self.operation;
        let poll = || {
            Ok::<_, Mismatch>(if operation.poll_flag(writer, step) {
                Progress::Ready(())
            } else {
                Progress::Pending { writer }
            })
        };
        self.waiter.until(poll).map_err(|stopped| {
            let (me, world) = (ControlMemory::rank(self.memory), ControlMemory::world(self.memory));
            let missing = (0..world).filter(|w| *w != me && !self.operation.poll_flag(*w, step));
            stop(self.memory, self.args, self.operation.epoch(), stopped, missing.collect())
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
        let operation = &mut self.operation;
        match self.waiter.until(|| operation.poll_headers()) {
            Ok(agreed) => {
                self.agreed = Some(agreed);
                Ok(())
            }
            Err(stopped) => {
                let (epoch, missing) = (self.operation.epoch(), self.operation.missing());
                Err(stop(self.memory, self.args, epoch, stopped, missing))
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
        let _ = self.operation.exit(agreed);
        Ok(())
    }

    fn ring(&mut self) {
        if core::mem::take(&mut self.unrung) {
            ring_all(self.memory);
        }
    }
}

fn refuse(memory: &HostMemory<'_>, args: LaneArgs, refused: Refused) -> Ended {
    // A closed lane has its reason recorded already.
    if let Refused::Busy { .. } = refused {
        give_up(memory, args, None, Reason::LaneBusy, None, RankSet::new());
    }
    Ended
}

/// Reports why an operation stops, and closes the lane on this rank.
fn stop(
    memory: &HostMemory<'_>,
    args: LaneArgs,
    epoch: Epoch,
    stopped: Stopped<Mismatch>,
    missing: RankSet,
) -> Ended {
    match stopped {
        Stopped::Without { cause: Cause::Aborted, .. } => {
            // Somebody has reported; it is in this rank's page.
            Entry::fail(memory.entry());
        }
        Stopped::Without { cause: Cause::Lost, writer } => {
            give_up(memory, args, Some(epoch), Reason::PeerLost, Some(writer), missing);
        }
        Stopped::Without { cause: Cause::Cancelled, .. } => {
            give_up(memory, args, Some(epoch), Reason::Cancelled, None, missing);
        }
        Stopped::Without { cause: Cause::Overdue, .. } => {
            give_up(memory, args, Some(epoch), Reason::TimedOut, None, missing);
        }
        Stopped::Found(Mismatch { rank, epoch, difference }) => {
            let reason = Reason::CallMismatch(difference);
            give_up(memory, args, Some(epoch), reason, Some(rank), RankSet::new());
        }
    }
    Ended
}

#[cold]
fn give_up(
    memory: &HostMemory<'_>,
    args: LaneArgs,
    epoch: Option<Epoch>,
    reason: Reason,
    culprit: Option<usize>,
    missing: RankSet,
) {
    let record = Record {
        reason,
        reporter: ControlMemory::rank(memory),
        culprit,
        lane: args.lane,
        operation: args.operation,
        epoch,
        missing,
    };
    if control::give_up(memory, &record) == Verdict::Adopting {
        let until = Instant::now() + ADOPTION;
        while control::adopt(memory).is_none() && Instant::now() < until {
            std::thread::yield_now();
        }
        let _ = control::settle(memory, &record);
    }
    Entry::fail(memory.entry());
    ring_all(memory);
}
