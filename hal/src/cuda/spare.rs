//! Streams that nobody holds any more, for whoever asks next.
//!
//! A device has at most 32 queues, to which streams go in turn, as they are made. What is behind a kernel in
//! a queue waits for its end, whatever stream it is in: where ranks share a device, for a kernel that may
//! wait for what is behind it. So no more streams are made than are held at once, and the first ones are
//! the first to be held again.
#![allow(unsafe_code, reason = "calls the driver")]

use std::collections::BTreeMap;

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{CUresult, CUstream, CUstream_st};

use super::context::{Context, Raw};
use super::driver::Caller as _;

/// By the driver's number, which ascends: whether it is one of urgent work, and the stream.
#[derive(Default)]
pub(super) struct Spare(Mutex<BTreeMap<u64, (bool, Raw<CUstream_st>)>>);

impl Spare {
    /// The first that is at rest, and its number. The context is current.
    pub(super) fn take(&self, context: &Context, urgent: bool) -> Option<(u64, CUstream)> {
        let query = context.table().cuStreamQuery().ok()?;
        let mut spare = self.0.lock();
        let id = *spare
            .iter()
            .find(|(_, (of, stream))| {
                // SAFETY: the stream is alive: whoever destroys one does not leave it here.
                *of == urgent && unsafe { query(stream.0) } == CUresult::CUDA_SUCCESS
            })?
            .0;
        let (_, stream) = spare.remove(&id)?;
        Some((id, stream.0))
    }

    /// Whether none of them has work; a device that does not answer has none.
    pub(super) fn is_idle(&self, context: &'static Context) -> bool {
        let Ok(_entered) = context.enter_aside() else { return true };
        let Ok(query) = context.table().cuStreamQuery() else { return true };
        let spare = self.0.lock();
        // SAFETY: as in `take`.
        spare.values().all(|(_, s)| unsafe { query(s.0) } != CUresult::CUDA_ERROR_NOT_READY)
    }

    /// Leaves one here that nobody holds, and that is in no capture.
    pub(super) fn leave(&self, id: u64, urgent: bool, stream: CUstream) {
        self.0.lock().insert(id, (urgent, Raw(stream)));
    }
}
