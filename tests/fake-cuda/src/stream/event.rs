//! Events.

use core::ffi::c_uint;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{CUevent, CUevent_flags as Flags, CUresult as Code, CUstream};

use super::{Point, Work, capture, of};
use crate::context;
use crate::entry::{Outcome, export, put};
use crate::faults;
use crate::table::{Table, handle, pointer};

/// What an event was last recorded as.
#[derive(Clone, Debug, Default)]
pub(crate) enum Recorded {
    #[default]
    Never,
    At(Arc<Point>),
    /// Behind these nodes of a capture.
    Captured {
        session: u64,
        after: Vec<usize>,
    },
}

#[derive(Debug)]
pub(crate) struct Event {
    device: usize,
    timed: bool,
    pub recorded: Mutex<Recorded>,
}

pub(crate) static EVENTS: Table<Event> = Table::new();

/// The point of an event that was recorded outside of captures.
fn point(event: &Event) -> Outcome<Option<Arc<Point>>> {
    match &*event.recorded.lock() {
        Recorded::Never => Ok(None),
        Recorded::At(point) => Ok(Some(Arc::clone(point))),
        Recorded::Captured { session, .. } => {
            capture::invalidate(*session);
            Err(Code::CUDA_ERROR_CAPTURED_EVENT)
        }
    }
}

fn record(event: CUevent, stream: CUstream) -> Outcome {
    let (event, stream) = (EVENTS.get(handle(event))?, of(stream)?);
    if event.device != stream.device {
        return Err(Code::CUDA_ERROR_INVALID_HANDLE);
    }
    if let Some((session, after)) = capture::place(&stream)? {
        *event.recorded.lock() = Recorded::Captured { session, after };
        return Ok(());
    }
    let point = Arc::new(Point::default());
    stream.issue(Work::Signal(Arc::clone(&point)))?;
    *event.recorded.lock() = Recorded::At(point);
    Ok(())
}

/// When a timed event was reached.
fn time(event: CUevent) -> Outcome<Instant> {
    let event = EVENTS.get(handle(event))?;
    let point = point(&event)?.filter(|_| event.timed).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
    point.time().ok_or(Code::CUDA_ERROR_NOT_READY)
}

fn elapsed(start: CUevent, end: CUevent) -> Outcome<f32> {
    let (start, end) = (time(start)?, time(end)?);
    let forward = end.saturating_duration_since(start).as_secs_f32();
    let backward = start.saturating_duration_since(end).as_secs_f32();
    Ok((forward - backward) * 1e3)
}

export! {
    fn cuEventCreate(event: *mut CUevent, flags: c_uint) {
        let device = context::current()?;
        let known = Flags::CU_EVENT_BLOCKING_SYNC.0 | Flags::CU_EVENT_DISABLE_TIMING.0;
        // No events between processes.
        if flags & !known != 0 || event.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let timed = flags & Flags::CU_EVENT_DISABLE_TIMING.0 == 0;
        let made = Event { device, timed, recorded: Mutex::default() };
        put!(event, pointer(EVENTS.add(made.into())));
    }

    fn cuEventDestroy_v2(event: CUevent) {
        EVENTS.remove(handle(event))?;
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) {
        record(event, stream)?;
    }

    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) {
        if flags != 0 {
            return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
        }
        record(event, stream)?;
    }

    fn cuEventQuery(event: CUevent) {
        let event = EVENTS.get(handle(event))?;
        let point = point(&event)?;
        capture::unsafe_call()?;
        faults::sticky(event.device).map_or(Ok(()), Err)?;
        if point.is_some_and(|point| point.time().is_none()) {
            return Err(Code::CUDA_ERROR_NOT_READY);
        }
    }

    fn cuEventSynchronize(event: CUevent) {
        let event = EVENTS.get(handle(event))?;
        let point = point(&event)?;
        capture::unsafe_call()?;
        if let Some(point) = point {
            point.wait();
        }
        faults::sticky(event.device).map_or(Ok(()), Err)?;
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        put!(milliseconds, elapsed(start, end)?);
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        put!(milliseconds, elapsed(start, end)?);
    }

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) {
        let (stream, event) = (of(stream)?, EVENTS.get(handle(event))?);
        if flags != 0 {
            return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
        }
        let recorded = event.recorded.lock().clone();
        match recorded {
            Recorded::Never => {}
            Recorded::Captured { session, after } => capture::join(&stream, session, after)?,
            Recorded::At(point) => {
                capture::outside(&stream)?;
                stream.issue(Work::Await(point))?;
            }
        }
    }
}
