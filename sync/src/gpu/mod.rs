//! The protocols on memory that only a device reaches: where their words are, and what kernels are
//! given. The steps themselves are in `kernels/`, where they have the names of
//! [`protocol`](crate::protocol).
//!
//! # Choices
//!
//! - *What is polled is local*: headers, flags, packets and barrier words lie in the memory of the rank
//!   that waits for them, one place for each writer.
//! - *A host page beside the device's*: kernels store there when something went wrong, so that asking
//!   how a group is costs a load and no driver call; the watcher stores there for kernels that
//!   wait.
//! - *An argument struct is a template and a few words*: a launch copies it, and allocates nothing.

mod args;
mod kernels;
mod layout;
mod signals;
mod state;

pub use args::{NEAR, SymmemLane};
pub use kernels::{SIGNALS, SYMMEM_LANE_CUH, SYMMEM_STALLS_CUH, SYMMEM_SYNC_CUH, UNITS};
pub use layout::{GpuLayout, WARP_LINES, WARP_VECTORS};
pub(crate) use state::{Called, Gpu, LaneMemory};
