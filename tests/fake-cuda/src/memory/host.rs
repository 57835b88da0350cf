//! Memory of the host that devices reach: allocated by the driver, or the caller's own, registered.

use core::ffi::{c_uint, c_void};
use std::ptr;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use symmem_sys::cuda::bindings::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED,
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_READ_ONLY,
    CUdeviceptr, CUresult as Code,
};

use super::space::{self, Backing};
use crate::entry::{export, put};
use crate::stream::{self, capture};
use crate::{context, counts};

export! {
    fn cuMemHostAlloc(address: *mut *mut c_void, bytesize: usize, flags: c_uint) {
        context::current()?;
        capture::unsafe_call()?;
        let known = CU_MEMHOSTALLOC_PORTABLE
            | CU_MEMHOSTALLOC_DEVICEMAP
            | CU_MEMHOSTALLOC_WRITECOMBINED;
        if bytesize == 0 || flags & !known != 0 || address.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the kernel chooses the address.
        let found = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), bytesize, protection, MapFlags::PRIVATE)
        };
        let found = found.map_err(|_| Code::CUDA_ERROR_OUT_OF_MEMORY)?;
        let base = found.expose_provenance() as u64;
        space::write().insert(base, bytesize as u64, Backing::Host, flags);
        put!(address, found);
    }

    /// Waits for all work on all devices, as the real driver does.
    fn cuMemFreeHost(address: *mut c_void) {
        context::current()?;
        capture::unsafe_call()?;
        stream::finish_all()?;
        let base = address.addr() as u64;
        let mut space = space::write();
        let host = |mapping: &space::Mapping| matches!(mapping.backing, Backing::Host);
        let bytes = space.at(base).filter(|mapping| host(mapping)).map(|mapping| mapping.bytes);
        let bytes = bytes.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        space.remove(base);
        // SAFETY: `cuMemHostAlloc` mapped exactly this and nothing of this library uses it any more:
        // all streams are idle and the lock is held for writing.
        let unmapped = unsafe { munmap(address, bytes as usize) };
        unmapped.map_err(|_| Code::CUDA_ERROR_OPERATING_SYSTEM)?;
    }

    fn cuMemHostRegister_v2(address: *mut c_void, bytesize: usize, flags: c_uint) {
        context::current()?;
        capture::unsafe_call()?;
        let known = CU_MEMHOSTREGISTER_PORTABLE
            | CU_MEMHOSTREGISTER_DEVICEMAP
            | CU_MEMHOSTREGISTER_READ_ONLY;
        let base = address.expose_provenance() as u64;
        if address.is_null() || bytesize == 0 || flags & !known != 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let mut space = space::write();
        if space.overlaps(base, bytesize as u64) {
            return Err(Code::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        space.insert(base, bytesize as u64, Backing::Registered, flags);
    }

    fn cuMemHostUnregister(address: *mut c_void) {
        context::current()?;
        capture::unsafe_call()?;
        // The driver waits for what is launched meanwhile, too: that is counted, since it may never end.
        let launches = || counts::of("cuLaunchKernelEx") + counts::of("cuGraphLaunch");
        let before = launches();
        stream::finish_all()?;
        std::thread::sleep(Duration::from_micros(100));
        if launches() != before {
            counts::add("a launch during cuMemHostUnregister");
        }
        let base = address.addr() as u64;
        let mut space = space::write();
        let registered =
            space.at(base).is_some_and(|mapping| matches!(mapping.backing, Backing::Registered));
        if !registered {
            return Err(Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        }
        space.remove(base);
    }

    fn cuMemHostGetDevicePointer_v2(pointer: *mut CUdeviceptr, address: *mut c_void, flags: c_uint) {
        context::current()?;
        let space = space::read();
        let mapping = space.find(address.addr() as u64).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let host = matches!(mapping.backing, Backing::Host | Backing::Registered);
        if flags != 0 || !host {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        put!(pointer, address.addr() as u64);
    }

    fn cuMemHostGetFlags(flags: *mut c_uint, address: *mut c_void) {
        let space = space::read();
        let mapping = space.find(address.addr() as u64).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        match mapping.backing {
            Backing::Host | Backing::Registered => put!(flags, mapping.flags),
            _ => return Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
    }
}
