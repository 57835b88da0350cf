//! What an address is.

use core::ffi::{c_int, c_uint, c_void};

use symmem_sys::cuda::bindings::{
    CUcontext, CUdeviceptr, CUmemorytype as MemoryType, CUpointer_attribute as Attribute,
    CUresult as Code,
};

use super::physical::Allocation;
use super::space::{self, Backing, Mapping, Space};
use super::vmm::access_flags;
use crate::entry::{Outcome, export, put};
use crate::{context, device};

/// Writes one attribute of an address in `mapping`.
fn answer(
    space: &Space,
    mapping: &Mapping,
    address: u64,
    of: Attribute,
    to: *mut c_void,
) -> Outcome {
    let owner = mapping.physical().and_then(|physical| physical.device());
    let host = matches!(mapping.backing, Backing::Host | Backing::Registered);
    let legacy = matches!(mapping.backing, Backing::Plain(_));
    let types = match &mapping.backing {
        Backing::Virtual(Allocation::Memory(physical)) => physical.identity.types,
        _ => 0,
    };
    let reserved = space.reservations.range(..=address).next_back();
    let range = match mapping.backing {
        Backing::Virtual(..) => reserved.map(|(&base, &bytes)| (base, bytes)),
        _ => None,
    };
    let range = range.unwrap_or((mapping.base, mapping.bytes));
    match of {
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT => {
            // Memory that is not bound to a context has none.
            let bound = owner.filter(|_| legacy).map(context::of_device);
            put!(to.cast::<CUcontext>(), bound.unwrap_or(core::ptr::null_mut()));
        }
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            let kind = if host {
                MemoryType::CU_MEMORYTYPE_HOST
            } else {
                MemoryType::CU_MEMORYTYPE_DEVICE
            };
            put!(to.cast::<MemoryType>(), kind);
        }
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => put!(to.cast::<u64>(), address),
        Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER if host => put!(to.cast::<u64>(), address),
        Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID
        | Attribute::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => put!(to.cast::<u64>(), mapping.id),
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED => put!(to.cast::<u8>(), 0),
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
            put!(to.cast::<c_int>(), owner.map_or(-1, device::handle));
        }
        Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            put!(to.cast::<u8>(), u8::from(legacy));
        }
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put!(to.cast::<u64>(), range.0),
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => put!(to.cast::<usize>(), range.1 as usize),
        Attribute::CU_POINTER_ATTRIBUTE_MAPPED => put!(to.cast::<u8>(), 1),
        Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
            put!(to.cast::<u64>(), u64::from(types));
        }
        Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            let current = context::current_device().unwrap_or(0);
            put!(to.cast::<u64>(), access_flags(mapping.access_of(current)));
        }
        Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => {
            put!(to.cast::<usize>(), mapping.bytes as usize);
        }
        Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => put!(to.cast::<u64>(), mapping.base),
        _ => return Err(Code::CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

export! {
    fn cuPointerGetAttribute(data: *mut c_void, attribute: Attribute, address: CUdeviceptr) {
        let space = space::read();
        let mapping = space.find(address).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        answer(&space, mapping, address, attribute, data)?;
    }

    /// Zero for what an address does not have, as the real driver; so all zero for an address that
    /// it does not know.
    fn cuPointerGetAttributes(
        count: c_uint,
        attributes: *mut Attribute,
        data: *mut *mut c_void,
        address: CUdeviceptr,
    ) {
        let space = space::read();
        for index in 0..count as usize {
            // SAFETY: the caller vouches for `count` attributes and as many places for answers.
            let (attribute, to) = unsafe { (attributes.add(index).read(), data.add(index).read()) };
            let answered = match space.find(address) {
                Some(mapping) => answer(&space, mapping, address, attribute, to).is_ok(),
                None => false,
            };
            if !answered {
                match attribute {
                    Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED
                    | Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
                    | Attribute::CU_POINTER_ATTRIBUTE_MAPPED => put!(to.cast::<u8>(), 0),
                    Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => put!(to.cast::<c_uint>(), 0),
                    Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put!(to.cast::<c_int>(), -2),
                    _ => put!(to.cast::<u64>(), 0),
                }
            }
        }
    }
}
