//! NVIDIA GPUs.

use symmem_sys::cuda::Driver;
use symmem_sys::cuda::bindings::CUdevice_attribute_enum as Attribute;

use super::cancel::{CancelWord, Cancels};
use super::context::{self, Context};
use super::{
    Event, Memory, Module, Stream, copies, host_memory, memory, multicast, virtual_memory,
};
use crate::backend::DeviceOps;
use crate::driver::DriverError;
use crate::host;
#[cfg(feature = "stalls")]
use crate::kernels::{Stalled, stalled};
use crate::kernels::{Unbounded, Unit, unbounded};
use crate::memory::{AllocError, ImportError, Shareable};
use crate::module::{KernelSet, LoadError};
use crate::stream::{Role, StreamMode};
use crate::types::{BackendKind, Bytes, DeviceUuid};
use crate::{CancelToken, Capabilities, DeviceError, DeviceMemory, DevicePtr, PeerAccessError};

/// An NVIDIA GPU, by its primary context.
#[derive(Clone, Copy, Debug)]
pub struct Device(&'static Context);

impl Device {
    pub(crate) fn new(ordinal: u32) -> Result<Self, DeviceError> {
        Context::of(ordinal).map(Device)
    }

    pub(crate) fn by_uuid(uuid: DeviceUuid) -> Result<Self, DeviceError> {
        Self::new(context::find(uuid)?)
    }

    pub(crate) fn count() -> Result<u32, DeviceError> {
        context::count()
    }

    pub(crate) fn driver_version() -> Option<String> {
        Some(Driver::get().ok()?.version()?.to_string())
    }

    pub(super) fn of(context: &'static Context) -> Self {
        Device(context)
    }

    pub(super) fn context(&self) -> &'static Context {
        self.0
    }

    pub(crate) fn make_current(&self) -> Result<(), DriverError> {
        self.0.make_current()
    }

    pub(crate) fn cancel_word(
        &self,
        token: &CancelToken,
    ) -> Result<Option<CancelWord>, DriverError> {
        Ok(Cancels::of(self.0)?.take(token))
    }

    pub(crate) fn memory(&self) -> Result<DeviceMemory, DriverError> {
        memory::info(self.0)
    }

    pub(crate) fn open(&self, memory: &Memory) -> Result<(), ImportError> {
        memory.open_to(self.0)
    }

    pub(crate) fn can_access_peer(&self, other: DeviceUuid) -> Result<(), PeerAccessError> {
        self.0.can_access_peer(other)
    }

    pub(crate) fn map_host(&self, memory: &host::Memory) -> Result<DevicePtr, ImportError> {
        let (registration, segment) = memory.registration();
        host_memory::map(self.0, registration, segment)
    }

    pub(crate) fn compile(&self, unit: &Unit<'_>) -> Result<Module, LoadError> {
        let mut defines = unit.defines.to_vec();
        if Unbounded::is_held() {
            defines.push(unbounded::DEFINE);
        }
        #[cfg(feature = "stalls")]
        if Stalled::is_held() {
            defines.push(stalled::DEFINE);
        }
        self.0.modules.get(self.0, &Unit { defines: &defines, ..*unit })
    }
}

/// The generations of which lines are known to arrive whole; NCCL's protocol of 128 bytes takes them so.
const WHOLE_LINES: core::ops::RangeInclusive<u32> = 7..=10;

/// What a device can do, but for multicast, which can be switched off at any time.
fn ask(context: &'static Context) -> Capabilities {
    let units = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let virtual_memory =
        context.has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    let descriptors = Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    let peer_atomics = context.has_peer_atomics();
    Capabilities {
        units: units.unwrap_or(1),
        peer_atomics,
        shareable: virtual_memory && context.has(descriptors),
        multicast: false,
        arch: Some(context.arch),
        fabric: virtual_memory && virtual_memory::has_fabric(context),
        virtual_memory,
        stream_memory_ops: copies::has_memory_operations(context),
        // Over NVLink, which is what has native atomics.
        whole_lines: peer_atomics && WHOLE_LINES.contains(&context.arch.0),
    }
}

impl DeviceOps for Device {
    type Memory = Memory;
    type Stream = Stream;
    type Event = Event;
    type Module = Module;

    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn uuid(&self) -> DeviceUuid {
        self.0.uuid
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let asked = *self.0.capabilities.get_or_init(|| ask(self.0));
        Capabilities { multicast: multicast::is_usable(self.0), ..asked }
    }

    fn allocate(&self, bytes: Bytes) -> Result<Memory, AllocError> {
        Memory::allocate(self.0, bytes)
    }

    fn allocate_private(&self, bytes: Bytes) -> Result<Memory, AllocError> {
        Memory::private(self.0, bytes)
    }

    fn import(&self, shared: Shareable, bytes: Bytes) -> Result<Memory, ImportError> {
        Memory::import(self.0, &shared, bytes)
    }

    fn stream(&self, mode: StreamMode, role: Role) -> Result<Stream, DeviceError> {
        Stream::new(self.0, mode, role)
    }

    fn event(&self) -> Event {
        Event::default()
    }

    fn load(&self, set: &'static KernelSet) -> Result<Module, LoadError> {
        let (major, minor) = self.0.arch;
        Err(LoadError::NoCode {
            set: set.name,
            arch: format!("sm_{major}{minor}"),
            reason: "its kernels are functions for the CPU; a GPU's are compiled from a source"
                .to_owned(),
        })
    }
}
