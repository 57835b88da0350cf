//! The trait set that every backend implements; the public enums dispatch over it.
//!
//! Private, and so sealed: the enums are closed on purpose. Every backend folder has the same files
//! (`device`, `memory`, `module`, `stream`, `event`, `graph`), so that one knows where to look.

#![allow(unsafe_code, reason = "declares the unsafe launch")]

use std::sync::{Arc, Weak};
use std::task::Waker;

use crate::capture::{Capture, CaptureError};
use crate::driver::DriverError;
use crate::health::{Health, SyncError};
use crate::memory::{AllocError, ExportError, ImportError, Shareable};
use crate::module::{Kernel, KernelSet, LoadError};
use crate::shm::Segment;
use crate::stream::{Launch, Launched, Role, StreamId, StreamMode};
use crate::types::{BackendKind, Bytes, DeviceUuid};
use crate::{Capabilities, DeviceError, DevicePtr, StreamOrder, Wait};

pub(crate) trait DeviceOps {
    type Memory: MemoryOps;
    type Stream: StreamOps<Event = Self::Event>;
    type Event: EventOps;
    type Module: ModuleOps;

    fn kind(&self) -> BackendKind;
    fn uuid(&self) -> DeviceUuid;
    fn name(&self) -> String;
    fn capabilities(&self) -> Capabilities;
    fn allocate(&self, bytes: Bytes) -> Result<Self::Memory, AllocError>;
    fn allocate_private(&self, bytes: Bytes) -> Result<Self::Memory, AllocError>;
    fn import(&self, shared: Shareable, bytes: Bytes) -> Result<Self::Memory, ImportError>;
    fn stream(&self, mode: StreamMode, role: Role) -> Result<Self::Stream, DeviceError>;
    fn event(&self) -> Self::Event;
    fn load(&self, set: &'static KernelSet) -> Result<Self::Module, LoadError>;
}

pub(crate) trait MemoryOps {
    fn base(&self) -> DevicePtr;
    fn bytes(&self) -> Bytes;
    fn export(&self) -> Result<Shareable, ExportError>;
    /// Copies out of a range that lies in the memory.
    fn read(&self, start: usize, out: &mut [u8]) -> Result<(), DriverError>;
    /// Copies into a range that lies in the memory.
    fn write(&self, start: usize, data: &[u8]) -> Result<(), DriverError>;
    /// Stores words, aligned and in the memory, `pitch` bytes apart.
    fn fill32(
        &self,
        start: usize,
        pitch: usize,
        value: u32,
        count: usize,
    ) -> Result<(), DriverError>;
    /// The bytes behind the memory where the host may touch them.
    fn host_segment(&self) -> Option<&Segment>;
}

pub(crate) trait StreamOps {
    type Event: EventOps;
    type Graph: GraphOps;

    fn id(&self) -> StreamId;
    fn is_inline(&self) -> bool;
    fn is_immediate(&self) -> bool;
    /// # Safety
    ///
    /// As for the public `Stream::launch`.
    unsafe fn launch(&self, launch: Launch<'_>) -> Result<Launched, SyncError>;
    fn record(&self, event: &Self::Event) -> Result<(), SyncError>;
    /// As `record`, of the work that runs, also while the stream records a graph.
    fn mark(&self, event: &Self::Event);
    fn wait(&self, event: &Self::Event, wait: &Wait) -> Result<(), SyncError>;
    fn synchronize(&self, wait: &Wait) -> Result<(), SyncError>;
    fn is_idle(&self) -> bool;
    fn capture(&self) -> Capture;
    fn begin_capture(&self) -> Result<(), CaptureError>;
    fn end_capture(&self) -> Result<Self::Graph, CaptureError>;
    /// Breaks the capture that the stream is in, if it is in one.
    fn invalidate(&self);
    fn replay(&self, graph: &Self::Graph, wait: &Wait) -> Result<Launched, SyncError>;
    fn watch(&self, health: Weak<dyn Health>);
    /// As `watch`, of work that was enqueued just now and runs: without a look whether the stream captures, where
    /// that takes time.
    fn watch_queued(&self, health: Weak<dyn Health>) {
        self.watch(health);
    }
    fn watched(&self) -> Vec<Arc<dyn Health>>;
}

pub(crate) trait EventOps {
    fn is_complete(&self) -> bool;
    fn synchronize(&self, wait: &Wait) -> Result<(), SyncError>;
    fn on_complete(&self, waker: Waker);
}

pub(crate) trait GraphOps {
    fn nodes(&self) -> usize;
    fn edges(&self) -> Vec<(usize, usize)>;
    /// The order of its launches.
    fn order(&self) -> &StreamOrder;
    /// Who was to watch the streams that it was captured on.
    fn health(&self) -> Vec<Arc<dyn Health>>;
}

pub(crate) trait ModuleOps {
    fn name(&self) -> &'static str;
    /// One of its functions for the CPU.
    fn kernel(&self, name: &str) -> Option<&'static Kernel>;
}
