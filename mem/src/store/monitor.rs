//! A mutex with its condition, waited on by calls.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::call::{Call, Ended};

#[derive(Debug, Default)]
pub(super) struct Monitor<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T: Send + 'static> Monitor<T> {
    pub fn new(state: T) -> Self {
        Monitor { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock()
    }

    /// Wakes every waiter to look again.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until `ready` gives something, within the call's bound.
    pub fn wait<R>(
        self: &Arc<Self>,
        call: &Call<'_>,
        mut ready: impl FnMut(&mut T) -> Option<R>,
    ) -> Result<R, Ended> {
        if let Some(result) = ready(&mut self.lock()) {
            return Ok(result);
        }
        let _guard = call.wait.cancel().map(|token| {
            let monitor = self.clone();
            token.on_cancel(Arc::new(move || {
                // Under the lock, so that it cannot fall between a waiter's look and its sleep.
                let _state = monitor.lock();
                monitor.notify();
            }))
        });
        let mut state = self.lock();
        loop {
            if let Some(result) = ready(&mut state) {
                return Ok(result);
            }
            if call.wait.is_cancelled() {
                return Err(Ended::Cancelled);
            }
            if self.changed.wait_until(&mut state, call.deadline).timed_out() {
                return ready(&mut state).ok_or(Ended::Deadline);
            }
        }
    }
}
