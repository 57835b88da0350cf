//! Device memory that can be shared.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::MemoryOps;
use crate::driver::DriverError;
use crate::fault::{Fault, Kind};
use crate::shm::{Segment, SegmentError};
use crate::types::{BackendKind, Bytes};
#[cfg(feature = "cuda")]
use crate::{Device, KeepAlive, cuda};
use crate::{DeviceError, DevicePtr, host, stub};

/// A mapped piece of some device's memory: allocated here, or a peer's. Clones are the same
/// mapping, which ends with the last of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Memory {
    /// Memory of the CPU.
    Host(Arc<host::Memory>),
    /// Memory of a device in software.
    Stub(Arc<stub::Memory>),
    /// Memory of an NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Memory>),
}

/// Why memory could not be allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// This machine's memory, or a limit on it.
    #[error("cannot allocate: {0}")]
    Segment(SegmentError),
    /// The device has too little memory.
    #[error(
        "cannot allocate: {needed} needed, {available} available on {device}: {error}; free some, or ask for less"
    )]
    Exhausted {
        /// Bytes that the device was to give, rounded up to what it gives at once.
        needed: Bytes,
        /// Bytes that it has left, not necessarily in one piece.
        available: Bytes,
        /// Its name.
        device: String,
        /// What the driver said.
        error: DriverError,
    },
    /// The driver refused.
    #[error("cannot allocate {needed}: {error}")]
    Device {
        /// Bytes asked for.
        needed: Bytes,
        /// What the driver said.
        error: DriverError,
    },
}

// Not as its source: the text has it already.
impl From<SegmentError> for AllocError {
    fn from(error: SegmentError) -> Self {
        AllocError::Segment(error)
    }
}

impl Fault for AllocError {
    fn kind(&self) -> Kind {
        match self {
            AllocError::Segment(e) => e.kind(),
            AllocError::Exhausted { .. } => Kind::Exhausted,
            AllocError::Device { error, .. } => error.kind(),
        }
    }
}

/// What can travel to another process and be imported there.
#[derive(Debug)]
#[non_exhaustive]
pub enum Shareable {
    /// A file descriptor, to be sent by `SCM_RIGHTS`.
    Fd(OwnedFd),
    /// A fabric handle: bytes that mean the same memory on every host of the fabric.
    Fabric([u8; 64]),
    /// A legacy handle of CUDA, for memory that is not virtual-memory mapped, and where in that
    /// handle's allocation the memory begins.
    Ipc {
        /// The handle.
        handle: [u8; 64],
        /// Bytes from the allocation's base.
        offset: Bytes,
    },
}

/// Why memory could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The memory is a peer's: only its owner exports it.
    #[error("only the rank that allocated memory can export it")]
    NotOwner,
    /// The descriptor could not be duplicated.
    #[error("duplicating a descriptor for export: {0}")]
    Descriptor(io::Error),
    /// The memory was made so that it cannot be shared in this way.
    #[error("the memory cannot be exported: {reason}")]
    NotShareable {
        /// Why.
        reason: &'static str,
    },
    /// The driver refused.
    #[error("exporting memory: {0}")]
    Device(DriverError),
}

// Not as its source: the text has it already.
impl From<DriverError> for ExportError {
    fn from(error: DriverError) -> Self {
        ExportError::Device(error)
    }
}

impl Fault for ExportError {
    fn kind(&self) -> Kind {
        match self {
            ExportError::NotOwner => Kind::InvalidArgument,
            ExportError::Descriptor(_) => Kind::Exhausted,
            ExportError::NotShareable { .. } => Kind::Unsupported,
            ExportError::Device(e) => e.kind(),
        }
    }
}

/// Why what a peer sent could not be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It is no segment of this machine as announced.
    #[error("cannot map the peer's memory: {0}")]
    Segment(SegmentError),
    /// A device of this backend maps no memory of that sort.
    #[error("a {backend} device cannot map {what}")]
    Unsupported {
        /// The device's backend.
        backend: BackendKind,
        /// What it was to map.
        what: &'static str,
    },
    /// Its device cannot be used.
    #[error("cannot use foreign memory: {0}")]
    Foreign(DeviceError),
    /// The driver refused.
    #[error("cannot map {bytes} of a peer's memory: {error}")]
    Device {
        /// Bytes announced.
        bytes: Bytes,
        /// What the driver said.
        error: DriverError,
    },
}

// Not as its source: the text has it already.
impl From<SegmentError> for ImportError {
    fn from(error: SegmentError) -> Self {
        ImportError::Segment(error)
    }
}

impl Fault for ImportError {
    fn kind(&self) -> Kind {
        match self {
            ImportError::Segment(e) => e.kind(),
            ImportError::Unsupported { .. } => Kind::Unsupported,
            ImportError::Foreign(e) => e.kind(),
            ImportError::Device { error, .. } => error.kind(),
        }
    }
}

/// A range that does not lie in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} at offset {offset} do not lie in memory of {size}")]
pub struct RangeError {
    /// Where the range begins.
    pub offset: Bytes,
    /// Its length.
    pub length: Bytes,
    /// The memory's size.
    pub size: Bytes,
}

impl Fault for RangeError {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}

/// Why bytes of a memory could not be copied in or out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The range does not lie in the memory; nothing was copied.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The driver refused, or failed on the way.
    #[error("copying to or from device memory: {0}")]
    Device(DriverError),
}

// Not as its source: the text has it already.
impl From<DriverError> for AccessError {
    fn from(error: DriverError) -> Self {
        AccessError::Device(error)
    }
}

impl Fault for AccessError {
    fn kind(&self) -> Kind {
        match self {
            AccessError::Range(e) => e.kind(),
            AccessError::Device(e) => e.kind(),
        }
    }
}

macro_rules! on {
    ($self:ident, $memory:ident => $body:expr) => {
        match $self {
            Memory::Host($memory) => $body,
            Memory::Stub($memory) => $body,
            #[cfg(feature = "cuda")]
            Memory::Cuda($memory) => $body,
        }
    };
}

impl Memory {
    /// The address of the first byte, for kernels.
    #[must_use]
    pub fn base(&self) -> DevicePtr {
        on!(self, m => m.base())
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        on!(self, m => m.bytes())
    }

    /// Which backend it belongs to.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        match self {
            Memory::Host(_) => BackendKind::Host,
            Memory::Stub(_) => BackendKind::Stub,
            #[cfg(feature = "cuda")]
            Memory::Cuda(_) => BackendKind::Cuda,
        }
    }

    /// Makes a handle that another process can import.
    ///
    /// # Errors
    ///
    /// [`ExportError::NotOwner`] on a peer's memory; [`ExportError::Descriptor`] when descriptors
    /// run out.
    pub fn export(&self) -> Result<Shareable, ExportError> {
        on!(self, m => m.export())
    }

    /// The segment behind it, where the host may touch it: on [`BackendKind::Host`] only.
    #[must_use]
    pub fn host_segment(&self) -> Option<&Segment> {
        on!(self, m => m.host_segment())
    }

    /// Makes a fabric handle, which other hosts of the same fabric can import, too.
    ///
    /// # Errors
    ///
    /// [`ExportError::NotShareable`] where the device or its permissions allow none: see
    /// [`Capabilities::fabric`](crate::Capabilities::fabric).
    pub fn export_fabric(&self) -> Result<Shareable, ExportError> {
        match self {
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => memory.export_fabric(),
            Memory::Host(_) | Memory::Stub(_) => {
                Err(ExportError::NotShareable { reason: "its backend has no fabric handles" })
            }
        }
    }

    /// Whether it stays valid when the process that allocated it dies.
    #[must_use]
    pub fn survives_peer_loss(&self) -> bool {
        match self {
            Memory::Host(_) | Memory::Stub(_) => true,
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => memory.survives_peer_loss(),
        }
    }

    /// Memory of an NVIDIA GPU that somebody else allocated. What sort it is, is asked now and
    /// decides how it can be exported. Nothing is freed when it ends; `keep` is dropped then.
    ///
    /// # Errors
    ///
    /// [`ImportError::Unsupported`] where `device` is no GPU, or `address` none of its memory.
    ///
    /// # Safety
    ///
    /// `bytes` from `address` on must be one allocation's memory, or part of it, and stay allocated
    /// until `keep` is dropped, or for ever without one.
    #[cfg(feature = "cuda")]
    #[allow(unsafe_code, reason = "the caller vouches for the address")]
    pub unsafe fn from_raw(
        device: &Device,
        address: DevicePtr,
        bytes: Bytes,
        keep: Option<KeepAlive>,
    ) -> Result<Memory, ImportError> {
        let Device::Cuda(device) = device else {
            let what = "memory of a GPU";
            return Err(ImportError::Unsupported { backend: device.kind(), what });
        };
        // SAFETY: the caller's promise, passed on.
        let memory = unsafe { cuda::Memory::from_raw(device, address, bytes, keep) }?;
        Ok(Memory::Cuda(memory.into()))
    }

    /// Copies out of the memory, blocking, beside all streams. Makes no claim of order with work in
    /// flight; see [`Segment::read`].
    ///
    /// # Errors
    ///
    /// [`AccessError::Range`] where the range does not lie in the memory, and nothing is copied;
    /// else what the driver said.
    pub fn read(&self, offset: Bytes, out: &mut [u8]) -> Result<(), AccessError> {
        let start = self.range(offset, out.len())?;
        Ok(on!(self, m => m.read(start, out))?)
    }

    /// Copies into the memory; as [`read`](Self::read), the other way.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn write(&self, offset: Bytes, data: &[u8]) -> Result<(), AccessError> {
        let start = self.range(offset, data.len())?;
        Ok(on!(self, m => m.write(start, data))?)
    }

    /// Stores `value` into `count` aligned 32-bit words, `pitch` bytes apart, blocking, beside all
    /// streams; as [`write`](Self::write) otherwise.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write); a word that is not aligned lies in no memory.
    pub fn fill32(
        &self,
        offset: Bytes,
        pitch: Bytes,
        value: u32,
        count: usize,
    ) -> Result<(), AccessError> {
        if count == 0 {
            return Ok(());
        }
        let step = pitch.to_usize().filter(|p| *p >= 4 && p.is_multiple_of(4));
        let length = step.and_then(|p| (count - 1).checked_mul(p)?.checked_add(4));
        let start = self.range(offset, length.unwrap_or(usize::MAX))?;
        if !start.is_multiple_of(4) {
            return Err(RangeError { offset, length: Bytes::new(4), size: self.bytes() })?;
        }
        Ok(on!(self, m => m.fill32(start, step.unwrap_or(4), value, count))?)
    }

    /// Where a range begins, if all of it lies in the memory.
    fn range(&self, offset: Bytes, length: usize) -> Result<usize, RangeError> {
        let length = Bytes::from(length);
        let end = offset.checked_add(length).filter(|end| *end <= self.bytes());
        let start = end.and(offset.to_usize());
        start.ok_or(RangeError { offset, length, size: self.bytes() })
    }
}

/// Exports a segment: shared by the backends whose memory is one.
pub(crate) fn export_segment(segment: &Segment) -> Result<Shareable, ExportError> {
    let fd = segment.fd().ok_or(ExportError::NotOwner)?;
    fd.try_clone_to_owned().map(Shareable::Fd).map_err(ExportError::Descriptor)
}

/// Imports a segment: shared by the backends whose memory is one.
pub(crate) fn import_segment(shared: Shareable, bytes: Bytes) -> Result<Segment, ImportError> {
    match shared {
        Shareable::Fd(fd) => Ok(Segment::import(fd, bytes)?),
        Shareable::Fabric(_) | Shareable::Ipc { .. } => {
            Err(ImportError::Unsupported { backend: BackendKind::Host, what: "a GPU's handle" })
        }
    }
}

/// Stores words into a segment: shared by the backends whose memory is one. The caller has checked
/// that they are aligned and lie in it.
pub(crate) fn fill_segment(
    segment: &Segment,
    start: usize,
    pitch: usize,
    value: u32,
    count: usize,
) {
    for index in 0..count {
        if let Some([word]) = segment.words(start + index * pitch, 1) {
            word.store(value, Ordering::Release);
        }
    }
}
