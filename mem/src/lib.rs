//! Memory layer of symmem.

pub mod bootstrap;
pub mod call;
mod exchange;
mod failure;
mod group;
mod handle;
pub mod launch;
pub mod liveness;
mod memory;
mod rendezvous;
pub mod store;

pub use exchange::ExchangeError;
pub use failure::Failure;
pub use group::{
    Completion, Determinism, Group, Layer, Options, RankError, Subgroup, SubgroupError,
};
pub use handle::{PeerError, SymmetricMemory};
pub use memory::{Allocation, Tensor, TensorError, View, ViewError, collect};
pub use rendezvous::{Mismatch, NotSymmetric, RendezvousError};
pub use symmem_hal as hal;
