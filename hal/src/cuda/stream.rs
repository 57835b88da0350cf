//! Streams: the driver's queues of work, this library's and others'.
#![allow(unsafe_code, reason = "calls the driver")]

use core::ffi::c_void;
use std::sync::{Arc, Weak};

use symmem_sys::cuda::bindings::{CUstream, CUstream_flags_enum, CUstreamCaptureMode_enum as Mode};
use symmem_sys::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

use super::Device;
use super::capture::{NUMBERED_BY_DRIVER, Recorded, State};
use super::context::Context;
use super::driver::{captured, cu, refusal};
use super::event::{Event, Mark, Point, until};
use super::graph::Graph;
use super::queue::{Joined, Queue};
use crate::backend::StreamOps;
use crate::capture::{Capture, CaptureError};
use crate::driver::DriverError;
use crate::health::{Health, SyncError};
use crate::module::Code;
use crate::stream::{KeepAlive, Launch, Launched, Role, StreamId, StreamMode};
use crate::types::BackendKind;
use crate::{DeviceError, DevicePtr, Wait};

/// A stream of an NVIDIA GPU. Clones are the same stream.
#[derive(Clone, Debug)]
pub struct Stream(Arc<Queue>);

impl Stream {
    pub(super) fn new(
        context: &'static Context,
        mode: StreamMode,
        role: Role,
    ) -> Result<Self, DeviceError> {
        if mode != StreamMode::Worker {
            return Err(DeviceError::StreamMode { backend: BackendKind::Cuda, mode });
        }
        let _entered = context.enter_aside()?;
        if let Some((id, raw)) = context.spare.take(context, role == Role::Urgent) {
            return Ok(Stream(register(context, Queue::new(context, raw, id, role, true, None))));
        }
        let (least, greatest) = context.priorities()?;
        let priority = if role == Role::Urgent { greatest } else { least };
        let mut raw = core::ptr::null_mut();
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: writes one handle.
        unsafe { cu!(context, cuStreamCreateWithPriority(&raw mut raw, flags, priority)) }?;
        // From here on it is destroyed with its holder.
        let mut inner = Queue::new(context, raw, 0, role, true, None);
        inner.id = number(context, raw)?;
        Ok(Stream(register(context, inner)))
    }

    /// # Safety
    ///
    /// As for the public `Stream::from_raw`.
    pub(crate) unsafe fn from_raw(
        device: &Device,
        raw: *mut c_void,
        keep: Option<KeepAlive>,
    ) -> Result<Self, DeviceError> {
        let refused = |reason| Err(DeviceError::Foreign { what: "stream", reason });
        let context = device.context();
        let raw = if raw.is_null() { CU_STREAM_LEGACY } else { raw.cast() };
        if raw == CU_STREAM_PER_THREAD {
            return refused("CU_STREAM_PER_THREAD is another stream on each thread");
        }
        let _entered = context.enter()?;
        let id = number(context, raw)?;
        if let Some(known) = context.streams.lock().get(&id).and_then(Weak::upgrade) {
            return Ok(Stream(known));
        }
        let mut of = core::ptr::null_mut();
        // SAFETY: writes one handle; the caller vouches for the stream.
        unsafe { cu!(context, cuStreamGetCtx(raw, &raw mut of)) }?;
        if of != context.raw() {
            return refused("it is of another context than the device's primary one");
        }
        let role = Role::Ordinary;
        Ok(Stream(register(context, Queue::new(context, raw, id, role, false, keep))))
    }

    pub(crate) fn as_raw(&self) -> *mut c_void {
        self.0.raw().cast()
    }

    pub(super) fn inner(&self) -> &Queue {
        &self.0
    }

    /// Where the kernels of the graph that it records find what a launch is bounded by.
    pub(crate) fn launch_bounds(&self) -> Result<Option<DevicePtr>, SyncError> {
        let inner = self.inner();
        let _entered = inner.context.enter()?;
        let Some((id, graph)) = inner.recording()? else { return Ok(None) };
        let recorded = Recorded::of(inner.context, id, graph)?;
        Ok(Some(recorded.bounds_ptr(inner.context)?))
    }

    /// Keeps something until the work enqueued so far is done, in a capture with the graph.
    #[cfg(feature = "cudarc")]
    pub(super) fn keep_until_now(&self, object: KeepAlive) {
        let inner = self.inner();
        let kept =
            inner.context.enter().map_err(SyncError::from).and_then(|_entered| {
                inner.keep(inner.recording()?, core::slice::from_ref(&object))
            });
        if let Err(error) = kept
            && inner.context.can_tidy()
        {
            tracing::error!(%error, "memory that a stream may use is never freed");
            core::mem::forget(object);
        }
    }

    /// Notes that the stream is in a capture from here on.
    fn joined(&self, id: u64, origin: bool, before: Arc<Point>) {
        *self.0.entered.lock() = Some(Joined { id, origin, before });
    }

    /// Marks the work enqueued so far, which runs. The context is current.
    fn point(&self) -> Result<Arc<Point>, DriverError> {
        let point = self.0.context.point()?;
        point.record(self.0.raw())?;
        Ok(Arc::new(point))
    }
}

/// The driver's number of a stream: never given twice, unlike handles. The context is current.
fn number(context: &Context, stream: CUstream) -> Result<u64, DriverError> {
    let mut id = 0;
    // SAFETY: writes one number; the stream is alive by whoever calls.
    unsafe { cu!(context, cuStreamGetId(stream, &raw mut id)) }?;
    Ok(id)
}

/// Lets the context know a stream; of two threads that come with the same one, both get the first's.
fn register(context: &'static Context, inner: Queue) -> Arc<Queue> {
    let mut streams = context.streams.lock();
    if let Some(known) = streams.get(&inner.id).and_then(Weak::upgrade) {
        // Dropped after the lock is: its end looks at the list, too.
        drop(streams);
        return known;
    }
    let inner = Arc::new(inner);
    streams.insert(inner.id, Arc::downgrade(&inner));
    inner
}

impl StreamOps for Stream {
    type Event = Event;
    type Graph = Graph;

    fn id(&self) -> StreamId {
        StreamId(self.0.id | NUMBERED_BY_DRIVER)
    }

    fn is_inline(&self) -> bool {
        false
    }

    fn is_immediate(&self) -> bool {
        false
    }

    unsafe fn launch(&self, launch: Launch<'_>) -> Result<Launched, SyncError> {
        let Code::Cuda(function) = launch.function.code else {
            return Err(SyncError::OtherBackend);
        };
        let inner = self.inner();
        let _entered = inner.context.enter()?;
        let recording = inner.recording()?;
        // SAFETY: the caller's promise; the context is the stream's, and current.
        unsafe { function.launch(inner.raw(), launch.args, launch.grid) }.map_err(refusal)?;
        launch.kept(|objects| inner.keep(recording, objects))
    }

    fn record(&self, event: &Event) -> Result<(), SyncError> {
        let inner = self.inner();
        let _entered = inner.context.enter()?;
        let recording = inner.recording()?;
        let recorded = event.remark(inner.context, |point| {
            point.record(inner.raw())?;
            Ok(match recording {
                None => Mark::Work(point),
                Some((id, _)) => Mark::Recorded(point, Arc::downgrade(&self.0), id),
            })
        });
        recorded.map_err(refusal)
    }

    fn mark(&self, event: &Event) {
        let inner = self.inner();
        let marked = inner.context.enter().and_then(|_entered| {
            let before = match inner.state()? {
                State::Runs => {
                    return event.remark(inner.context, |point| {
                        point.record(inner.raw())?;
                        Ok(Mark::Work(point))
                    });
                }
                State::Records { id, .. } => inner.before(id),
                State::Broken => inner.entered.lock().as_ref().map(|j| j.before.clone()),
            };
            match before {
                Some(point) => event.set(Mark::Work(point)),
                None => tracing::debug!("the work before somebody else's capture has no mark"),
            }
            Ok(())
        });
        inner.context.complain("marking a stream's work", marked);
    }

    fn wait(&self, event: &Event, _wait: &Wait) -> Result<(), SyncError> {
        let inner = self.inner();
        let context = inner.context;
        let (point, theirs) = match event.mark() {
            Mark::Never => return Ok(()),
            Mark::Work(point) => (point, None),
            Mark::Recorded(point, stream, id) => (point, Some((stream, id))),
        };
        let _entered = context.enter()?;
        let state = inner.state()?;
        let mut joins = None;
        if let Some((theirs, open)) = theirs {
            let theirs = theirs.upgrade().ok_or(CaptureError::Ended)?;
            match theirs.state()? {
                State::Records { id, .. } if id == open => {}
                State::Broken => return Err(CaptureError::Invalidated.into()),
                _ => return Err(CaptureError::Ended.into()),
            }
            match state {
                State::Runs if inner.role == Role::Default => {
                    theirs.invalidate();
                    return Err(CaptureError::DefaultStream.into());
                }
                State::Runs => joins = Some((open, self.point()?)),
                State::Records { id, .. } if id != open => {
                    inner.invalidate();
                    theirs.invalidate();
                    return Err(CaptureError::Isolation.into());
                }
                _ => {}
            }
        } else if let State::Records { .. } = state {
            inner.invalidate();
            return Err(CaptureError::Isolation.into());
        }
        // SAFETY: both are alive; the driver takes what the event marks now.
        unsafe { cu!(context, cuStreamWaitEvent(inner.raw(), point.raw(), 0)) }.map_err(refusal)?;
        if let Some((id, before)) = joins {
            self.joined(id, false, before);
        }
        Ok(())
    }

    fn synchronize(&self, wait: &Wait) -> Result<(), SyncError> {
        super::capture::reap();
        let inner = self.inner();
        let point = {
            let _entered = inner.context.enter()?;
            match inner.state()? {
                State::Runs => {}
                State::Records { .. } | State::Broken => {
                    inner.invalidate();
                    return Err(CaptureError::NotCapturable { call: "Stream::synchronize" }.into());
                }
            }
            // One mark for both: what this waits for, and what its work kept alive until then.
            let mut keeper = inner.keeper.lock();
            let point = self.point()?;
            keeper.close(point.clone());
            point
        };
        until(wait, || point.query())?;
        let done = inner.keeper.lock().reap(|point| point.is_over());
        drop(done);
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.inner().is_idle()
    }

    fn capture(&self) -> Capture {
        let state = self.inner().state_apart();
        // A device that does not answer takes no work either: who launches hears why.
        state.map_or(Capture::None, State::public)
    }

    fn begin_capture(&self) -> Result<(), CaptureError> {
        super::capture::reap();
        let inner = self.inner();
        if inner.role == Role::Default || inner.raw() == CU_STREAM_LEGACY {
            return Err(CaptureError::DefaultStream);
        }
        let context = inner.context;
        let _entered = context.enter()?;
        // Of two threads that begin at once, one finds the other's.
        let mut joined = inner.entered.lock();
        let State::Runs = inner.state()? else { return Err(CaptureError::Active) };
        let before = self.point()?;
        // Relaxed, since any thread may go on with the capture and end it, as on every backend, and
        // none of this library's calls that a stricter mode forbids touches the captured streams.
        let mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive.
        unsafe { cu!(context, cuStreamBeginCapture_v2(inner.raw(), mode)) }.map_err(of_capture)?;
        if let State::Records { id, .. } = inner.state()? {
            *joined = Some(Joined { id, origin: true, before });
        }
        Ok(())
    }

    fn end_capture(&self) -> Result<Graph, CaptureError> {
        let inner = self.inner();
        let _entered = inner.context.enter()?;
        let mut joined = inner.entered.lock();
        let origin = joined.as_ref().is_some_and(|j| j.origin);
        let recorded = match inner.state()? {
            State::Runs => return Err(CaptureError::NotActive),
            State::Records { id, .. }
                if !joined.as_ref().is_some_and(|j| j.origin && j.id == id) =>
            {
                return Err(CaptureError::NotOrigin);
            }
            State::Broken if !origin => return Err(CaptureError::NotOrigin),
            State::Records { id, .. } => Recorded::known(id),
            State::Broken => None,
        };
        *joined = None;
        drop(joined);
        let graph = Graph::end(inner, recorded);
        super::capture::reap();
        graph
    }

    fn invalidate(&self) {
        self.inner().invalidate();
    }

    fn replay(&self, graph: &Graph, wait: &Wait) -> Result<Launched, SyncError> {
        let inner = self.inner();
        let _entered = inner.context.enter()?;
        let recording = inner.recording()?;
        let objects = graph.launch(inner.raw(), wait).map_err(refusal)?;
        inner.keep(recording, &objects)
    }

    fn watch(&self, health: Weak<dyn Health>) {
        let inner = self.inner();
        let recorded = inner.state_apart().and_then(|state| match state {
            State::Records { id, graph } => {
                let _entered = inner.context.enter()?;
                Recorded::of(inner.context, id, graph).map(Some)
            }
            _ => Ok(None),
        });
        match recorded {
            Ok(Some(recorded)) => recorded.watch(health),
            Ok(None) => self.watch_queued(health),
            Err(error) => inner.context.complain("watching a stream", Err(error)),
        }
    }

    fn watch_queued(&self, health: Weak<dyn Health>) {
        let mut watched = self.0.watched.lock();
        // Most operations are of the group that the one before was of.
        if watched.last().is_none_or(|last| !Weak::ptr_eq(last, &health)) {
            watched.retain(|h| h.strong_count() > 0 && !Weak::ptr_eq(h, &health));
            watched.push(health);
        }
    }

    fn watched(&self) -> Vec<Arc<dyn Health>> {
        self.0.watched.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// A driver's error in a call about captures.
pub(super) fn of_capture(error: DriverError) -> CaptureError {
    captured(&error).unwrap_or_else(|| error.into())
}
