//! Streams of the CPU.
#![allow(unsafe_code, reason = "calls kernels")]

use std::sync::{Arc, Weak};

use super::Event;
use crate::backend::StreamOps;
use crate::health::{Health, SyncError};
use crate::module::{LaunchContext, Space};
use crate::queue::{Common, Marker, Queue};
use crate::stream::{Capture, Launch, Launched, StreamId, StreamMode};
use crate::types::BackendKind;
use crate::{DeviceError, Wait};

/// A stream of the CPU: inline, or with a worker.
#[derive(Clone, Debug)]
pub struct Stream {
    common: Arc<Common>,
    worker: Option<Queue>,
}

impl Stream {
    pub(super) fn new(mode: StreamMode) -> Result<Self, DeviceError> {
        let worker = match mode {
            StreamMode::Inline => None,
            StreamMode::Worker => {
                Some(Queue::start("symmem-stream").map_err(DeviceError::NoThread)?)
            }
            #[allow(unreachable_patterns, reason = "non_exhaustive to users")]
            _ => return Err(DeviceError::StreamMode { backend: BackendKind::Host, mode }),
        };
        Ok(Stream { common: Arc::new(Common::new()), worker })
    }
}

impl StreamOps for Stream {
    type Event = Event;

    fn id(&self) -> StreamId {
        self.common.id
    }

    fn is_inline(&self) -> bool {
        self.worker.is_none()
    }

    unsafe fn launch(&self, launch: Launch<'_>) -> Result<Launched, SyncError> {
        match &self.worker {
            None => {
                let context = LaunchContext::new(Space::Host, launch.wait);
                // SAFETY: the caller vouches for the arguments; they outlive this call, which is
                // all that an inline launch needs. `Launch::new` saw to the alignment.
                unsafe { (launch.function.kernel.host)(&context, launch.args.as_ptr()) };
                Ok(if context.is_stopped() { Launched::Stopped } else { Launched::Finished })
            }
            // SAFETY: the caller's promise, passed on.
            Some(queue) => unsafe { enqueue(queue, Space::Host, &launch) },
        }
    }

    fn record(&self, event: &Event) -> Result<(), SyncError> {
        event.set(self.worker.as_ref().map_or_else(Marker::default, Queue::marker));
        Ok(())
    }

    fn wait(&self, event: &Event, wait: &Wait) -> Result<(), SyncError> {
        match &self.worker {
            None => event.marker().wait(wait),
            Some(queue) => queue.wait_for(event.marker()),
        }
    }

    fn synchronize(&self, wait: &Wait) -> Result<(), SyncError> {
        self.worker.as_ref().map_or(Ok(()), |queue| queue.marker().wait(wait))
    }

    fn is_idle(&self) -> bool {
        self.worker.as_ref().is_none_or(|queue| queue.marker().is_complete())
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

/// An argument block with the alignment that kernels may rely on.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Line([u8; 16]);

/// Copies the launch and puts it into a queue.
///
/// # Safety
///
/// As for `Stream::launch`; `keep` is held until the kernel has returned.
pub(crate) unsafe fn enqueue(
    queue: &Queue,
    space: Space,
    launch: &Launch<'_>,
) -> Result<Launched, SyncError> {
    let mut args = vec![Line([0; 16]); launch.args.len().div_ceil(16)];
    for (line, bytes) in args.iter_mut().zip(launch.args.chunks(16)) {
        line.0[..bytes.len()].copy_from_slice(bytes);
    }
    let (kernel, wait, keep) = (launch.function.kernel, launch.wait.clone(), launch.keep.to_vec());
    queue.push(move || {
        let context = LaunchContext::new(space, &wait);
        // SAFETY: the caller vouched for the arguments, which were copied whole into aligned
        // memory; what their addresses need is held by `keep` until after this call.
        unsafe { (kernel.host)(&context, args.as_ptr().cast()) };
        drop(keep);
    })?;
    Ok(Launched::Queued)
}
