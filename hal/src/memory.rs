//! Device memory that can be shared.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::DevicePtr;
use crate::backend::MemoryOps;
use crate::fault::{Fault, Kind};
use crate::shm::{Segment, SegmentError};
use crate::types::{BackendKind, Bytes};
use crate::{host, stub};

/// A mapped piece of some device's memory: allocated here, or a peer's. Clones are the same
/// mapping, which ends with the last of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Memory {
    /// Memory of the CPU.
    Host(Arc<host::Memory>),
    /// Memory of a device in software.
    Stub(Arc<stub::Memory>),
}

/// Why memory could not be allocated.
#[derive(Debug, thiserror::Error)]
#[error("cannot allocate: {0}")]
pub struct AllocError(pub SegmentError);

impl From<SegmentError> for AllocError {
    fn from(error: SegmentError) -> Self {
        AllocError(error)
    }
}

impl Fault for AllocError {
    fn kind(&self) -> Kind {
        self.0.kind()
    }
}

/// What can travel to another process and be imported there.
#[derive(Debug)]
#[non_exhaustive]
pub enum Shareable {
    /// A file descriptor, to be sent by `SCM_RIGHTS`.
    Fd(OwnedFd),
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
}

impl Fault for ExportError {
    fn kind(&self) -> Kind {
        match self {
            ExportError::NotOwner => Kind::InvalidArgument,
            ExportError::Descriptor(_) => Kind::Exhausted,
        }
    }
}

/// Why what a peer sent could not be mapped.
#[derive(Debug, thiserror::Error)]
#[error("cannot map the peer's memory: {0}")]
pub struct ImportError(pub SegmentError);

impl From<SegmentError> for ImportError {
    fn from(error: SegmentError) -> Self {
        ImportError(error)
    }
}

impl Fault for ImportError {
    fn kind(&self) -> Kind {
        self.0.kind()
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

macro_rules! on {
    ($self:ident, $memory:ident => $body:expr) => {
        match $self {
            Memory::Host($memory) => $body,
            Memory::Stub($memory) => $body,
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

    /// Copies out of the memory, blocking, beside all streams. Makes no claim of order with work in
    /// flight; see [`Segment::read`].
    ///
    /// # Errors
    ///
    /// [`RangeError`] where the range does not lie in the memory; nothing is copied.
    pub fn read(&self, offset: Bytes, out: &mut [u8]) -> Result<(), RangeError> {
        let length = Bytes::from(out.len());
        let error = RangeError { offset, length, size: self.bytes() };
        let start = offset.to_usize().ok_or(error)?;
        if on!(self, m => m.segment().read(start, out)) { Ok(()) } else { Err(error) }
    }

    /// Copies into the memory; as [`read`](Self::read), the other way.
    ///
    /// # Errors
    ///
    /// [`RangeError`] where the range does not lie in the memory; nothing is copied.
    pub fn write(&self, offset: Bytes, data: &[u8]) -> Result<(), RangeError> {
        let length = Bytes::from(data.len());
        let error = RangeError { offset, length, size: self.bytes() };
        let start = offset.to_usize().ok_or(error)?;
        if on!(self, m => m.segment().write(start, data)) { Ok(()) } else { Err(error) }
    }
}

/// Exports a segment: shared by the backends whose memory is one.
pub(crate) fn export_segment(segment: &Segment) -> Result<Shareable, ExportError> {
    let fd = segment.fd().ok_or(ExportError::NotOwner)?;
    fd.try_clone_to_owned().map(Shareable::Fd).map_err(ExportError::Descriptor)
}

/// Imports a segment: shared by the backends whose memory is one.
pub(crate) fn import_segment(shared: Shareable, bytes: Bytes) -> Result<Segment, ImportError> {
    let Shareable::Fd(fd) = shared;
    Ok(Segment::import(fd, bytes)?)
}
