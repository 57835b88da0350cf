//! The executor for GPUs: what is launched, on which grid, with which arguments. What happens then is
//! in `kernels/`.
//!
//! # Choices
//!
//! - *Nothing is read from a peer but by copy engines*: writes over a link are faster than reads. A
//!   rank stores packets or chunks into a peer's workspace, or results into its output, which is
//!   symmetric memory.
//! - *A two-shot stores into all ranks' outputs*. Where those are private, a one-shot does instead, at
//!   every size.
//! - *By the switch only what it is asked for*: its sums have an order of their own, and its kernels know
//!   one address for the memory of all ranks. What it cannot do is an error, never done otherwise.
//! - *Code for each type and operator*, loaded at its first use, or by
//!   [`prepare`](crate::Collectives::prepare) before a capture, in which nothing can be loaded.

mod copies;
mod launch;
mod multimem;
mod plan;
mod shape;
mod units;

pub(crate) use launch::{
    Launching, access, is_aligned_everywhere, is_size_for_lines, launch, prepare,
};
pub(crate) use multimem::multimem;
pub(crate) use units::Kernels;
pub use units::{LINES_CUH, NUMERICS_CUH, PAYLOAD_CUH, UNITS};
