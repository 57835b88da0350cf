//! Allocations in memory that somebody else allocated.
#![allow(unsafe_code, reason = "the caller vouches for the address")]

use symmem_hal::types::Bytes;
use symmem_hal::{Device, DevicePtr, Fault, ImportError, KeepAlive, Kind, Memory};

use super::Allocation;
use super::allocation::Taken;
use super::backing::Backing;

/// Why foreign memory is no allocation. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignError {
    /// The device does not have it.
    #[error("{bytes} at {address:#x} cannot be an allocation: {cause}")]
    Memory {
        /// Where it was said to be.
        address: u64,
        /// Of this size.
        bytes: Bytes,
        /// What the device says.
        cause: ImportError,
    },
    /// It does not begin at a multiple of 16, which kernels take for granted of every allocation.
    #[error("{bytes} at {address:#x} cannot be an allocation: that is no multiple of 16")]
    Unaligned {
        /// Where it begins.
        address: u64,
        /// Of this size.
        bytes: Bytes,
    },
    /// Some of it is in an allocation already, which [`Allocation::containing`] finds.
    #[error("{bytes} at {address:#x} overlap an allocation: {other} at {base:#x}; use that")]
    Overlaps {
        /// Where it begins.
        address: u64,
        /// Its size.
        bytes: Bytes,
        /// Where the allocation begins.
        base: u64,
        /// Its size.
        other: Bytes,
    },
}

impl Fault for ForeignError {
    fn kind(&self) -> Kind {
        match self {
            ForeignError::Memory { cause, .. } => cause.kind(),
            ForeignError::Unaligned { .. } | ForeignError::Overlaps { .. } => Kind::InvalidArgument,
        }
    }
}

impl Allocation {
    /// Memory of an NVIDIA GPU that somebody else allocated: a tensor of another library, say. Local,
    /// like [`new`](Self::new); the memory keeps its contents.
    ///
    /// Ranks that are processes can have a rendezvous with it if its allocator lets it out: from
    /// `cuMemAlloc` (`cudaMalloc`) it may be any part of an allocation; what is mapped by page tables
    /// must be all of one, or its beginning, and made to be exported; memory of the driver's pools
    /// (`cudaMallocAsync`) cannot leave. Otherwise the rendezvous fails on every rank, and on this one
    /// says why. Peers lose memory from `cuMemAlloc` when this process ends: a kernel that touches it
    /// then fails, where it would find its own mapping of an allocation of this library.
    ///
    /// # Errors
    ///
    /// [`ForeignError`] where the address is none of the device's or no multiple of 16, or memory
    /// overlaps an allocation.
    ///
    /// # Safety
    ///
    /// `bytes` from `address` on must be one allocation's memory, or part of it, and stay allocated
    /// until `keep` is dropped, or for ever without one. That is by a later allocation or
    /// [`collect`](crate::collect), once this allocation, its views and the work on them have ended and
    /// every member that mapped it has let go of it, has left or has died. A group that this rank
    /// leaves, or that ends here, is not waited for: the caller sees to it that no member reaches for
    /// the memory afterwards.
    pub unsafe fn from_raw(
        device: &Device,
        address: DevicePtr,
        bytes: Bytes,
        keep: Option<KeepAlive>,
    ) -> Result<Self, ForeignError> {
        if !address.get().is_multiple_of(16) {
            return Err(ForeignError::Unaligned { address: address.get(), bytes });
        }
        // SAFETY: the caller's promise, passed on: memory is held until the retire list drops it.
        let memory = unsafe { Memory::from_raw(device, address, bytes, keep) };
        let address = address.get();
        let memory = memory.map_err(|cause| ForeignError::Memory { address, bytes, cause })?;
        Self::adopt(Backing::of(device, memory), bytes).map_err(|Taken { base, bytes: other }| {
            ForeignError::Overlaps { address, bytes, base: base.get(), other }
        })
    }
}
