//! Devices.

use crate::backend::DeviceOps;
use crate::event::Event;
use crate::fault::{Fault, Kind};
use crate::memory::{AllocError, ImportError, Memory, Shareable};
use crate::module::{KernelSet, LoadError, Module};
use crate::shm::Segment;
use crate::stream::{Role, Stream, StreamMode};
use crate::types::{BackendKind, Bytes, DeviceUuid};
use crate::{host, stub};

/// Something that has memory and runs kernels. Clones are the same device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Device {
    /// The CPU.
    Host(host::Device),
    /// An asynchronous device in software.
    Stub(stub::Device),
}

/// What a device can do. Two devices' capabilities are combined by minimum and conjunction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Independent execution units: cores, multiprocessors.
    pub units: u32,
    /// Atomic read-modify-write on a peer's memory works.
    pub peer_atomics: bool,
    /// Memory can be mapped by other processes.
    pub shareable: bool,
    /// Stores can be multicast by hardware.
    pub multicast: bool,
}

/// Why a device refused to make an object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system gave no thread for the stream's worker.
    #[error("no thread for a stream's worker: {0}")]
    NoThread(std::io::Error),
    /// The backend has no such stream.
    #[error("{backend} has no {mode:?} streams")]
    StreamMode {
        /// The backend asked.
        backend: BackendKind,
        /// The mode asked for.
        mode: StreamMode,
    },
}

impl Fault for DeviceError {
    fn kind(&self) -> Kind {
        match self {
            DeviceError::NoThread(_) => Kind::Exhausted,
            DeviceError::StreamMode { .. } => Kind::Unsupported,
        }
    }
}

macro_rules! on {
    ($self:ident, $device:ident => $body:expr) => {
        match $self {
            Device::Host($device) => $body,
            Device::Stub($device) => $body,
        }
    };
}

impl Device {
    /// The CPU of this machine.
    #[must_use]
    pub fn host() -> Self {
        Device::Host(host::Device::new())
    }

    /// The `ordinal`-th device in software; the same ordinal is the same device, in every process
    /// of this machine.
    #[must_use]
    pub fn stub(ordinal: u32) -> Self {
        Device::Stub(stub::Device::new(ordinal))
    }

    /// Which backend drives it.
    #[must_use]
    pub fn kind(&self) -> BackendKind {
        on!(self, d => d.kind())
    }

    /// Its identity, equal in every process.
    #[must_use]
    pub fn uuid(&self) -> DeviceUuid {
        on!(self, d => d.uuid())
    }

    /// A name for people.
    #[must_use]
    pub fn name(&self) -> String {
        on!(self, d => d.name())
    }

    /// What it can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        on!(self, d => d.capabilities())
    }

    /// Allocates zeroed memory that peers can map, all of it reserved now.
    ///
    /// # Errors
    ///
    /// [`AllocError`] says which limit is too tight, with needed and available bytes.
    pub fn allocate(&self, bytes: Bytes) -> Result<Memory, AllocError> {
        Ok(match self {
            Device::Host(d) => Memory::Host(d.allocate(bytes)?.into()),
            Device::Stub(d) => Memory::Stub(d.allocate(bytes)?.into()),
        })
    }

    /// Allocates zeroed memory that only this process uses, for tables that kernels read. Holds no
    /// descriptor, and cannot be exported.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    pub fn allocate_private(&self, bytes: Bytes) -> Result<Memory, AllocError> {
        let segment = Segment::create_private(bytes)?;
        Ok(match self {
            Device::Host(_) => Memory::Host(host::Memory::new(segment).into()),
            Device::Stub(_) => Memory::Stub(stub::Memory::new(segment).into()),
        })
    }

    /// Maps memory that another process exported. `bytes` is what that process announced, and is
    /// checked.
    ///
    /// # Errors
    ///
    /// [`ImportError`] where what came is not memory of that size for this backend.
    pub fn import(&self, shared: Shareable, bytes: Bytes) -> Result<Memory, ImportError> {
        Ok(match self {
            Device::Host(d) => Memory::Host(d.import(shared, bytes)?.into()),
            Device::Stub(d) => Memory::Stub(d.import(shared, bytes)?.into()),
        })
    }

    /// Makes a stream.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] where the backend has no such stream or there is no thread for it.
    pub fn stream(&self, mode: StreamMode) -> Result<Stream, DeviceError> {
        self.stream_as(mode, Role::Ordinary)
    }

    fn stream_as(&self, mode: StreamMode, role: Role) -> Result<Stream, DeviceError> {
        Ok(match self {
            Device::Host(d) => Stream::Host(d.stream(mode, role)?),
            Device::Stub(d) => Stream::Stub(d.stream(mode, role)?),
        })
    }

    /// Makes the stream that suits the backend: inline on the host, a worker elsewhere. It cannot be
    /// captured, so that a launch on it has always run, or will, once it returns.
    ///
    /// # Errors
    ///
    /// As [`stream`](Self::stream).
    pub fn default_stream(&self) -> Result<Stream, DeviceError> {
        match self {
            Device::Host(_) => self.stream_as(StreamMode::Inline, Role::Default),
            Device::Stub(_) => self.stream_as(StreamMode::Worker, Role::Default),
        }
    }

    /// Makes an event. One that was never recorded counts as complete.
    #[must_use]
    pub fn event(&self) -> Event {
        match self {
            Device::Host(d) => Event::Host(d.event()),
            Device::Stub(d) => Event::Stub(d.event()),
        }
    }

    /// Makes a set of kernels launchable.
    ///
    /// # Errors
    ///
    /// [`LoadError`] where the backend cannot run the set.
    pub fn load(&self, set: &'static KernelSet) -> Result<Module, LoadError> {
        Ok(match self {
            Device::Host(d) => Module::Host(d.load(set)?),
            Device::Stub(d) => Module::Stub(d.load(set)?),
        })
    }
}
