//! Memory with an id: the same place whenever it is asked for.

use std::collections::hash_map::Entry;

use symmem_hal::types::Bytes;
use symmem_hal::{AllocError, Fault, Kind};

use super::MemoryPool;
use crate::memory::Allocation;

/// Why memory with an id cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PersistentError {
    /// It is in use.
    #[error("memory {id} is in use: drop its allocation and views first, or take another id")]
    InUse {
        /// The id.
        id: u64,
    },
    /// It has another size.
    #[error("memory {id} has {found}, {asked} were asked for; an id keeps its size")]
    Size {
        /// The id.
        id: u64,
        /// Its bytes.
        found: Bytes,
        /// Bytes asked for.
        asked: Bytes,
    },
    /// There is no memory for it.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

impl Fault for PersistentError {
    fn kind(&self) -> Kind {
        match self {
            PersistentError::InUse { .. } | PersistentError::Size { .. } => Kind::InvalidArgument,
            PersistentError::Alloc(e) => e.kind(),
        }
    }
}

impl MemoryPool {
    /// Memory that keeps its place for as long as the pool lives: asked for again with its id, after
    /// its allocation and views were dropped, it is the same memory at the same address, with what it
    /// holds and the rendezvous that it had. What a compiler plans once, and a graph that was
    /// captured on it, stay right.
    ///
    /// The first time it is allocated apart from the segments, zeroed. It is never given to anybody
    /// else, so work in flight and peers that still have it need not be waited for; order them by
    /// streams and signals as uses of one tensor.
    ///
    /// # Errors
    ///
    /// [`PersistentError`]: the id is in use, or has another size, or memory is short.
    pub fn persistent(&self, id: u64, bytes: Bytes) -> Result<Allocation, PersistentError> {
        let mut kept = self.0.persistent.lock();
        let memory = match kept.entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Allocation::lasting(&self.0.device, bytes)?),
        };
        if memory.bytes() != bytes {
            return Err(PersistentError::Size { id, found: memory.bytes(), asked: bytes });
        }
        memory.lease().ok_or(PersistentError::InUse { id })
    }
}
