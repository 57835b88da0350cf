//! Symmetric memory.

#[cfg(feature = "collectives")]
pub use symmem_collectives as collectives;
pub use symmem_hal as hal;
pub use symmem_mem as mem;
pub use symmem_mem::launch;
#[cfg(feature = "sync")]
pub use symmem_sync as sync;

/// Everything a program needs, in one `use`.
pub mod prelude {
    #[cfg(feature = "collectives")]
    pub use symmem_collectives::{Algorithm, AllReduceOps, ReduceOp};
    pub use symmem_hal::types::{Bytes, DType, Element, Layout, Rank, RankSet};
    pub use symmem_hal::{CancelToken, Device, Fault, Kind, Stream, StreamMode, Wait};
    pub use symmem_mem::{Allocation, Failure, Group, Options, SymmetricMemory, Tensor, View};
    #[cfg(feature = "sync")]
    pub use symmem_sync::{Channel, Lanes, Signals};
}
