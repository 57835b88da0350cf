//! Graphs: recorded work that runs again and again.

use std::sync::Arc;

use crate::backend::{GraphOps as _, StreamOps as _};
use crate::capture::{Capture, CaptureError};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::health::SyncError;
use crate::stream::{Launched, Stream};
use crate::{Wait, host, stub};

/// Launches recorded by a capture, with their edges: see [`Stream::begin_capture`]. Clones are the
/// same graph.
///
/// A graph holds copies of all arguments and everything that its work needs. A launch that follows
/// another in the capture, on its stream or through an event, follows it in every run; launches
/// without such an edge may run at once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Graph {
    /// Of streams on the CPU.
    Host(host::Graph),
    /// Of streams of a device in software.
    Stub(stub::Graph),
    /// Of streams of an NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(cuda::Graph),
}

macro_rules! on {
    ($self:ident, $graph:ident => $body:expr) => {
        match $self {
            Graph::Host($graph) => $body,
            Graph::Stub($graph) => $body,
            #[cfg(feature = "cuda")]
            Graph::Cuda($graph) => $body,
        }
    };
}

impl Graph {
    /// How many launches it has.
    #[must_use]
    pub fn nodes(&self) -> usize {
        on!(self, g => g.nodes())
    }

    /// The pairs of launches of which the second directly follows the first, counted in the order in
    /// which they were recorded.
    #[must_use]
    pub fn edges(&self) -> Vec<(usize, usize)> {
        on!(self, g => g.edges())
    }

    /// Runs or enqueues all of its work on a stream of its backend, any number of times. `wait`
    /// bounds the waits of each launch in it; the bounds given while it was captured do not count.
    ///
    /// Launches of one graph run one after the other, in the order in which they were made, on
    /// whatever streams. On an inline stream the work runs on the caller in the order of its capture;
    /// work of different streams of the capture runs at once where the stream has a worker.
    ///
    /// # Errors
    ///
    /// [`SyncError::Unhealthy`] where a group whose operations are in the graph takes no more of
    /// them, before anything runs, and on an inline stream also where an operation failed; else why
    /// the stream cannot take it. In a capture it is [`CaptureError::NotCapturable`].
    pub fn launch(&self, stream: &Stream, wait: &Wait) -> Result<(), SyncError> {
        if stream.capture() != Capture::None {
            return Err(stream.invalidate(CaptureError::NotCapturable { call: "Graph::launch" }));
        }
        let watching = on!(self, g => g.health());
        if let Some(fault) = watching.iter().find_map(|h| h.stale()) {
            return Err(SyncError::Unhealthy(fault));
        }
        for health in &watching {
            stream.watch(Arc::downgrade(health));
        }
        let turn = on!(self, g => g.order()).enter(stream, wait)?;
        let launched = match (self, stream) {
            (Graph::Host(g), Stream::Host(s)) => s.replay(g, wait)?,
            (Graph::Stub(g), Stream::Stub(s)) => s.replay(g, wait)?,
            #[cfg(feature = "cuda")]
            (Graph::Cuda(g), Stream::Cuda(s)) => s.replay(g, wait)?,
            _ => return Err(SyncError::OtherBackend),
        };
        drop(turn);
        for health in &watching {
            health.clone().launched(stream);
        }
        match launched {
            Launched::Stopped => match watching.iter().find_map(|h| h.failure()) {
                Some(fault) => Err(SyncError::Unhealthy(fault)),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
