//! Models of the machines.
//!
//! One program (`program`) runs scripts of operations over model memory (`world`) on every block
//! of every rank and checks what it reads. It runs
//!
//! - on loom's atomics (`loom_*`, under `--cfg symmem_loom`): every interleaving and every value
//!   that a load may return, up to the stated preemption bound, of short scripts;
//! - on simulated store buffers (`random`): seeded random schedules of long ones.
//!
//! Each kind of check is shown to be able to fail: a program or a memory with one thing broken on
//! purpose must be caught.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

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
mod sim;
