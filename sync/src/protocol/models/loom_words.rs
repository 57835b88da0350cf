//! Words of loom, and how its threads run programs.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed as Counting};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::world::Machine;
use crate::protocol::Word;
use crate::protocol::word::atomic_word;

atomic_word!(AtomicU32 => u32, AtomicU64 => u64);

/// loom's atomics; payload is in cells whose every access loom checks for races.
pub(super) struct Loom;

impl Machine for Loom {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;
    type Cell = UnsafeCell<u64>;
    const PREEMPT: bool = false;

    fn word32() -> AtomicU32 {
        AtomicU32::new(0)
    }

    fn word64() -> AtomicU64 {
        AtomicU64::new(0)
    }

    fn cell() -> UnsafeCell<u64> {
        UnsafeCell::new(0)
    }

    #[allow(unsafe_code)]
    fn write(cell: &UnsafeCell<u64>, value: u64) {
        // SAFETY: loom runs one thread at a time and panics on an access that another thread's
        // does not happen before; the pointer is valid inside the closure.
        cell.with_mut(|p| unsafe { *p = value });
    }

    #[allow(unsafe_code)]
    fn read(cell: &UnsafeCell<u64>) -> u64 {
        // SAFETY: as in `write`.
        cell.with(|p| unsafe { *p })
    }
}

/// [`Loom`], but nothing is released: what relaxed stores would do.
pub(super) struct Relaxed;

/// A word whose every store is relaxed.
pub(super) struct RelaxedWord<W>(W);

impl<W: Word> Word for RelaxedWord<W> {
    type Value = W::Value;

    fn load_acquire(&self) -> W::Value {
        self.0.load_acquire()
    }

    fn load_relaxed(&self) -> W::Value {
        self.0.load_relaxed()
    }

    fn store_release(&self, value: W::Value) {
        self.0.store_relaxed(value);
    }

    fn store_relaxed(&self, value: W::Value) {
        self.0.store_relaxed(value);
    }

    fn compare_exchange(&self, current: W::Value, new: W::Value) -> Result<W::Value, W::Value> {
        self.0.compare_exchange(current, new)
    }

    fn fetch_or(&self, bits: W::Value) -> W::Value {
        self.0.fetch_or(bits)
    }
}

impl Machine for Relaxed {
    type Word32 = RelaxedWord<AtomicU32>;
    type Word64 = RelaxedWord<AtomicU64>;
    type Cell = UnsafeCell<u64>;
    const PREEMPT: bool = false;

    fn word32() -> RelaxedWord<AtomicU32> {
        RelaxedWord(Loom::word32())
    }

    fn word64() -> RelaxedWord<AtomicU64> {
        RelaxedWord(Loom::word64())
    }

    fn cell() -> UnsafeCell<u64> {
        Loom::cell()
    }

    fn write(cell: &UnsafeCell<u64>, value: u64) {
        Loom::write(cell, value);
    }

    fn read(cell: &UnsafeCell<u64>) -> u64 {
        Loom::read(cell)
    }
}

/// Runs a program on the current loom thread; where it waits, others run.
pub(super) fn block_on<F: Future>(program: F) -> F::Output {
    let mut program = pin!(program);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = program.as_mut().poll(&mut context) {
            return output;
        }
        loom::thread::yield_now();
    }
}

/// How many executions a model had.
#[derive(Debug, Default)]
pub(super) struct Executions {
    all: AtomicUsize,
    /// Those in which every program came to its end.
    complete: AtomicUsize,
}

/// Checks every execution of `model` with at most `preemptions` preemptions, all if `None`. The
/// model tells whether every program came to its end, which must happen at least once: an
/// exploration that never gets there proves nothing.
pub(super) fn check(
    name: &str,
    preemptions: Option<usize>,
    model: impl Fn() -> bool + Send + Sync + 'static,
) {
    let executions = Arc::new(Executions::default());
    let counted = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    builder.max_duration =
        std::env::var("PROBE").ok().map(|s| std::time::Duration::from_secs(s.parse().unwrap()));
    let begin = Instant::now();
    builder.check(move || {
        counted.all.fetch_add(1, Counting);
        if model() {
            counted.complete.fetch_add(1, Counting);
        }
    });
    let (all, complete) = (executions.all.load(Counting), executions.complete.load(Counting));
    println!("{name}: {all} executions, {complete} complete, {:.1?}", begin.elapsed());
    assert!(complete > 0, "{name} never came to its end");
}
