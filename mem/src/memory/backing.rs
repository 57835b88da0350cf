//! What allocations lie in: memory that is mapped by peers as a whole.

use std::sync::Arc;

use parking_lot::Mutex;
use symmem_hal::types::{Bytes, Scope};
use symmem_hal::{AllocError, Device, Memory};

use super::retire::{self, Mapped};
use crate::group::Forgets;
use crate::rendezvous::Mapping;

/// Memory of one allocation, or a pool's segment of many.
#[derive(Debug)]
pub(crate) struct Backing {
    pub device: Device,
    pub memory: Memory,
    /// What rendezvous found, by group, so that the memory is mapped once in each.
    mappings: Mutex<Vec<(Scope, Arc<Mapping>)>>,
}

impl Backing {
    /// Zeroed memory, reserved now. First frees what is retired and unmapped.
    pub(crate) fn new(device: &Device, bytes: Bytes) -> Result<Arc<Self>, AllocError> {
        let _ = retire::collect();
        Ok(Self::of(device, device.allocate(bytes)?))
    }

    pub(crate) fn of(device: &Device, memory: Memory) -> Arc<Self> {
        Arc::new(Backing { device: device.clone(), memory, mappings: Mutex::default() })
    }

    pub(crate) fn mapping(&self, scope: Scope) -> Option<Arc<Mapping>> {
        self.mappings.lock().iter().find(|(s, _)| *s == scope).map(|(_, m)| m.clone())
    }

    pub(crate) fn keep(&self, scope: Scope, mapping: Arc<Mapping>) {
        self.mappings.lock().push((scope, mapping));
    }
}

impl Forgets for Backing {
    fn forget(&self, scope: Scope) {
        // Unmapped outside the lock.
        let gone: Vec<_> = self.mappings.lock().extract_if(.., |(s, _)| *s == scope).collect();
        drop(gone);
    }

    fn memory(&self) -> Option<Memory> {
        Some(self.memory.clone())
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        let mapped: Vec<Mapped> = self
            .mappings
            .get_mut()
            .drain(..)
            .filter_map(|(_, mapping)| mapping.mapped_by_peers())
            .collect();
        // Retired even when nobody has it: unmapping is not this thread's business in a Drop.
        retire::retire(self.memory.clone(), mapped);
    }
}
