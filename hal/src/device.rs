//! Devices.

#[cfg(feature = "cuda")]
use crate::CancelToken;
use crate::backend::DeviceOps;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::driver::DriverError;
use crate::event::Event;
use crate::fault::{Fault, Kind};
use crate::kernels::Unit;
use crate::memory::{AllocError, ImportError, Memory, Shareable};
use crate::module::{KernelSet, LoadError, Module};
use crate::stream::{Role, Stream, StreamMode};
use crate::types::{BackendKind, Bytes, DeviceUuid};
use crate::{DevicePtr, host, stub};

/// Something that has memory and runs kernels. Clones are the same device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Device {
    /// The CPU.
    Host(host::Device),
    /// An asynchronous device in software.
    Stub(stub::Device),
    /// An NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(cuda::Device),
}

/// What a device can do. Two devices' capabilities are combined by minimum and conjunction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Independent execution units: cores, multiprocessors.
    pub units: u32,
    /// Atomic read-modify-write on a peer's memory works, natively.
    pub peer_atomics: bool,
    /// Memory can be mapped by other processes.
    pub shareable: bool,
    /// Stores can be multicast by hardware, and nobody switched that off.
    pub multicast: bool,
    /// The generation of its instruction set, major and minor, where that decides which code runs.
    pub arch: Option<(u32, u32)>,
    /// Memory can be exported as fabric handles.
    pub fabric: bool,
    /// Memory is mapped by page tables that this process edits, so that a peer's ends cleanly.
    pub virtual_memory: bool,
    /// A stream can store words by itself, without a kernel.
    pub stream_memory_ops: bool,
    /// What eight threads of a warp store at once, 128 bytes at a multiple of as many, arrives whole on
    /// every device that this one reaches.
    pub whole_lines: bool,
}

/// How much memory a device has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// What nobody has allocated, not necessarily in one piece.
    pub free: Bytes,
    /// All of it.
    pub total: Bytes,
}

/// Why a device cannot be had, or refused to make an object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system gave no thread for the stream's worker.
    #[error("no thread for a stream's worker: {0}; threads may be limited (ulimit -u)")]
    NoThread(std::io::Error),
    /// The backend has no such stream.
    #[error("{backend} has no {mode:?} streams")]
    StreamMode {
        /// The backend asked.
        backend: BackendKind,
        /// The mode asked for.
        mode: StreamMode,
    },
    /// The backend's library is not on this machine: where it was looked for.
    #[cfg(feature = "cuda")]
    #[error("{0:#}")]
    NotFound(symmem_sys::NotFound),
    /// The backend has fewer devices.
    #[error(
        "there is no {backend} device {wanted}: {found} are visible, numbered from 0 (CUDA_VISIBLE_DEVICES)"
    )]
    NoDevice {
        /// The backend asked.
        backend: BackendKind,
        /// The ordinal asked for.
        wanted: u32,
        /// How many it has.
        found: u32,
    },
    /// No visible device of the backend has this identity.
    #[error("none of the {found} visible {backend} devices is {wanted} (CUDA_VISIBLE_DEVICES)")]
    NoUuid {
        /// The backend asked.
        backend: BackendKind,
        /// The identity asked for.
        wanted: DeviceUuid,
        /// How many it has.
        found: u32,
    },
    /// A stream, context or memory of somebody else's cannot be used.
    #[error("a foreign {what} cannot be used: {reason}")]
    Foreign {
        /// What it is.
        what: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl Fault for DeviceError {
    fn kind(&self) -> Kind {
        match self {
            DeviceError::NoThread(_) => Kind::Exhausted,
            DeviceError::StreamMode { .. } => Kind::Unsupported,
            #[cfg(feature = "cuda")]
            DeviceError::NotFound(_) => Kind::Unsupported,
            DeviceError::NoDevice { .. }
            | DeviceError::NoUuid { .. }
            | DeviceError::Foreign { .. } => Kind::InvalidArgument,
            DeviceError::Driver(e) => e.kind(),
        }
    }
}

/// Why a device cannot reach another's memory by loads and stores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerAccessError {
    /// The other device is not visible to this process, so nobody can be asked. Mapping its memory
    /// may work all the same.
    #[error(
        "{to} is not visible to this process: whether {from} reaches it shows when it maps memory"
    )]
    NotVisible {
        /// This device.
        from: DeviceUuid,
        /// The other.
        to: DeviceUuid,
    },
    /// There is no path between the two.
    #[error("device {from} cannot access the memory of device {to}: no peer path between them")]
    NoPath {
        /// This device, by name and ordinal.
        from: String,
        /// The other.
        to: String,
    },
    /// Devices of this backend reach only their own kind, and the other is none.
    #[error("a {backend} device cannot access the memory of {to}")]
    OtherBackend {
        /// This device's backend.
        backend: BackendKind,
        /// The other.
        to: DeviceUuid,
    },
    /// The driver refused to tell.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl Fault for PeerAccessError {
    fn kind(&self) -> Kind {
        match self {
            PeerAccessError::Driver(e) => e.kind(),
            _ => Kind::Unsupported,
        }
    }
}

macro_rules! on {
    ($self:ident, $device:ident => $body:expr) => {
        match $self {
            Device::Host($device) => $body,
            Device::Stub($device) => $body,
            #[cfg(feature = "cuda")]
            Device::Cuda($device) => $body,
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

    /// The `ordinal`-th NVIDIA GPU that is visible to this process, by its primary context, which
    /// this process then holds until it ends.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotFound`] where no driver is installed, with every place searched;
    /// [`DeviceError::NoDevice`]; else what the driver said.
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: u32) -> Result<Self, DeviceError> {
        cuda::Device::new(ordinal).map(Device::Cuda)
    }

    /// The visible NVIDIA GPU of this identity.
    ///
    /// # Errors
    ///
    /// As [`cuda`](Self::cuda), and [`DeviceError::NoUuid`].
    #[cfg(feature = "cuda")]
    pub fn cuda_by_uuid(uuid: DeviceUuid) -> Result<Self, DeviceError> {
        cuda::Device::by_uuid(uuid).map(Device::Cuda)
    }

    /// How many NVIDIA GPUs are visible to this process.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotFound`] where no driver is installed; else what the driver said.
    #[cfg(feature = "cuda")]
    pub fn cuda_count() -> Result<u32, DeviceError> {
        cuda::Device::count()
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

    /// The version of its driver: of a GPU, the latest CUDA that the driver serves. `None` where there is
    /// no driver, or it does not tell.
    #[must_use]
    pub fn driver_version(&self) -> Option<String> {
        match self {
            Device::Host(_) | Device::Stub(_) => None,
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::Device::driver_version(),
        }
    }

    /// Where the code of its kernels comes from that the disk cache does not have, for people: so many
    /// bundles, else this version of NVRTC, which is loaded to be asked. `None` where kernels are
    /// functions of this program.
    #[must_use]
    pub fn kernel_origin(&self) -> Option<String> {
        match self {
            Device::Host(_) | Device::Stub(_) => None,
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => Some(crate::kernels::origin()),
        }
    }

    /// How much memory it has of its own; `None` where it takes the system's, whose limits
    /// [`shm::limits`](crate::shm::limits) tells.
    ///
    /// # Errors
    ///
    /// What the driver said.
    pub fn memory(&self) -> Result<Option<DeviceMemory>, DeviceError> {
        match self {
            Device::Host(_) | Device::Stub(_) => Ok(None),
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => Ok(Some(d.memory()?)),
        }
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
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => Memory::Cuda(d.allocate(bytes)?.into()),
        })
    }

    /// Allocates zeroed memory that only this process uses, for tables that kernels read. Holds no
    /// descriptor, and cannot be exported.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    pub fn allocate_private(&self, bytes: Bytes) -> Result<Memory, AllocError> {
        Ok(match self {
            Device::Host(d) => Memory::Host(d.allocate_private(bytes)?.into()),
            Device::Stub(d) => Memory::Stub(d.allocate_private(bytes)?.into()),
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => Memory::Cuda(d.allocate_private(bytes)?.into()),
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
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => Memory::Cuda(d.import(shared, bytes)?.into()),
        })
    }

    /// Lets this device use memory that this process has mapped already, as another device's: the
    /// same mapping, at the same address.
    ///
    /// # Errors
    ///
    /// [`ImportError`] where there is no path to the memory, or it is another backend's.
    pub fn open(&self, memory: &Memory) -> Result<Memory, ImportError> {
        match (self, memory) {
            (Device::Host(_), Memory::Host(_)) | (Device::Stub(_), Memory::Stub(_)) => {}
            #[cfg(feature = "cuda")]
            (Device::Cuda(d), Memory::Cuda(m)) => d.open(m)?,
            _ => {
                let what = "another backend's memory";
                return Err(ImportError::Unsupported { backend: self.kind(), what });
            }
        }
        Ok(memory.clone())
    }

    /// Whether this device's kernels can load and store the memory of the device `other`; the error
    /// says why not.
    ///
    /// # Errors
    ///
    /// [`PeerAccessError`], one for each pair.
    pub fn can_access_peer(&self, other: DeviceUuid) -> Result<(), PeerAccessError> {
        match self {
            // All of them are this machine's memory.
            Device::Host(_) | Device::Stub(_) if host::device::is_of_machine(other) => Ok(()),
            Device::Host(_) | Device::Stub(_) => {
                Err(PeerAccessError::OtherBackend { backend: self.kind(), to: other })
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => d.can_access_peer(other),
        }
    }

    /// Where this device's kernels find memory of the CPU, which they can use from then on until it
    /// ends.
    ///
    /// # Errors
    ///
    /// [`ImportError::Unsupported`] where it is no memory of the CPU, or the device cannot reach it;
    /// else what the driver said.
    pub fn map_host(&self, memory: &Memory) -> Result<DevicePtr, ImportError> {
        match (self, memory) {
            (Device::Host(_), Memory::Host(_)) => Ok(memory.base()),
            #[cfg(feature = "cuda")]
            (Device::Cuda(d), Memory::Host(m)) => d.map_host(m),
            _ => {
                let what = "memory of the CPU for its kernels";
                Err(ImportError::Unsupported { backend: self.kind(), what })
            }
        }
    }

    /// The word by which `token` ends the waits of a kernel on a GPU. `None` where a device has none left,
    /// and where functions on the CPU are told of the token itself.
    ///
    /// # Errors
    ///
    /// What the driver said, when the device was first asked for one.
    #[cfg(feature = "cuda")]
    pub fn cancel_word(
        &self,
        token: &CancelToken,
    ) -> Result<Option<cuda::CancelWord>, DriverError> {
        match self {
            Device::Cuda(device) => device.cancel_word(token),
            _ => Ok(None),
        }
    }

    /// Makes this device's context the calling thread's, until the thread makes another so.
    ///
    /// Never needed: every call makes it current for itself, and restores what was. On a thread whose
    /// context it is already, a launch saves that.
    ///
    /// # Errors
    ///
    /// What the driver said.
    pub fn make_current(&self) -> Result<(), DeviceError> {
        match self {
            Device::Host(_) | Device::Stub(_) => Ok(()),
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => Ok(d.make_current()?),
        }
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
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => Stream::Cuda(d.stream(mode, role)?),
        })
    }

    /// Makes a stream with a worker whose work goes before that of ordinary streams, where the
    /// device knows priorities; elsewhere an ordinary one.
    ///
    /// # Errors
    ///
    /// As [`stream`](Self::stream).
    pub fn urgent_stream(&self) -> Result<Stream, DeviceError> {
        self.stream_as(StreamMode::Worker, Role::Urgent)
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
            _ => self.stream_as(StreamMode::Worker, Role::Default),
        }
    }

    /// Makes an event. One that was never recorded counts as complete.
    #[must_use]
    pub fn event(&self) -> Event {
        match self {
            Device::Host(d) => Event::Host(d.event()),
            Device::Stub(d) => Event::Stub(d.event()),
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => Event::Cuda(d.event()),
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
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => Module::Cuda(d.load(set)?),
        })
    }

    /// Makes one compilation of device code launchable. The code comes from the cache on disk, a
    /// registered bundle or the compiler, in this order; this process loads it once a device, and
    /// keeps it loaded until it ends.
    ///
    /// # Errors
    ///
    /// [`LoadError`] where the backend runs no such code, or there is nothing to be had from any of
    /// the three.
    pub fn compile(&self, unit: &Unit<'_>) -> Result<Module, LoadError> {
        match self {
            #[cfg(feature = "cuda")]
            Device::Cuda(d) => d.compile(unit).map(Module::Cuda),
            Device::Host(_) | Device::Stub(_) => {
                Err(LoadError::NotCompilable { set: unit.source.name, backend: self.kind() })
            }
        }
    }
}
