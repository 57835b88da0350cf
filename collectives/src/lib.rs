//! Collectives layer of symmem: operations of all ranks of a group on symmetric memory.
//!
//! # Does
//!
//! - All-reduce ([`Collectives`]) of any count, type and operator, on any number of ranks, in place or
//!   not, on views or on slices: by packets, one-shot, two-shot, or the fastest of them for the size.
//! - *The same bits everywhere*: on every rank, at every repetition, for every size and algorithm, on
//!   every backend ([`numerics`] says how each type is reduced).
//!
//! # Does not
//!
//! - Change its answer with the algorithm: they differ in time alone.
//! - Take what it cannot do right: views with gaps, partial overlap, operators that a type does not
//!   have are errors before anything is sent.
//! - Say anything about *other* ranks' buffers when it completes, unless the group was made with
//!   [`Completion::Group`](symmem_mem::Completion): barrier before you touch one.
//!
//! # Choices
//!
//! - *Builders*: `group.all_reduce(&x).op(op).into(&y).on(&stream)`. Copy, and without allocation.
//! - *Validation, choice and plan are written once*; an executor contains neither. On the CPU it is
//!   Rust, on GPUs one kernel source.
//! - *The choice is a function of agreed values*: bytes, ranks, backend, workspace. Never of addresses.
//! - *Inputs in symmetric memory are read where they lie* once they are large; all else is staged. All
//!   ranks must do the same, and the signature says so if one does not.
//!
//! # Two ranks
//!
//! ```
//! use symmem_collectives::mem::{Tensor, launch};
//! use symmem_collectives::{Collectives, ReduceOp};
//!
//! let sums = launch::threads(2, |group| {
//!     let x = Tensor::<f32>::zeros(group.device(), &[1000])?;
//!     let y = Tensor::<f32>::zeros(group.device(), &[1000])?;
//!     x.write(&[group.rank().index() as f32 + 1.0; 1000])?;
//!     group.all_reduce(&x).op(ReduceOp::Sum).into(&y).run()?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(y.to_vec()?)
//! })?;
//! for sum in sums {
//!     assert_eq!(sum.unwrap(), [3.0; 1000]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod all_gather;
mod all_reduce;
mod all_to_all;
mod all_to_all_nd;
mod broadcast;
mod call;
mod choice;
mod group;
mod host;
pub mod numerics;
mod reduce;
mod reduce_scatter;
mod reduce_scatter_offset;
mod table;

pub use all_gather::{AllGather, AllGatherError};
pub use all_reduce::{AllReduce, AllReduceError};
pub use all_to_all::{AllToAll, AllToAllError};
pub use all_to_all_nd::{AllToAllNd, AllToAllNdError};
pub use broadcast::{Broadcast, BroadcastError};
pub use call::{Call, CallError, Collective};
pub use choice::Algorithm;
pub use group::Collectives;
pub use reduce::{Reduce, ReduceError};
pub use reduce_scatter::{ReduceScatter, ReduceScatterError};
pub use reduce_scatter_offset::{ReduceScatterOffset, ReduceScatterOffsetError};
pub use symmem_hal as hal;
pub use symmem_hal::types::ReduceOp;
pub use symmem_mem as mem;
pub use symmem_sync as sync;
pub use table::{ChoiceRow, ChoiceTable, Step, TableError};
