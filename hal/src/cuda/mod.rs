//! NVIDIA GPUs, by the CUDA driver.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::{Arc, Weak};
use std::task::Waker;

use symmem_sys::cuda::Driver;

use crate::backend::{DeviceOps, EventOps, GraphOps, MemoryOps, ModuleOps, StreamOps};
use crate::capture::{Capture, CaptureError};
use crate::driver::DriverError;
use crate::health::{Health, SyncError};
use crate::kernels::{self, Unit};
use crate::memory::{AllocError, ExportError, ImportError, Shareable};
use crate::module::{KernelSet, LoadError};
use crate::shm::Segment;
use crate::stream::{KeepAlive, Launch, Launched, Role, StreamId, StreamMode};
use crate::types::{BackendKind, Bytes, DeviceUuid};
use crate::{Capabilities, DeviceError, DevicePtr, PeerAccessError, StreamOrder, Wait, host};

#[derive(Clone, Copy, Debug)]
enum Never {}

macro_rules! ty { ($($(#[$m:meta])* $t:ident)+) => { $(
    $(#[$m])* #[derive(Clone, Debug)] pub struct $t(Never); )+ } }
ty! {
    /// An NVIDIA GPU.
    Device
    /// Memory.
    Memory
    /// Stream.
    Stream
    /// Event.
    Event
    /// Graph.
    Graph
    /// Module.
    Module
    /// Function.
    Function
    /// A multicast object.
    Multicast
}
/// Why there is no multicast object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("multicast is not built yet")]
pub struct MulticastError;
/// Registration of host memory.
#[derive(Debug, Default)]
pub(crate) struct Registration(());

impl Device {
    pub(crate) fn new(ordinal: u32) -> Result<Self, DeviceError> {
        Driver::get().map_err(DeviceError::NotFound)?;
        Err(DeviceError::NoDevice { backend: BackendKind::Cuda, wanted: ordinal, found: 0 })
    }
    pub(crate) fn by_uuid(_: DeviceUuid) -> Result<Self, DeviceError> {
        Self::new(0)
    }
    pub(crate) fn count() -> Result<u32, DeviceError> {
        Self::new(0).map(|_| 0)
    }
    pub(crate) fn open(&self, _: &Memory) -> Result<(), ImportError> {
        match self.0 {}
    }
    pub(crate) fn can_access_peer(&self, _: DeviceUuid) -> Result<(), PeerAccessError> {
        match self.0 {}
    }
    pub(crate) fn map_host(&self, m: &host::Memory) -> Result<DevicePtr, ImportError> {
        let _ = m.registration();
        match self.0 {}
    }
    pub(crate) fn compile(&self, unit: &Unit<'_>) -> Result<Module, LoadError> {
        kernels::cubin(unit, (0, 0))?;
        match self.0 {}
    }
}
impl DeviceOps for Device {
    type Memory = Memory;
    type Stream = Stream;
    type Event = Event;
    type Module = Module;
    fn kind(&self) -> BackendKind {
        match self.0 {}
    }
    fn uuid(&self) -> DeviceUuid {
        match self.0 {}
    }
    fn name(&self) -> String {
        match self.0 {}
    }
    fn capabilities(&self) -> Capabilities {
        match self.0 {}
    }
    fn allocate(&self, _: Bytes) -> Result<Memory, AllocError> {
        match self.0 {}
    }
    fn allocate_private(&self, _: Bytes) -> Result<Memory, AllocError> {
        match self.0 {}
    }
    fn import(&self, _: Shareable, _: Bytes) -> Result<Memory, ImportError> {
        match self.0 {}
    }
    fn stream(&self, _: StreamMode, _: Role) -> Result<Stream, DeviceError> {
        match self.0 {}
    }
    fn event(&self) -> Event {
        match self.0 {}
    }
    fn load(&self, _: &'static KernelSet) -> Result<Module, LoadError> {
        match self.0 {}
    }
}
impl Memory {
    pub(crate) fn export_fabric(&self) -> Result<Shareable, ExportError> {
        match self.0 {}
    }
    pub(crate) fn survives_peer_loss(&self) -> bool {
        match self.0 {}
    }
    pub(crate) unsafe fn from_raw(
        d: &Device,
        _: DevicePtr,
        _: Bytes,
        _: Option<KeepAlive>,
    ) -> Result<Self, ImportError> {
        match d.0 {}
    }
}
impl MemoryOps for Memory {
    fn base(&self) -> DevicePtr {
        match self.0 {}
    }
    fn bytes(&self) -> Bytes {
        match self.0 {}
    }
    fn export(&self) -> Result<Shareable, ExportError> {
        match self.0 {}
    }
    fn read(&self, _: usize, _: &mut [u8]) -> Result<(), DriverError> {
        match self.0 {}
    }
    fn write(&self, _: usize, _: &[u8]) -> Result<(), DriverError> {
        match self.0 {}
    }
    fn fill32(&self, _: usize, _: usize, _: u32, _: usize) -> Result<(), DriverError> {
        match self.0 {}
    }
    fn host_segment(&self) -> Option<&Segment> {
        match self.0 {}
    }
}
impl Stream {
    pub(crate) unsafe fn from_raw(
        d: &Device,
        _: *mut core::ffi::c_void,
        _: Option<KeepAlive>,
    ) -> Result<Self, DeviceError> {
        match d.0 {}
    }
    pub(crate) fn as_raw(&self) -> *mut core::ffi::c_void {
        match self.0 {}
    }
    pub(crate) unsafe fn copy_batch(
        &self,
        _: &[(DevicePtr, DevicePtr, Bytes)],
        _: &dyn Fn() -> Vec<KeepAlive>,
    ) -> Result<Launched, SyncError> {
        match self.0 {}
    }
    pub(crate) unsafe fn fill32(
        &self,
        _: DevicePtr,
        _: u32,
        _: u64,
        _: &dyn Fn() -> Vec<KeepAlive>,
    ) -> Result<Launched, SyncError> {
        match self.0 {}
    }
    pub(crate) unsafe fn write_value32(
        &self,
        _: DevicePtr,
        _: u32,
        _: &dyn Fn() -> Vec<KeepAlive>,
    ) -> Result<Launched, SyncError> {
        match self.0 {}
    }
}
impl StreamOps for Stream {
    type Event = Event;
    type Graph = Graph;
    fn id(&self) -> StreamId {
        match self.0 {}
    }
    fn is_inline(&self) -> bool {
        match self.0 {}
    }
    fn is_immediate(&self) -> bool {
        match self.0 {}
    }
    unsafe fn launch(&self, _: Launch<'_>) -> Result<Launched, SyncError> {
        match self.0 {}
    }
    fn record(&self, _: &Event) -> Result<(), SyncError> {
        match self.0 {}
    }
    fn mark(&self, _: &Event) {
        match self.0 {}
    }
    fn wait(&self, _: &Event, _: &Wait) -> Result<(), SyncError> {
        match self.0 {}
    }
    fn synchronize(&self, _: &Wait) -> Result<(), SyncError> {
        match self.0 {}
    }
    fn is_idle(&self) -> bool {
        match self.0 {}
    }
    fn capture(&self) -> Capture {
        match self.0 {}
    }
    fn begin_capture(&self) -> Result<(), CaptureError> {
        match self.0 {}
    }
    fn end_capture(&self) -> Result<Graph, CaptureError> {
        match self.0 {}
    }
    fn invalidate(&self) {
        match self.0 {}
    }
    fn replay(&self, _: &Graph, _: &Wait) -> Result<Launched, SyncError> {
        match self.0 {}
    }
    fn watch(&self, _: Weak<dyn Health>) {
        match self.0 {}
    }
    fn watched(&self) -> Vec<Arc<dyn Health>> {
        match self.0 {}
    }
}
impl EventOps for Event {
    fn is_complete(&self) -> bool {
        match self.0 {}
    }
    fn synchronize(&self, _: &Wait) -> Result<(), SyncError> {
        match self.0 {}
    }
    fn on_complete(&self, _: Waker) {
        match self.0 {}
    }
}
impl GraphOps for Graph {
    fn nodes(&self) -> usize {
        match self.0 {}
    }
    fn edges(&self) -> Vec<(usize, usize)> {
        match self.0 {}
    }
    fn order(&self) -> &StreamOrder {
        match self.0 {}
    }
    fn health(&self) -> Vec<Arc<dyn Health>> {
        match self.0 {}
    }
}
impl ModuleOps for Module {
    fn set(&self) -> &'static KernelSet {
        match self.0 {}
    }
}
impl Module {
    pub(crate) fn device_function(
        &self,
        _: &str,
        _: usize,
    ) -> Result<&'static Function, LoadError> {
        match self.0 {}
    }
}
impl Function {
    pub(crate) fn args(&self) -> usize {
        match self.0 {}
    }
    pub(crate) fn resident_blocks(&self, _: u32, _: u32) -> u32 {
        match self.0 {}
    }
}
