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
//! - Work that runs is one context, each capture another, and each context has an order of its own:
//!   inside a capture the same steps make edges of the graph. Nothing is ever waited for across
//!   contexts, so that what was captured and is never launched affects nobody; launches of a graph
//!   are ordered by whoever makes them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::capture::{Capture, CaptureError};
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
    #[error(
        "{ahead} earlier operations of this process were not done within {allowed:?}: see what they wait for, or allow more time"
    )]
    TimedOut {
        /// Operations that were ahead when the wait ended.
        ahead: u64,
        /// What the caller allowed.
        allowed: Duration,
    },
    /// The caller's token ended the wait.
    #[error(
        "the wait behind {ahead} earlier operations of this process was cancelled; nothing was enqueued, and the call can be made again"
    )]
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
    device: Device,
    state: Mutex<State>,
    changed: Condvar,
}

/// The order's lines, one a context.
#[derive(Debug)]
struct State {
    eager: Line,
    /// By capture. Those that are over are dropped when the next begins.
    captures: Vec<(u64, Line)>,
}

/// One context's operations, in order.
#[derive(Debug)]
struct Line {
    /// Whether somebody has the turn.
    taken: bool,
    /// Tickets of those who wait, in order. Those who gave up take theirs out.
    waiting: VecDeque<u64>,
    next: u64,
    last: Option<Stream>,
    /// Whether a second stream has been seen, so that each turn records the event.
    multi: bool,
    event: Event,
}

impl Line {
    fn new(device: &Device) -> Self {
        Line {
            taken: false,
            waiting: VecDeque::new(),
            next: 0,
            last: None,
            multi: false,
            event: device.event(),
        }
    }
}

impl State {
    /// The line of a context, made if need be.
    fn line(&mut self, context: Option<u64>, device: &Device) -> &mut Line {
        let Some(id) = context else { return &mut self.eager };
        let known = self.captures.iter().position(|(capture, _)| *capture == id);
        let index = known.unwrap_or_else(|| {
            self.captures.retain(|(capture, line)| {
                let open = |last: &Stream| last.capture() == Capture::Active(*capture);
                line.taken || !line.waiting.is_empty() || line.last.as_ref().is_some_and(open)
            });
            self.captures.push((id, Line::new(device)));
            self.captures.len() - 1
        });
        &mut self.captures[index].1
    }
}

impl StreamOrder {
    /// An order of operations on a device.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        StreamOrder(Arc::new(Inner {
            device: device.clone(),
            state: Mutex::new(State { eager: Line::new(device), captures: Vec::new() }),
            changed: Condvar::new(),
        }))
    }

    /// Waits for the turn of an operation on `stream`, and makes the stream wait for the operation
    /// before it in the same context.
    ///
    /// # Errors
    ///
    /// [`OrderError`] where the bound ends the wait; the turn is passed on.
    pub fn enter<'a>(&'a self, stream: &'a Stream, wait: &Wait) -> Result<Turn<'a>, OrderError> {
        let context = match stream.capture() {
            Capture::None => None,
            Capture::Active(id) => Some(id),
            Capture::Invalidated => return Err(SyncError::from(CaptureError::Invalidated).into()),
        };
        let mut state = self.0.state.lock();
        self.queue(&mut state, context, wait)?;
        let line = state.line(context, &self.0.device);
        line.taken = true;
        let switch = line.last.as_ref().filter(|last| last.id() != stream.id());
        // Of the second stream ever: no event marks the work of the first yet.
        let switch = switch.map(|last| (line.event.clone(), (!line.multi).then(|| last.clone())));
        drop(state);
        let mut turn = Turn { order: self, stream, context, launched: true };
        if let Some((event, first)) = switch
            && let Err(e) = turn.follow(&event, first.as_ref(), wait)
        {
            // Nothing is launched, so the operation before stays the one to wait for.
            turn.launched = false;
            return Err(e.into());
        }
        Ok(turn)
    }

    /// Stands in a context's line until it is the caller's turn.
    fn queue(
        &self,
        state: &mut MutexGuard<'_, State>,
        context: Option<u64>,
        wait: &Wait,
    ) -> Result<(), OrderError> {
        let line = state.line(context, &self.0.device);
        if !line.taken && line.waiting.is_empty() {
            return Ok(());
        }
        let ticket = line.next;
        line.next += 1;
        line.waiting.push_back(ticket);
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
            let line = state.line(context, &self.0.device);
            if !line.taken && line.waiting.front() == Some(&ticket) {
                line.waiting.pop_front();
                return Ok(());
            }
            let ahead = line.waiting.iter().take_while(|t| **t != ticket).count() as u64
                + u64::from(line.taken);
            let cancelled = wait.is_cancelled();
            if cancelled || Instant::now() >= deadline {
                line.waiting.retain(|t| *t != ticket);
                self.0.changed.notify_all();
                return Err(if cancelled {
                    OrderError::Cancelled { ahead }
                } else {
                    OrderError::TimedOut { ahead, allowed: wait.duration() }
                });
            }
            self.0.changed.wait_until(state, deadline);
        }
    }

    /// Whether operations of a capture are in this order. Of captures that are over, those before the
    /// last one are forgotten.
    #[must_use]
    pub fn has_capture(&self, capture: u64) -> bool {
        self.0.state.lock().captures.iter().any(|(id, _)| *id == capture)
    }

    /// The stream of the last operation that runs, if there was one.
    #[must_use]
    pub fn last(&self) -> Option<StreamId> {
        self.0.state.lock().eager.last.as_ref().map(Stream::id)
    }
}

/// The right to launch the next operation; passed on when dropped.
#[derive(Debug)]
#[must_use]
pub struct Turn<'a> {
    order: &'a StreamOrder,
    stream: &'a Stream,
    context: Option<u64>,
    launched: bool,
}

impl Turn<'_> {
    /// The capture that it is in, if it is in one.
    #[must_use]
    pub fn capture(&self) -> Option<u64> {
        self.context
    }

    /// Makes the stream wait for the operation before. `first` is that operation's stream where no
    /// event marks it yet.
    fn follow(&self, event: &Event, first: Option<&Stream>, wait: &Wait) -> Result<(), SyncError> {
        if let Some(last) = first {
            self.mark(last, event)?;
            let mut state = self.order.0.state.lock();
            state.line(self.context, &self.order.0.device).multi = true;
        }
        self.stream.wait(event, wait)
    }

    /// Marks the work of a stream in this context. Outside of captures that is the work that runs,
    /// even if the stream captures by now.
    fn mark(&self, stream: &Stream, event: &Event) -> Result<(), SyncError> {
        match self.context {
            None => {
                stream.mark(event);
                Ok(())
            }
            Some(_) => stream.record(event),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let inner = &self.order.0;
        let mut state = inner.state.lock();
        let line = state.line(self.context, &inner.device);
        if self.launched {
            if line.multi
                && let Err(e) = self.mark(self.stream, &line.event)
            {
                tracing::debug!(error = %e, "no event after an operation; its capture is over");
            }
            if line.last.as_ref().is_none_or(|last| last.id() != self.stream.id()) {
                line.last = Some(self.stream.clone());
            }
        }
        line.taken = false;
        if !line.waiting.is_empty() {
            inner.changed.notify_all();
        }
    }
}
