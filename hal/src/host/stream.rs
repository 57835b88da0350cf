//! Streams of the CPU.
#![allow(unsafe_code, reason = "calls kernels")]

use std::sync::{Arc, Weak};

use super::{Event, Graph};
use crate::backend::StreamOps;
use crate::capture::{Capture, CaptureError};
use crate::common::Common;
use crate::health::{Health, SyncError};
use crate::module::{LaunchContext, Space};
use crate::queue::{Mark, Marker, Queue};
use crate::stream::{Launch, Launched, Role, StreamId, StreamMode};
use crate::types::BackendKind;
use crate::work::Work;
use crate::{Device, DeviceError, Wait};

/// A stream of the CPU: inline, or with a worker.
#[derive(Clone, Debug)]
pub struct Stream {
    common: Arc<Common>,
    worker: Option<Queue>,
}

impl Stream {
    pub(super) fn new(mode: StreamMode, role: Role) -> Result<Self, DeviceError> {
        let worker = match mode {
            StreamMode::Inline => None,
            StreamMode::Worker => {
                Some(Queue::start("symmem-stream").map_err(DeviceError::NoThread)?)
            }
            #[allow(unreachable_patterns, reason = "non_exhaustive to users")]
            _ => return Err(DeviceError::StreamMode { backend: BackendKind::Host, mode }),
        };
        Ok(Stream { common: Arc::new(Common::new(role)), worker })
    }
}

impl StreamOps for Stream {
    type Event = Event;
    type Graph = Graph;

    fn id(&self) -> StreamId {
        self.common.id
    }

    fn is_inline(&self) -> bool {
        self.worker.is_none()
    }

    fn is_immediate(&self) -> bool {
        self.is_inline() && !self.common.can_be_captured()
    }

    unsafe fn launch(&self, launch: Launch<'_>) -> Result<Launched, SyncError> {
        if let Some(recording) = self.common.recording() {
            // SAFETY: the caller's promise, passed on; the recording keeps the work.
            let work = unsafe { Work::new(&launch, Space::Host) }?;
            return Ok(recording.launch(self.common.id, work)?);
        }
        match &self.worker {
            None => {
                let context = LaunchContext::new(Space::Host, launch.wait);
                // SAFETY: the caller vouches for the arguments; they outlive this call, which is
                // all that an inline launch needs. `Launch::new` saw to the alignment.
                unsafe { (launch.kernel()?.host)(&context, launch.args.as_ptr()) };
                Ok(if context.is_stopped() { Launched::Stopped } else { Launched::Finished })
            }
            Some(queue) => {
                // SAFETY: the caller's promise, passed on; the queue keeps the work until it ran.
                let work = unsafe { Work::new(&launch, Space::Host) }?;
                queue.launch(work, launch.wait)
            }
        }
    }

    fn record(&self, event: &Event) -> Result<(), SyncError> {
        if !self.common.record(event)? {
            self.mark(event);
        }
        Ok(())
    }

    fn mark(&self, event: &Event) {
        let marker = self.worker.as_ref().map_or_else(Marker::default, Queue::marker);
        event.set(Mark::Work(marker));
    }

    fn wait(&self, event: &Event, wait: &Wait) -> Result<(), SyncError> {
        match (self.common.wait(event)?, &self.worker) {
            (Mark::Work(marker), None) => marker.wait(wait),
            (Mark::Work(marker), Some(queue)) => queue.wait_for(marker),
            _ => Ok(()),
        }
    }

    fn synchronize(&self, wait: &Wait) -> Result<(), SyncError> {
        self.common.synchronizable()?;
        self.worker.as_ref().map_or(Ok(()), |queue| queue.marker().wait(wait))
    }

    fn is_idle(&self) -> bool {
        self.worker.as_ref().is_none_or(|queue| queue.marker().is_complete())
    }

    fn capture(&self) -> Capture {
        self.common.capture()
    }

    fn begin_capture(&self) -> Result<(), CaptureError> {
        self.common.begin_capture()
    }

    fn end_capture(&self) -> Result<Graph, CaptureError> {
        // For events, which are the same on every device of the backend.
        self.common.end_capture(&Device::host())
    }

    fn invalidate(&self) {
        self.common.invalidate();
    }

    fn replay(&self, graph: &Graph, wait: &Wait) -> Result<Launched, SyncError> {
        match &self.worker {
            None => Ok(graph.run(wait)),
            Some(queue) => graph.enqueue(queue, wait),
        }
    }

    fn watch(&self, health: Weak<dyn Health>) {
        self.common.watch(health);
    }

    fn watched(&self) -> Vec<Arc<dyn Health>> {
        self.common.watched()
    }
}
