//! Symmetric memory: every rank of a group allocates the same buffer, a rendezvous maps each rank's
//! buffer into every other rank, and from then on ranks read, write and signal each other's memory
//! directly.
//!
//! This crate is the facade: it re-exports the layers, each of which can be used and vendored alone.
//!
//! | layer | crate | what it owns |
//! |---|---|---|
//! | [`sys`] | `symmem-sys` | tables of driver functions, resolved at run time |
//! | [`hal`] | `symmem-hal` | devices, streams, memory, types, errors |
//! | [`mem`] | `symmem-mem` | groups, rendezvous, handles, liveness, launching |
//! | [`sync`] | `symmem-sync` | signals, barriers, lanes, protocols |
//! | [`collectives`] | `symmem-collectives` | all-reduce, all-gather, reduce-scatter, broadcast, reduce, all-to-all |
//! | [`moe`] | `symmem-moe` | all-to-all-v with splits on the device, dispatch and combine of routed tokens |
//!
//! # Does
//!
//! - Run on any CPU, with ranks as processes or as threads; on a device in software that proves that
//!   nothing assumes a CPU; on NVIDIA GPUs (feature `cuda`).
//! - Answer a mistake with an error that names it: a rank that is missing, dead, late, or in another
//!   call is named on every other rank, within a deadline.
//!
//! # Does not
//!
//! - Need privileges, daemons, toolkits or network cards; leave anything behind.
//! - Wait for ever: every blocking call has a bound.
//!
//! # Choices
//!
//! - *Features are the layers*, each implying those below: `sync`, `collectives`, `moe` (default), `sys`
//!   (default) for what the command's `info` shows, and `cuda` (default) for NVIDIA GPUs. A feature adds
//!   modules and never changes a type.
//! - *Public types are not generic over the backend*: the same program runs on each.
//!
//! # Two ranks
//!
//! ```
//! use symmem::prelude::*;
//!
//! symmem::launch::threads(2, |group| {
//!     let x = Tensor::<f32>::zeros(group.device(), &[1 << 16])?;
//!     let memory = group.rendezvous(&x, &group.wait())?;
//!     x.write(&vec![group.rank().index() as f32; 1 << 16])?;
//!     group.all_reduce(&x).op(ReduceOp::Sum).run()?; // in place, by default
//!     assert_eq!(x.to_vec()?, vec![1.0; 1 << 16]);
//!     memory.barrier(Channel(0)).run()?;
//!     Ok::<_, symmem::Error>(())
//! })?
//! .into_iter()
//! .collect::<Result<(), _>>()?;
//! # Ok::<(), symmem::Error>(())
//! ```

mod error;

pub use error::Error;
#[cfg(feature = "collectives")]
pub use symmem_collectives as collectives;
pub use symmem_hal as hal;
pub use symmem_mem as mem;
pub use symmem_mem::launch;
#[cfg(feature = "moe")]
pub use symmem_moe as moe;
#[cfg(feature = "sync")]
pub use symmem_sync as sync;
#[cfg(feature = "sys")]
pub use symmem_sys as sys;

/// Every kernel of the layers here, for whoever compiles them ahead of time.
pub const KERNEL_UNITS: &[&hal::kernels::KernelUnits] = &[
    &hal::kernels::UNITS,
    #[cfg(all(feature = "sync", feature = "cuda"))]
    &sync::gpu::UNITS,
    #[cfg(all(feature = "collectives", feature = "cuda"))]
    &collectives::gpu::UNITS,
    #[cfg(all(feature = "moe", feature = "cuda"))]
    &symmem_moe::gpu::UNITS,
];

/// Everything a program needs, in one `use`.
pub mod prelude {
    #[cfg(feature = "collectives")]
    pub use symmem_collectives::{Algorithm, Collectives, ReduceOp};
    pub use symmem_hal::types::{Bytes, DType, Element, Layout, Rank, RankSet, bf16, f16};
    pub use symmem_hal::{
        CancelToken, Device, DevicePtr, Fault, Graph, Kind, Stream, StreamMode, Wait,
    };
    pub use symmem_mem::{
        Allocation, Completion, Determinism, Failure, Group, MemoryPool, Options, SymmetricMemory,
        Tensor, View,
    };
    #[cfg(feature = "moe")]
    pub use symmem_moe::{Moe, Routing, RoutingOptions};
    #[cfg(feature = "sync")]
    pub use symmem_sync::{Channel, Lanes, Puts, Signals};
}

/// The README's program is a test.
#[cfg(all(doctest, feature = "collectives"))]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
