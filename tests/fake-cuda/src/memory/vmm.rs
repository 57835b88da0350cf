//! Virtual memory management: addresses, physical memory and access, each on its own.

use core::ffi::c_void;

use symmem_sys::cuda::bindings::{
    CUdeviceptr, CUmemAccess_flags as AccessFlags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags as Granularity, CUmemAllocationHandleType as HandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType, CUresult as Code,
};

use super::GRANULARITY;
use super::physical::{self, Allocation, Physical};
use super::space::{self, Access, Backing};
use crate::config::{CONFIG, Fabric};
use crate::device;
use crate::entry::{Outcome, export, fetch, put};

/// Refuses everything here on a machine that has none of it.
fn supported() -> Outcome {
    if CONFIG.virtual_memory { Ok(()) } else { Err(Code::CUDA_ERROR_NOT_SUPPORTED) }
}

/// A size or address that is not zero and a multiple of the granularity.
fn granular(value: u64) -> Outcome<u64> {
    let fits = value != 0 && value.is_multiple_of(GRANULARITY);
    if fits { Ok(value) } else { Err(Code::CUDA_ERROR_INVALID_VALUE) }
}

/// Refuses handle types that the devices do not have, as bits.
pub(crate) fn exportable(types: u32) -> Outcome<u32> {
    let posix = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
    let fabric = HandleType::CU_MEM_HANDLE_TYPE_FABRIC.0;
    let absent = types & posix != 0 && !CONFIG.descriptors;
    if types & !(posix | fabric) != 0 || absent {
        return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
    }
    match CONFIG.fabric {
        Fabric::Absent if types & fabric != 0 => Err(Code::CUDA_ERROR_NOT_SUPPORTED),
        Fabric::Denied if types & fabric != 0 => Err(Code::CUDA_ERROR_NOT_PERMITTED),
        _ => Ok(types),
    }
}

/// The device and handle types of properties that can be had.
fn properties(prop: &CUmemAllocationProp) -> Outcome<(usize, u32)> {
    if prop.type_ != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED
        || prop.location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE
    {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    Ok((device::of(prop.location.id)?, exportable(prop.requestedHandleTypes.0)?))
}

pub(crate) fn access(flags: AccessFlags) -> Outcome<Access> {
    match flags {
        AccessFlags::CU_MEM_ACCESS_FLAGS_PROT_NONE => Ok(Access::None),
        AccessFlags::CU_MEM_ACCESS_FLAGS_PROT_READ => Ok(Access::Read),
        AccessFlags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Ok(Access::Write),
        _ => Err(Code::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn access_flags(access: Access) -> u64 {
    u64::from(match access {
        Access::None => AccessFlags::CU_MEM_ACCESS_FLAGS_PROT_NONE.0,
        Access::Read => AccessFlags::CU_MEM_ACCESS_FLAGS_PROT_READ.0,
        Access::Write => AccessFlags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE.0,
    })
}

fn location(location: CUmemLocation) -> Outcome<usize> {
    if location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    device::of(location.id)
}

export! {
    fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        prop: *const CUmemAllocationProp,
        option: Granularity,
    ) {
        supported()?;
        properties(&fetch!(prop))?;
        if option.0 > Granularity::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED.0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        put!(granularity, GRANULARITY as usize);
    }

    fn cuMemAddressReserve(
        address: *mut CUdeviceptr,
        size: usize,
        alignment: usize,
        _hint: CUdeviceptr,
        flags: u64,
    ) {
        supported()?;
        let bytes = granular(size as u64)?;
        if flags != 0 || !(alignment == 0 || alignment.is_power_of_two()) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let mut space = space::write();
        let base = space.take(bytes, alignment as u64)?;
        put!(address, base);
        space.reservations.insert(base, bytes);
    }

    fn cuMemAddressFree(base: CUdeviceptr, size: usize) {
        supported()?;
        let mut space = space::write();
        let whole = space.reservations.get(&base) == Some(&(size as u64));
        if !whole || space.overlaps(base, size as u64) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        space.reservations.remove(&base);
    }

    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        prop: *const CUmemAllocationProp,
        flags: u64,
    ) {
        supported()?;
        let prop = fetch!(prop);
        let (device, types) = properties(&prop)?;
        let bytes = granular(size as u64)?;
        if flags != 0 || handle.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let rdma = prop.allocFlags.gpuDirectRDMACapable != 0;
        let physical = Physical::create(device, bytes, types, rdma)?;
        put!(handle, physical::hold(Allocation::Memory(physical.into())));
    }

    fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        supported()?;
        physical::release(handle)?;
    }

    fn cuMemMap(
        base: CUdeviceptr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: u64,
    ) {
        supported()?;
        let (base, bytes, offset) = (granular(base)?, granular(size as u64)?, offset as u64);
        let allocation = physical::held(handle)?;
        let available = match &allocation {
            // The real driver takes no other offset.
            Allocation::Memory(_) if offset != 0 => 0,
            Allocation::Memory(physical) => physical.bytes,
            Allocation::Multicast(object) => object.bytes.saturating_sub(offset),
        };
        if flags != 0 || bytes > available {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let mut space = space::write();
        let (start, reserved) = space.reservations.range(..=base).next_back()
            .map(|(&start, &reserved)| (start, reserved))
            .ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        if base + bytes > start + reserved || space.overlaps(base, bytes) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        if let Allocation::Memory(physical) = &allocation {
            space.show(base, bytes, physical)?;
        }
        space.insert(base, bytes, Backing::Virtual(allocation), 0);
    }

    /// Waits for nothing, as the real driver need not: work that still uses the range breaks the
    /// context of its device.
    fn cuMemUnmap(base: CUdeviceptr, size: usize) {
        supported()?;
        let mut space = space::write();
        let found = space.exactly(base, granular(size as u64)?)?;
        if !found.iter().all(|mapping| matches!(mapping.backing, Backing::Virtual(..))) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let bases: Vec<_> = found.iter().map(|mapping| mapping.base).collect();
        space.hide(base, size as u64);
        for base in bases {
            space.remove(base);
        }
    }

    fn cuMemSetAccess(base: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) {
        supported()?;
        let mut grants = Vec::new();
        for index in 0..count {
            // SAFETY: the caller vouches for `count` descriptions.
            let desc = fetch!(unsafe { desc.add(index) });
            grants.push((location(desc.location)?, access(desc.flags)?));
        }
        let mut space = space::write();
        let mut found = space.exactly(base, granular(size as u64)?)?;
        for mapping in &found {
            let reached = |device| match mapping.physical() {
                Some(physical) => physical.in_reach_of(device),
                None => true,
            };
            if !matches!(mapping.backing, Backing::Virtual(..)) {
                return Err(Code::CUDA_ERROR_INVALID_VALUE);
            }
            if !grants.iter().all(|&(device, access)| access == Access::None || reached(device)) {
                return Err(Code::CUDA_ERROR_INVALID_DEVICE);
            }
        }
        for mapping in &mut found {
            for &(device, access) in &grants {
                mapping.access[device] = access;
            }
        }
    }

    fn cuMemGetAccess(flags: *mut u64, place: *const CUmemLocation, address: CUdeviceptr) {
        supported()?;
        let device = location(fetch!(place))?;
        let space = space::read();
        let mapping = space.find(address).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        put!(flags, access_flags(mapping.access[device]));
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        prop: *mut CUmemAllocationProp,
        handle: CUmemGenericAllocationHandle,
    ) {
        supported()?;
        let physical = physical::held(handle)?.memory()?;
        let mut found = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: HandleType(physical.identity.types),
            ..Default::default()
        };
        found.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        found.location.id = physical.device().map_or(-1, device::handle);
        found.allocFlags.gpuDirectRDMACapable = u8::from(physical.identity.rdma);
        put!(prop, found);
    }

    fn cuMemRetainAllocationHandle(
        handle: *mut CUmemGenericAllocationHandle,
        address: *mut c_void,
    ) {
        supported()?;
        let space = space::read();
        let mapping = space.find(address.addr() as u64).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let Backing::Virtual(allocation) = &mapping.backing else {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        };
        put!(handle, physical::retain(allocation));
    }
}
