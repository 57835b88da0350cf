//! Multicast objects, shared by processes.
//!
//! What the real driver leaves to hang or to depend on the hardware is an error here: see the
//! crate's documentation. A mapping has addresses and no memory.

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use symmem_sys::cuda::bindings::{
    CUdevice, CUdeviceptr, CUmemGenericAllocationHandle,
    CUmulticastGranularity_flags as Granularity, CUmulticastObjectProp, CUresult as Code,
};

use crate::config::CONFIG;
use crate::device;
use crate::entry::{Outcome, export, fetch, put};
use crate::memory::GRANULARITY;
use crate::memory::physical::{self, Allocation, Physical, name_of};
use crate::memory::space;
use crate::memory::vmm::exportable;

/// What objects are best made a multiple of, as on hardware: far more than memory is allocated by.
const RECOMMENDED: u64 = 16 * GRANULARITY;

/// Bytes of the page on which the processes that have an object agree.
const PAGE: usize = 4096;

/// What all processes know of an object.
#[repr(C)]
struct Shared {
    /// Devices that were added, one bit each by physical ordinal.
    added: AtomicU64,
    /// The creator released its last handle.
    gone: AtomicU64,
}

/// A mapping of the shared page, for the life of the object in this process.
#[derive(Debug)]
struct SharedPage(NonNull<Shared>);

// SAFETY: it holds two atomics and lives in memory that all threads of the process have.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    fn map(file: &OwnedFd) -> Outcome<Self> {
        // SAFETY: the kernel chooses the address; the file has this many bytes, by its creation.
        let page = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), PAGE, protection, MapFlags::SHARED, file, 0)
        };
        let page = page.ok().and_then(|page| NonNull::new(page.cast()));
        page.map(SharedPage).ok_or(Code::CUDA_ERROR_OPERATING_SYSTEM)
    }

    fn get(&self) -> &Shared {
        // SAFETY: mapped until `self` is dropped; processes change it by its atomics alone.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; references to it borrow `self`. The result is of
        // no use: the range is this object's own.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

#[derive(Debug)]
struct Bound {
    device: usize,
    offset: u64,
    bytes: u64,
    memory: Weak<Physical>,
}

#[derive(Debug)]
pub(crate) struct Object {
    pub file: OwnedFd,
    pub bytes: u64,
    devices: u32,
    types: u32,
    shared: SharedPage,
    created: bool,
    bound: Mutex<Vec<Bound>>,
}

impl Object {
    fn create(bytes: u64, devices: u32, types: u32) -> Outcome<Self> {
        let name = format!("symmem-fake-cuda:multicast:{devices}:{bytes}:{types}");
        let failed = |_| Code::CUDA_ERROR_OPERATING_SYSTEM;
        let file = memfd_create(name, MemfdFlags::CLOEXEC).map_err(failed)?;
        ftruncate(&file, PAGE as u64).map_err(failed)?;
        let (shared, bound) = (SharedPage::map(&file)?, Mutex::default());
        Ok(Object { file, bytes, devices, types, shared, created: true, bound })
    }

    /// The object behind a descriptor; an error once its creator has let it go.
    pub fn import(file: OwnedFd) -> Outcome<Self> {
        supported()?;
        let name = name_of(file.as_fd()).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let mut fields = name.trim_start_matches("multicast:").split(':');
        let mut field =
            || fields.next().and_then(|f| f.parse().ok()).ok_or(Code::CUDA_ERROR_INVALID_VALUE);
        let (devices, bytes, types): (u64, u64, u64) = (field()?, field()?, field()?);
        let (devices, types) = (devices as u32, types as u32);
        let shared = SharedPage::map(&file)?;
        if shared.get().gone.load(Ordering::Acquire) != 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let bound = Mutex::default();
        Ok(Object { file, bytes, devices, types, shared, created: false, bound })
    }

    pub fn types(&self) -> u32 {
        self.types
    }

    /// The last handle of this process is gone.
    pub fn released(&self) {
        if self.created {
            self.shared.get().gone.store(1, Ordering::Release);
        }
    }

    fn add(&self, device: usize) -> Outcome {
        let bit =
            1_u64.checked_shl(device::physical(device)).ok_or(Code::CUDA_ERROR_INVALID_DEVICE)?;
        let added = &self.shared.get().added;
        let room = |added: u64| {
            (added & bit == 0 && added.count_ones() < self.devices).then_some(added | bit)
        };
        added
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, room)
            .map(drop)
            .map_err(|_| Code::CUDA_ERROR_INVALID_VALUE)
    }

    fn bind(&self, offset: u64, memory: &Arc<Physical>, from: u64, bytes: u64) -> Outcome {
        let added = self.shared.get().added.load(Ordering::Acquire);
        if added.count_ones() < self.devices {
            // The real driver waits here for as long as it takes.
            return Err(Code::CUDA_ERROR_ILLEGAL_STATE);
        }
        let device = memory.device().ok_or(Code::CUDA_ERROR_INVALID_DEVICE)?;
        let aligned = [offset, from, bytes].iter().all(|value| value.is_multiple_of(GRANULARITY));
        let inside =
            |start: u64, size: u64| start.checked_add(bytes).is_some_and(|end| end <= size);
        let mut bound = self.bound.lock();
        let overlaps = bound.iter().any(|other| {
            other.device == device
                && offset < other.offset + other.bytes
                && other.offset < offset + bytes
        });
        if bytes == 0
            || !aligned
            || !inside(offset, self.bytes)
            || !inside(from, memory.bytes)
            || overlaps
            || added & (1 << memory.identity.owner) == 0
        {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        bound.push(Bound { device, offset, bytes, memory: Arc::downgrade(memory) });
        Ok(())
    }

    fn unbind(&self, device: usize, offset: u64, bytes: u64) -> Outcome {
        let mut bound = self.bound.lock();
        let found = bound.iter().position(|piece| {
            piece.device == device && piece.offset == offset && piece.bytes == bytes
        });
        let found = found.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        if bound[found].memory.strong_count() == 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        bound.remove(found);
        Ok(())
    }
}

fn supported() -> Outcome {
    if CONFIG.multicast { Ok(()) } else { Err(Code::CUDA_ERROR_NOT_SUPPORTED) }
}

/// The parts of properties that an object can have.
fn properties(prop: &CUmulticastObjectProp) -> Outcome<(u64, u32, u32)> {
    let types = u32::try_from(prop.handleTypes).map_err(|_| Code::CUDA_ERROR_INVALID_VALUE)?;
    if prop.numDevices == 0 || prop.flags != 0 {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    Ok((prop.size as u64, prop.numDevices, exportable(types)?))
}

export! {
    fn cuMulticastGetGranularity(
        granularity: *mut usize,
        prop: *const CUmulticastObjectProp,
        option: Granularity,
    ) {
        supported()?;
        properties(&fetch!(prop))?;
        put!(granularity, match option {
            Granularity::CU_MULTICAST_GRANULARITY_MINIMUM => GRANULARITY,
            Granularity::CU_MULTICAST_GRANULARITY_RECOMMENDED => RECOMMENDED,
            _ => return Err(Code::CUDA_ERROR_INVALID_VALUE),
        } as usize);
    }

    fn cuMulticastCreate(
        handle: *mut CUmemGenericAllocationHandle,
        prop: *const CUmulticastObjectProp,
    ) {
        supported()?;
        let (bytes, devices, types) = properties(&fetch!(prop))?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || handle.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let object = Object::create(bytes, devices, types)?;
        put!(handle, physical::hold(Allocation::Multicast(object.into())));
    }

    fn cuMulticastAddDevice(handle: CUmemGenericAllocationHandle, dev: CUdevice) {
        supported()?;
        physical::held(handle)?.multicast()?.add(device::of(dev)?)?;
    }

    fn cuMulticastBindMem(
        handle: CUmemGenericAllocationHandle,
        offset: usize,
        memory: CUmemGenericAllocationHandle,
        from: usize,
        size: usize,
        flags: u64,
    ) {
        supported()?;
        let object = physical::held(handle)?.multicast()?;
        let memory = physical::held(memory)?.memory()?;
        if flags != 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        object.bind(offset as u64, &memory, from as u64, size as u64)?;
    }

    fn cuMulticastBindAddr(
        handle: CUmemGenericAllocationHandle,
        offset: usize,
        address: CUdeviceptr,
        size: usize,
        flags: u64,
    ) {
        supported()?;
        let object = physical::held(handle)?.multicast()?;
        let space = space::read();
        let mapping = space.find(address).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let memory = mapping.physical().ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 || address + size as u64 > mapping.end() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        object.bind(offset as u64, memory, address - mapping.base, size as u64)?;
    }

    fn cuMulticastUnbind(
        handle: CUmemGenericAllocationHandle,
        dev: CUdevice,
        offset: usize,
        size: usize,
    ) {
        supported()?;
        let object = physical::held(handle)?.multicast()?;
        object.unbind(device::of(dev)?, offset as u64, size as u64)?;
    }
}
