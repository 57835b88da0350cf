//! The protocols between ranks, as pure state machines.
//!
//! Does: say which word is loaded or stored when, in what order, and what follows from what was
//! found. Every step that can find a word missing is a poll that returns at once.
//!
//! Does not: know where words are ([`LaneMemory`], [`SignalMemory`], [`ControlMemory`] say), map
//! memory, sleep, read clocks, call the operating system.
//!
//! Choices:
//!
//! - Generic over the word ([`Word`]), so that the very code that runs on mapped memory runs on
//!   loom's atomics and on simulated store buffers. Kernels mirror the same steps by name.
//! - Load-acquire and store-release on words; no standalone fence. The one exception is the
//!   [`doorbell`], which needs a store ordered before a load.
//! - Proofs as values: what may not happen too early takes a value that only the wait before it
//!   gives ([`lane::Clear`], [`lane::Agreed`]).
//! - Epochs are compared for equality, so that they may wrap; a scrub twice a cycle removes what
//!   could be taken for new.
//!
//! The models are in `models`: seeded random schedules run with the tests, loom's with
//! `RUSTFLAGS="--cfg symmem_loom" cargo test -p symmem-sync --release loom`. The module's head
//! says what they cover and with which bounds.

pub mod barrier;
pub mod control;
pub mod doorbell;
pub mod epoch;
pub mod header;
pub mod lane;
pub mod memory;
#[cfg(test)]
mod models;
pub mod packet;
mod progress;
mod scrub;
pub mod slot;
pub mod word;

pub use control::{ControlMemory, ControlPage, Entry};
pub use epoch::{Epoch, Parity};
pub use header::{Difference, Header};
pub use lane::{Arrival, Call, Mismatch, Operation, Refused, Seat};
pub use memory::{LaneMemory, Placement, SignalMemory};
pub use progress::{Peers, Progress};
pub use word::{Word, Word32, Word64};
