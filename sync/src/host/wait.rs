//! How a CPU waits for a word: spin, yield, sleep.
//!
//! A rank spins for as long as a hand-off between two running ranks takes, yields for as long as
//! the ranks of a busy machine need to get a turn, then sleeps on its doorbell. More ranks than
//! cores is an ordinary case: there a spin only keeps the awaited rank from running, so it is cut
//! short.
//!
//! # References
//! - `futex(2)`, `membarrier(2)` (`MEMBARRIER_CMD_GLOBAL_EXPEDITED`), `sched_yield(2)`

use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
use symmem_hal::{LaunchContext, Wait};

use super::memory::Words;
use crate::protocol::control::{Cause, Gate, Look};
use crate::protocol::doorbell::{Doorbell, Fence};
use crate::protocol::{ControlMemory, Progress};

/// Polls before the first yield where every rank can have a core: about 3 us, some twenty hops of
/// a cache line. No more, since a rank that does not have one to itself, because of a neighbour,
/// waits in vain for as long as it spins; a yield with nobody to yield to costs a quarter of a
/// microsecond.
const SPINS: u32 = 60;

/// As [`SPINS`], where there are more ranks than cores.
const SPINS_CROWDED: u32 = 4;

/// Time of yielding before the first sleep.
const YIELDING: Duration = Duration::from_micros(500);

/// Longest sleep: bounds what a lost wake, a peer's death or a cancel costs.
const NAP: Duration = Duration::from_millis(5);

/// The order between a sleeper's announcement and its last look at the data. The sleeper pays for
/// both sides with a system call; writers pay nothing.
struct Membarrier;

impl Membarrier {
    /// Registers this process, once, so that sleepers of other processes reach its threads.
    fn available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| {
            membarrier_query().contains(
                MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED,
            ) && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        })
    }
}

impl Fence for Membarrier {
    fn heavy(&self) {
        // Where the system has none, a wake can be lost: the nap's end makes good for it.
        if Self::available() {
            let _ = membarrier(MembarrierCommand::GlobalExpedited);
        }
    }

    fn light(&self) {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Makes this process reachable for its peers' sleepers. To be called before it first writes.
pub(crate) fn register() {
    let _ = Membarrier::available();
}

/// Wakes every rank that sleeps for a word of this one. To be called after each store that a peer
/// may wait for.
pub(crate) fn ring_all(memory: &Words<'_>) {
    let me = ControlMemory::rank(memory);
    for rank in (0..ControlMemory::world(memory)).filter(|r| *r != me) {
        ring(memory, rank);
    }
}

/// Wakes one rank, if it sleeps.
pub(crate) fn ring(memory: &Words<'_>, rank: usize) {
    let word = memory.doorbell(rank);
    if Doorbell::new(word).ring(&Membarrier) {
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }
}

/// How long after its deadline, or its cancellation, a rank that lost the race to report a failure
/// still waits for the report of the rank that won it and lives: so that all report the same. What a
/// rank of a busy machine needs to get a turn; beyond it the rank reports what it found itself.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Whether to go on waiting for a report, asked again and again: until the deadline of the launch, or
/// its cancellation, and [`GRACE`] after that.
pub(crate) fn patience(wait: &Wait, deadline: Instant) -> impl FnMut() -> bool {
    patience_by(wait, deadline, Instant::now)
}

fn patience_by(
    wait: &Wait,
    deadline: Instant,
    clock: impl Fn() -> Instant,
) -> impl FnMut() -> bool {
    let mut end = None;
    move || {
        let now = clock();
        if end.is_none() && (now >= deadline || wait.is_cancelled()) {
            end = Some(now.min(deadline) + GRACE);
        }
        end.is_none_or(|end| now < end)
    }
}

/// How a wait that ended early ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped<E> {
    /// Nothing came, and nothing will.
    Without(Cause),
    /// What came was wrong.
    Found(E),
}

/// When, beside the arrival of its data, a wait ends: what the driver of the wait knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub cancelled: bool,
    pub overdue: bool,
}

/// The waits of one launch.
pub(crate) struct Waiter<'a> {
    wait: &'a Wait,
    memory: &'a Words<'a>,
    /// Of the whole launch, counted from its first wait that does not end at once.
    deadline: Option<Instant>,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(context: &'a LaunchContext<'_>, memory: &'a Words<'a>) -> Self {
        Waiter { wait: context.wait(), memory, deadline: None }
    }

    /// [`patience`] within the launch's bound.
    pub(crate) fn patience(&self) -> impl FnMut() -> bool + use<'a> {
        patience(self.wait, self.deadline())
    }

    /// When the launch's waits end; if none has begun, as if one did now.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline.unwrap_or_else(|| self.wait.deadline())
    }

    /// Polls `state` until it is ready, by the ladder. `look` says what else there is, when a poll
    /// has missed a word of a rank.
    pub(crate) fn until<S, T, E>(
        &mut self,
        state: &mut S,
        mut poll: impl FnMut(&mut S) -> Result<Progress<T>, E>,
        look: impl Fn(&S, usize, Limits) -> Result<Look, E>,
    ) -> Result<T, Stopped<E>> {
        for _ in 0..spins(ControlMemory::world(self.memory)) {
            if let Progress::Ready(value) = poll(state).map_err(Stopped::Found)? {
                return Ok(value);
            }
            core::hint::spin_loop();
        }
        self.patiently(state, poll, look)
    }

    #[cold]
    fn patiently<S, T, E>(
        &mut self,
        state: &mut S,
        mut poll: impl FnMut(&mut S) -> Result<Progress<T>, E>,
        look: impl Fn(&S, usize, Limits) -> Result<Look, E>,
    ) -> Result<T, Stopped<E>> {
        let started = Instant::now();
        let deadline = *self.deadline.get_or_insert_with(|| self.wait.deadline());
        let mut gate = Gate::every(1);
        loop {
            let writer = match poll(state).map_err(Stopped::Found)? {
                Progress::Ready(value) => return Ok(value),
                Progress::Pending { writer } => writer,
            };
            let now = Instant::now();
            let limits = Limits { cancelled: self.wait.is_cancelled(), overdue: now >= deadline };
            let ended = gate.miss(|| look(state, writer, limits)).map_err(Stopped::Found)?;
            if let Some(cause) = ended {
                return Err(Stopped::Without(cause));
            }
            if now.duration_since(started) < YIELDING {
                std::thread::yield_now();
                continue;
            }
            let word = self.memory.doorbell(ControlMemory::rank(self.memory));
            let awaited = Doorbell::new(word).announce(&Membarrier);
            // Data may have come between the last poll and the announcement.
            if let Progress::Ready(value) = poll(state).map_err(Stopped::Found)? {
                return Ok(value);
            }
            nap(word, awaited, NAP.min(deadline.saturating_duration_since(now)));
        }
    }
}

fn online_cores() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    });
    match ranges.sum() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        cores => cores,
    }
}

fn spins(world: usize) -> u32 {
    static CORES: OnceLock<usize> = OnceLock::new();
    // The machine's, not this thread's: a rank that is pinned to one core has it to itself.
    let cores = *CORES.get_or_init(online_cores);
    if world <= cores { SPINS } else { SPINS_CROWDED }
}

fn nap(word: &AtomicU32, awaited: u32, time: Duration) {
    let timeout = rustix::time::Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    // However it returns, the loop above looks again.
    let _ = futex::wait(word, futex::Flags::empty(), awaited, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use symmem_hal::CancelToken;

    use super::*;

    /// Asks at each of these times, in milliseconds, whether to go on; at `cancelled` it is cancelled.
    fn asked(deadline: u64, cancelled: Option<u64>, times: &[u64]) -> Vec<bool> {
        let (start, token) = (Instant::now(), CancelToken::new());
        let wait = Wait::timeout(Duration::from_millis(deadline)).with_cancel(token.clone());
        let at = Cell::new(start);
        let mut patient = patience_by(&wait, start + Duration::from_millis(deadline), || at.get());
        let mut ask = |ms: &u64| {
            if cancelled.is_some_and(|cancelled| cancelled <= *ms) {
                token.cancel();
            }
            at.set(start + Duration::from_millis(*ms));
            patient()
        };
        times.iter().map(&mut ask).collect()
    }

    #[test]
    fn patience_ends_a_while_after_the_deadline() {
        let grace = GRACE.as_millis() as u64;
        let times = [0, 99, 100, 99 + grace, 100 + grace, 101 + grace];
        assert_eq!(asked(100, None, &times), [true, true, true, true, false, false]);
        // Also where nobody asked before.
        assert_eq!(asked(100, None, &[100 + grace]), [false]);
    }

    #[test]
    fn patience_ends_a_while_after_the_cancellation() {
        let grace = GRACE.as_millis() as u64;
        let times = [0, 50, 49 + grace, 50 + grace];
        assert_eq!(asked(u64::MAX >> 20, Some(50), &times), [true, true, true, false]);
        // The deadline comes first.
        assert_eq!(asked(10, Some(50), &[50, 9 + grace, 10 + grace]), [true, true, false]);
    }
}
