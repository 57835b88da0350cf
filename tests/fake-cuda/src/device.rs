//! Devices: how many, their names and identities, what they can do, which reach which.

use core::ffi::{CStr, c_char, c_int, c_uint};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;

use symmem_sys::cuda::bindings::{
    CUdevice, CUdevice_P2PAttribute as PeerAttribute, CUdevice_attribute as Attribute,
    CUresult as Code, CUuuid,
};

use crate::config::{CONFIG, Fabric};
use crate::entry::{INITIALISED, Outcome, export, put};

/// Multiprocessors of each device.
pub(crate) const UNITS: c_int = 132;
/// Shared memory of a multiprocessor, and what a block may ask for at most.
pub(crate) const SHARED_UNIT: usize = 228 << 10;
pub(crate) const SHARED_BLOCK: usize = 227 << 10;
/// What a block gets unasked.
pub(crate) const SHARED_DEFAULT: usize = 48 << 10;
pub(crate) const THREADS_UNIT: usize = 2048;
pub(crate) const THREADS_BLOCK: usize = 1024;
pub(crate) const BLOCKS_UNIT: usize = 32;

pub(crate) fn count() -> usize {
    CONFIG.devices.len()
}

/// The index of a device handle.
pub(crate) fn of(dev: CUdevice) -> Outcome<usize> {
    let index = usize::try_from(dev).ok().filter(|&index| index < count());
    index.ok_or(Code::CUDA_ERROR_INVALID_DEVICE)
}

pub(crate) fn handle(device: usize) -> CUdevice {
    c_int::try_from(device).unwrap_or(c_int::MAX)
}

/// The ordinal that a device has on this machine, whatever is visible.
pub(crate) fn physical(device: usize) -> u32 {
    CONFIG.devices[device]
}

/// Whether `device` reaches the memory of the device with physical ordinal `other`.
pub(crate) fn reaches_physical(device: usize, other: u32) -> bool {
    let mine = physical(device);
    !CONFIG.apart.iter().any(|&pair| pair == (mine, other) || pair == (other, mine))
}

/// Whether two different devices reach each other.
pub(crate) fn reaches(device: usize, other: usize) -> bool {
    device != other && reaches_physical(device, physical(other))
}

/// The same for all processes since this machine started.
fn uuid(device: usize) -> [c_char; 16] {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let word = |half: u8| {
        let mut hasher = DefaultHasher::new();
        (&boot, physical(device), half).hash(&mut hasher);
        hasher.finish()
    };
    let bits = u128::from(word(0)) << 64 | u128::from(word(1));
    bits.to_le_bytes().map(u8::cast_signed)
}

fn name(device: usize) -> String {
    format!("symmem fake CUDA device {}", physical(device))
}

fn bus(device: usize) -> String {
    format!("0000:{:02X}:00.0", physical(device) + 1)
}

/// Writes a C string into a buffer of `length` bytes, cut where it does not fit.
macro_rules! put_text {
    ($buffer:expr, $length:expr, $text:expr) => {{
        let (buffer, length, text) = ($buffer, usize::try_from($length), $text);
        let Ok(length @ 1..) = length else { return Err(Code::CUDA_ERROR_INVALID_VALUE) };
        let kept = text.len().min(length - 1);
        for (index, byte) in text.bytes().take(kept).chain([0]).enumerate() {
            // SAFETY: the caller of an exported function vouches for `length` bytes at `buffer`, and
            // index is at most length - 1; null is refused by `put!`.
            put!(unsafe { buffer.add(index) }, byte.cast_signed());
        }
    }};
}

fn attribute(attribute: Attribute, device: usize) -> c_int {
    let small = |size: usize| c_int::try_from(size).unwrap_or(c_int::MAX);
    let flag = |flag: bool| c_int::from(flag);
    match attribute {
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => CONFIG.arch.0,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => CONFIG.arch.1,
        Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => UNITS,
        Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => small(THREADS_BLOCK),
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => 64,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X => c_int::MAX,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => 65_535,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => small(THREADS_UNIT),
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => small(BLOCKS_UNIT),
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => small(SHARED_DEFAULT),
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => small(SHARED_BLOCK),
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => small(SHARED_UNIT),
        Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => 1024,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => 65_536,
        Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => 50 << 20,
        Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE => 1_980_000,
        Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 3,
        Attribute::CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT => 4,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => small(physical(device) as usize + 1),
        Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID => 0,
        Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => {
            flag(CONFIG.virtual_memory)
        }
        Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => {
            flag(CONFIG.virtual_memory && CONFIG.descriptors)
        }
        Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED => {
            flag(CONFIG.virtual_memory && CONFIG.fabric != Fabric::Absent)
        }
        Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => flag(CONFIG.pools),
        Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED => flag(CONFIG.multicast),
        Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        | Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1
        | Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1
        | Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR
        | Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1 => {
            flag(CONFIG.memory_operations)
        }
        Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
        | Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
        | Attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
        | Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED
        | Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
        | Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        | Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS => 1,
        _ => 0,
    }
}

export! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        if count() == 0 {
            return Err(Code::CUDA_ERROR_NO_DEVICE);
        }
        INITIALISED.store(true, Ordering::Release);
    }

    fn cuDeviceGetCount(devices: *mut c_int) {
        put!(devices, handle(count()));
    }

    fn cuDeviceGet(dev: *mut CUdevice, ordinal: c_int) {
        put!(dev, handle(of(ordinal)?));
    }

    fn cuDeviceGetName(text: *mut c_char, length: c_int, dev: CUdevice) {
        put_text!(text, length, name(of(dev)?));
    }

    fn cuDeviceGetUuid_v2(identity: *mut CUuuid, dev: CUdevice) {
        put!(identity, CUuuid { bytes: uuid(of(dev)?) });
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) {
        of(dev)?;
        put!(bytes, usize::try_from(CONFIG.memory).unwrap_or(usize::MAX));
    }

    fn cuDeviceGetAttribute(value: *mut c_int, which: Attribute, dev: CUdevice) {
        if which.0 == 0 || which.0 >= Attribute::CU_DEVICE_ATTRIBUTE_MAX.0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        put!(value, attribute(which, of(dev)?));
    }

    fn cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, dev: CUdevice) {
        put_text!(text, length, bus(of(dev)?));
    }

    fn cuDeviceGetByPCIBusId(dev: *mut CUdevice, text: *const c_char) {
        if text.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; the caller vouches for a C string that lives during the call.
        let text = unsafe { CStr::from_ptr(text) };
        let wanted = text.to_str().unwrap_or_default();
        let found = (0..count()).find(|&device| bus(device).eq_ignore_ascii_case(wanted));
        put!(dev, handle(found.ok_or(Code::CUDA_ERROR_INVALID_DEVICE)?));
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, dev: CUdevice, peer: CUdevice) {
        put!(can, c_int::from(reaches(of(dev)?, of(peer)?)));
    }

    fn cuDeviceGetP2PAttribute(
        value: *mut c_int,
        which: PeerAttribute,
        source: CUdevice,
        destination: CUdevice,
    ) {
        let (a, b) = (of(source)?, of(destination)?);
        if a == b {
            return Err(Code::CUDA_ERROR_INVALID_DEVICE);
        }
        let reaches = c_int::from(reaches(a, b));
        put!(value, match which {
            PeerAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
            | PeerAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => reaches,
            PeerAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
            | PeerAttribute::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => 0,
            _ => return Err(Code::CUDA_ERROR_INVALID_VALUE),
        });
    }
}
