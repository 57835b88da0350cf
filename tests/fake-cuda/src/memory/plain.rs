//! Plain allocations, those of the pool, and how much memory a device has left.

use std::sync::Arc;

use symmem_sys::cuda::bindings::{CUdeviceptr, CUresult as Code, CUstream};

use super::physical::{self, Physical};
use super::space::{self, Backing};
use crate::config::CONFIG;
use crate::context;
use crate::entry::{Outcome, export, offer, put};
use crate::stream::{self, Work, capture};

fn pooled() -> Outcome {
    if CONFIG.pools { Ok(()) } else { Err(Code::CUDA_ERROR_NOT_SUPPORTED) }
}

/// What plain memory's files are multiples of.
const PAGE: u64 = 4096;

fn allocate(
    device: usize,
    address: *mut CUdeviceptr,
    bytesize: usize,
    backing: fn(Arc<Physical>) -> Backing,
) -> Outcome {
    let bytes = bytesize as u64;
    if bytes == 0 || address.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    let whole = bytes.checked_next_multiple_of(PAGE).ok_or(Code::CUDA_ERROR_OUT_OF_MEMORY)?;
    let physical = Physical::create(device, whole, 0, false)?;
    let mut space = space::write();
    let base = space.take(whole, PAGE)?;
    space.show(base, whole, &physical)?;
    space.insert(base, bytes, backing(physical.into()), 0);
    put!(address, base);
    Ok(())
}

fn free(base: u64) -> Outcome {
    let mut space = space::write();
    let mapping = space.remove(base).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
    space.hide(base, mapping.bytes.next_multiple_of(PAGE));
    Ok(())
}

/// Frees memory of the pool, now that its stream has come so far.
pub(crate) fn free_pooled(base: u64) -> Outcome {
    free(base).map_err(|_| Code::CUDA_ERROR_ILLEGAL_ADDRESS)
}

export! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (left, all) = physical::information(context::current()?);
        put!(free, left as usize);
        put!(total, all as usize);
    }

    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytesize: usize) {
        let device = context::current()?;
        capture::unsafe_call()?;
        allocate(device, address, bytesize, Backing::Plain)?;
    }

    /// Waits for all work on the device, as the real driver does.
    fn cuMemFree_v2(base: CUdeviceptr) {
        context::current()?;
        capture::unsafe_call()?;
        if base == 0 {
            return Ok(());
        }
        let plain = |mapping: &space::Mapping| match &mapping.backing {
            Backing::Plain(physical) => physical.device(),
            _ => None,
        };
        let device = space::read().at(base).and_then(plain);
        stream::finish_device(device.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?)?;
        free(base)?;
    }

    /// The memory is there at once. In a capture there is none to be had.
    fn cuMemAllocAsync(address: *mut CUdeviceptr, bytesize: usize, stream: CUstream) {
        let stream = stream::of(stream)?;
        pooled()?;
        capture::forbid(&stream)?;
        allocate(stream.device, address, bytesize, Backing::Pooled)?;
    }

    /// Waits for nothing: the memory goes when the stream comes to it.
    fn cuMemFreeAsync(base: CUdeviceptr, stream: CUstream) {
        let stream = stream::of(stream)?;
        pooled()?;
        capture::forbid(&stream)?;
        let known = space::read().at(base).is_some_and(|mapping| {
            matches!(mapping.backing, Backing::Pooled(_))
        });
        if !known {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        stream.issue(Work::Free(base))?;
    }

    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) {
        let space = space::read();
        let mapping = space.find(address).ok_or(Code::CUDA_ERROR_NOT_FOUND)?;
        offer!(base, mapping.base);
        offer!(size, mapping.bytes as usize);
    }
}
