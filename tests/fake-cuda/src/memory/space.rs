//! The address space that devices share with this process: what is mapped where, and which device
//! may access it.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, LazyLock};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use symmem_sys::cuda::bindings::CUresult as Code;

use super::GRANULARITY;
use super::physical::{Allocation, Physical};
use crate::entry::Outcome;
use crate::{device, table};

/// Addresses for all device memory of this process. Each is handed out once, so that whoever
/// touches memory after its end is found out, and every address in it is known to be a device's.
const ARENA: u64 = 4 << 40;

/// What is mapped at an address.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// By `cuMemAlloc`.
    Plain(Arc<Physical>),
    /// By `cuMemAllocAsync`.
    Pooled(Arc<Physical>),
    /// By `cuMemMap`.
    Virtual(Allocation),
    /// Another process's plain memory.
    Ipc(Arc<Physical>),
    /// Pinned memory of the host, allocated by the driver.
    Host,
    /// The caller's own memory, registered.
    Registered,
}

#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub base: u64,
    pub bytes: u64,
    pub backing: Backing,
    pub flags: u32,
    /// What each visible device may do; matters where it was granted, for virtual memory.
    pub access: Vec<Access>,
    pub id: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    #[default]
    None,
    Read,
    Write,
}

impl Mapping {
    pub fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// The memory behind it, where that is a device's.
    pub fn physical(&self) -> Option<&Arc<Physical>> {
        match &self.backing {
            Backing::Plain(physical)
            | Backing::Pooled(physical)
            | Backing::Ipc(physical)
            | Backing::Virtual(Allocation::Memory(physical)) => Some(physical),
            Backing::Virtual(Allocation::Multicast(_)) | Backing::Host | Backing::Registered => {
                None
            }
        }
    }

    /// What an engine of `device` may do here. Copies reach plain memory of any device, by way of
    /// the host if need be.
    pub fn access_of(&self, device: usize) -> Access {
        match &self.backing {
            // No memory behind it that this library could store to.
            Backing::Virtual(Allocation::Multicast(_)) => Access::None,
            Backing::Virtual(..) => self.access.get(device).copied().unwrap_or_default(),
            Backing::Plain(_)
            | Backing::Pooled(_)
            | Backing::Ipc(_)
            | Backing::Host
            | Backing::Registered => Access::Write,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Space {
    arena: u64,
    next: u64,
    /// Bytes by base address.
    pub reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
}

static SPACE: LazyLock<RwLock<Space>> = LazyLock::new(|| {
    // SAFETY: the kernel chooses the address.
    let arena = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        mmap_anonymous(ptr::null_mut(), ARENA as usize, ProtFlags::empty(), flags)
    };
    // Without addresses every allocation fails, by an arena that is full.
    let arena = arena.map_or(0, |address| address.expose_provenance() as u64);
    let next = if arena == 0 { u64::MAX } else { arena.next_multiple_of(GRANULARITY) };
    let (reservations, mappings) = (BTreeMap::new(), BTreeMap::new());
    RwLock::new(Space { arena, next, reservations, mappings })
});

pub(crate) fn read() -> RwLockReadGuard<'static, Space> {
    SPACE.read()
}

pub(crate) fn write() -> RwLockWriteGuard<'static, Space> {
    SPACE.write()
}

impl Space {
    fn is_device(&self, address: u64) -> bool {
        self.arena != 0 && (self.arena..self.arena + ARENA).contains(&address)
    }

    /// Addresses that nothing had before, with a gap behind them.
    pub fn take(&mut self, bytes: u64, alignment: u64) -> Outcome<u64> {
        let alignment = alignment.max(GRANULARITY);
        let base = self.next.checked_next_multiple_of(alignment);
        let end = base.and_then(|base| base.checked_add(bytes)?.checked_add(GRANULARITY));
        let (Some(base), Some(end)) = (base, end.filter(|&end| end <= self.arena + ARENA)) else {
            return Err(Code::CUDA_ERROR_OUT_OF_MEMORY);
        };
        self.next = end.next_multiple_of(GRANULARITY);
        Ok(base)
    }

    /// The mapping that has `address` in it.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end()).then_some(mapping)
    }

    pub fn at(&self, base: u64) -> Option<&Mapping> {
        self.mappings.get(&base)
    }

    pub fn overlaps(&self, base: u64, bytes: u64) -> bool {
        let before = self.mappings.range(..base + bytes).next_back();
        before.is_some_and(|(_, mapping)| mapping.end() > base)
    }

    /// Mappings that lie wholly in a range and cover it; the range's error otherwise.
    pub fn exactly(&mut self, base: u64, bytes: u64) -> Outcome<Vec<&mut Mapping>> {
        let mut expected = base;
        let mut found = Vec::new();
        for (_, mapping) in self.mappings.range_mut(base..base.saturating_add(bytes)) {
            if mapping.base != expected {
                break;
            }
            expected = mapping.end();
            found.push(mapping);
        }
        if found.is_empty() || expected != base + bytes {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        Ok(found)
    }

    pub fn insert(&mut self, base: u64, bytes: u64, backing: Backing, flags: u32) {
        let access = vec![Access::None; device::count()];
        let id = table::fresh();
        self.mappings.insert(base, Mapping { base, bytes, backing, flags, access, id });
    }

    pub fn remove(&mut self, base: u64) -> Option<Mapping> {
        self.mappings.remove(&base)
    }

    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.values()
    }

    /// Puts a file's pages, from its first, at addresses of the arena.
    pub fn show(&self, base: u64, bytes: u64, physical: &Physical) -> Outcome {
        debug_assert!(self.is_device(base));
        // SAFETY: the addresses are the arena's, which belongs to this library for the life of the
        // process, and nothing is mapped there: a caller looks under the lock that it holds.
        let shown = unsafe {
            mmap(
                ptr::with_exposed_provenance_mut(base as usize),
                bytes as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                &physical.file,
                0,
            )
        };
        shown.map(drop).map_err(|_| Code::CUDA_ERROR_OPERATING_SYSTEM)
    }

    /// Takes pages away again; the addresses stay the arena's.
    pub fn hide(&self, base: u64, bytes: u64) {
        debug_assert!(self.is_device(base));
        // SAFETY: the addresses are the arena's. No copy or fill of this library is under way, since
        // those hold the lock for reading and the caller holds it for writing; who else follows such
        // an address does so after the memory's end.
        let hidden = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            let address = ptr::with_exposed_provenance_mut(base as usize);
            mmap_anonymous(address, bytes as usize, ProtFlags::empty(), flags)
        };
        debug_assert!(hidden.is_ok(), "an anonymous mapping in place of another");
    }

    /// Whether an engine of `device` may do `needed` to all of a range. Addresses outside the arena
    /// that nobody registered are the caller's pageable memory.
    pub fn check(&self, device: usize, base: u64, bytes: u64, needed: Access) -> Outcome {
        let illegal = Code::CUDA_ERROR_ILLEGAL_ADDRESS;
        let end = base.checked_add(bytes).ok_or(illegal)?;
        let mut address = base;
        while address < end {
            if let Some(mapping) = self.find(address) {
                if mapping.access_of(device) < needed {
                    return Err(illegal);
                }
                address = mapping.end();
            } else if address == 0 || self.is_device(address) {
                return Err(illegal);
            } else {
                address = self.mappings.range(address..).next().map_or(end, |(&next, _)| next);
            }
        }
        Ok(())
    }
}

/// Copies as an engine of `device` does; overlapping ranges are the caller's error, as there.
pub(crate) fn copy(device: usize, to: u64, from: u64, bytes: u64) -> Outcome {
    let space = read();
    space.check(device, to, bytes, Access::Write)?;
    space.check(device, from, bytes, Access::Read)?;
    let words = if (to | from).is_multiple_of(8) { bytes / 8 } else { 0 };
    for index in 0..words {
        let value = word64(from + index * 8).load(Ordering::Relaxed);
        word64(to + index * 8).store(value, Ordering::Relaxed);
    }
    for index in words * 8..bytes {
        byte(to + index).store(byte(from + index).load(Ordering::Relaxed), Ordering::Relaxed);
    }
    Ok(())
}

/// One row of a fill with a value of 1, 2 or 4 bytes.
pub(crate) fn fill(device: usize, to: u64, value: u32, width: u64, count: u64) -> Outcome {
    let bytes = width.checked_mul(count).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
    let space = read();
    space.check(device, to, bytes, Access::Write)?;
    let pattern = value.to_le_bytes();
    for index in 0..bytes {
        let value = pattern[(index % width) as usize];
        byte(to + index).store(value, Ordering::Relaxed);
    }
    Ok(())
}

/// A store that carries everything before it in its stream.
pub(crate) fn store(device: usize, to: u64, value: u64, width: u64) -> Outcome {
    let space = read();
    space.check(device, to, width, Access::Write)?;
    if width == 8 {
        word64(to).store(value, Ordering::Release);
    } else {
        word32(to).store(value as u32, Ordering::Release);
    }
    Ok(())
}

/// A load that shows everything before the store it sees.
pub(crate) fn load(device: usize, from: u64, width: u64) -> Outcome<u64> {
    let space = read();
    space.check(device, from, width, Access::Read)?;
    Ok(if width == 8 {
        word64(from).load(Ordering::Acquire)
    } else {
        u64::from(word32(from).load(Ordering::Acquire))
    })
}

// Atomics, since other threads and processes read and write the same memory meanwhile, as devices do.
// Each is used in the function that made it, under the lock.

fn byte(address: u64) -> &'static AtomicU8 {
    // SAFETY: `check` found the address mapped, and it stays so while the lock is held; or it is the
    // caller's own memory, who vouches for it until the operation has run.
    unsafe { AtomicU8::from_ptr(ptr::with_exposed_provenance_mut(address as usize)) }
}

fn word32(address: u64) -> &'static AtomicU32 {
    // SAFETY: as for `byte`; callers refuse addresses that are not aligned.
    unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(address as usize)) }
}

fn word64(address: u64) -> &'static AtomicU64 {
    // SAFETY: as for `word32`.
    unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(address as usize)) }
}
