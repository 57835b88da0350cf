//! Streams of a device in software: always on a worker.
#![allow(unsafe_code, reason = "enqueues kernels")]

use std::sync::{Arc, Weak};

use super::{Event, Graph};
use crate::backend::StreamOps;
use crate::capture::{Capture, CaptureError};
use crate::common::Common;
use crate::health::{Health, SyncError};
use crate::module::Space;
use crate::queue::{Mark, Queue};
use crate::stream::{Launch, Launched, Role, StreamId, StreamMode};
use crate::types::BackendKind;
use crate::work::Work;
use crate::{Device, DeviceError, Wait};

/// A stream of a device in software.
#[derive(Clone, Debug)]
pub struct Stream {
    common: Arc<Common>,
    queue: Queue,
}

impl Stream {
    pub(super) fn new(mode: StreamMode, role: Role) -> Result<Self, DeviceError> {
        if mode != StreamMode::Worker {
            return Err(DeviceError::StreamMode { backend: BackendKind::Stub, mode });
        }
        let queue = Queue::start("symmem-stub").map_err(DeviceError::NoThread)?;
        Ok(Stream { common: Arc::new(Common::new(role)), queue })
    }
}

impl StreamOps for Stream {
    type Event = Event;
    type Graph = Graph;

    fn id(&self) -> StreamId {
        self.common.id
    }

    fn is_inline(&self) -> bool {
        false
    }

    fn is_immediate(&self) -> bool {
        false
    }

    unsafe fn launch(&self, launch: Launch<'_>) -> Result<Launched, SyncError> {
        // SAFETY: the caller's promise, passed on; the recording keeps the work, or the queue until
        // it ran.
        let work = unsafe { Work::new(&launch, Space::Stub) }?;
        match self.common.recording() {
            Some(recording) => Ok(recording.launch(self.common.id, work)?),
            None => self.queue.launch(work, launch.wait),
        }
    }

    fn record(&self, event: &Event) -> Result<(), SyncError> {
        if !self.common.record(event)? {
            self.mark(event);
        }
        Ok(())
    }

    fn mark(&self, event: &Event) {
        event.set(Mark::Work(self.queue.marker()));
    }

    fn wait(&self, event: &Event, _wait: &Wait) -> Result<(), SyncError> {
        match self.common.wait(event)? {
            Mark::Work(marker) => self.queue.wait_for(marker),
            _ => Ok(()),
        }
    }

    fn synchronize(&self, wait: &Wait) -> Result<(), SyncError> {
        self.common.synchronizable()?;
        self.queue.marker().wait(wait)
    }

    fn is_idle(&self) -> bool {
        self.queue.marker().is_complete()
    }

    fn capture(&self) -> Capture {
        self.common.capture()
    }

    fn begin_capture(&self) -> Result<(), CaptureError> {
        self.common.begin_capture()
    }

    fn end_capture(&self) -> Result<Graph, CaptureError> {
        // For events, which are the same on every device of the backend.
        self.common.end_capture(&Device::stub(0))
    }

    fn invalidate(&self) {
        self.common.invalidate();
    }

    fn replay(&self, graph: &Graph, wait: &Wait) -> Result<Launched, SyncError> {
        graph.enqueue(&self.queue, wait)
    }

    fn watch(&self, health: Weak<dyn Health>) {
        self.common.watch(health);
    }

    fn watched(&self) -> Vec<Arc<dyn Health>> {
        self.common.watched()
    }
}
