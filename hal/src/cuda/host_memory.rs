//! Memory of the CPU that kernels load from and store to: registered once, before its first use by
//! any device, and until it ends.
//!
//! To end a registration waits, in the driver, for every kernel that runs or is launched meanwhile, on
//! any device, and a kernel may wait for what the caller has yet to do. So it is ended when no stream
//! has work, and no kernel is launched before that is done; until then the memory is held. Of streams
//! that this library was never given nothing is known.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use symmem_sys::cuda::bindings::{CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE};

use super::context::{self, Context};
use super::driver::cu;
use super::poller;
use crate::DevicePtr;
use crate::memory::ImportError;
use crate::shm::Segment;
use crate::types::{BackendKind, Bytes};

/// That a segment is registered, and with whom.
#[derive(Debug, Default)]
pub(crate) struct Registration(Mutex<Option<Registered>>);

#[derive(Debug)]
struct Registered {
    context: &'static Context,
    segment: Arc<Segment>,
}

/// Held by whoever launches a kernel, and alone by whoever ends registrations.
static LAUNCHES: RwLock<()> = RwLock::new(());

/// Until what this returns is dropped, no registration is ended.
pub(super) fn launching() -> RwLockReadGuard<'static, ()> {
    // A launch may wait for room in its stream: nobody who wants to end a registration goes before
    // others meanwhile.
    LAUNCHES.read_recursive()
}

/// Registrations that nobody uses any more.
static RETIRED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(registered) = self.0.get_mut().take() {
            RETIRED.lock().push(registered);
            end_retired();
        }
    }
}

/// Ends the registrations that nobody uses any more, if that waits for nothing.
pub(super) fn end_retired() {
    // Again and again: who retires one meanwhile leaves it to whoever is at it.
    while !RETIRED.lock().is_empty() && poller::is_idle() {
        // Never waits for a launch, which can wait for work on its stream.
        let Some(_alone) = LAUNCHES.try_write() else { return };
        if !context::are_idle() {
            return;
        }
        let retired = core::mem::take(&mut *RETIRED.lock());
        drop(retired);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let context = self.context;
        if context.can_tidy() {
            let base = self.segment.base().as_ptr().cast();
            let done = context.enter_aside().and_then(|_entered| {
                // SAFETY: registered with this context, still mapped, and kept alive by all work that
                // used it until that was done.
                unsafe { cu!(context, cuMemHostUnregister(base)) }
            });
            context.complain("unregistering memory of the CPU", done);
        }
    }
}

/// Where a device's kernels find a segment.
pub(super) fn map(
    context: &'static Context,
    registration: &Registration,
    segment: &Arc<Segment>,
) -> Result<DevicePtr, ImportError> {
    let bytes = segment.bytes();
    let failed = |error| ImportError::Device { bytes, error };
    // The mapping goes on to the end of its last page.
    let page = rustix::param::page_size();
    let length = Bytes(bytes.0.max(1)).round_up(page as u64).and_then(Bytes::to_usize);
    let Some(length) = length else {
        let what = "so much memory of the CPU";
        return Err(ImportError::Unsupported { backend: BackendKind::Cuda, what });
    };
    let base = segment.base().as_ptr();
    let mut registered = registration.0.lock();
    let _entered = context.enter_aside().map_err(failed)?;
    if registered.is_none() {
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the range is mapped until after the registration ends; its pages are shared memory,
        // which nobody sees through references.
        unsafe { cu!(context, cuMemHostRegister_v2(base.cast(), length, flags)) }
            .map_err(failed)?;
        *registered = Some(Registered { context, segment: segment.clone() });
    }
    let mut device = 0;
    // SAFETY: writes one address; the range is registered for all contexts.
    unsafe { cu!(context, cuMemHostGetDevicePointer_v2(&raw mut device, base.cast(), 0)) }
        .map_err(failed)?;
    Ok(DevicePtr::new(device))
}
