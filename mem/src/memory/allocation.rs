//! Allocations: local, and known by address.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use symmem_hal::types::{Bytes, Scope};
use symmem_hal::{AllocError, Device, DevicePtr, KeepAlive, Memory};

use super::backing::Backing;
use super::ledger::{Returning, Token};
use crate::group::Forgets;
use crate::pool::Home;
use crate::rendezvous::Place;

/// Memory of one device that can be made symmetric: memory of its own, or a block of a
/// [`MemoryPool`](crate::MemoryPool). Clones are the same allocation.
///
/// Allocating is local: no rank is spoken to before rendezvous. One allocation can be rendezvoused
/// in any number of groups.
#[derive(Clone, Debug)]
pub struct Allocation {
    inner: Arc<Inner>,
    /// Held by the users of memory with an id, not by the work on it.
    _lease: Option<Arc<Lease>>,
}

#[derive(Debug)]
struct Inner {
    backing: Arc<Backing>,
    /// Where it begins in its backing.
    offset: Bytes,
    bytes: Bytes,
    /// Where a pool's block returns to.
    home: Option<Home>,
    /// Who uses it now, where it stays while nobody does.
    lease: Option<Mutex<Weak<Lease>>>,
    /// What rendezvous found, by group; kept so that a second one needs no peer.
    places: Mutex<Places>,
    /// One for each rendezvous of a block, also of groups that have ended.
    tokens: Mutex<Vec<Arc<Token>>>,
}

/// Where an allocation is in its groups.
#[derive(Debug, Default)]
struct Places {
    known: Vec<(Scope, Arc<Place>)>,
    /// What work in flight holds of these: one for all of it, while there is some.
    held: Weak<Held>,
}

/// An allocation and its places, for work that may reach both.
#[derive(Debug)]
struct Held {
    _inner: Arc<Inner>,
    _places: Vec<Arc<Place>>,
}

/// An allocation that is where another was to be.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(crate) struct Taken {
    pub base: DevicePtr,
    pub bytes: Bytes,
}

/// The use of memory that outlives it.
#[derive(Debug)]
pub(crate) struct Lease(());

/// Live allocations by base address.
static LIVE: RwLock<BTreeMap<u64, Weak<Inner>>> = RwLock::new(BTreeMap::new());

/// Whether an address lies in an allocation of this process, at any offset. O(log n) in live
/// allocations.
#[must_use]
pub fn is_symmetric(ptr: DevicePtr) -> bool {
    Allocation::containing(ptr).is_some()
}

impl Allocation {
    /// Allocates zeroed memory, reserving all of it now. First frees what is retired and unmapped.
    ///
    /// # Errors
    ///
    /// [`AllocError`] says which limit is too tight, with needed and available bytes.
    pub fn new(device: &Device, bytes: Bytes) -> Result<Self, AllocError> {
        let backing = Backing::new(device, bytes)?;
        Ok(Self::live(Inner::of(backing, Bytes::ZERO, bytes)))
    }

    /// A pool's block: the range of its segment is the block's alone.
    pub(crate) fn block(backing: Arc<Backing>, offset: Bytes, bytes: Bytes, home: Home) -> Self {
        let mut inner = Inner::of(backing, offset, bytes);
        inner.home = Some(home);
        Self::live(inner)
    }

    /// Memory that stays while nobody uses it; each use takes a [`lease`](Self::lease).
    pub(crate) fn lasting(device: &Device, bytes: Bytes) -> Result<Self, AllocError> {
        let backing = Backing::new(device, bytes)?;
        let mut inner = Inner::of(backing, Bytes::ZERO, bytes);
        inner.lease = Some(Mutex::default());
        Ok(Self::live(inner))
    }

    /// The next use of lasting memory; `None` while the last goes on.
    pub(crate) fn lease(&self) -> Option<Self> {
        let mut current = self.inner.lease.as_ref()?.lock();
        if current.strong_count() > 0 {
            return None;
        }
        let lease = Arc::new(Lease(()));
        *current = Arc::downgrade(&lease);
        Some(Allocation { inner: self.inner.clone(), _lease: Some(lease) })
    }

    /// All of somebody else's memory, if none of it is in an allocation.
    #[cfg(feature = "cuda")]
    pub(crate) fn adopt(backing: Arc<Backing>, bytes: Bytes) -> Result<Self, Taken> {
        let inner = Arc::new(Inner::of(backing, Bytes::ZERO, bytes));
        let (base, end) = (inner.base().get(), inner.end());
        let mut live = LIVE.write();
        // They do not overlap, so that of those which begin before the end the last ends last.
        let last = live.range(..end).rev().find_map(|(_, other)| other.upgrade());
        let taken = last.as_ref().filter(|last| last.end() > base);
        let taken = taken.map(|last| Taken { base: last.base(), bytes: last.bytes });
        if taken.is_none() {
            live.insert(base, Arc::downgrade(&inner));
        }
        // Before `last`, which may be its allocation's last holder: that one's end takes the lock.
        drop(live);
        match taken {
            Some(taken) => Err(taken),
            None => Ok(Allocation { inner, _lease: None }),
        }
    }

    fn live(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        LIVE.write().insert(inner.base().get(), Arc::downgrade(&inner));
        Allocation { inner, _lease: None }
    }

    /// The allocation that an address lies in, at any offset. O(log n) in live allocations.
    #[must_use]
    pub fn containing(ptr: DevicePtr) -> Option<Self> {
        // Out of the lock before it can be given up: its end takes the lock.
        let inner = LIVE.read().range(..=ptr.get()).next_back()?.1.upgrade()?;
        if ptr.get() >= inner.end() {
            return None;
        }
        let _lease = match &inner.lease {
            Some(lease) => Some(lease.lock().upgrade()?),
            None => None,
        };
        Some(Allocation { inner, _lease })
    }

    /// The device it lies on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.backing.device
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.inner.bytes
    }

    /// The memory it lies in: its own, or its segment's.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.inner.backing.memory
    }

    /// Where it begins in [`memory`](Self::memory): 0 but for a pool's block.
    #[must_use]
    pub fn offset(&self) -> Bytes {
        self.inner.offset
    }

    /// The address of its first byte, for kernels.
    #[must_use]
    pub fn base(&self) -> DevicePtr {
        self.inner.base()
    }
}

impl Allocation {
    /// What must live while work on the allocation is in flight: its memory, and that of the peers,
    /// which the work may reach and which the allocation itself forgets with their group.
    pub(crate) fn keep_alive(&self) -> KeepAlive {
        let mut places = self.inner.places.lock();
        if places.known.is_empty() {
            return self.inner.clone();
        }
        if let Some(held) = places.held.upgrade() {
            return held;
        }
        let known = places.known.iter().map(|(_, place)| place.clone()).collect();
        let held = Arc::new(Held { _inner: self.inner.clone(), _places: known });
        places.held = Arc::downgrade(&held);
        held
    }

    pub(crate) fn backing(&self) -> &Arc<Backing> {
        &self.inner.backing
    }

    /// Where it is in the memory of a group's members, once they have agreed on it.
    pub(crate) fn place(&self, scope: Scope) -> Option<Arc<Place>> {
        let places = self.inner.places.lock();
        places.known.iter().find(|(s, _)| *s == scope).map(|(_, place)| place.clone())
    }

    pub(crate) fn keep(&self, scope: Scope, place: Arc<Place>) {
        self.inner.tokens.lock().extend(place.token.clone());
        self.inner.places.lock().change(|known| known.push((scope, place)));
    }

    /// Whether it is a pool's block, whose bytes are used again while its segment lives.
    pub(crate) fn is_block(&self) -> bool {
        self.inner.home.is_some()
    }

    /// The cache of its places.
    pub(crate) fn cache(&self) -> Arc<dyn Forgets> {
        self.inner.clone()
    }
}

impl PartialEq for Allocation {
    /// Whether both are the same allocation.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Inner {
    fn of(backing: Arc<Backing>, offset: Bytes, bytes: Bytes) -> Self {
        Inner {
            backing,
            offset,
            bytes,
            home: None,
            lease: None,
            places: Mutex::default(),
            tokens: Mutex::default(),
        }
    }

    fn base(&self) -> DevicePtr {
        self.backing.memory.base().checked_add(self.offset).unwrap_or(DevicePtr::NULL)
    }

    /// The first address past it; even without a byte it has its base.
    fn end(&self) -> u64 {
        self.base().get().saturating_add(self.bytes.get().max(1))
    }
}

impl Places {
    /// What is held from here on is of the places after the change.
    fn change<T>(&mut self, change: impl FnOnce(&mut Vec<(Scope, Arc<Place>)>) -> T) -> T {
        self.held = Weak::new();
        change(&mut self.known)
    }
}

impl Forgets for Inner {
    fn forget(&self, scope: Scope) {
        // What the places hold is unmapped outside the lock.
        let mut places = self.places.lock();
        let gone: Vec<_> =
            places.change(|known| known.extract_if(.., |(s, _)| *s == scope).collect());
        drop(places);
        drop(gone);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Foreign memory may be in another allocation by now.
        let mut live = LIVE.write();
        if live.get(&self.base().get()).is_some_and(|of| core::ptr::eq(of.as_ptr(), self)) {
            live.remove(&self.base().get());
        }
        drop(live);
        if let Some(home) = self.home.take() {
            home.end();
            let range = Arc::new(Returning(home));
            // Before this rank lets go below, so that no meeting can come between.
            self.tokens.get_mut().iter().for_each(|token| token.returns(&range));
        }
    }
}
