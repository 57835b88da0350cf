//! Streams: work in order.
#![allow(unsafe_code, reason = "launches kernels, whose arguments the caller vouches for")]

use std::any::Any;
use std::sync::{Arc, Weak};

use crate::backend::StreamOps;
use crate::event::Event;
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

/// Whether a stream records a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capture {
    /// Work runs.
    None,
    /// Work is recorded into the capture of this id.
    Active(u64),
    /// A capture broke; the stream refuses work until it is ended.
    Invalidated,
}

/// Something that must outlive a launch.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// One launch: what to run, on which arguments, and what must stay alive meanwhile.
#[derive(Debug)]
pub struct Launch<'a> {
    pub(crate) function: Function,
    pub(crate) args: &'a [u8],
    pub(crate) wait: &'a Wait,
    pub(crate) keep: &'a [KeepAlive],
}

impl<'a> Launch<'a> {
    /// A launch of `function` on the argument struct `args`. `wait` bounds every wait inside it.
    /// `keep` is held until it has run; an inline launch does not touch the counts.
    #[must_use]
    pub fn new<T: bytemuck::NoUninit>(
        function: Function,
        args: &'a T,
        wait: &'a Wait,
        keep: &'a [KeepAlive],
    ) -> Self {
        const { assert!(align_of::<T>() <= 16) };
        Launch { function, args: bytemuck::bytes_of(args), wait, keep }
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

    /// Runs or enqueues a kernel.
    ///
    /// # Errors
    ///
    /// [`SyncError::WorkerGone`] where the stream can run nothing any more.
    ///
    /// # Safety
    ///
    /// The argument struct must be the one the function's kernel was written for, and every address
    /// in it must stay valid until the launch has run (what `keep` holds does). The function must
    /// come from a module of this stream's backend.
    pub unsafe fn launch(&self, launch: Launch<'_>) -> Result<Launched, SyncError> {
        debug_assert_eq!(launch.args.len(), launch.function.kernel.args);
        debug_assert_eq!(self.backend(), launch.function.backend);
        // SAFETY: the caller's promise, passed on.
        on!(self, s => unsafe { s.launch(launch) })
    }

    /// Marks the work enqueued so far with `event`, replacing its last recording.
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
    /// inline stream that is a wait of the caller, bounded by `wait`.
    ///
    /// # Errors
    ///
    /// [`SyncError`] where the bound ends an inline wait, or a worker is gone.
    pub fn wait(&self, event: &Event, wait: &Wait) -> Result<(), SyncError> {
        match (self, event) {
            (Stream::Host(s), Event::Host(e)) => s.wait(e, wait),
            (Stream::Stub(s), Event::Stub(e)) => s.wait(e, wait),
            (_, event) => event.synchronize(wait),
        }
    }

    /// Waits until all work enqueued so far has run, then asks everything that
    /// [`watch`](Self::watch)es it.
    ///
    /// # Errors
    ///
    /// [`SyncError::Unhealthy`] carries the failure of an operation that ran here; else why the
    /// wait ended early.
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

    /// Lets `health` be asked at each [`synchronize`](Self::synchronize). The same one twice counts
    /// once.
    pub fn watch(&self, health: Weak<dyn Health>) {
        on!(self, s => s.watch(health));
    }
}
