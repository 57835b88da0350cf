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
use symmem_hal::{
    Fault, Function, Health, KeepAlive, Kind, Launch, Launched, OrderError, Stream, SyncError, Wait,
};
use symmem_mem::{Failure, Group, RankError, SymmetricMemory};

use crate::host::SignalArgs;
use crate::shared::{OrderKey, PrepareError, Shared};

/// A channel of signals and barriers: 0 to the pad's number of channels - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(pub u32);

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel {}", self.0)
    }
}

/// Why a signal or barrier did not happen.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// There is no such channel; nothing was stored.
    #[error("{channel} is out of range: the pad has channels 0 to {}; a larger pad (Options::pad) has more", channels.saturating_sub(1))]
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
    #[error(
        "{channel}: ranks {ranks} did not come in time; reset_channel makes the channel usable again"
    )]
    TimedOut {
        /// The channel.
        channel: Channel,
        /// Who was missing.
        ranks: RankSet,
    },
    /// A rank is gone. The channel is broken until it is reset.
    #[error("{channel}: rank {rank} is gone")]
    PeerLost {
        /// The channel.
        channel: Channel,
        /// Who.
        rank: Rank,
    },
    /// The caller's token ended the wait. The channel is broken until it is reset.
    #[error("{channel}: cancelled by the caller; reset_channel makes the channel usable again")]
    Cancelled {
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

/// The word in which a kernel reports a wait that ended early: kind in the upper half, channel + 1
/// in the lower, so that 0 is none.
pub(crate) mod fault {
    use symmem_hal::types::{Rank, RankSet};

    use super::{Channel, SignalError};

    pub(crate) const TIMED_OUT: u32 = 1;
    pub(crate) const LOST: u32 = 2;
    pub(crate) const CANCELLED: u32 = 3;
    pub(crate) const BROKEN: u32 = 4;

    pub(crate) const fn encode(kind: u32, channel: u32) -> u64 {
        (kind as u64) << 32 | channel as u64
    }

    pub(crate) fn decode(
        word: u64,
        ranks: RankSet,
        rank: impl Fn(usize) -> Rank,
    ) -> Option<SignalError> {
        let channel = Channel(word as u32);
        let first = ranks.iter().next();
        match ((word >> 32) as u32, first) {
            (LOST, Some(first)) => Some(SignalError::PeerLost { channel, rank: rank(first) }),
            (TIMED_OUT, _) => Some(SignalError::TimedOut { channel, ranks }),
            (CANCELLED, _) => Some(SignalError::Cancelled { channel }),
            (BROKEN, _) => Some(SignalError::Broken { channel }),
            _ => None,
        }
    }
}

/// Signals and barriers of a group; on [`Group`] and on [`SymmetricMemory`], which is its group's.
///
/// On an inline stream a call returns when it has happened. On another it returns once enqueued,
/// and [`Stream::synchronize`] reports how it went.
///
/// # Errors
///
/// All return [`SignalError`]; a bad channel or rank is refused before anything is stored.
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
    fn barrier(&self, channel: Channel, stream: &Stream, wait: &Wait) -> Result<(), SignalError> {
        let group = self.signal_group();
        check_channel(group, channel)?;
        if group.size() == 1 {
            return Ok(group.check()?);
        }
        run(group, channel, OrderKey::Barrier(channel.0), stream, wait, 0, |s| s.functions.barrier)
    }

    /// Waits until the slot to `peer` is empty, then fills it.
    fn put_signal(
        &self,
        peer: Rank,
        channel: Channel,
        stream: &Stream,
        wait: &Wait,
    ) -> Result<(), SignalError> {
        let group = self.signal_group();
        let index = check(group, peer, channel)?;
        run(group, channel, OrderKey::Put(channel.0, index), stream, wait, index, |s| {
            s.functions.put
        })
    }

    /// Waits until the slot from `peer` is full, then empties it.
    fn wait_signal(
        &self,
        peer: Rank,
        channel: Channel,
        stream: &Stream,
        wait: &Wait,
    ) -> Result<(), SignalError> {
        let group = self.signal_group();
        let index = check(group, peer, channel)?;
        run(group, channel, OrderKey::Wait(channel.0, index), stream, wait, index, |s| {
            s.functions.wait
        })
    }

    /// Makes a broken channel usable again: collective among all ranks, after which its slots are
    /// empty and its barrier is fresh.
    fn reset_channel(
        &self,
        channel: Channel,
        stream: &Stream,
        wait: &Wait,
    ) -> Result<(), SignalError> {
        let group = self.signal_group();
        check_channel(group, channel)?;
        run(group, channel, OrderKey::Barrier(channel.0), stream, wait, 0, |s| s.functions.reset)
    }
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

fn check_channel(group: &Group, channel: Channel) -> Result<(), SignalError> {
    let channels = group.channels();
    if channel.0 < channels {
        Ok(())
    } else {
        Err(SignalError::ChannelOutOfRange { channel, channels })
    }
}

fn check(group: &Group, peer: Rank, channel: Channel) -> Result<u32, SignalError> {
    check_channel(group, channel)?;
    Ok(group.index_of(peer)? as u32)
}

fn run(
    group: &Group,
    channel: Channel,
    key: OrderKey,
    stream: &Stream,
    wait: &Wait,
    peer: u32,
    function: impl Fn(&Shared) -> Function,
) -> Result<(), SignalError> {
    group.check()?;
    let shared = Shared::of(group)?;
    let order = shared.order(key);
    let turn = order.enter(stream, wait)?;
    let args = SignalArgs { table: shared.table, channel: channel.0, peer };
    let kept: [KeepAlive; 1];
    let keep: &[KeepAlive] = if stream.is_inline() {
        &[]
    } else {
        kept = [shared.clone()];
        &kept
    };
    // SAFETY: the kernel takes SignalArgs; the table and the regions it leads to live as long as
    // `shared`, which this frame holds for an inline launch and `keep` for any other. Channel and
    // peer are in range (checked by every caller).
    let launched = unsafe { stream.launch(Launch::new(function(shared), &args, wait, keep)) }?;
    drop(turn);
    match launched {
        Launched::Finished => shared.control().take_signal_fault().map_or(Ok(()), Err),
        Launched::Queued => {
            let health: Arc<dyn Health> = shared.clone();
            stream.watch(Arc::downgrade(&health));
            Ok(())
        }
    }
}
