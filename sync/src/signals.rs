//! Signals and barriers.
//!
//! A signal is a slot in the receiver's pad: word `world_size * channel + sender`, 0 empty, 1 full.
//! [`put_signal`](Signals::put_signal) waits until the slot is empty and fills it;
//! [`wait_signal`](Signals::wait_signal) waits until it is full and empties it. What the sender
//! stored before the put is visible to the receiver after the wait. Kernels that use
//! compare-and-swap on the same words interoperate, as long as one put and one wait of a (channel,
//! pair) are in flight at a time; calls of this library are ordered so.
//!
//! A barrier has words of its own, not slots: a barrier and a signal on one channel number do not
//! meet.
//!
//! A wait that ends early breaks its channel, which then refuses until
//! [`reset_channel`](Signals::reset_channel); it is no failure of the group, whose operations go on.
#![allow(unsafe_code, reason = "launches kernels")]

use core::fmt;
use std::sync::Arc;

use symmem_hal::types::{Rank, RankSet};
use symmem_hal::{Fault, KeepAlive, Kind, Launch, Launched, OrderError, Stream, SyncError, Wait};
use symmem_mem::{Failure, Group, RankError, SymmetricMemory, View};

use crate::shared::{Executor, OrderKey, PrepareError, Shared};

/// A channel of signals and barriers: 0 to the pad's number of channels - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(pub u32);

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel {}", self.0)
    }
}

/// Which of the calls of [`Signals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SignalCall {
    /// [`Signals::barrier`].
    Barrier = 1,
    /// [`Signals::put_signal`].
    Put = 2,
    /// [`Signals::wait_signal`].
    Wait = 3,
    /// [`Signals::reset_channel`].
    Reset = 4,
    /// [`Puts::put_with_signal`](crate::Puts::put_with_signal).
    PutWithSignal = 5,
}

impl SignalCall {
    const ALL: [SignalCall; 5] = [
        SignalCall::Barrier,
        SignalCall::Put,
        SignalCall::Wait,
        SignalCall::Reset,
        SignalCall::PutWithSignal,
    ];

    /// What its wait is short of.
    fn lack(self, ranks: &RankSet) -> String {
        match self {
            SignalCall::Barrier | SignalCall::Reset => format!("ranks {ranks} did not come"),
            SignalCall::Put | SignalCall::PutWithSignal => {
                format!("rank {ranks} did not take the signal put before")
            }
            SignalCall::Wait => format!("no signal from rank {ranks}"),
        }
    }
}

impl fmt::Display for SignalCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SignalCall::Barrier => "barrier",
            SignalCall::Put => "put_signal",
            SignalCall::Wait => "wait_signal",
            SignalCall::Reset => "reset_channel",
            SignalCall::PutWithSignal => "put_with_signal",
        })
    }
}

/// Why a signal or barrier did not happen.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// There is no such channel; nothing was stored.
    #[error(
        "{channel} is out of range: the pad has {channels}, counted from 0; a larger pad (Options::pad) has more"
    )]
    ChannelOutOfRange {
        /// The channel asked for.
        channel: Channel,
        /// How many there are.
        channels: u32,
    },
    /// There is no such rank in the group; nothing was stored.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// Ranks did not come in time. The channel is broken until it is reset.
    #[error("{call} on {channel}: {} before the deadline; reset_channel makes the channel usable again", call.lack(ranks))]
    TimedOut {
        /// What waited.
        call: SignalCall,
        /// The channel.
        channel: Channel,
        /// Who was missing.
        ranks: RankSet,
    },
    /// A rank is gone. The channel is broken until it is reset.
    #[error("{call} on {channel}: rank {rank} is gone: go on without it by Group::recover")]
    PeerLost {
        /// What waited.
        call: SignalCall,
        /// The channel.
        channel: Channel,
        /// Who.
        rank: Rank,
    },
    /// The caller's token ended the wait. The channel is broken until it is reset.
    #[error(
        "{call} on {channel}: cancelled by the caller; reset_channel makes the channel usable again"
    )]
    Cancelled {
        /// What waited.
        call: SignalCall,
        /// The channel.
        channel: Channel,
    },
    /// An earlier wait on the channel ended early.
    #[error(
        "{channel} is broken: an earlier wait on it ended early; reset_channel makes it usable again"
    )]
    Broken {
        /// The channel.
        channel: Channel,
    },
    /// The group has failed, or this rank has left it.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Earlier calls of this process on the channel did not end in time.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The stream cannot take it.
    #[error(transparent)]
    Stream(#[from] SyncError),
    /// The group cannot have channels.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
}

impl Fault for SignalError {
    fn kind(&self) -> Kind {
        match self {
            SignalError::ChannelOutOfRange { .. } | SignalError::Rank(_) => Kind::InvalidArgument,
            SignalError::TimedOut { .. } => Kind::TimedOut,
            SignalError::PeerLost { .. } => Kind::PeerLost,
            SignalError::Cancelled { .. } => Kind::Cancelled,
            SignalError::Broken { .. } => Kind::Stale,
            SignalError::Failed(e) => e.kind(),
            SignalError::Order(e) => e.kind(),
            SignalError::Stream(e) => e.kind(),
            SignalError::Prepare(e) => e.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            SignalError::TimedOut { ranks, .. } => ranks.clone(),
            SignalError::PeerLost { rank, .. } => RankSet::one(rank.index()),
            SignalError::Failed(e) => e.ranks(),
            SignalError::Order(e) => e.ranks(),
            SignalError::Stream(e) => e.ranks(),
            _ => RankSet::new(),
        }
    }
}

/// The word in which a kernel reports a wait that ended early: what waited and why in the upper
/// half, the channel in the lower. 0 is none.
pub(crate) mod fault {
    use symmem_hal::types::{Rank, RankSet};

    use super::{Channel, SignalCall, SignalError};

    pub(crate) const TIMED_OUT: u32 = 1;
    pub(crate) const LOST: u32 = 2;
    pub(crate) const CANCELLED: u32 = 3;
    pub(crate) const BROKEN: u32 = 4;

    pub(crate) const fn encode(call: SignalCall, kind: u32, channel: u32) -> u64 {
        ((call as u64) << 8 | kind as u64) << 32 | channel as u64
    }

    pub(crate) fn decode(
        word: u64,
        ranks: RankSet,
        rank: impl Fn(usize) -> Rank,
    ) -> Option<SignalError> {
        let channel = Channel(word as u32);
        let (code, kind) = ((word >> 40) as u8, (word >> 32) as u32 & 0xff);
        let call = SignalCall::ALL.into_iter().find(|call| *call as u8 == code)?;
        let first = ranks.iter().next();
        match (kind, first) {
            (LOST, Some(first)) => Some(SignalError::PeerLost { call, channel, rank: rank(first) }),
            (TIMED_OUT, _) => Some(SignalError::TimedOut { call, channel, ranks }),
            (CANCELLED, _) => Some(SignalError::Cancelled { call, channel }),
            (BROKEN, _) => Some(SignalError::Broken { channel }),
            _ => None,
        }
    }
}

/// Signals and barriers of a group; on [`Group`] and on [`SymmetricMemory`], which is its group's.
///
/// Each call makes a [`Signal`], which happens when it is [`run`](Signal::run) or put
/// [`on`](Signal::on) a stream.
pub trait Signals {
    /// The group.
    #[doc(hidden)]
    fn signal_group(&self) -> &Group;

    /// How many channels there are: pad bytes / 4 / ranks.
    fn channels(&self) -> u32 {
        let group = self.signal_group();
        crate::Layout::channels_of(group.options().pad, group.size())
    }

    /// Waits until every rank has come to this barrier of the channel. What any rank stored before
    /// it is visible to every rank after it.
    ///
    /// Compares the last calls on the group's lanes too, of which a rank may have come back without
    /// data of others: where two differ, the group fails with
    /// [`Failure::CallMismatch`](symmem_mem::Failure::CallMismatch). On a GPU only where the barrier is
    /// [`run`](Signal::run).
    fn barrier(&self, channel: Channel) -> Signal<'_> {
        Signal::new(self.signal_group(), channel, Step::Barrier)
    }

    /// Waits until the slot to `peer` is empty, then fills it.
    fn put_signal(&self, peer: Rank, channel: Channel) -> Signal<'_> {
        Signal::new(self.signal_group(), channel, Step::Put(peer))
    }

    /// Waits until the slot from `peer` is full, then empties it.
    fn wait_signal(&self, peer: Rank, channel: Channel) -> Signal<'_> {
        Signal::new(self.signal_group(), channel, Step::Wait(peer))
    }

    /// Makes a broken channel usable again: collective among all ranks, after which its slots are
    /// empty and its barrier is fresh.
    fn reset_channel(&self, channel: Channel) -> Signal<'_> {
        Signal::new(self.signal_group(), channel, Step::Reset)
    }
}

/// A signal or barrier about to be issued.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing happens before run() or on()"]
pub struct Signal<'a> {
    group: &'a Group,
    channel: Channel,
    step: Step,
    wait: Option<&'a Wait>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Barrier,
    Put(Rank),
    Wait(Rank),
    Reset,
}

impl Signals for Group {
    fn signal_group(&self) -> &Group {
        self
    }
}

impl Signals for SymmetricMemory {
    fn signal_group(&self) -> &Group {
        self.group()
    }
}

impl<'a> Signal<'a> {
    fn new(group: &'a Group, channel: Channel, step: Step) -> Self {
        Signal { group, channel, step, wait: None }
    }

    /// The bound on its wait, instead of the group's.
    pub fn wait(self, wait: &'a Wait) -> Self {
        Signal { wait: Some(wait), ..self }
    }

    /// Issues it on the group's own stream and waits for it: it has happened at return.
    ///
    /// # Errors
    ///
    /// [`SignalError`]; a bad channel or rank is refused before anything is stored.
    pub fn run(self) -> Result<(), SignalError> {
        self.check()?;
        let shared = Shared::of(self.group)?;
        let default = self.group.wait();
        let wait = self.wait.unwrap_or(&default);
        self.issue(shared, &shared.stream, wait)?;
        settle(shared, self.channel, wait)?;
        // An inline stream's kernel has told already.
        if matches!(self.step, Step::Barrier) && !shared.stream.is_inline() {
            shared.look_back();
        }
        self.check_calls()
    }

    /// Issues it on a stream. On an inline stream it has happened at return; on another,
    /// [`Stream::synchronize`] waits for it and reports how it went. In a capture it is recorded, and
    /// happens at each launch of the graph.
    ///
    /// # Errors
    ///
    /// [`SignalError`]; a bad channel or rank is refused before anything is stored.
    pub fn on(self, stream: &Stream) -> Result<(), SignalError> {
        self.check()?;
        let default = self.group.wait();
        let shared = Shared::of_call(self.group, stream)?;
        self.issue(shared, stream, self.wait.unwrap_or(&default))?;
        self.check_calls()
    }

    /// What a barrier that has happened found of the lanes' last calls.
    fn check_calls(&self) -> Result<(), SignalError> {
        match self.step {
            Step::Barrier => Ok(self.group.check()?),
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<(), SignalError> {
        check_channel(self.group, self.channel)?;
        if let Step::Put(peer) | Step::Wait(peer) = self.step {
            self.group.index_of(peer)?;
        }
        Ok(self.group.check()?)
    }

    fn issue(self, shared: &Arc<Shared>, stream: &Stream, wait: &Wait) -> Result<(), SignalError> {
        let Channel(channel) = self.channel;
        let (key, call, peer) = match self.step {
            // Nobody to wait for; signals to oneself remain.
            Step::Barrier if self.group.size() == 1 => return Ok(()),
            Step::Barrier => (OrderKey::Barrier(channel), SignalCall::Barrier, 0),
            Step::Reset => (OrderKey::Barrier(channel), SignalCall::Reset, 0),
            Step::Put(peer) => {
                let peer = peer.index() as u32;
                (OrderKey::Put(channel, peer), SignalCall::Put, peer)
            }
            Step::Wait(peer) => {
                let peer = peer.index() as u32;
                (OrderKey::Wait(channel, peer), SignalCall::Wait, peer)
            }
        };
        let place = Place { channel: self.channel, key, stream, wait };
        in_turn(shared, &place, [], |turn| match &shared.executor {
            Executor::Host(host) => {
                let args = host.signal_args(channel, peer);
                let launch = Launch::keeping(host.function(call), &args, wait, turn.keep);
                // SAFETY: the kernel takes these arguments, whose table and the regions that it leads
                // to live as long as `shared`, which the group holds during an inline launch and
                // `keep` holds for any other. Channel and peer are in range (`check`).
                unsafe { stream.launch(launch) }
            }
            // SAFETY: channel and peer are in range (`check`).
            #[cfg(feature = "cuda")]
            Executor::Gpu(gpu) => unsafe { gpu.signal(call, (channel, peer), stream, wait, &turn) },
        })
    }
}

/// That a group has a channel.
pub(crate) fn check_channel(group: &Group, channel: Channel) -> Result<(), SignalError> {
    let channels = group.channels();
    if channel.0 >= channels {
        return Err(SignalError::ChannelOutOfRange { channel, channels });
    }
    Ok(())
}

/// Waits until a call on the group's own stream has happened, and reports how it went.
pub(crate) fn settle(
    shared: &Arc<Shared>,
    channel: Channel,
    wait: &Wait,
) -> Result<(), SignalError> {
    if shared.stream.is_inline() {
        return Ok(());
    }
    // The kernel's own bound ends it, and a cancellation: how it ended is to be told, not that it was
    // waited for.
    shared.drain(&shared.stream, &shared.patience(wait))?;
    shared.control().take_fault(channel).map_or(Ok(()), Err)
}

/// Where a call on a channel is issued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub channel: Channel,
    /// What it is ordered by.
    pub key: OrderKey,
    pub stream: &'a Stream,
    pub wait: &'a Wait,
}

/// A call's turn.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    /// What its launches keep.
    pub keep: &'a dyn Fn() -> Vec<KeepAlive>,
    /// Whether the call is recorded, and happens at other times.
    #[cfg(feature = "cuda")]
    pub is_captured: bool,
}

/// Launches the kernels of a call on a channel, in the order of its key. They keep the views.
pub(crate) fn in_turn<const N: usize>(
    shared: &Arc<Shared>,
    place: &Place<'_>,
    views: [&View; N],
    launch: impl FnOnce(Turn<'_>) -> Result<Launched, SyncError>,
) -> Result<(), SignalError> {
    let Place { channel, key, stream, wait } = *place;
    shared.check_stream(stream)?;
    let order = shared.order(key);
    let turn = order.enter(stream, wait)?;
    let keep = || -> Vec<KeepAlive> {
        let views = views.map(View::keep_alive);
        [shared.clone() as KeepAlive].into_iter().chain(views).collect()
    };
    let launched = launch(Turn {
        keep: &keep,
        #[cfg(feature = "cuda")]
        is_captured: turn.capture().is_some(),
    })?;
    drop(turn);
    match launched {
        Launched::Finished => Ok(()),
        Launched::Stopped => {
            if let Some(told) = shared.control().take_fault(channel) {
                return Err(told);
            }
            // A barrier that has happened, and found that the last calls on a lane differ.
            if matches!(key, OrderKey::Barrier(_)) {
                shared.look_back();
                shared.status.check()?;
            }
            // Two calls of one channel that stop at once share one report: whoever comes second
            // knows that the channel is broken, and no more.
            Err(SignalError::Broken { channel })
        }
        Launched::Queued => {
            shared.enqueued(stream);
            Ok(())
        }
        Launched::Recorded => {
            shared.watch(stream);
            Ok(())
        }
    }
}
