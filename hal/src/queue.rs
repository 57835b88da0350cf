//! Work in order on a thread of its own: the streams of the stub, and the host's worker streams.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::Wait;
use crate::backend::EventOps;
use crate::health::{Health, SyncError};
use crate::stream::StreamId;

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
pub struct Event(Arc<Mutex<Marker>>);

impl Event {
    pub(crate) fn set(&self, marker: Marker) {
        *self.0.lock() = marker;
    }

    pub(crate) fn marker(&self) -> Marker {
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

/// What every stream has, whoever runs its work.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) id: StreamId,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched(Vec<Weak<dyn Health>>);

impl core::fmt::Debug for Watched {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} watched", self.0.len())
    }
}

impl Common {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Common { id: StreamId(NEXT.fetch_add(1, Ordering::Relaxed)), watched: Mutex::default() }
    }

    pub(crate) fn watch(&self, health: Weak<dyn Health>) {
        let mut watched = self.watched.lock();
        watched.0.retain(|h| h.strong_count() > 0 && !Weak::ptr_eq(h, &health));
        watched.0.push(health);
    }

    pub(crate) fn watched(&self) -> Vec<Arc<dyn Health>> {
        self.watched.lock().0.iter().filter_map(Weak::upgrade).collect()
    }
}
