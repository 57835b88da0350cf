//! Words of loom, and how its threads run programs.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::world::Machine;
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
        counted.all.fetch_add(1, Relaxed);
        if model() {
            counted.complete.fetch_add(1, Relaxed);
        }
    });
    let (all, complete) = (executions.all.load(Relaxed), executions.complete.load(Relaxed));
    println!("{name}: {all} executions, {complete} complete, {:.1?}", begin.elapsed());
    assert!(complete > 0, "{name} never came to its end");
}
