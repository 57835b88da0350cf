//! Events of this backend.

use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use crate::Wait;
use crate::backend::EventOps;
use crate::health::SyncError;
use crate::queue::Marker;

/// A point in a stream's work.
#[derive(Clone, Debug, Default)]
pub struct Event(Arc<Mutex<Marker>>);

impl Event {
    pub(super) fn set(&self, marker: Marker) {
        *self.0.lock() = marker;
    }

    pub(super) fn marker(&self) -> Marker {
        self.0.lock().clone()
    }
}

impl EventOps for Event {
    fn is_complete(&self) -> bool {
        self.marker().is_complete()
    }

    fn synchronize(&self, wait: &Wait) -> Result<(), SyncError> {
        self.marker().wait(wait)
    }

    fn on_complete(&self, waker: Waker) {
        self.marker().on_complete(waker);
    }
}
