//! Collectives layer of symmem: operations of all ranks of a group on symmetric memory.
//!
//! # Does
//!
//! The operations of [`Collectives`], on any number of ranks, of any count (none and odd ones too), of
//! every element type, at any element's address, on views or on slices, in place or not:
//!
//! | operation | what a rank gets | in place |
//! |---|---|---|
//! | [`all_reduce`](Collectives::all_reduce) | the reduction of all ranks' elements | yes |
//! | [`all_gather`](Collectives::all_gather) | all ranks' blocks | its own block of the output |
//! | [`reduce_scatter`](Collectives::reduce_scatter) | its block of the reduction; or its columns, [`last_dim`](Call::last_dim) | its own block of the input |
//! | [`broadcast`](Collectives::broadcast) | what the root has | yes |
//! | [`reduce`](Collectives::reduce) | the reduction, on the root | yes |
//! | [`all_to_all`](Collectives::all_to_all) | a block from each rank | yes |
//! | [`reduce_scatter_offset`](Collectives::reduce_scatter_offset) | the reduction of the blocks that are its own, of any number and size | no |
//! | [`all_to_all_nd`](Collectives::all_to_all_nd) | one dimension cut, another joined | no |
//!
//! - *The same bits everywhere*: on every rank, at every repetition, for every size and algorithm, on
//!   every backend ([`numerics`] says how each type is reduced). Sums of 8 and 16 bits are formed in
//!   32 and rounded once. What only moves keeps all its bits.
//! - *Any call against any other*: a rank that issues another operation, count, type, root, list of
//!   blocks or memory is told, and so are its peers: at once where one consumes the other's data, else
//!   (the root of a broadcast, a rank that sends to a root) by one of the next two operations on the
//!   lane, by the next barrier of the group, or at once in a group with
//!   [`Completion::Group`](symmem_mem::Completion).
//!
//! # Does not
//!
//! - Change its answer with the algorithm: they differ in time alone. But for
//!   [`Algorithm::Multimem`], which is never chosen, only asked for.
//! - Take what it cannot do right: views with gaps, partial overlap, operators that a type does not
//!   have are errors before anything is sent.
//! - Say anything about *other* ranks' buffers when it completes, unless the group was made with
//!   [`Completion::Group`](symmem_mem::Completion): barrier before you touch one.
//!
//! # Choices
//!
//! - *Builders*: `group.all_reduce(&x).op(op).into(&y).on(&stream)`. Copy, and without allocation. What
//!   they share is one type, [`Call`]; what an operation adds are methods on it.
//! - *Validation, choice and plan are written once*; an executor contains neither. On the CPU it is
//!   Rust, on GPUs one kernel source.
//! - *Two shapes of executor*: one that moves parts, one that reduces them. An operation is a geometry
//!   (which bytes a rank has for each rank, and where they go) and who has data for whom.
//! - *The choice is a function of agreed values*: bytes, ranks, backend, workspace. Never of addresses.
//! - *Symmetric memory is reached into where it lies* once it is large: readers pull from inputs, and
//!   where only outputs are symmetric, writers push into those; on a GPU writers always do, since a link
//!   carries writes faster than reads. All else is staged, a cacheful at a time. All ranks must do the
//!   same, and the signature says so if one does not.
//! - *A root does not wait*: who gives and takes nothing now is waited for one operation later.
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
#[cfg(feature = "cuda")]
pub mod gpu;
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
pub use call::{Call, CallError, Collective, NoMultimem};
#[doc(hidden)]
pub use call::{Refused, Rows, Site, Tile, TileReduction};
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
