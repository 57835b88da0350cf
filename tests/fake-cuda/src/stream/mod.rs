//! Streams: work in order, done by a thread of each stream's own.

mod api;
pub mod capture;
pub mod event;
pub mod operations;
mod work;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Weak};
use std::thread;

use parking_lot::{Condvar, Mutex};
use symmem_sys::cuda::bindings::{CUresult as Code, CUstream};
use symmem_sys::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

use crate::entry::Outcome;
use crate::table::{Table, fresh, handle};
use crate::{context, device, faults};

pub(crate) use work::{Callback, Point, Work};

#[derive(Debug, Default)]
struct Queue {
    pending: VecDeque<Work>,
    issued: u64,
    finished: u64,
    /// Destroyed: the thread ends when nothing is pending.
    closed: bool,
    running: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The default stream that waits for blocking ones, and they for it.
    Legacy,
    Blocking,
    Free,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub id: u64,
    pub device: usize,
    pub kind: Kind,
    pub priority: i32,
    queue: Mutex<Queue>,
    changed: Condvar,
}

pub(crate) static STREAMS: Table<Stream> = Table::new();

/// Streams that may have work, destroyed ones too.
static ALL: Mutex<Vec<Weak<Stream>>> = Mutex::new(Vec::new());

/// Held while work is issued, so that what the default streams have to wait for stands still.
static ISSUE: Mutex<()> = Mutex::new(());

static LEGACY: LazyLock<Vec<Arc<Stream>>> = LazyLock::new(|| {
    (0..device::count()).map(|device| Stream::new(device, Kind::Legacy, 0)).collect()
});

thread_local! {
    /// Per device.
    static PER_THREAD: RefCell<HashMap<usize, Arc<Stream>>> = RefCell::default();
}

/// Shut by a test: streams do nothing while it is.
static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Makes all streams stand still before their next piece of work, or go on.
pub(crate) fn hold(shut: bool) {
    *GATE.0.lock() = shut;
    GATE.1.notify_all();
}

fn pass_gate() {
    let mut shut = GATE.0.lock();
    while *shut {
        GATE.1.wait(&mut shut);
    }
}

impl Stream {
    pub fn new(device: usize, kind: Kind, priority: i32) -> Arc<Self> {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let stream = Arc::new(Stream { id: fresh(), device, kind, priority, queue, changed });
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&stream));
        stream
    }

    /// Adds work behind what is pending, and starts the thread where there is none.
    fn push(self: &Arc<Self>, work: Work) -> Outcome {
        let mut queue = self.queue.lock();
        queue.pending.push_back(work);
        queue.issued += 1;
        if !queue.running {
            let stream = Arc::clone(self);
            let thread = thread::Builder::new().name("fake-cuda-stream".to_owned());
            thread.spawn(move || stream.work()).map_err(|_| Code::CUDA_ERROR_OPERATING_SYSTEM)?;
            queue.running = true;
        }
        self.changed.notify_all();
        Ok(())
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            while let Some(work) = queue.pending.pop_front() {
                let reached = parking_lot::MutexGuard::unlocked(&mut queue, || {
                    pass_gate();
                    self.run(work)
                });
                queue.finished += 1;
                self.changed.notify_all();
                // Last: who sees an event come finds the stream idle, if that was all.
                if let Some(point) = reached {
                    point.reach();
                }
            }
            if queue.closed {
                queue.running = false;
                return;
            }
            self.changed.wait(&mut queue);
        }
    }

    /// Does a piece of work; a point that is to be reached now is left to the caller. A broken context
    /// runs nothing more, but its events come, so that nobody waits for ever.
    fn run(&self, work: Work) -> Option<Arc<Point>> {
        match work {
            Work::Signal(point) => return Some(point),
            Work::Await(point) => point.wait(),
            work if faults::sticky(self.device).is_none() => {
                if let Err(code) = work.run(self.device) {
                    faults::break_context(self.device, code);
                }
            }
            _ => {}
        }
        None
    }

    fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.finished == queue.issued
    }

    /// Waits for what is pending now.
    fn finish(&self) {
        let mut queue = self.queue.lock();
        let issued = queue.issued;
        while queue.finished < issued {
            self.changed.wait(&mut queue);
        }
    }

    fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_all();
    }

    fn point(self: &Arc<Self>) -> Outcome<Arc<Point>> {
        let point = Arc::new(Point::default());
        self.push(Work::Signal(Arc::clone(&point)))?;
        Ok(point)
    }

    /// Issues work: into the capture that the stream is part of, else to its thread.
    pub fn issue(self: &Arc<Self>, work: Work) -> Outcome {
        work.check(self.device).inspect_err(|&code| faults::break_context(self.device, code))?;
        let _issuing = ISSUE.lock();
        if capture::record(self, &work)? {
            return Ok(());
        }
        self.order()?;
        self.push(work)
    }

    /// Puts the stream behind what it has to wait for by the rules of default streams.
    fn order(self: &Arc<Self>) -> Outcome {
        match self.kind {
            Kind::Free => Ok(()),
            Kind::Blocking => {
                let legacy = &LEGACY[self.device];
                if legacy.is_idle() { Ok(()) } else { self.push(Work::Await(legacy.point()?)) }
            }
            Kind::Legacy => {
                capture::implicit(self.device)?;
                for other in of_device(Some(self.device)) {
                    if other.kind == Kind::Blocking && !other.is_idle() {
                        self.push(Work::Await(other.point()?))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// The context's error, if work broke it.
    fn healthy(&self) -> Outcome {
        faults::sticky(self.device).map_or(Ok(()), Err)
    }

    /// Waits for everything issued to it.
    pub fn synchronize(self: &Arc<Self>) -> Outcome {
        if self.kind == Kind::Legacy {
            let _issuing = ISSUE.lock();
            self.order()?;
        }
        self.finish();
        self.healthy()
    }
}

fn of_device(device: Option<usize>) -> Vec<Arc<Stream>> {
    let all = ALL.lock();
    let here = |stream: &Arc<Stream>| device.is_none_or(|device| stream.device == device);
    all.iter().filter_map(Weak::upgrade).filter(here).collect()
}

/// Waits for all work on a device.
pub(crate) fn finish_device(device: usize) -> Outcome {
    of_device(Some(device)).iter().for_each(|stream| stream.finish());
    faults::sticky(device).map_or(Ok(()), Err)
}

/// Waits for all work of this process.
pub(crate) fn finish_all() -> Outcome {
    of_device(None).iter().for_each(|stream| stream.finish());
    Ok(())
}

/// The stream that a handle means to this thread.
pub(crate) fn of(stream: CUstream) -> Outcome<Arc<Stream>> {
    if stream.is_null() || stream == CU_STREAM_LEGACY {
        return Ok(Arc::clone(&LEGACY[context::current()?]));
    }
    if stream == CU_STREAM_PER_THREAD {
        let device = context::current()?;
        return Ok(PER_THREAD.with_borrow_mut(|streams| {
            let make = || Stream::new(device, Kind::Blocking, 0);
            Arc::clone(streams.entry(device).or_insert_with(make))
        }));
    }
    STREAMS.get(handle(stream))
}
