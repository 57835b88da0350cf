//! Order of work across streams.
//!
//! Some state (a lane's buffers, a channel's words) must be used by one operation at a time, in one
//! order, whichever streams and threads the operations come from. A [`StreamOrder`] is that order:
//! each operation takes a [`Turn`], launches, and ends the turn.
//!
//! - Turns are given in the order they were asked for. No lock is held between asking and getting
//!   it, or while the operation runs: an inline operation, which runs inside its turn and may wait
//!   for other ranks there, blocks only those behind it, each bounded by its own [`Wait`].
//! - The first stream costs nothing: no event is recorded until a second stream comes. From then on
//!   each turn's end records an event, and a turn on another stream begins by waiting for it, on
//!   that stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::fault::{Fault, Kind};
use crate::health::SyncError;
use crate::stream::{Stream, StreamId};
use crate::types::RankSet;
use crate::{Device, Event, Wait};

/// Why an operation got no turn. Nothing was launched.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The operations before it were not done in time.
    #[error("{ahead} earlier operations of this process were not done within {allowed:?}")]
    TimedOut {
        /// Operations that were ahead when the wait ended.
        ahead: u64,
        /// What the caller allowed.
        allowed: Duration,
    },
    /// The caller's token ended the wait.
    #[error("the wait behind {ahead} earlier operations of this process was cancelled")]
    Cancelled {
        /// Operations that were ahead when the wait ended.
        ahead: u64,
    },
    /// The wait for the stream of the operation before it did not end well.
    #[error("waiting for the operation before, on another stream: {0}")]
    Stream(SyncError),
}

impl From<SyncError> for OrderError {
    fn from(error: SyncError) -> Self {
        OrderError::Stream(error)
    }
}

impl Fault for OrderError {
    fn kind(&self) -> Kind {
        match self {
            OrderError::TimedOut { .. } => Kind::TimedOut,
            OrderError::Cancelled { .. } => Kind::Cancelled,
            OrderError::Stream(e) => e.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            OrderError::Stream(e) => e.ranks(),
            _ => RankSet::new(),
        }
    }
}

/// One order of operations. Clones are the same order.
#[derive(Clone, Debug)]
pub struct StreamOrder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
    event: Event,
}

#[derive(Debug, Default)]
struct State {
    /// Whether somebody has the turn.
    taken: bool,
    /// Tickets of those who wait, in order. Those who gave up take theirs out.
    waiting: std::collections::VecDeque<u64>,
    next: u64,
    last: Option<Stream>,
    /// Whether a second stream has been seen, so that each turn records the event.
    multi: bool,
}

impl StreamOrder {
    /// An order of operations on a device.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        StreamOrder(Arc::new(Inner {
            state: Mutex::default(),
            changed: Condvar::new(),
            event: device.event(),
        }))
    }

    /// Waits for the turn of an operation on `stream`, and makes the stream wait for the operation
    /// before it.
    ///
    /// # Errors
    ///
    /// [`OrderError`] where the bound ends the wait; the turn is passed on.
    pub fn enter<'a>(&'a self, stream: &'a Stream, wait: &Wait) -> Result<Turn<'a>, OrderError> {
        let mut state = self.0.state.lock();
        if state.taken || !state.waiting.is_empty() {
            state = self.queue(state, wait)?;
        }
        state.taken = true;
        let switch = match &state.last {
            Some(last) if last.id() != stream.id() => Some((!state.multi).then(|| last.clone())),
            _ => None,
        };
        drop(state);
        if let Some(first) = switch
            && let Err(e) = self.follow(first.as_ref(), stream, wait)
        {
            // Nothing is launched, so the operation before stays the one to wait for.
            self.pass_on(&mut self.0.state.lock());
            return Err(e.into());
        }
        Ok(Turn { order: self, stream })
    }

    /// Makes `stream` wait for the last operation. `first` is that operation's stream where this is
    /// the second stream ever, so that no event marks its work yet.
    fn follow(
        &self,
        first: Option<&Stream>,
        stream: &Stream,
        wait: &Wait,
    ) -> Result<(), SyncError> {
        if let Some(last) = first {
            last.record(&self.0.event)?;
            self.0.state.lock().multi = true;
        }
        stream.wait(&self.0.event, wait)
    }

    fn pass_on(&self, state: &mut State) {
        state.taken = false;
        if !state.waiting.is_empty() {
            self.0.changed.notify_all();
        }
    }

    /// The slow path of `enter`: stands in line.
    fn queue<'a>(
        &'a self,
        mut state: parking_lot::MutexGuard<'a, State>,
        wait: &Wait,
    ) -> Result<parking_lot::MutexGuard<'a, State>, OrderError> {
        let ticket = state.next;
        state.next += 1;
        state.waiting.push_back(ticket);
        let deadline = wait.deadline();
        let woken = self.0.clone();
        let _guard = wait.cancel().map(|token| {
            // Runs on the canceller's thread, never under the state's lock.
            token.on_cancel(Arc::new(move || {
                let _state = woken.state.lock();
                woken.changed.notify_all();
            }))
        });
        loop {
            if !state.taken && state.waiting.front() == Some(&ticket) {
                state.waiting.pop_front();
                return Ok(state);
            }
            let ahead = state.waiting.iter().take_while(|t| **t != ticket).count() as u64
                + u64::from(state.taken);
            let cancelled = wait.is_cancelled();
            if cancelled || Instant::now() >= deadline {
                state.waiting.retain(|t| *t != ticket);
                self.0.changed.notify_all();
                return Err(if cancelled {
                    OrderError::Cancelled { ahead }
                } else {
                    OrderError::TimedOut { ahead, allowed: wait.duration() }
                });
            }
            self.0.changed.wait_until(&mut state, deadline);
        }
    }

    /// The stream of the last operation, if there was one.
    #[must_use]
    pub fn last(&self) -> Option<StreamId> {
        self.0.state.lock().last.as_ref().map(Stream::id)
    }
}

/// The right to launch the next operation; passed on when dropped.
#[derive(Debug)]
#[must_use]
pub struct Turn<'a> {
    order: &'a StreamOrder,
    stream: &'a Stream,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let inner = &self.order.0;
        let mut state = inner.state.lock();
        if state.multi
            && let Err(e) = self.stream.record(&inner.event)
        {
            tracing::warn!(error = %e, "no event after an operation; its stream is gone");
        }
        if state.last.as_ref().is_none_or(|last| last.id() != self.stream.id()) {
            state.last = Some(self.stream.clone());
        }
        self.order.pass_on(&mut state);
    }
}
