//! Hardware layer of symmem.
#![doc = ""]
pub mod fault;
pub mod types;
mod wait;

pub use fault::{Fault, Kind};
pub use wait::{CancelGuard, CancelToken, Wait};
