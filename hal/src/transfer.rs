//! Copies and fills on streams whose work the CPU runs: kernels like any other.
#![allow(unsafe_code, reason = "launches kernels that follow addresses the caller vouches for")]

use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use crate::health::SyncError;
use crate::module::{Function, Kernel, LaunchContext};
use crate::stream::{KeepAlive, Launch, Launched, Stream};
use crate::types::Bytes;
use crate::{DevicePtr, Wait, shm};

/// Neither kernel waits for anything.
static AT_ONCE: Wait = Wait::timeout(Duration::ZERO);

static COPY: Kernel = Kernel { name: "copy", args: size_of::<Copy>(), host: copy };
static FILL: Kernel = Kernel { name: "fill32", args: size_of::<Fill>(), host: fill };

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Copy {
    dst: DevicePtr,
    src: DevicePtr,
    bytes: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Fill {
    dst: DevicePtr,
    count: u64,
    value: u64,
}

/// # Safety
///
/// As for [`HostFn`](crate::HostFn).
unsafe fn copy(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: the launch passed a `Copy`, aligned.
    let Copy { dst, src, bytes } = unsafe { args.cast::<Copy>().read() };
    let places = (context.resolve(dst, Bytes(bytes)), context.resolve(src, Bytes(bytes)));
    let (Some(dst), Some(src)) = places else { return };
    // SAFETY: both ranges are mapped as long as the launch keeps them; the caller of `copy_batch`
    // vouched for them and that they do not overlap.
    unsafe { shm::copy_between(src, dst, bytes as usize) };
}

/// # Safety
///
/// As for [`HostFn`](crate::HostFn).
unsafe fn fill(context: &LaunchContext<'_>, args: *const u8) {
    use std::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: the launch passed a `Fill`, aligned.
    let Fill { dst, count, value } = unsafe { args.cast::<Fill>().read() };
    let Some(bytes) = Bytes::of(count, 4) else { return };
    let Some(dst) = context.resolve(dst, bytes) else { return };
    for index in 0..count as usize {
        // SAFETY: the range is mapped as long as the launch keeps it, and aligned: the caller of
        // `fill32` vouched for both.
        unsafe { AtomicU32::from_ptr(dst.cast::<u32>().add(index)) }
            .store(value as u32, Ordering::Release);
    }
}

/// Copies on a stream of the CPU's, one launch each.
///
/// # Safety
///
/// As for [`Stream::copy_batch`].
pub(crate) unsafe fn copy_batch(
    stream: &Stream,
    copies: &[(DevicePtr, DevicePtr, Bytes)],
    keep: &dyn Fn() -> Vec<KeepAlive>,
) -> Result<Launched, SyncError> {
    let function = Function::of(&COPY, stream.backend());
    let mut last = Launched::Finished;
    for (dst, src, bytes) in copies.iter().filter(|(.., bytes)| *bytes > Bytes::ZERO) {
        let args = Copy { dst: *dst, src: *src, bytes: bytes.0 };
        // SAFETY: the caller vouches for both ranges for as long as `keep`; the struct is the
        // kernel's.
        last = unsafe { stream.launch(Launch::keeping(function, &args, &AT_ONCE, keep)) }?;
    }
    Ok(last)
}

/// Fills words on a stream of the CPU's.
///
/// # Safety
///
/// As for [`Stream::fill32`].
pub(crate) unsafe fn fill32(
    stream: &Stream,
    dst: DevicePtr,
    value: u32,
    count: u64,
    keep: &dyn Fn() -> Vec<KeepAlive>,
) -> Result<Launched, SyncError> {
    if count == 0 {
        return Ok(Launched::Finished);
    }
    let args = Fill { dst, count, value: value.into() };
    let function = Function::of(&FILL, stream.backend());
    // SAFETY: the caller vouches for the range for as long as `keep`; the struct is the kernel's.
    unsafe { stream.launch(Launch::keeping(function, &args, &AT_ONCE, keep)) }
}
