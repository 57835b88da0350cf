//! Asks for events on behalf of those who do not wait: wakers, and what a stream that is gone still
//! kept alive.
//!
//! One thread a process, which lives while there is something to ask for. The driver's own callbacks
//! would do without it, but run on a thread that may call nothing of the driver, and hold up the
//! stream meanwhile.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;

use super::event::Point;
use crate::KeepAlive;

const FIRST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_micros(500);

/// What to do once an event has come.
enum Then {
    Wake(Waker),
    Drop(#[allow(dead_code, reason = "held, and dropped in time")] Vec<KeepAlive>),
}

impl Then {
    fn act(self) {
        match self {
            Then::Wake(waker) => waker.wake(),
            Then::Drop(kept) => drop(kept),
        }
    }
}

struct State {
    runs: bool,
    waiting: Vec<(Arc<Point>, Then)>,
}

static STATE: Mutex<State> = Mutex::new(State { runs: false, waiting: Vec::new() });

/// Wakes somebody once the work that a point marks is done.
pub(super) fn wake(point: Arc<Point>, waker: Waker) {
    if point.is_over() {
        waker.wake();
    } else {
        add(point, Then::Wake(waker));
    }
}

/// Drops something once the work that a point marks is done.
pub(super) fn release(point: Arc<Point>, kept: Vec<KeepAlive>) {
    if point.is_over() {
        drop(kept);
    } else {
        add(point, Then::Drop(kept));
    }
}

/// Whether it has nothing to ask for.
pub(super) fn is_idle() -> bool {
    !STATE.lock().runs
}

fn add(point: Arc<Point>, then: Then) {
    let mut state = STATE.lock();
    state.waiting.push((point, then));
    if state.runs {
        return;
    }
    let thread = std::thread::Builder::new().name("symmem-events".to_owned()).spawn(poll);
    match thread {
        Ok(_) => state.runs = true,
        Err(error) => {
            // Who comes next tries again. A waker that is woken early asks again itself.
            tracing::error!(%error, "no thread to ask for events");
            let (wakers, kept): (Vec<_>, Vec<_>) =
                state.waiting.drain(..).partition(|(_, then)| matches!(then, Then::Wake(_)));
            state.waiting = kept;
            drop(state);
            wakers.into_iter().for_each(|(_, then)| then.act());
        }
    }
}

fn poll() {
    let mut pause = FIRST;
    loop {
        std::thread::sleep(pause);
        let waiting = core::mem::take(&mut STATE.lock().waiting);
        let (due, rest): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(point, _)| point.is_over());
        pause = if due.is_empty() { (pause * 2).min(LONGEST) } else { FIRST };
        // Outside the lock: what is woken or dropped may come here again.
        for (_, then) in due {
            let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| then.act()));
            if acted.is_err() {
                tracing::error!("what waited for an event panicked");
            }
        }
        let mut state = STATE.lock();
        state.waiting.extend(rest);
        if state.waiting.is_empty() {
            state.runs = false;
            drop(state);
            super::host_memory::end_retired();
            return;
        }
    }
}
