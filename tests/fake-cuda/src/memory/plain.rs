//! Plain allocations, and how much memory a device has left.

use symmem_sys::cuda::bindings::{CUdeviceptr, CUresult as Code};

use super::physical::{self, Physical};
use super::space::{self, Backing};
use crate::context;
use crate::entry::{export, offer, put};
use crate::stream::{self, capture};

/// What plain memory's files are multiples of.
const PAGE: u64 = 4096;

export! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (left, all) = physical::information(context::current()?);
        put!(free, left as usize);
        put!(total, all as usize);
    }

    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytesize: usize) {
        let device = context::current()?;
        capture::unsafe_call()?;
        let bytes = bytesize as u64;
        if bytes == 0 || address.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let whole = bytes.checked_next_multiple_of(PAGE).ok_or(Code::CUDA_ERROR_OUT_OF_MEMORY)?;
        let physical = Physical::create(device, whole, 0, false)?;
        let mut space = space::write();
        let base = space.take(whole, PAGE)?;
        space.show(base, whole, &physical)?;
        space.insert(base, bytes, Backing::Plain(physical.into()), 0);
        put!(address, base);
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
        let mut space = space::write();
        let mapping = space.remove(base).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        space.hide(base, mapping.bytes.next_multiple_of(PAGE));
    }

    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) {
        let space = space::read();
        let mapping = space.find(address).ok_or(Code::CUDA_ERROR_NOT_FOUND)?;
        offer!(base, mapping.base);
        offer!(size, mapping.bytes as usize);
    }
}
