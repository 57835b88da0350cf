//! Synchronization layer of symmem.

pub mod host;
mod lane;
mod layout;
pub mod protocol;
mod shared;
mod signals;

pub use lane::{Issue, Lane, LaneError, Lanes};
pub use layout::{Layout, WorkspaceTooSmall};
pub use shared::PrepareError;
pub use signals::{Channel, Signal, SignalError, Signals};
pub use symmem_hal as hal;
pub use symmem_mem as mem;
