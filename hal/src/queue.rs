//! Work in order on a thread of its own: the streams of the stub, and the host's worker streams.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::task::Waker;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::Wait;
use crate::backend::EventOps;
use crate::capture::CaptureError;
use crate::health::SyncError;
use crate::recording::Recording;
use crate::stream::Launched;
use crate::work::Work;

type Item = Box<dyn FnOnce() + Send>;

/// How far a queue has come. Outlives the queue, so that markers can be asked for ever.
#[derive(Debug, Default)]
struct Progress {
    done: AtomicU64,
    gone: AtomicBool,
    state: Mutex<Vec<(u64, Waker)>>,
    changed: Condvar,
}

impl Progress {
    fn advance(&self, to: u64) {
        let due: Vec<_> = {
            let mut waiting = self.state.lock();
            self.done.store(to, Ordering::Release);
            self.changed.notify_all();
            waiting.extract_if(.., |(at, _)| *at <= to).collect()
        };
        // Outside the lock: a waker may ask for the next marker.
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// The worker ends: nothing more will be done. Everybody is let go.
    fn close(&self) {
        let due: Vec<_> = {
            let mut waiting = self.state.lock();
            self.gone.store(true, Ordering::Release);
            self.changed.notify_all();
            waiting.drain(..).collect()
        };
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn reached(&self, at: u64) -> bool {
        self.done.load(Ordering::Acquire) >= at
    }

    /// A worker's own wait for the work of another queue, which bounds of its own end: every kernel
    /// there has one. No two queues wait for each other, since each waits for work that was pushed
    /// before the wait was.
    fn outlast(&self, at: u64) {
        let ahead = |_: &mut _| !self.reached(at) && !self.gone.load(Ordering::Acquire);
        self.changed.wait_while(&mut self.state.lock(), ahead);
    }

    fn wait(self: &Arc<Self>, at: u64, wait: &Wait) -> Result<(), SyncError> {
        if self.reached(at) {
            return Ok(());
        }
        let woken = Arc::downgrade(self);
        let _guard = wait.cancel().map(|token| {
            token.on_cancel(Arc::new(move || {
                if let Some(progress) = woken.upgrade() {
                    let _state = progress.state.lock();
                    progress.changed.notify_all();
                }
            }))
        });
        let deadline = wait.deadline();
        let mut state = self.state.lock();
        loop {
            if self.reached(at) {
                return Ok(());
            }
            if self.gone.load(Ordering::Acquire) {
                return Err(SyncError::WorkerGone);
            }
            if wait.is_cancelled() {
                return Err(SyncError::Cancelled);
            }
            if Instant::now() >= deadline {
                return Err(SyncError::TimedOut { allowed: wait.duration() });
            }
            self.changed.wait_until(&mut state, deadline);
        }
    }
}

/// A point in some queue's work; complete from the start if it is in none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marker {
    at: Option<(Arc<Progress>, u64)>,
}

impl Marker {
    pub(crate) fn is_complete(&self) -> bool {
        self.at.as_ref().is_none_or(|(progress, at)| progress.reached(*at))
    }

    pub(crate) fn wait(&self, wait: &Wait) -> Result<(), SyncError> {
        self.at.as_ref().map_or(Ok(()), |(progress, at)| progress.wait(*at, wait))
    }

    pub(crate) fn on_complete(&self, waker: Waker) {
        let Some((progress, at)) = &self.at else { return waker.wake() };
        let mut waiting = progress.state.lock();
        if progress.reached(*at) || progress.gone.load(Ordering::Acquire) {
            drop(waiting);
            waker.wake();
        } else {
            waiting.push((*at, waker));
        }
    }
}

/// A point in the work of a stream that a queue, or its caller, runs: the event of every backend
/// that has one of these.
#[derive(Clone, Debug, Default)]
pub struct Event(Arc<Mutex<Mark>>);

/// What an event marks.
#[derive(Clone, Debug, Default)]
pub(crate) enum Mark {
    /// Nothing yet.
    #[default]
    Never,
    /// Work that runs.
    Work(Marker),
    /// Nodes of a capture.
    Nodes(Arc<Recording>, Vec<usize>),
}

impl Event {
    pub(crate) fn set(&self, mark: Mark) {
        *self.0.lock() = mark;
    }

    pub(crate) fn mark(&self) -> Mark {
        self.0.lock().clone()
    }
}

impl EventOps for Event {
    fn is_complete(&self) -> bool {
        match self.mark() {
            Mark::Never => true,
            Mark::Work(marker) => marker.is_complete(),
            Mark::Nodes(..) => false,
        }
    }

    fn synchronize(&self, wait: &Wait) -> Result<(), SyncError> {
        match self.mark() {
            Mark::Never => Ok(()),
            Mark::Work(marker) => marker.wait(wait),
            Mark::Nodes(recording, _) => {
                recording.invalidate();
                Err(CaptureError::NotCapturable { call: "Event::synchronize" }.into())
            }
        }
    }

    fn on_complete(&self, waker: Waker) {
        match self.mark() {
            Mark::Work(marker) => marker.on_complete(waker),
            Mark::Never | Mark::Nodes(..) => waker.wake(),
        }
    }
}

/// A thread that runs items in the order they were pushed. When the last clone is dropped, the
/// thread runs what was pushed and ends; nobody waits for it.
#[derive(Clone, Debug)]
pub(crate) struct Queue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tail: Mutex<Tail>,
    progress: Arc<Progress>,
}

#[derive(Debug)]
struct Tail {
    sender: Sender<Item>,
    pushed: u64,
}

impl Queue {
    pub(crate) fn start(name: &str) -> std::io::Result<Self> {
        let (sender, items) = mpsc::channel::<Item>();
        let progress = Arc::new(Progress::default());
        let theirs = progress.clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            for (done, item) in (1..).zip(items) {
                // Kernels do not panic; should one, its stream stops and says so.
                if catch_unwind(AssertUnwindSafe(item)).is_err() {
                    tracing::error!("a kernel panicked; its stream stops");
                    break;
                }
                theirs.advance(done);
            }
            theirs.close();
        })?;
        Ok(Queue(Arc::new(Inner { tail: Mutex::new(Tail { sender, pushed: 0 }), progress })))
    }

    pub(crate) fn push(&self, item: impl FnOnce() + Send + 'static) -> Result<(), SyncError> {
        let mut tail = self.0.tail.lock();
        tail.sender.send(Box::new(item)).map_err(|_| SyncError::WorkerGone)?;
        tail.pushed += 1;
        Ok(())
    }

    /// Runs a launch in its turn.
    pub(crate) fn launch(&self, work: Work, wait: &Wait) -> Result<Launched, SyncError> {
        let wait = wait.clone();
        self.push(move || {
            work.run(&wait);
        })?;
        Ok(Launched::Queued)
    }

    /// A marker of the work pushed so far.
    pub(crate) fn marker(&self) -> Marker {
        let at = self.0.tail.lock().pushed;
        Marker { at: Some((self.0.progress.clone(), at)) }
    }

    /// Lets later items start only once `marker` is complete (or its queue is gone).
    pub(crate) fn wait_for(&self, marker: Marker) -> Result<(), SyncError> {
        match marker.at {
            Some((progress, at)) if !progress.reached(at) => {
                self.push(move || progress.outlast(at))
            }
            _ => Ok(()),
        }
    }
}
