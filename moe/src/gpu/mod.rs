//! The executor for GPUs: what is launched, on which grid, with which arguments. What happens then is
//! in `kernels/`.
//!
//! # Choices
//!
//! - *A message of each rank for each other*, in packets, or through staging where it is too long for
//!   those: every block reads all of them and computes for itself where rows go, so that no block waits for
//!   another of its grid, and nothing is read by the host.
//! - *Warps take pieces of 2 KiB*, not rows or experts: however skewed the splits, all have as much to do.
//! - *A dispatch is two kernels* where rows are by expert: after the first one, whose blocks do not wait for
//!   each other, all rows have come, and the second copies those of tokens that several experts of this rank
//!   have chosen. Each token crosses a link once for each rank.
//! - *Halves are a kernel each*, without flags: the next one's header says that the one before has ended.
//! - *Nothing is allocated*: what does not fit beside the multiprocessors lies in this rank's staging.

mod launch;
mod plan;
mod routed;
mod units;

pub(crate) use launch::{Launching, launch};
pub(crate) use routed::{Calling, combine, dispatch, half};
pub(crate) use units::Kernels;
pub use units::UNITS;
