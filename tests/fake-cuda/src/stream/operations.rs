//! Copies, fills, operations on words, callbacks.

use core::ffi::{c_uchar, c_uint, c_ushort, c_void};

use symmem_sys::cuda::bindings::{
    CUcontext, CUdeviceptr, CUhostFn, CUmemcpyAttributes, CUresult as Code, CUstream,
};

use super::{Callback, Work, capture, of};
use crate::config::CONFIG;
use crate::context;
use crate::entry::{Outcome, export};
use crate::table::handle;

fn copy(to: u64, from: u64, bytes: usize, stream: CUstream) -> Outcome {
    let stream = of(stream)?;
    if bytes == 0 { Ok(()) } else { stream.issue(Work::Copy { to, from, bytes: bytes as u64 }) }
}

/// A copy on the legacy stream that is over when the call returns.
fn copy_now(to: u64, from: u64, bytes: usize) -> Outcome {
    capture::unsafe_call()?;
    let legacy = of(core::ptr::null_mut())?;
    if bytes > 0 {
        legacy.issue(Work::Copy { to, from, bytes: bytes as u64 })?;
    }
    legacy.synchronize()
}

fn fill(to: u64, value: u32, width: u64, count: usize, stream: CUstream) -> Outcome {
    let stream = of(stream)?;
    if !to.is_multiple_of(width) {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    let count = count as u64;
    if count == 0 {
        return Ok(());
    }
    stream.issue(Work::Fill { to, pitch: 0, value, width, count, rows: 1 })
}

/// The batch's attributes mean nothing here; they are checked for being there.
fn copy_batch(
    (to, from, bytes): (*mut CUdeviceptr, *mut CUdeviceptr, *mut usize),
    count: usize,
    attributes: (*mut CUmemcpyAttributes, *mut usize, usize),
    stream: CUstream,
) -> Outcome {
    let described = attributes.2 > 0 && !attributes.0.is_null() && !attributes.1.is_null();
    if count == 0 || to.is_null() || from.is_null() || bytes.is_null() || !described {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // The real call takes neither the legacy stream nor a capture.
    if stream.is_null() || handle(stream) == 1 {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    capture::forbid(&*of(stream)?)?;
    for index in 0..count {
        // SAFETY: the caller vouches for `count` entries in each array.
        let piece =
            unsafe { (to.add(index).read(), from.add(index).read(), bytes.add(index).read()) };
        copy(piece.0, piece.1, piece.2, stream)?;
    }
    Ok(())
}

/// The stream of an operation on an aligned word, outside of captures.
fn word(stream: CUstream, address: u64, width: u64) -> Outcome<std::sync::Arc<super::Stream>> {
    let stream = of(stream)?;
    if !CONFIG.memory_operations {
        return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
    }
    if !address.is_multiple_of(width) {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    capture::forbid(&stream)?;
    Ok(stream)
}

fn store(stream: CUstream, to: u64, value: u64, width: u64, flags: c_uint) -> Outcome {
    if flags > 1 {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    word(stream, to, width)?.issue(Work::Store { to, value, width })
}

fn wait(stream: CUstream, from: u64, value: u64, width: u64, flags: c_uint) -> Outcome {
    word(stream, from, width)?.issue(Work::WaitFor { from, value, width, flags })
}

fn address(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

export! {
    fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy_now(to, from, bytes)?;
    }

    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) {
        copy_now(to, address(from), bytes)?;
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) {
        copy_now(address(to), from, bytes)?;
    }

    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(to, from, bytes, stream)?;
    }

    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(to, from, bytes, stream)?;
    }

    /// Pageable memory is read when the stream comes to it, not at the call: who lets go of it
    /// earlier is found out.
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) {
        copy(to, address(from), bytes, stream)?;
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(address(to), from, bytes, stream)?;
    }

    fn cuMemcpyPeerAsync(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    ) {
        context::device_of(handle(to_context))?;
        context::device_of(handle(from_context))?;
        copy(to, from, bytes, stream)?;
    }

    fn cuMemcpyBatchAsync(
        to: *mut CUdeviceptr,
        from: *mut CUdeviceptr,
        bytes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        indices: *mut usize,
        described: usize,
        _failed: *mut usize,
        stream: CUstream,
    ) {
        copy_batch((to, from, bytes), count, (attributes, indices, described), stream)?;
    }

    fn cuMemcpyBatchAsync_v2(
        to: *mut CUdeviceptr,
        from: *mut CUdeviceptr,
        bytes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        indices: *mut usize,
        described: usize,
        stream: CUstream,
    ) {
        copy_batch((to, from, bytes), count, (attributes, indices, described), stream)?;
    }

    fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) {
        fill(to, u32::from(value), 1, count, stream)?;
    }

    fn cuMemsetD16Async(to: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) {
        fill(to, u32::from(value), 2, count, stream)?;
    }

    fn cuMemsetD32Async(to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) {
        fill(to, value, 4, count, stream)?;
    }

    fn cuMemsetD2D32Async(
        to: CUdeviceptr,
        pitch: usize,
        value: c_uint,
        count: usize,
        rows: usize,
        stream: CUstream,
    ) {
        let (stream, pitch, count, rows) = (of(stream)?, pitch as u64, count as u64, rows as u64);
        if !(to | pitch).is_multiple_of(4) || (rows > 1 && pitch < 4 * count) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        if count > 0 && rows > 0 {
            stream.issue(Work::Fill { to, pitch, value, width: 4, count, rows })?;
        }
    }

    fn cuStreamWriteValue32_v2(stream: CUstream, to: CUdeviceptr, value: u32, flags: c_uint) {
        store(stream, to, u64::from(value), 4, flags)?;
    }

    fn cuStreamWriteValue64_v2(stream: CUstream, to: CUdeviceptr, value: u64, flags: c_uint) {
        store(stream, to, value, 8, flags)?;
    }

    fn cuStreamWaitValue32_v2(stream: CUstream, from: CUdeviceptr, value: u32, flags: c_uint) {
        wait(stream, from, u64::from(value), 4, flags)?;
    }

    fn cuStreamWaitValue64_v2(stream: CUstream, from: CUdeviceptr, value: u64, flags: c_uint) {
        wait(stream, from, value, 8, flags)?;
    }

    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) {
        let function = function.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        of(stream)?.issue(Work::Host(Callback { function, data: address(data) }))?;
    }
}
