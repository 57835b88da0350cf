//! Copies and fills on streams, by the driver's own means.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::OnceLock;

use smallvec::SmallVec;
use symmem_sys::cuda::CU_STREAM_LEGACY;
use symmem_sys::cuda::bindings::{
    CUmemcpyAttributes, CUmemcpySrcAccessOrder_enum, CUstream, CUstreamWriteValue_flags_enum,
};

use super::Stream;
use super::context::Context;
use super::driver::{Caller as _, cu, refusal};
use crate::DevicePtr;
use crate::driver::DriverError;
use crate::fault::{Fault as _, Kind};
use crate::health::SyncError;
use crate::stream::{KeepAlive, Launched};
use crate::types::Bytes;

/// Destination, source, length.
type Copy = (DevicePtr, DevicePtr, Bytes);

/// Arguments of one call, on the stack for as many as a group in one host has.
type Few<T> = SmallVec<[T; 8]>;

impl Stream {
    /// # Safety
    ///
    /// As for the public `Stream::copy_batch`.
    pub(crate) unsafe fn copy_batch(
        &self,
        copies: &[Copy],
        keep: &dyn Fn() -> Vec<KeepAlive>,
    ) -> Result<Launched, SyncError> {
        let inner = self.inner();
        let (context, stream) = (inner.context, inner.raw());
        let copies: Few<Copy> =
            copies.iter().copied().filter(|(.., bytes)| *bytes > Bytes::ZERO).collect();
        if copies.is_empty() {
            return Ok(Launched::Finished);
        }
        let _entered = context.enter()?;
        let recording = inner.recording()?;
        // The batch is refused in captures, and on the default stream.
        let together = copies.len() > 1 && recording.is_none() && stream != CU_STREAM_LEGACY;
        // SAFETY: the caller vouches for all ranges, as long as what `keep` gives lives.
        let copied = unsafe {
            let apart = || copies.iter().try_for_each(|one| single(context, *one, stream));
            if together && has_batches(context) {
                // Not every sort of memory is taken. What was enqueued before that showed is copied
                // again, to the same places.
                batch(context, &copies, stream).or_else(|error| match error.kind() {
                    Kind::Unsupported => apart(),
                    _ => Err(error),
                })
            } else {
                apart()
            }
        };
        // Even if it failed: some may be under way.
        let launched = inner.keep(recording, &keep());
        copied.map_err(refusal)?;
        launched
    }

    /// # Safety
    ///
    /// As for the public `Stream::fill32`.
    pub(crate) unsafe fn fill32(
        &self,
        dst: DevicePtr,
        value: u32,
        count: u64,
        keep: &dyn Fn() -> Vec<KeepAlive>,
    ) -> Result<Launched, SyncError> {
        if count == 0 {
            return Ok(Launched::Finished);
        }
        let inner = self.inner();
        let context = inner.context;
        let _entered = context.enter()?;
        let recording = inner.recording()?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        // SAFETY: the caller vouches for the range, as long as what `keep` gives lives.
        unsafe { cu!(context, cuMemsetD32Async(dst.get(), value, count, inner.raw())) }
            .map_err(refusal)?;
        inner.keep(recording, &keep())
    }

    /// # Safety
    ///
    /// As for the public `Stream::write_value32`.
    pub(crate) unsafe fn write_value32(
        &self,
        dst: DevicePtr,
        value: u32,
        keep: &dyn Fn() -> Vec<KeepAlive>,
    ) -> Result<Launched, SyncError> {
        let inner = self.inner();
        let (context, stream) = (inner.context, inner.raw());
        let _entered = context.enter()?;
        let recording = inner.recording()?;
        let written = if recording.is_none() && has_memory_operations(context) {
            let flags = CUstreamWriteValue_flags_enum::CU_STREAM_WRITE_VALUE_DEFAULT.0;
            // SAFETY: the caller vouches for the word, as long as what `keep` gives lives.
            unsafe { cu!(context, cuStreamWriteValue32_v2(stream, dst.get(), value, flags)) }
        } else {
            // SAFETY: as above.
            unsafe { cu!(context, cuMemsetD32Async(dst.get(), value, 1, stream)) }
        };
        written.map_err(refusal)?;
        inner.keep(recording, &keep())
    }
}

/// Whether streams store words by themselves. Every device does, since memory operations became part
/// of the driver without a switch (CUDA 11.7); what is asked is whether this driver is so new.
pub(super) fn has_memory_operations(context: &Context) -> bool {
    context.table().cuStreamWriteValue32_v2().is_ok()
}

/// Whether the driver takes several copies in one call.
fn has_batches(context: &Context) -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    let table = context.table();
    *HAS.get_or_init(|| table.cuMemcpyBatchAsync_v2().is_ok() || table.cuMemcpyBatchAsync().is_ok())
}

/// # Safety
///
/// As for the public `Stream::copy`; the context is current.
unsafe fn single(
    context: &Context,
    (dst, src, bytes): Copy,
    stream: CUstream,
) -> Result<(), DriverError> {
    let bytes = bytes.to_usize().unwrap_or(usize::MAX);
    // SAFETY: the caller's promise.
    unsafe { cu!(context, cuMemcpyAsync(dst.get(), src.get(), bytes, stream)) }
}

/// # Safety
///
/// As for the public `Stream::copy_batch`; the context is current.
unsafe fn batch(context: &Context, copies: &[Copy], stream: CUstream) -> Result<(), DriverError> {
    let mut to: Few<u64> = copies.iter().map(|(dst, ..)| dst.get()).collect();
    let mut from: Few<u64> = copies.iter().map(|(_, src, _)| src.get()).collect();
    let length = |(.., bytes): &Copy| bytes.to_usize().unwrap_or(usize::MAX);
    let mut sizes: Few<usize> = copies.iter().map(length).collect();
    let mut attributes = CUmemcpyAttributes {
        srcAccessOrder: CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        ..CUmemcpyAttributes::default()
    };
    // The one set of attributes is that of all copies from the first on.
    let (mut first, attributes) = (0, &raw mut attributes);
    let (to, from, sizes) = (to.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
    let (count, first) = (copies.len(), &raw mut first);
    if context.table().cuMemcpyBatchAsync_v2().is_ok() {
        // SAFETY: the arrays have `count` elements each; the caller vouches for the ranges.
        return unsafe {
            cu!(
                context,
                cuMemcpyBatchAsync_v2(to, from, sizes, count, attributes, first, 1, stream)
            )
        };
    }
    let mut failed = usize::MAX;
    // SAFETY: as above; writes one number.
    unsafe {
        cu!(
            context,
            cuMemcpyBatchAsync(
                to,
                from,
                sizes,
                count,
                attributes,
                first,
                1,
                &raw mut failed,
                stream
            )
        )
    }
}
