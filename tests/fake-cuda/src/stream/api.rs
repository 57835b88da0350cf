//! The driver's functions on streams.

use core::ffi::{c_int, c_uint};
use std::sync::Arc;

use symmem_sys::cuda::bindings::{
    CUcontext, CUdevice, CUresult as Code, CUstream, CUstream_flags as Flags,
};

use super::{Kind, STREAMS, Stream, capture, finish_device, of};
use crate::entry::{export, put};
use crate::table::{handle, pointer};
use crate::{context, device};

fn create(stream: *mut CUstream, flags: c_uint, priority: c_int) -> Result<(), Code> {
    let device = context::current()?;
    let kind = match Flags(flags) {
        Flags::CU_STREAM_DEFAULT => Kind::Blocking,
        Flags::CU_STREAM_NON_BLOCKING => Kind::Free,
        _ => return Err(Code::CUDA_ERROR_INVALID_VALUE),
    };
    if stream.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // As the real driver, which takes the nearest priority that it has.
    let made = Stream::new(device, kind, priority.clamp(-5, 0));
    put!(stream, pointer(STREAMS.add(made)));
    Ok(())
}

export! {
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) {
        create(stream, flags, 0)?;
    }

    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)?;
    }

    /// Waits for nothing: what is pending is still done.
    fn cuStreamDestroy_v2(stream: CUstream) {
        let gone = STREAMS.remove(handle(stream))?;
        capture::abandon(&gone);
        gone.close();
    }

    fn cuStreamQuery(stream: CUstream) {
        let stream = of(stream)?;
        capture::forbid(&stream)?;
        capture::unsafe_call()?;
        stream.healthy()?;
        if !stream.is_idle() {
            return Err(Code::CUDA_ERROR_NOT_READY);
        }
    }

    fn cuStreamSynchronize(stream: CUstream) {
        let stream = of(stream)?;
        capture::forbid(&stream)?;
        capture::unsafe_call()?;
        stream.synchronize()?;
    }

    fn cuCtxSynchronize() {
        let device = context::current()?;
        capture::forbid_context(device)?;
        finish_device(device)?;
    }

    fn cuStreamGetId(stream: CUstream, id: *mut u64) {
        put!(id, of(stream)?.id);
    }

    fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint) {
        put!(flags, match of(stream)?.kind {
            Kind::Free => Flags::CU_STREAM_NON_BLOCKING.0,
            Kind::Blocking | Kind::Legacy => Flags::CU_STREAM_DEFAULT.0,
        });
    }

    fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int) {
        put!(priority, of(stream)?.priority);
    }

    fn cuStreamGetDevice(stream: CUstream, dev: *mut CUdevice) {
        put!(dev, device::handle(of(stream)?.device));
    }

    fn cuStreamGetCtx(stream: CUstream, found: *mut CUcontext) {
        let stream: Arc<Stream> = of(stream)?;
        put!(found, context::of_device(stream.device));
    }
}
