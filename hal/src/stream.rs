//! Streams: work in order.
#![allow(unsafe_code, reason = "launches kernels, whose arguments the caller vouches for")]

use std::any::Any;
use std::sync::{Arc, Weak};

use crate::backend::StreamOps;
use crate::capture::{Capture, CaptureError};
use crate::event::Event;
use crate::graph::Graph;
use crate::health::{Health, SyncError};
use crate::module::Function;
use crate::types::BackendKind;
use crate::{Wait, host, stub};

/// A queue of work that runs in order. Clones are the same stream; compare by [`id`](Self::id).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Stream {
    /// On the CPU.
    Host(host::Stream),
    /// On a device in software.
    Stub(stub::Stream),
}

/// Identifies a stream in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub(crate) u64);

/// Who runs a stream's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamMode {
    /// The thread that launches, before the launch returns.
    Inline,
    /// A thread of the stream's own, in order.
    Worker,
}

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The work of whoever made it.
    Ordinary,
    /// The work of anybody, who must be able to rely on it that it runs.
    Default,
}

/// Something that must outlive a launch.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// One launch: what to run, on which arguments, and what must stay alive meanwhile.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    pub(crate) function: Function,
    pub(crate) args: &'a [u8],
    pub(crate) wait: &'a Wait,
    keep: Keep<'a>,
}

/// What a launch keeps alive.
#[derive(Clone, Copy)]
enum Keep<'a> {
    These(&'a [KeepAlive]),
    Asked(&'a dyn Fn() -> Vec<KeepAlive>),
}

impl core::fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Launch")
            .field("function", &self.function)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl<'a> Launch<'a> {
    /// A launch of `function` on the argument struct `args`. `wait` bounds every wait inside it.
    /// `keep` is held until it has run, in a capture by the graph; an inline launch does not touch
    /// the counts.
    #[must_use]
    pub fn new<T: bytemuck::NoUninit>(
        function: Function,
        args: &'a T,
        wait: &'a Wait,
        keep: &'a [KeepAlive],
    ) -> Self {
        Self::with(function, args, wait, Keep::These(keep))
    }

    /// As [`new`](Self::new); `keep` is called only if the launch is not done when it returns.
    #[must_use]
    pub fn keeping<T: bytemuck::NoUninit>(
        function: Function,
        args: &'a T,
        wait: &'a Wait,
        keep: &'a dyn Fn() -> Vec<KeepAlive>,
    ) -> Self {
        Self::with(function, args, wait, Keep::Asked(keep))
    }

    fn with<T: bytemuck::NoUninit>(
        function: Function,
        args: &'a T,
        wait: &'a Wait,
        keep: Keep<'a>,
    ) -> Self {
        const { assert!(align_of::<T>() <= 16) };
        Launch { function, args: bytemuck::bytes_of(args), wait, keep }
    }

    pub(crate) fn keep(&self) -> Vec<KeepAlive> {
        match self.keep {
            Keep::These(these) => these.to_vec(),
            Keep::Asked(ask) => ask(),
        }
    }
}

/// Whether a launch has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launched {
    /// It has, to its end.
    Finished,
    /// It has, and ended early; see [`LaunchContext::stop`](crate::LaunchContext::stop).
    Stopped,
    /// It will, in its stream's order.
    Queued,
    /// It was recorded, and will as often as its graph is launched.
    Recorded,
}

macro_rules! on {
    ($self:ident, $stream:ident => $body:expr) => {
        match $self {
            Stream::Host($stream) => $body,
            Stream::Stub($stream) => $body,
        }
    };
}

impl Stream {
    /// Its identity.
    #[must_use]
    pub fn id(&self) -> StreamId {
        on!(self, s => s.id())
    }

    /// Which backend runs it.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        match self {
            Stream::Host(_) => BackendKind::Host,
            Stream::Stub(_) => BackendKind::Stub,
        }
    }

    /// Whether a launch runs on the calling thread, before it returns.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        on!(self, s => s.is_inline())
    }

    /// Whether every launch has run when it returns: the stream is inline, and cannot be captured. What
    /// a call borrows may be used on such a stream only.
    #[must_use]
    pub fn is_immediate(&self) -> bool {
        on!(self, s => s.is_immediate())
    }

    /// Runs or enqueues a kernel; records it while the stream captures.
    ///
    /// # Errors
    ///
    /// [`SyncError::WorkerGone`] where the stream can run nothing any more,
    /// [`SyncError::Capture`] in an invalid capture.
    ///
    /// # Safety
    ///
    /// The argument struct must be the one the function's kernel was written for, and every address
    /// in it must stay valid until this returns and, beyond that, for as long as what `keep` gives
    /// lives. The function must come from a module of this stream's backend.
    pub unsafe fn launch(&self, launch: Launch<'_>) -> Result<Launched, SyncError> {
        debug_assert_eq!(launch.args.len(), launch.function.kernel.args);
        debug_assert_eq!(self.backend(), launch.function.backend);
        // SAFETY: the caller's promise, passed on.
        on!(self, s => unsafe { s.launch(launch) })
    }

    /// Marks the work enqueued so far with `event`, replacing its last recording. While the stream
    /// captures, the event marks a place in the capture: another stream that waits for it joins.
    ///
    /// # Errors
    ///
    /// [`SyncError::WorkerGone`]. An event of another backend is never complete here, so it is
    /// refused with the same error.
    pub fn record(&self, event: &Event) -> Result<(), SyncError> {
        match (self, event) {
            (Stream::Host(s), Event::Host(e)) => s.record(e),
            (Stream::Stub(s), Event::Stub(e)) => s.record(e),
            _ => Err(SyncError::WorkerGone),
        }
    }

    /// Lets later work of this stream start only after the work that `event` marks now. On an
    /// inline stream that is a wait of the caller, bounded by `wait`; in a capture it is an edge.
    ///
    /// # Errors
    ///
    /// [`SyncError`] where the bound ends an inline wait, or a worker is gone;
    /// [`CaptureError::Isolation`] where a capture would come to depend on work outside of it.
    pub fn wait(&self, event: &Event, wait: &Wait) -> Result<(), SyncError> {
        match (self, event) {
            (Stream::Host(s), Event::Host(e)) => s.wait(e, wait),
            (Stream::Stub(s), Event::Stub(e)) => s.wait(e, wait),
            (_, event) if self.capture() == Capture::None => event.synchronize(wait),
            _ => Err(self.invalidate(CaptureError::Isolation)),
        }
    }

    /// As [`record`](Self::record), of the work that runs: also while the stream captures. The event
    /// is of the stream's backend; any other stays as it is.
    pub fn mark(&self, event: &Event) {
        match (self, event) {
            (Stream::Host(s), Event::Host(e)) => s.mark(e),
            (Stream::Stub(s), Event::Stub(e)) => s.mark(e),
            _ => tracing::error!("an event of another backend marks nothing"),
        }
    }

    /// Waits until all work enqueued so far has run, then asks everything that
    /// [`watch`](Self::watch)es it.
    ///
    /// # Errors
    ///
    /// [`SyncError::Unhealthy`] carries the failure of an operation that ran here; else why the
    /// wait ended early. In a capture, which it breaks, [`CaptureError::NotCapturable`].
    pub fn synchronize(&self, wait: &Wait) -> Result<(), SyncError> {
        on!(self, s => s.synchronize(wait))?;
        match on!(self, s => s.watched()).iter().find_map(|h| h.failure()) {
            Some(fault) => Err(SyncError::Unhealthy(fault)),
            None => Ok(()),
        }
    }

    /// Whether all work enqueued so far has run.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        on!(self, s => s.is_idle())
    }

    /// Whether it records a graph.
    #[must_use]
    pub fn capture(&self) -> Capture {
        on!(self, s => s.capture())
    }

    /// From here on, records work instead of running it, until [`end_capture`](Self::end_capture).
    ///
    /// Another stream joins by waiting for an event recorded in the capture, and joins back when this
    /// one waits for an event recorded there. What was recorded and is never launched has no effect.
    /// A call that needs recorded work to run, or ties the capture to work outside of it, breaks it.
    ///
    /// # Errors
    ///
    /// [`CaptureError::Active`], [`CaptureError::DefaultStream`].
    pub fn begin_capture(&self) -> Result<(), CaptureError> {
        on!(self, s => s.begin_capture())
    }

    /// Ends the capture that this stream began; all its streams run their work again.
    ///
    /// # Errors
    ///
    /// [`CaptureError`]; but for [`CaptureError::NotOrigin`] the capture is over all the same.
    pub fn end_capture(&self) -> Result<Graph, CaptureError> {
        Ok(match self {
            Stream::Host(s) => Graph::Host(s.end_capture()?),
            Stream::Stub(s) => Graph::Stub(s.end_capture()?),
        })
    }

    /// Breaks the capture that the stream is in, because of `error`.
    pub(crate) fn invalidate(&self, error: CaptureError) -> SyncError {
        on!(self, s => s.invalidate());
        error.into()
    }

    /// Lets `health` be asked at each [`synchronize`](Self::synchronize). The same one twice counts
    /// once. While the stream captures, it is the graph's launches that it will watch.
    pub fn watch(&self, health: Weak<dyn Health>) {
        on!(self, s => s.watch(health));
    }
}
