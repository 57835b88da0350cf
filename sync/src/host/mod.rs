//! The protocols on memory that a CPU can load from and store to: what kernels of the host and of
//! the stub are made of.
//!
//! [`HostMemory`] says where the words are, [`Session`] takes one operation through the protocol,
//! waiting where a poll misses. An executor in the layers above uses a session and moves payload;
//! it contains no protocol.

mod memory;
mod session;
mod signal;
mod state;
mod wait;

pub use memory::HostMemory;
pub(crate) use memory::Words;
pub use session::{Ended, LaneArgs, Session};
use signal::KERNELS;
pub(crate) use signal::{PutArgs, SignalArgs};
pub(crate) use state::Host;
pub(crate) use wait::GRACE;
