//! Streams: work in order.
#![allow(unsafe_code, reason = "launches kernels, whose arguments the caller vouches for")]

use std::any::Any;
use std::sync::{Arc, Weak};

use crate::backend::StreamOps;
use crate::capture::{Capture, CaptureError};
use crate::event::Event;
use crate::graph::Graph;
use crate::health::{Health, SyncError};
use crate::module::{Code, Function, Kernel};
use crate::types::{BackendKind, Bytes};
#[cfg(feature = "cuda")]
use crate::{Device, DeviceError, cuda};
use crate::{DevicePtr, Wait, host, stub, transfer};

/// A queue of work that runs in order. Clones are the same stream; compare by [`id`](Self::id).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Stream {
    /// On the CPU.
    Host(host::Stream),
    /// On a device in software.
    Stub(stub::Stream),
    /// Of an NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(cuda::Stream),
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
    /// Work that goes before that of others, where there are priorities.
    Urgent,
}

/// Something that must outlive a launch.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// One launch: what to run, on which arguments, and what must stay alive meanwhile.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    pub(crate) function: Function,
    pub(crate) args: &'a [u8],
    pub(crate) wait: &'a Wait,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only devices have grids"))]
    pub(crate) grid: Grid,
    keep: Keep<'a>,
}

/// How a device spreads a launch. Backends that run functions take it and ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Thread blocks.
    pub blocks: u32,
    /// Threads of each block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of each block.
    pub shared: u32,
    /// Programmatic dependent launch: the grid may start before the work ahead of it on the stream
    /// has ended, and waits for that itself.
    pub dependent: bool,
    /// All blocks are resident at once, or the launch fails: blocks may wait for each other.
    pub cooperative: bool,
}

impl Default for Grid {
    fn default() -> Self {
        Grid { blocks: 1, threads: 1, shared: 0, dependent: false, cooperative: false }
    }
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
        Launch { function, args: bytemuck::bytes_of(args), wait, grid: Grid::default(), keep }
    }

    /// Spread like this; one block of one thread without.
    #[must_use]
    pub fn grid(mut self, grid: Grid) -> Self {
        self.grid = grid;
        self
    }

    /// The function, for backends that run it on the CPU.
    pub(crate) fn kernel(&self) -> Result<&'static Kernel, SyncError> {
        match self.function.code {
            Code::Rust(kernel) => Ok(kernel),
            #[cfg(feature = "cuda")]
            Code::Cuda(_) => Err(SyncError::OtherBackend),
        }
    }

    /// Calls `then` with everything that it keeps.
    #[cfg(feature = "cuda")]
    pub(crate) fn kept<R>(&self, then: impl FnOnce(&[KeepAlive]) -> R) -> R {
        match self.keep {
            Keep::These(these) => then(these),
            Keep::Asked(ask) => then(&ask()),
        }
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
            #[cfg(feature = "cuda")]
            Stream::Cuda($stream) => $body,
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
            #[cfg(feature = "cuda")]
            Stream::Cuda(_) => BackendKind::Cuda,
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
    /// [`SyncError::OtherBackend`] where the function is none of this stream's backend,
    /// [`SyncError::Capture`] in an invalid capture, [`SyncError::Device`] where the driver refused.
    ///
    /// # Safety
    ///
    /// The argument struct must be the one the function's kernel was written for, and every address
    /// in it must stay valid until this returns and, beyond that, for as long as what `keep` gives
    /// lives. The function must come from a module of this stream's device.
    pub unsafe fn launch(&self, launch: Launch<'_>) -> Result<Launched, SyncError> {
        debug_assert_eq!(launch.args.len(), launch.function.args());
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
            #[cfg(feature = "cuda")]
            (Stream::Cuda(s), Event::Cuda(e)) => s.record(e),
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
            #[cfg(feature = "cuda")]
            (Stream::Cuda(s), Event::Cuda(e)) => s.wait(e, wait),
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
            #[cfg(feature = "cuda")]
            (Stream::Cuda(s), Event::Cuda(e)) => s.mark(e),
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
    /// Makes the graph ready to run, on a GPU: for that its driver can wait until kernels of the process have
    /// ended, and hold up other threads meanwhile. Where ranks share a GPU as threads, all end their
    /// captures before one waits in a kernel for another.
    ///
    /// # Errors
    ///
    /// [`CaptureError`]; but for [`CaptureError::NotOrigin`] the capture is over all the same.
    pub fn end_capture(&self) -> Result<Graph, CaptureError> {
        Ok(match self {
            Stream::Host(s) => Graph::Host(s.end_capture()?),
            Stream::Stub(s) => Graph::Stub(s.end_capture()?),
            #[cfg(feature = "cuda")]
            Stream::Cuda(s) => Graph::Cuda(s.end_capture()?),
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

    /// As [`watch`](Self::watch), for who has enqueued work of which [`Launched::Queued`] was said: it runs, whatever
    /// the stream captures by now.
    pub fn watch_queued(&self, health: Weak<dyn Health>) {
        on!(self, s => s.watch_queued(health));
    }

    /// A stream that somebody else made on `device`: a `CUstream`, null and `CU_STREAM_LEGACY` being
    /// the same. `keep` is dropped with the last clone of what this returns. While one is alive, the
    /// same `CUstream` gives the same stream again.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Foreign`] where the device is no GPU, the stream is of another device's
    /// context, or is `CU_STREAM_PER_THREAD`, which is another stream on each thread; else what the
    /// driver said.
    ///
    /// # Safety
    ///
    /// The stream must not be destroyed before `keep` is dropped, or ever without one.
    #[cfg(feature = "cuda")]
    pub unsafe fn from_raw(
        device: &Device,
        stream: *mut core::ffi::c_void,
        keep: Option<KeepAlive>,
    ) -> Result<Stream, DeviceError> {
        let Device::Cuda(device) = device else {
            let reason = "the device is no GPU";
            return Err(DeviceError::Foreign { what: "stream", reason });
        };
        // SAFETY: the caller's promise, passed on.
        unsafe { cuda::Stream::from_raw(device, stream, keep) }.map(Stream::Cuda)
    }

    /// The `CUstream` behind it, for a user's own launches; none where the CPU runs the work. It is
    /// valid as long as the stream.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn as_raw(&self) -> Option<*mut core::ffi::c_void> {
        match self {
            Stream::Cuda(s) => Some(s.as_raw()),
            _ => None,
        }
    }

    /// In a capture on a GPU, where a kernel that is launched next will find the
    /// [`LaunchBounds`](crate::LaunchBounds) of
    /// each [launch of the graph](crate::Graph::launch), as long as there is a graph. `None` elsewhere:
    /// what is not captured is bounded by what its arguments say, and functions on the CPU are told by
    /// their [`LaunchContext`](crate::LaunchContext).
    ///
    /// # Errors
    ///
    /// [`SyncError::Capture`] in a broken capture, [`SyncError::Device`] where there is no memory.
    #[cfg(feature = "cuda")]
    pub fn launch_bounds(&self) -> Result<Option<DevicePtr>, SyncError> {
        match self {
            Stream::Cuda(s) => s.launch_bounds(),
            _ => Ok(None),
        }
    }

    /// Copies bytes, by a device's copy engines where it has some; a node of the graph in a capture.
    /// The ranges must not overlap without being equal.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    ///
    /// Both ranges must be memory that this stream's device has mapped, until this returns and as
    /// long as what `keep` gives lives. `keep` is called only if the copy is not done when it
    /// returns.
    pub unsafe fn copy(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: Bytes,
        keep: &dyn Fn() -> Vec<KeepAlive>,
    ) -> Result<Launched, SyncError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.copy_batch(&[(dst, src, bytes)], keep) }
    }

    /// As [`copy`](Self::copy), of several in one call: in no order among themselves.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy); some of them may have been enqueued.
    ///
    /// # Safety
    ///
    /// As for [`copy`](Self::copy), for each. No range that is written may overlap another's.
    pub unsafe fn copy_batch(
        &self,
        copies: &[(DevicePtr, DevicePtr, Bytes)],
        keep: &dyn Fn() -> Vec<KeepAlive>,
    ) -> Result<Launched, SyncError> {
        match self {
            #[cfg(feature = "cuda")]
            // SAFETY: the caller's promise, passed on.
            Stream::Cuda(s) => unsafe { s.copy_batch(copies, keep) },
            // SAFETY: the caller's promise, passed on.
            _ => unsafe { transfer::copy_batch(self, copies, keep) },
        }
    }

    /// Stores `value` into `count` 32-bit words, aligned; a node of the graph in a capture.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    ///
    /// As for [`copy`](Self::copy), of the one range.
    pub unsafe fn fill32(
        &self,
        dst: DevicePtr,
        value: u32,
        count: u64,
        keep: &dyn Fn() -> Vec<KeepAlive>,
    ) -> Result<Launched, SyncError> {
        match self {
            #[cfg(feature = "cuda")]
            // SAFETY: the caller's promise, passed on.
            Stream::Cuda(s) => unsafe { s.fill32(dst, value, count, keep) },
            // SAFETY: the caller's promise, passed on.
            _ => unsafe { transfer::fill32(self, dst, value, count, keep) },
        }
    }

    /// Stores one aligned 32-bit word after everything before it on the stream has become visible to
    /// the whole system.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    ///
    /// As for [`copy`](Self::copy), of the one word.
    pub unsafe fn write_value32(
        &self,
        dst: DevicePtr,
        value: u32,
        keep: &dyn Fn() -> Vec<KeepAlive>,
    ) -> Result<Launched, SyncError> {
        match self {
            #[cfg(feature = "cuda")]
            // SAFETY: the caller's promise, passed on.
            Stream::Cuda(s) => unsafe { s.write_value32(dst, value, keep) },
            // SAFETY: the caller's promise, passed on.
            _ => unsafe { transfer::fill32(self, dst, value, 1, keep) },
        }
    }
}
