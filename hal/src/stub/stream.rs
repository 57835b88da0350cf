//! Streams of a device in software: always on a worker.
#![allow(unsafe_code, reason = "enqueues kernels")]

use std::sync::{Arc, Weak};

use super::Event;
use crate::backend::StreamOps;
use crate::health::{Health, SyncError};
use crate::host::stream::enqueue;
use crate::module::Space;
use crate::queue::{Common, Queue};
use crate::stream::{Capture, Launch, Launched, StreamId, StreamMode};
use crate::types::BackendKind;
use crate::{DeviceError, Wait};

/// A stream of a device in software.
#[derive(Clone, Debug)]
pub struct Stream {
    common: Arc<Common>,
    queue: Queue,
}

impl Stream {
    pub(super) fn new(mode: StreamMode) -> Result<Self, DeviceError> {
        if mode != StreamMode::Worker {
            return Err(DeviceError::StreamMode { backend: BackendKind::Stub, mode });
        }
        let queue = Queue::start("symmem-stub").map_err(DeviceError::NoThread)?;
        Ok(Stream { common: Arc::new(Common::new()), queue })
    }
}

impl StreamOps for Stream {
    type Event = Event;

    fn id(&self) -> StreamId {
        self.common.id
    }

    fn is_inline(&self) -> bool {
        false
    }

    unsafe fn launch(&self, launch: Launch<'_>) -> Result<Launched, SyncError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { enqueue(&self.queue, Space::Stub, &launch) }
    }

    fn record(&self, event: &Event) -> Result<(), SyncError> {
        event.set(self.queue.marker());
        Ok(())
    }

    fn wait(&self, event: &Event, _wait: &Wait) -> Result<(), SyncError> {
        self.queue.wait_for(event.marker())
    }

    fn synchronize(&self, wait: &Wait) -> Result<(), SyncError> {
        self.queue.marker().wait(wait)
    }

    fn is_idle(&self) -> bool {
        self.queue.marker().is_complete()
    }

    fn capture(&self) -> Capture {
        Capture::None
    }

    fn watch(&self, health: Weak<dyn Health>) {
        self.common.watch(health);
    }

    fn watched(&self) -> Vec<Arc<dyn Health>> {
        self.common.watched()
    }
}
