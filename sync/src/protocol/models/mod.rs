//! Models of the machines.
//!
//! One program (`program` for lanes, `signals` for channels) does what an executor does, step by
//! step, over model memory (`world`), on every block of every rank, and checks what it reads. It
//! runs
//!
//! - on loom's atomics (`loom_*`): every interleaving, and every value that a load may return, of
//!   short scripts;
//! - on simulated store buffers (`random*`): seeded random schedules of long ones, 10^5 in all.
//!
//! ```sh
//! cargo test -p symmem-sync                                                   # random schedules
//! SYMMEM_SEED=4711 cargo test -p symmem-sync random_schedules_of_lanes        # one of them
//! RUSTFLAGS="--cfg symmem_loom" cargo test -p symmem-sync --release loom \
//!     --target-dir target-loom -- --nocapture                                 # loom, with counts
//! ```
//!
//! Each kind of check is shown to be able to fail: a program or a memory with one thing broken on
//! purpose must be caught (`*_catch*`).
//!
//! What loom explores, in both placements unless said otherwise; "unbounded" is without a bound
//! on preemptions:
//!
//! | model | bound |
//! |---|---|
//! | 2 ranks, scripts X Y X of every ordered pair of operations | unbounded |
//! | 2 ranks, two sizes, scripts X Y and Y X Y | unbounded |
//! | 3 ranks, scripts X Y | unbounded; 4 where Y is an exchange |
//! | 2 ranks of 2 blocks, one operation of 1 or 2 blocks | unbounded |
//! | 2 ranks of 2 blocks, pairs of different grids; scrub and wrap | 0: switches at waits only |
//! | 2 ranks across scrub and wrap with stale words of the coming epoch | unbounded |
//! | 2 ranks, every run ends | 2 |
//! | 2 ranks, calls that differ, also the last ones; looks back at equal ones; deadlines | 2 (3 ranks: 0, shared) |
//! | a rank that dies, before and after its stores | 3 |
//! | reports of 2 ranks, settling, overlapping entries, slots, doorbell of one waiter | unbounded |
//! | reports of 3 ranks | 3 |
//! | barrier of 2 ranks, of 3 | unbounded, 4 |
//! | reset, given up and retried | unbounded without retries, 3 with |
//! | doorbell of two waiters | 2 |
//!
//! Limits. An exploration that is unbounded lets programs end at their first miss, see
//! [`program::Stop::Blocked`]; that runs end is for the others. loom looks for races with the last
//! access to a word only, so where a thread reads a word and then stores it, loom may not reverse
//! that store with an earlier read of another thread; waits that go on after a miss make up for
//! it. Store buffers do not reorder loads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(dead_code, reason = "loom models use what random schedules do not, and the reverse")]

mod program;
mod signals;
mod world;

#[cfg(symmem_loom)]
mod loom_control;
#[cfg(symmem_loom)]
mod loom_failures;
#[cfg(symmem_loom)]
mod loom_lane;
#[cfg(symmem_loom)]
mod loom_signals;
#[cfg(symmem_loom)]
mod loom_words;
#[cfg(not(symmem_loom))]
mod random;
#[cfg(not(symmem_loom))]
mod random_signals;
#[cfg(not(symmem_loom))]
mod sequential;
#[cfg(not(symmem_loom))]
mod sim;
