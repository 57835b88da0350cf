//! A device in software.

use super::{Event, Memory, Module, Stream};
use crate::backend::DeviceOps;
use crate::host::device::machine_uuid;
use crate::memory::{AllocError, ImportError, Shareable, import_segment};
use crate::module::{KernelSet, LoadError};
use crate::shm::Segment;
use crate::stream::{Role, StreamMode};
use crate::types::{BackendKind, Bytes, DeviceUuid};
use crate::{Capabilities, DeviceError};

/// A device in software; its ordinal tells it from others.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    ordinal: u32,
}

impl Device {
    pub(crate) fn new(ordinal: u32) -> Self {
        Device { ordinal }
    }
}

impl DeviceOps for Device {
    type Memory = Memory;
    type Stream = Stream;
    type Event = Event;
    type Module = Module;

    fn kind(&self) -> BackendKind {
        BackendKind::Stub
    }

    fn uuid(&self) -> DeviceUuid {
        machine_uuid(u64::from(self.ordinal) + 1)
    }

    fn name(&self) -> String {
        format!("stub {}", self.ordinal)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { units: 1, peer_atomics: true, shareable: true, ..Capabilities::default() }
    }

    fn allocate(&self, bytes: Bytes) -> Result<Memory, AllocError> {
        Ok(Memory::new(Segment::create(bytes)?))
    }

    fn allocate_private(&self, bytes: Bytes) -> Result<Memory, AllocError> {
        Ok(Memory::new(Segment::create_private(bytes)?))
    }

    fn import(&self, shared: Shareable, bytes: Bytes) -> Result<Memory, ImportError> {
        Ok(Memory::new(import_segment(shared, bytes)?))
    }

    fn stream(&self, mode: StreamMode, role: Role) -> Result<Stream, DeviceError> {
        Stream::new(mode, role)
    }

    fn event(&self) -> Event {
        Event::default()
    }

    fn load(&self, set: &'static KernelSet) -> Result<Module, LoadError> {
        Ok(Module(set))
    }
}
