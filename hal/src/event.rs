//! Events: points in a stream's work that others wait for.

use std::task::Waker;

use crate::backend::EventOps;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::health::SyncError;
use crate::{Wait, host, stub};

/// A point in the work of a stream. Clones are the same event.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Of a stream on the CPU.
    Host(host::Event),
    /// Of a stream of a device in software.
    Stub(stub::Event),
    /// Of a stream of an NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(cuda::Event),
}

macro_rules! on {
    ($self:ident, $event:ident => $body:expr) => {
        match $self {
            Event::Host($event) => $body,
            Event::Stub($event) => $body,
            #[cfg(feature = "cuda")]
            Event::Cuda($event) => $body,
        }
    };
}

impl Event {
    /// Whether the work before its last recording is done; `true` if it was never recorded.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        on!(self, e => e.is_complete())
    }

    /// Waits until the work before its last recording is done.
    ///
    /// # Errors
    ///
    /// [`SyncError`] where the bound ends the wait, or the stream's worker is gone.
    pub fn synchronize(&self, wait: &Wait) -> Result<(), SyncError> {
        on!(self, e => e.synchronize(wait))
    }

    /// Wakes `waker` once the work before its last recording is done, at once if it is: the hook
    /// for an executor.
    pub fn on_complete(&self, waker: Waker) {
        on!(self, e => e.on_complete(waker));
    }
}
