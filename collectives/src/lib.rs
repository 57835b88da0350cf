//! Collectives layer of symmem.

mod all_reduce;
mod choice;
pub mod numerics;

pub use all_reduce::{AllReduce, AllReduceError, AllReduceOps};
pub use choice::Algorithm;
pub use symmem_hal as hal;
pub use symmem_hal::types::ReduceOp;
pub use symmem_mem as mem;
pub use symmem_sync as sync;
