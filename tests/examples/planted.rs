//! Faults planted for the sanitizers: each of these must be reported, or what they do not report
//! elsewhere says nothing. `planted NAME` commits one; `cargo xtask sanitize` expects each to fail.

#![allow(unsafe_code)] // The faults are what this is for.

use std::cell::UnsafeCell;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use symmem_mem::{Tensor, launch};

/// Returns once two threads are here, in no order that a sanitizer knows of: one that is late could
/// else have been ordered after the other's end, and there would be no race.
fn meet() {
    static HERE: AtomicU32 = AtomicU32::new(0);
    HERE.fetch_add(1, Ordering::Relaxed);
    while HERE.load(Ordering::Relaxed) < 2 {
        std::thread::yield_now();
    }
}

/// A word that threads share without a word about order.
struct Shared(UnsafeCell<u64>);

// SAFETY: none is claimed; that this is wrong is the point.
unsafe impl Sync for Shared {}

impl Shared {
    fn bump(&self) {
        meet();
        // SAFETY: none is claimed: another thread does the same at the same time.
        unsafe { *self.0.get() += 1 };
    }
}

/// Two threads of std's, each in its own closure: suppressions by std's frames must not reach here.
fn race_in_threads() {
    let word = Shared(UnsafeCell::new(0));
    std::thread::scope(|threads| {
        threads.spawn(|| word.bump());
        threads.spawn(|| word.bump());
    });
}

/// The same below a `Drop` that std's `Arc` calls.
fn race_in_drop() {
    struct Bumps(Arc<Shared>);
    impl Drop for Bumps {
        fn drop(&mut self) {
            self.0.bump();
        }
    }
    let word = Arc::new(Shared(UnsafeCell::new(0)));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let bumps = Arc::new(Bumps(Arc::clone(&word)));
            std::thread::spawn(move || drop(bumps))
        })
        .collect();
    threads.into_iter().for_each(|thread| drop(thread.join()));
}

/// Two ranks write the same word of symmetric memory, with plain stores and no signal.
fn race_of_ranks() {
    let outcomes = launch::threads(2, |group| {
        let tensor = Tensor::<u64>::zeros(group.device(), &[1]).ok()?;
        let memory = group.rendezvous(&tensor, &group.wait()).ok()?;
        let word = memory.buffer_ptrs()[0].get() as *mut u64;
        meet();
        // SAFETY: the address is mapped while `memory` lives; that both ranks write is the fault.
        unsafe { word.write(group.rank().index() as u64) };
        Some(())
    });
    assert!(outcomes.is_ok_and(|all| all.iter().all(Option::is_some)), "the ranks did not start");
}

/// Memory read after it was given back.
fn use_after_free() {
    let word = Box::into_raw(Box::new(7_u64));
    // SAFETY: made by `Box::into_raw` just now, and given back once.
    drop(unsafe { Box::from_raw(word) });
    // SAFETY: none is claimed: it was given back.
    println!("{}", unsafe { word.read_volatile() });
}

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("race-in-threads") => race_in_threads(),
        Some("race-in-drop") => race_in_drop(),
        Some("race-of-ranks") => race_of_ranks(),
        Some("use-after-free") => use_after_free(),
        other => {
            eprintln!("no such fault: {other:?}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
