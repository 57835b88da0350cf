//! The executor for GPUs: what is launched, on which grid, with which arguments. What happens then is
//! in `kernels/`.
//!
//! # Choices
//!
//! - *A message of each rank for each other*, in packets, or through staging where it is too long for
//!   those: every block reads all of them and computes for itself where rows go, and nothing is read by the host.
//! - *Few rows go in lines, together with the splits*, before their sender has heard of anybody: by the time they
//!   come, the receiver knows where they belong. Which rows those are follows from the splits, for each pair of
//!   ranks. More go straight to their places, which takes one crossing of the link and two fences.
//! - *Warps take pieces of 2 KiB*, not rows or experts: however skewed the splits, all have as much to do. Rows
//!   that stay on their rank are copied between those that cross the link, and take no time of their own.
//! - *A dispatch is one kernel.* Each token crosses a link once for each rank, to the place of the first of its
//!   experts there; when the blocks of all ranks have told each other that theirs are there, each copies
//!   tokens from there to their other places, and reads each once.
//! - *Short code*: such kernels run once through most of what they execute, and fetching it is what takes
//!   longest. What is rare is out of line, and loops that run once for each thread take the place of scans.
//! - *Halves are a kernel each*, without flags: the next one's header says that the one before has ended.
//! - *Nothing is allocated*: what does not fit beside the multiprocessors lies in this rank's staging, and is
//!   placed by scans of warps.

mod launch;
mod plan;
mod routed;
mod units;

pub(crate) use launch::{Launching, launch};
pub(crate) use routed::{Calling, combine, dispatch, half};
pub(crate) use units::Kernels;
pub use units::UNITS;
