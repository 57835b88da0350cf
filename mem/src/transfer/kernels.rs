//! Copies and fills as kernels.
#![allow(unsafe_code, reason = "kernels read their argument block and follow its addresses")]

use core::sync::atomic::{AtomicU32, Ordering, fence};

use parking_lot::RwLock;
use symmem_hal::types::{Bytes, DeviceUuid};
use symmem_hal::{Device, DevicePtr, Function, Kernel, KernelSet, LaunchContext, LoadError, shm};

/// The kernels of this crate.
static KERNELS: KernelSet = KernelSet {
    name: "symmem-mem",
    kernels: &[
        Kernel { name: "copy", args: size_of::<CopyArgs>(), host: copy },
        Kernel { name: "fill32", args: size_of::<FillArgs>(), host: fill32 },
    ],
};

/// A copy of bytes.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct CopyArgs {
    pub source: DevicePtr,
    pub target: DevicePtr,
    pub bytes: u64,
}

/// A fill of 32-bit words. What the stream did before happens before whoever sees one of them.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct FillArgs {
    pub target: DevicePtr,
    pub count: u64,
    pub value: u32,
    pub padding: u32,
}

/// The kernels, found on one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Functions {
    pub copy: Function,
    pub fill32: Function,
}

impl Functions {
    /// Those of a device, looked up once in this process.
    pub(super) fn of(device: &Device) -> Result<Self, LoadError> {
        static LOADED: RwLock<Vec<(DeviceUuid, Functions)>> = RwLock::new(Vec::new());
        let uuid = device.uuid();
        if let Some((_, found)) = LOADED.read().iter().find(|(known, _)| *known == uuid) {
            return Ok(*found);
        }
        let module = device.load(&KERNELS)?;
        let found =
            Functions { copy: module.function("copy")?, fill32: module.function("fill32")? };
        LOADED.write().push((uuid, found));
        Ok(found)
    }
}

unsafe fn copy(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: this kernel's arguments are CopyArgs (KERNELS).
    let args = unsafe { *args.cast::<CopyArgs>() };
    let bytes = Bytes(args.bytes);
    let ranges = (context.resolve(args.source, bytes), context.resolve(args.target, bytes));
    let ((Some(source), Some(target)), Some(length)) = (ranges, bytes.to_usize()) else {
        return context.stop();
    };
    // SAFETY: both are ranges of views, checked when the views were made, which whoever launched
    // this keeps mapped until it returns. Peers may be at them: the copy is by atomics.
    unsafe { shm::copy_between(source, target, length) };
}

unsafe fn fill32(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: this kernel's arguments are FillArgs (KERNELS).
    let args = unsafe { *args.cast::<FillArgs>() };
    let bytes = Bytes(args.count.saturating_mul(4));
    let (Some(target), Some(length)) = (context.resolve(args.target, bytes), bytes.to_usize())
    else {
        return context.stop();
    };
    fence(Ordering::Release);
    for offset in (0..length).step_by(4) {
        // SAFETY: as in `copy`, of a view of aligned 32-bit elements.
        let word = unsafe { AtomicU32::from_ptr(target.add(offset).cast()) };
        word.store(args.value, Ordering::Relaxed);
    }
}
