//! Events: points in the work of streams, and bounded waits for them.
//!
//! A wait asks the driver again and again instead of blocking in it, since the driver's own wait has
//! no bound and cannot be cancelled: first without a pause, then yielding, then sleeping.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{CUevent, CUevent_flags_enum, CUevent_st, CUresult, CUstream};

use super::context::{Context, Raw};
use super::driver::{Caller as _, absent, cu};
use super::poller;
use super::queue::Queue;
use crate::Wait;
use crate::backend::EventOps;
use crate::capture::CaptureError;
use crate::driver::DriverError;
use crate::health::SyncError;

/// Without a pause for as long as a short kernel takes, since a sleep alone costs more.
const SPIN: Duration = Duration::from_micros(100);
const YIELD: Duration = Duration::from_millis(2);
/// A nap is a part of the wait so far, so that it adds little to it, in these bounds.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
const NAP_PART: u32 = 20;

/// An event of the driver's, which goes back to its context's store when nobody asks for it.
#[derive(Debug)]
pub(super) struct Point {
    context: &'static Context,
    raw: Raw<CUevent_st>,
}

impl Point {
    pub(super) fn new(context: &'static Context) -> Result<Self, DriverError> {
        if let Some(raw) = context.points.lock().pop() {
            return Ok(Point { context, raw });
        }
        let _entered = context.enter_aside()?;
        let mut raw = core::ptr::null_mut();
        let flags = CUevent_flags_enum::CU_EVENT_DISABLE_TIMING.0;
        // SAFETY: writes one handle.
        unsafe { cu!(context, cuEventCreate(&raw mut raw, flags)) }?;
        Ok(Point { context, raw: Raw(raw) })
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw.0
    }

    /// Marks the work enqueued so far. The context is current.
    pub(super) fn record(&self, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: both are of this context and alive: the event by `self`, the stream by whoever
        // calls.
        unsafe { cu!(self.context, cuEventRecord(self.raw(), stream)) }
    }

    /// Whether the work that it marks is done.
    pub(super) fn query(&self) -> Result<bool, DriverError> {
        let context = self.context;
        let query = context.table().cuEventQuery().map_err(|e| absent("cuEventQuery", &e))?;
        let _entered = context.enter_aside()?;
        // SAFETY: the event is alive by `self`.
        match unsafe { query(self.raw()) } {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => Err(context.failed("cuEventQuery", status)),
        }
    }

    /// Whether there is nothing left to wait for: the work is done, or the device lost. Of a driver
    /// that refuses to tell, nothing is taken for done.
    pub(super) fn is_over(&self) -> bool {
        self.query().unwrap_or_else(|_| self.context.is_lost())
    }

    /// Waits for the work that it marks.
    pub(super) fn wait(&self, wait: &Wait) -> Result<(), SyncError> {
        until(wait, || self.query())
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        // One that is recorded anew forgets what it marked: no need to wait.
        self.context.points.lock().push(self.raw);
    }
}

/// Asks until the answer is yes, or the bound ends it.
pub(super) fn until(
    wait: &Wait,
    mut ask: impl FnMut() -> Result<bool, DriverError>,
) -> Result<(), SyncError> {
    if ask()? {
        return Ok(());
    }
    let (start, deadline) = (Instant::now(), wait.deadline());
    loop {
        if ask()? {
            return Ok(());
        }
        if wait.is_cancelled() {
            return Err(SyncError::Cancelled);
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(SyncError::TimedOut { allowed: wait.duration() });
        }
        match now - start {
            short if short < SPIN => core::hint::spin_loop(),
            longer if longer < YIELD => std::thread::yield_now(),
            long => {
                let nap = (long / NAP_PART).clamp(NAPS[0], NAPS[1]);
                std::thread::sleep(nap.min(deadline - now));
            }
        }
    }
}

/// A point in the work of a stream of this backend. Clones are the same event.
#[derive(Clone, Debug, Default)]
pub struct Event(Arc<Mutex<Mark>>);

/// What an event marks.
#[derive(Clone, Debug, Default)]
pub(super) enum Mark {
    /// Nothing yet.
    #[default]
    Never,
    /// Work that runs.
    Work(Arc<Point>),
    /// Work that a stream recorded, in the capture of this id.
    Recorded(Arc<Point>, Weak<Queue>, u64),
}

impl Event {
    pub(super) fn mark(&self) -> Mark {
        self.0.lock().clone()
    }

    pub(super) fn set(&self, mark: Mark) {
        *self.0.lock() = mark;
    }

    /// Marks something else from here on: `record` records an event of the driver's, and tells what
    /// it marks. That is the one it has, if nobody else waits for it and it is of the same context.
    /// Who looks meanwhile waits, and finds the old mark or the new one.
    pub(super) fn remark(
        &self,
        context: &'static Context,
        record: impl FnOnce(Arc<Point>) -> Result<Mark, DriverError>,
    ) -> Result<(), DriverError> {
        let mut mark = self.0.lock();
        let point = match &*mark {
            Mark::Work(point) | Mark::Recorded(point, ..)
                if core::ptr::eq(point.context, context) && Arc::strong_count(point) == 1 =>
            {
                point.clone()
            }
            _ => Arc::new(context.point()?),
        };
        *mark = record(point)?;
        Ok(())
    }
}

impl EventOps for Event {
    fn is_complete(&self) -> bool {
        match self.mark() {
            Mark::Never => true,
            Mark::Work(point) => point.is_over(),
            Mark::Recorded(..) => false,
        }
    }

    fn synchronize(&self, wait: &Wait) -> Result<(), SyncError> {
        match self.mark() {
            Mark::Never => Ok(()),
            Mark::Work(point) => point.wait(wait),
            Mark::Recorded(_, stream, _) => {
                if let Some(stream) = stream.upgrade() {
                    stream.invalidate();
                }
                Err(CaptureError::NotCapturable { call: "Event::synchronize" }.into())
            }
        }
    }

    fn on_complete(&self, waker: Waker) {
        match self.mark() {
            Mark::Work(point) => poller::wake(point, waker),
            Mark::Never | Mark::Recorded(..) => waker.wake(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::CancelToken;

    #[test]
    fn a_wait_ends_with_its_answer_its_bound_or_its_token() {
        let mut left = 1000;
        let counted = || {
            left -= 1;
            Ok(left == 0)
        };
        until(&Wait::seconds(60), counted).unwrap();
        assert_eq!(left, 0);

        let never = until(&Wait::millis(5), || Ok(false)).unwrap_err();
        assert!(matches!(never, SyncError::TimedOut { .. }), "{never}");

        let token = CancelToken::new();
        token.cancel();
        let cancelled = until(&Wait::seconds(60).with_cancel(token), || Ok(false)).unwrap_err();
        assert!(matches!(cancelled, SyncError::Cancelled), "{cancelled}");

        // What is there already needs no time at all.
        until(&Wait::timeout(Duration::ZERO), || Ok(true)).unwrap();
    }
}
