//! Captures: whether a stream is in one, and what its graph keeps.
//!
//! A capture may be somebody else's, who knows nothing of this library and keeps a graph as long as he
//! likes. So what recorded work uses is held by a user object that the graph retains: the driver tells
//! when the last graph that holds it is gone. It does so on a thread that may call nothing of the
//! driver, hence the release is only queued there, and done by later calls.
#![allow(unsafe_code, reason = "calls the driver")]

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{
    CUgraph, CUresult, CUstream, CUstreamCaptureStatus_enum as Status, CUuserObject_flags_enum,
    CUuserObjectRetain_flags_enum,
};

use super::bounds::Bounds;
use super::context::Context;
use super::driver::{Caller as _, absent, cu};
use crate::capture::{Capture, CaptureError};
use crate::driver::DriverError;
use crate::health::{Health, SyncError};
use crate::{DevicePtr, KeepAlive};

/// Set in the ids of this backend's streams and captures, which the driver numbers, so that they are
/// none of those that this library numbers.
pub(super) const NUMBERED_BY_DRIVER: u64 = 1 << 63;

/// The capture that a stream is in.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// None: its work runs.
    Runs,
    /// One of this id, which makes this graph.
    Records { id: u64, graph: CUgraph },
    /// A broken one.
    Broken,
}

impl State {
    /// Asks the driver. The stream's context is current.
    pub(super) fn of(context: &Context, stream: CUstream) -> Result<Self, DriverError> {
        let (mut status, mut id) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let (mut graph, none) = (core::ptr::null_mut(), core::ptr::null_mut());
        let table = context.table();
        let (call, outcome) = match table.cuStreamGetCaptureInfo_v2() {
            Ok(ask) => {
                let (status, id, graph) = (&raw mut status, &raw mut id, &raw mut graph);
                // SAFETY: writes a status, an id and a handle; the null pointers are for what is not
                // asked. The stream is alive by whoever calls.
                let outcome =
                    unsafe { ask(stream, status, id, graph, none, core::ptr::null_mut()) };
                ("cuStreamGetCaptureInfo_v2", outcome)
            }
            Err(_) => {
                let call = "cuStreamGetCaptureInfo_v3";
                let ask = table.cuStreamGetCaptureInfo_v3().map_err(|e| absent(call, &e))?;
                let (status, id, graph) = (&raw mut status, &raw mut id, &raw mut graph);
                let (edges, count) = (core::ptr::null_mut(), core::ptr::null_mut());
                // SAFETY: as above.
                (call, unsafe { ask(stream, status, id, graph, none, edges, count) })
            }
        };
        match outcome {
            CUresult::CUDA_SUCCESS => {}
            // The legacy stream while another stream captures: it can be in no capture itself.
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => return Ok(State::Runs),
            status => return Err(context.failed(call, status)),
        }
        Ok(match status {
            Status::CU_STREAM_CAPTURE_STATUS_NONE => State::Runs,
            Status::CU_STREAM_CAPTURE_STATUS_ACTIVE => State::Records { id, graph },
            _ => State::Broken,
        })
    }

    pub(super) fn public(self) -> Capture {
        match self {
            State::Runs => Capture::None,
            State::Records { id, .. } => Capture::Active(id | NUMBERED_BY_DRIVER),
            State::Broken => Capture::Invalidated,
        }
    }

    /// The id and graph of a capture that takes work, if it is in one.
    pub(super) fn recording(self) -> Result<Option<(u64, CUgraph)>, SyncError> {
        match self {
            State::Runs => Ok(None),
            State::Records { id, graph } => Ok(Some((id, graph))),
            State::Broken => Err(CaptureError::Invalidated.into()),
        }
    }
}

/// What the work of one capture uses, and who watches it.
#[derive(Default)]
pub(super) struct Recorded {
    kept: Mutex<HashMap<usize, KeepAlive>>,
    health: Mutex<Vec<Weak<dyn Health>>>,
    /// What its launches are bounded by, if some of its kernels ask.
    bounds: OnceLock<Bounds>,
}

impl core::fmt::Debug for Recorded {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} kept, {} watching", self.kept.lock().len(), self.health.lock().len())
    }
}

/// Captures with work of this library in them, while a graph of theirs exists.
static RECORDED: Mutex<Vec<(u64, Weak<Recorded>)>> = Mutex::new(Vec::new());

/// What graphs have let go of.
static RELEASED: Mutex<Vec<Arc<Recorded>>> = Mutex::new(Vec::new());

/// Drops what graphs have let go of.
pub(super) fn reap() {
    let released = core::mem::take(&mut *RELEASED.lock());
    drop(released);
    super::host_memory::end_retired();
}

/// The driver's word that the last graph is gone.
///
/// # Safety
///
/// `recorded` is an `Arc<Recorded>` that was turned into a pointer for this one call.
unsafe extern "C" fn release(recorded: *mut c_void) {
    // SAFETY: the caller's promise.
    let recorded = unsafe { Arc::from_raw(recorded.cast_const().cast::<Recorded>()) };
    RELEASED.lock().push(recorded);
}

impl Recorded {
    /// That of a capture under way; the first to ask ties it to the graph.
    pub(super) fn of(context: &Context, id: u64, graph: CUgraph) -> Result<Arc<Self>, DriverError> {
        let mut all = RECORDED.lock();
        if let Some(known) = all.iter().find(|(of, _)| *of == id).and_then(|(_, r)| r.upgrade()) {
            return Ok(known);
        }
        all.retain(|(_, recorded)| recorded.strong_count() > 0);
        let recorded = Arc::new(Recorded::default());
        let theirs = Arc::into_raw(recorded.clone()).cast_mut().cast();
        let mut object = core::ptr::null_mut();
        let flags = CUuserObject_flags_enum::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC.0;
        // SAFETY: writes one handle; the object calls `release` once, with what that expects.
        let made = unsafe {
            cu!(context, cuUserObjectCreate(&raw mut object, theirs, Some(release), 1, flags))
        };
        if let Err(error) = made {
            // SAFETY: no object was made, so nobody else will take the pointer back.
            drop(unsafe { Arc::from_raw(theirs.cast::<Recorded>()) });
            return Err(error);
        }
        let flags = CUuserObjectRetain_flags_enum::CU_GRAPH_USER_OBJECT_MOVE.0;
        // SAFETY: the graph is that of a capture under way, and the one reference becomes its own.
        let retained = unsafe { cu!(context, cuGraphRetainUserObject(graph, object, 1, flags)) };
        if let Err(error) = retained {
            // SAFETY: the reference is still this function's.
            let released = unsafe { cu!(context, cuUserObjectRelease(object, 1)) };
            context.complain("releasing a user object", released);
            return Err(error);
        }
        all.push((id, Arc::downgrade(&recorded)));
        Ok(recorded)
    }

    /// That of a capture, if it has one.
    pub(super) fn known(id: u64) -> Option<Arc<Self>> {
        let all = RECORDED.lock();
        all.iter().find(|(of, _)| *of == id).and_then(|(_, recorded)| recorded.upgrade())
    }

    /// Where its kernels find what a launch of the graph is bounded by.
    pub(super) fn bounds_ptr(&self, context: &'static Context) -> Result<DevicePtr, DriverError> {
        if let Some(bounds) = self.bounds.get() {
            return Ok(bounds.ptr());
        }
        let made = Bounds::new(context)?;
        Ok(self.bounds.get_or_init(|| made).ptr())
    }

    pub(super) fn bounds(&self) -> Option<&Bounds> {
        self.bounds.get()
    }

    pub(super) fn keep(&self, object: &KeepAlive) {
        let address = Arc::as_ptr(object).cast::<()>().addr();
        self.kept.lock().entry(address).or_insert_with(|| object.clone());
    }

    pub(super) fn watch(&self, health: Weak<dyn Health>) {
        let mut watching = self.health.lock();
        watching.retain(|h| h.strong_count() > 0 && !Weak::ptr_eq(h, &health));
        watching.push(health);
    }

    pub(super) fn health(&self) -> Vec<Arc<dyn Health>> {
        self.health.lock().iter().filter_map(Weak::upgrade).collect()
    }
}
