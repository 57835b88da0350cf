//! How a failure found by an upper layer reaches whoever synchronises.

use std::sync::Arc;
use std::time::Duration;

use crate::capture::CaptureError;
use crate::driver::DriverError;
use crate::fault::{Fault, Kind};
use crate::order::OrderError;
use crate::stream::Stream;
use crate::types::RankSet;

/// Something whose operations run on streams and may fail there: a group, to the layer above.
///
/// Registered with [`Stream::watch`](crate::Stream::watch); asked by
/// [`Stream::synchronize`](crate::Stream::synchronize) once the stream has drained.
pub trait Health: Send + Sync {
    /// The first failure, if there was one. Must not block.
    fn failure(&self) -> Option<Arc<dyn Fault>>;

    /// What to report of a graph with operations of this, launched now: `Some` once it takes no more
    /// operations. Must not block.
    fn stale(&self) -> Option<Arc<dyn Fault>> {
        None
    }

    /// A graph with operations of this was launched on `stream`.
    fn launched(self: Arc<Self>, stream: &Stream) {
        let _ = stream;
    }
}

/// Why a wait for a stream or an event did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The work was not done in time; it goes on.
    #[error(
        "the stream's work was not done within {allowed:?}; it goes on, and can be waited for again"
    )]
    TimedOut {
        /// What the caller allowed.
        allowed: Duration,
    },
    /// The caller's token ended the wait; the work goes on.
    #[error("the wait for the stream was cancelled; its work goes on, and can be waited for again")]
    Cancelled,
    /// The work is done, and something that ran on the stream has failed.
    #[error("an operation on the stream failed: {0}")]
    Unhealthy(Arc<dyn Fault>),
    /// The stream's worker thread is gone, so its work will never be done.
    #[error(
        "the stream's worker has stopped; its remaining work is dropped: go on with another stream"
    )]
    WorkerGone,
    /// The stream, event or graph is in a capture, or was, where the call allows none.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The graph, event or function is of another backend than the stream.
    #[error(
        "the stream and what it was given are of different backends: take both from one device"
    )]
    OtherBackend,
    /// The driver refused, or the work failed on the device.
    #[error(transparent)]
    Device(#[from] DriverError),
}

impl From<OrderError> for SyncError {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::TimedOut { allowed, .. } => SyncError::TimedOut { allowed },
            OrderError::Cancelled { .. } => SyncError::Cancelled,
            OrderError::Stream(error) => error,
        }
    }
}

impl Fault for SyncError {
    fn kind(&self) -> Kind {
        match self {
            SyncError::TimedOut { .. } => Kind::TimedOut,
            SyncError::Cancelled => Kind::Cancelled,
            SyncError::Unhealthy(fault) => fault.kind(),
            SyncError::WorkerGone => Kind::Device,
            SyncError::Capture(e) => e.kind(),
            SyncError::OtherBackend => Kind::InvalidArgument,
            SyncError::Device(e) => e.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            SyncError::Unhealthy(fault) => fault.ranks(),
            _ => RankSet::new(),
        }
    }
}
