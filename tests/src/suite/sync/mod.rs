//! The synchronisation layer: signals and barriers.

mod barriers;
mod channels;
#[cfg(feature = "cuda")]
mod lines;
mod lost;
mod puts;
mod signals;
mod streams;
mod timeouts;

use std::error::Error;

use symmem_hal::types::Rank;
use symmem_hal::{Fault, Stream, SyncError};
use symmem_mem::Group;
use symmem_sync::{Channel, Lanes as _, Signal, SignalError, Signals as _};

use crate::runner::{PATIENT, Test, TestError};

/// The tests of the layer.
#[must_use]
pub fn tests() -> Vec<Test> {
    [
        signals::TESTS,
        puts::TESTS,
        channels::TESTS,
        barriers::TESTS,
        timeouts::TESTS,
        lost::TESTS,
        streams::TESTS,
        #[cfg(feature = "cuda")]
        lines::TESTS,
    ]
    .concat()
}

/// The group's own stream.
#[track_caller]
pub(super) fn stream_of(group: &Group) -> Result<Stream, TestError> {
    Ok(group.lane()?.default_stream().clone())
}

/// The error of a type behind an error of any layer.
pub(super) fn behind<E: Error + Clone + 'static>(fault: &dyn Fault) -> Option<E> {
    let error: &(dyn Error + 'static) = fault;
    error.downcast_ref::<E>().cloned()
}

/// Issues a signal or barrier and waits until it has happened: the same on streams that run inline
/// and on those that do not.
fn settle(signal: Signal<'_>, stream: &Stream) -> Result<(), SignalError> {
    signal.on(stream)?;
    match stream.synchronize(&PATIENT) {
        Ok(()) => Ok(()),
        Err(SyncError::Unhealthy(fault)) => {
            Err(behind(&*fault).unwrap_or(SignalError::Stream(SyncError::Unhealthy(fault))))
        }
        Err(error) => Err(error.into()),
    }
}

/// A group and its stream, and short names for what is done with them.
struct Bench {
    group: Group,
    stream: Stream,
}

impl Bench {
    #[track_caller]
    fn new(group: Group) -> Result<Self, TestError> {
        let stream = stream_of(&group)?;
        Ok(Bench { group, stream })
    }

    fn barrier(&self, channel: u32) -> Result<(), SignalError> {
        settle(self.group.barrier(Channel(channel)), &self.stream)
    }

    fn put(&self, peer: Rank, channel: u32) -> Result<(), SignalError> {
        settle(self.group.put_signal(peer, Channel(channel)), &self.stream)
    }

    fn wait(&self, peer: Rank, channel: u32) -> Result<(), SignalError> {
        settle(self.group.wait_signal(peer, Channel(channel)), &self.stream)
    }

    fn reset(&self, channel: u32) -> Result<(), SignalError> {
        settle(self.group.reset_channel(Channel(channel)), &self.stream)
    }
}
