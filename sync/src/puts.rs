//! Puts whose arrival the receiver can wait for.
#![allow(unsafe_code, reason = "launches kernels")]

use symmem_hal::types::{Rank, RankSet};
use symmem_hal::{Fault, Kind, Launch, Stream, Wait};
use symmem_mem::{RankError, SymmetricMemory, TransferError, View};

use crate::host::PutArgs;
use crate::shared::{Executor, OrderKey, Shared};
use crate::signals::{self, Channel, Place, SignalCall, SignalError};

/// Why a put with a signal did not happen.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The data cannot be put there; nothing was stored.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The signal cannot be given: the slot did not become empty, say. Nothing was stored.
    #[error(transparent)]
    Signal(#[from] SignalError),
}

impl Fault for PutError {
    fn kind(&self) -> Kind {
        match self {
            PutError::Transfer(e) => e.kind(),
            PutError::Signal(e) => e.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            PutError::Transfer(e) => e.ranks(),
            PutError::Signal(e) => e.ranks(),
        }
    }
}

impl From<RankError> for PutError {
    fn from(error: RankError) -> Self {
        PutError::Signal(error.into())
    }
}

/// Puts with signals; on [`SymmetricMemory`].
pub trait Puts {
    /// Copies a contiguous view of this rank into a member's memory, then signals: waits until the
    /// slot to `peer` is empty, stores the data, fills the slot. Whoever takes the signal by
    /// [`wait_signal`](crate::Signals::wait_signal) sees the data (release and acquire). No bytes
    /// still signal.
    ///
    /// That the slot is empty says that the signal before was taken, not that the data before was
    /// read to the end: a receiver that reads in place signals back before it is sent more, or has
    /// two places that are filled in turn.
    fn put_with_signal<'a>(
        &'a self,
        source: &'a (impl AsRef<View> + ?Sized),
        peer: Rank,
        channel: Channel,
    ) -> PutWithSignal<'a>;
}

impl Puts for SymmetricMemory {
    fn put_with_signal<'a>(
        &'a self,
        source: &'a (impl AsRef<View> + ?Sized),
        peer: Rank,
        channel: Channel,
    ) -> PutWithSignal<'a> {
        let source = source.as_ref();
        PutWithSignal { memory: self, source, peer, channel, offset: 0, wait: None }
    }
}

/// A put with a signal about to be issued.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing happens before run() or on()"]
pub struct PutWithSignal<'a> {
    memory: &'a SymmetricMemory,
    source: &'a View,
    peer: Rank,
    channel: Channel,
    offset: u64,
    wait: Option<&'a Wait>,
}

impl<'a> PutWithSignal<'a> {
    /// Where in the member's memory: elements of the source's type, from where the handle's view
    /// begins. The range must end in the member's allocation.
    pub fn offset(self, elements: u64) -> Self {
        PutWithSignal { offset: elements, ..self }
    }

    /// The bound on its wait for the slot, instead of the group's.
    pub fn wait(self, wait: &'a Wait) -> Self {
        PutWithSignal { wait: Some(wait), ..self }
    }

    /// Issues it on the group's own stream and waits for it: it has happened at return.
    ///
    /// # Errors
    ///
    /// [`PutError`]; bad input is refused before anything is stored.
    pub fn run(self) -> Result<(), PutError> {
        let default = self.memory.group().wait();
        let wait = self.wait.unwrap_or(&default);
        let shared = Shared::of(self.memory.group()).map_err(SignalError::from)?;
        self.issue(&shared.stream, wait)?;
        Ok(signals::settle(shared, self.channel, wait)?)
    }

    /// Issues it on a stream. On an inline stream it has happened at return; on another,
    /// [`Stream::synchronize`] waits for it and reports how it went.
    ///
    /// # Errors
    ///
    /// [`PutError`]; bad input is refused before anything is stored.
    pub fn on(self, stream: &Stream) -> Result<(), PutError> {
        let default = self.memory.group().wait();
        self.issue(stream, self.wait.unwrap_or(&default))
    }

    fn issue(self, stream: &Stream, wait: &Wait) -> Result<(), PutError> {
        let PutWithSignal { memory, source, peer, channel, offset, .. } = self;
        let group = memory.group();
        signals::check_channel(group, channel)?;
        let index = group.index_of(peer)? as u32;
        let remote = memory.peer_range(source, peer, offset)?;
        let (expected, found) = (group.device().kind(), stream.backend());
        if found != expected {
            return Err(TransferError::Backend { what: "stream", group: expected, found }.into());
        }
        let shared = Shared::of_call(group, stream).map_err(SignalError::from)?;
        // In one order with the plain puts to the same slot.
        let place = Place { channel, key: OrderKey::Put(channel.0, index), stream, wait };
        signals::in_turn(shared, &place, [source, &remote], |turn| match &shared.executor {
            Executor::Host(host) => {
                let args = PutArgs {
                    signal: host.signal_args(channel.0, index),
                    source: source.ptr(),
                    target: remote.ptr(),
                    bytes: source.bytes().get(),
                };
                let function = host.function(SignalCall::PutWithSignal);
                let launch = Launch::keeping(function, &args, wait, turn.keep);
                // SAFETY: the kernel takes PutArgs, whose addresses are the table and ranges of the
                // two views, all of which `keep` holds. Channel and peer are in range.
                unsafe { stream.launch(launch) }
            }
            // SAFETY: channel and peer are in range; `turn` keeps both views.
            #[cfg(feature = "cuda")]
            Executor::Gpu(gpu) => unsafe {
                gpu.put_with_signal((source, &remote), (channel.0, index), stream, wait, &turn)
            },
        })?;
        Ok(())
    }
}
