//! Primary contexts, and which one is current on each thread.

use core::ffi::{c_int, c_uint};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{CUcontext, CUdevice, CUlimit, CUresult as Code};

use crate::device;
use crate::entry::{Outcome, export, offer, put};
use crate::table::{fresh, handle, pointer};

#[derive(Debug)]
struct Primary {
    handle: u64,
    retained: u64,
    /// Devices whose plain allocations this context may access.
    peers: BTreeSet<usize>,
    limits: HashMap<u32, usize>,
}

static PRIMARIES: LazyLock<Mutex<Vec<Primary>>> = LazyLock::new(|| {
    let primary = |_| Primary {
        handle: fresh(),
        retained: 0,
        peers: BTreeSet::new(),
        limits: HashMap::new(),
    };
    Mutex::new((0..device::count()).map(primary).collect())
});

thread_local! {
    /// Handles; the last is current.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The device of a context that is alive.
pub(crate) fn device_of(context: u64) -> Outcome<usize> {
    let primaries = PRIMARIES.lock();
    let found = primaries.iter().position(|primary| primary.handle == context);
    let device = found.ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)?;
    if primaries[device].retained == 0 {
        return Err(Code::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    Ok(device)
}

/// The device of the thread's current context, if that is alive.
pub(crate) fn current_device() -> Option<usize> {
    let current = STACK.with_borrow(|stack| stack.last().copied())?;
    device_of(current).ok()
}

/// As [`current_device`], for calls that need one.
pub(crate) fn current() -> Outcome<usize> {
    match STACK.with_borrow(|stack| stack.last().copied()) {
        Some(context) => device_of(context),
        None => Err(Code::CUDA_ERROR_INVALID_CONTEXT),
    }
}

pub(crate) fn of_device(device: usize) -> CUcontext {
    pointer(PRIMARIES.lock()[device].handle)
}

/// Contexts that somebody retains.
pub(crate) fn live() -> usize {
    PRIMARIES.lock().iter().filter(|primary| primary.retained > 0).count()
}

export! {
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, dev: CUdevice) {
        let device = device::of(dev)?;
        let mut primaries = PRIMARIES.lock();
        put!(context, pointer(primaries[device].handle));
        primaries[device].retained += 1;
    }

    /// The last release ends the context. What was made in it stays in the counts of what is alive:
    /// a program that relies on this is found out.
    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) {
        let primary = &mut PRIMARIES.lock()[device::of(dev)?];
        primary.retained =
            primary.retained.checked_sub(1).ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)?;
        if primary.retained == 0 {
            primary.peers.clear();
        }
    }

    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        let device = device::of(dev)?;
        put!(flags, 0);
        put!(active, c_int::from(PRIMARIES.lock()[device].retained > 0));
    }

    fn cuCtxPushCurrent_v2(context: CUcontext) {
        device_of(handle(context))?;
        STACK.with_borrow_mut(|stack| stack.push(handle(context)));
    }

    fn cuCtxPopCurrent_v2(context: *mut CUcontext) {
        let popped = STACK.with_borrow_mut(Vec::pop).ok_or(Code::CUDA_ERROR_INVALID_CONTEXT)?;
        offer!(context, pointer(popped));
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        if !context.is_null() {
            device_of(handle(context))?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            if !context.is_null() {
                stack.push(handle(context));
            }
        });
    }

    fn cuCtxGetCurrent(context: *mut CUcontext) {
        let current = STACK.with_borrow(|stack| stack.last().copied());
        put!(context, pointer(current.unwrap_or(0)));
    }

    fn cuCtxGetDevice(dev: *mut CUdevice) {
        put!(dev, device::handle(current()?));
    }

    fn cuCtxGetFlags(flags: *mut c_uint) {
        current()?;
        put!(flags, 0);
    }

    fn cuCtxGetId(context: CUcontext, id: *mut u64) {
        let device = if context.is_null() { current()? } else { device_of(handle(context))? };
        put!(id, PRIMARIES.lock()[device].handle);
    }

    fn cuCtxSetLimit(limit: CUlimit, value: usize) {
        let device = current()?;
        if limit.0 >= CUlimit::CU_LIMIT_MAX.0 {
            return Err(Code::CUDA_ERROR_UNSUPPORTED_LIMIT);
        }
        PRIMARIES.lock()[device].limits.insert(limit.0, value);
    }

    fn cuCtxGetLimit(value: *mut usize, limit: CUlimit) {
        let device = current()?;
        if limit.0 >= CUlimit::CU_LIMIT_MAX.0 {
            return Err(Code::CUDA_ERROR_UNSUPPORTED_LIMIT);
        }
        put!(value, PRIMARIES.lock()[device].limits.get(&limit.0).copied().unwrap_or(0));
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        current()?;
        offer!(least, 0);
        offer!(greatest, -5);
    }

    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) {
        let (device, other) = (current()?, device_of(handle(peer))?);
        if flags != 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        if !device::reaches(device, other) {
            return Err(Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        if !PRIMARIES.lock()[device].peers.insert(other) {
            return Err(Code::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
    }

    fn cuCtxDisablePeerAccess(peer: CUcontext) {
        let (device, other) = (current()?, device_of(handle(peer))?);
        if !PRIMARIES.lock()[device].peers.remove(&other) {
            return Err(Code::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        }
    }
}
