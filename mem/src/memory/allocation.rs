//! Allocations: local, and known by address.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use symmem_hal::types::{Bytes, Scope};
use symmem_hal::{AllocError, Device, DevicePtr, Memory};

use super::retire::{self, Mapped};
use crate::rendezvous::Mapping;

/// Memory of one device that can be made symmetric. Clones are the same allocation.
///
/// Allocating is local: no rank is spoken to before rendezvous. One allocation can be rendezvoused
/// in any number of groups.
#[derive(Clone, Debug)]
pub struct Allocation(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    device: Device,
    memory: Memory,
    /// What rendezvous found, by group; kept so that a second one needs no peer.
    mappings: Mutex<Vec<(Scope, Arc<Mapping>)>>,
}

/// Live allocations by base address.
static LIVE: RwLock<BTreeMap<u64, Weak<Inner>>> = RwLock::new(BTreeMap::new());

impl Allocation {
    /// Allocates zeroed memory, reserving all of it now. First frees what is retired and unmapped.
    ///
    /// # Errors
    ///
    /// [`AllocError`] says which limit is too tight, with needed and available bytes.
    pub fn new(device: &Device, bytes: Bytes) -> Result<Self, AllocError> {
        let _ = retire::collect();
        let memory = device.allocate(bytes)?;
        let base = memory.base().get();
        let inner = Arc::new(Inner { device: device.clone(), memory, mappings: Mutex::default() });
        LIVE.write().insert(base, Arc::downgrade(&inner));
        Ok(Allocation(inner))
    }

    /// The allocation that an address lies in, at any offset. O(log n) in live allocations.
    #[must_use]
    pub fn containing(ptr: DevicePtr) -> Option<Self> {
        let live = LIVE.read();
        let (base, inner) = live.range(..=ptr.get()).next_back()?;
        let inner = inner.upgrade()?;
        // A zero-byte allocation still has its base.
        (ptr.get() - base < inner.memory.bytes().get().max(1)).then_some(Allocation(inner))
    }

    /// The device it lies on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.0.memory.bytes()
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    pub(crate) fn mapping(&self, scope: Scope) -> Option<Arc<Mapping>> {
        self.0.mappings.lock().iter().find(|(s, _)| *s == scope).map(|(_, m)| m.clone())
    }

    pub(crate) fn keep(&self, scope: Scope, mapping: Arc<Mapping>) {
        self.0.mappings.lock().push((scope, mapping));
    }
}

impl PartialEq for Allocation {
    /// Whether both are the same allocation.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        LIVE.write().remove(&self.memory.base().get());
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
