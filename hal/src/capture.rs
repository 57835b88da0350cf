//! Whether a stream runs its work or records it.

use crate::driver::DriverError;
use crate::fault::{Fault, Kind};

/// Whether a stream records a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capture {
    /// Work runs.
    None,
    /// Work is recorded into the capture of this id, which no other capture of the process has.
    Active(u64),
    /// A capture broke; the stream refuses work until it is ended.
    Invalidated,
}

/// Why a capture cannot begin, go on or end. Nothing that it recorded has run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The stream is a device's default stream, which others may use at any time.
    #[error("a default stream cannot be captured: make a stream for it")]
    DefaultStream,
    /// The stream records a graph already.
    #[error("the stream records a graph already: end that capture first")]
    Active,
    /// The stream records no graph.
    #[error("the stream records no graph: begin a capture first")]
    NotActive,
    /// The capture was begun on another stream, which ends it.
    #[error("the capture was begun on another stream: end it there")]
    NotOrigin,
    /// Streams that joined the capture have work in it for which the stream that ends it did not
    /// wait. The capture is over and its work dropped.
    #[error(
        "{streams} streams joined the capture and did not join back: record an event on each and wait for it on the first stream"
    )]
    Unjoined {
        /// How many, of those that this library knows; on GPUs, of all that joined.
        streams: usize,
    },
    /// A call that needs work to run was made on a stream or event whose work is being recorded.
    #[error(
        "{call} needs work that is only recorded so far; the capture is invalid: end it, and make the call outside of one"
    )]
    NotCapturable {
        /// The call.
        call: &'static str,
    },
    /// A wait would have made the capture depend on work outside of it.
    #[error(
        "the event marks work outside of the capture, or in another; the capture is invalid: end it, and record the event within the one that waits for it"
    )]
    Isolation,
    /// The event marks work of a capture that has ended.
    #[error("the event was recorded in a capture that has ended: record it again")]
    Ended,
    /// An earlier call made the capture invalid.
    #[error("the capture is invalid since an earlier call that cannot be captured: end it")]
    Invalidated,
    /// The driver refused.
    #[error(transparent)]
    Device(#[from] DriverError),
}

impl Fault for CaptureError {
    fn kind(&self) -> Kind {
        match self {
            CaptureError::Device(e) => e.kind(),
            _ => Kind::InvalidArgument,
        }
    }
}
