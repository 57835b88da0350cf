//! Mixture-of-Experts layer of symmem: rows that go to the ranks of their experts, and back; tiles that are
//! reduced.
//!
//! # Does
//!
//! The operations of [`Moe`]:
//!
//! | operation | what a rank gets |
//! |---|---|
//! | [`all_to_all_vdev`](Moe::all_to_all_vdev) | rows from every rank, by rank |
//! | [`all_to_all_vdev_2d`](Moe::all_to_all_vdev_2d) | rows from every rank for each of its experts, by expert, padded as a grouped matrix product likes it |
//! | [`all_to_all_vdev_2d_offset`](Moe::all_to_all_vdev_2d_offset) | those rows back where they came from |
//! | [`Routing::dispatch`] | the tokens that have chosen its experts, by expert or by rank; quantised, if asked for, and with any other tensors of theirs |
//! | [`Routing::resend`] | other rows of the same tokens |
//! | [`Routing::combine`] | for each of its tokens, the weighted sum of what the experts have made of it |
//! | [`Landing::send`], [`receive`](Sent::receive), [`send_back`](Received::send_back), [`receive_back`](Received::receive_back) | dispatch and combine in halves, with other work between |
//! | [`tile_reduce`](Moe::tile_reduce) | the reduction of all ranks' tiles, on the root |
//! | [`multi_root_tile_reduce`](Moe::multi_root_tile_reduce) | that of one of several tiles, on the root of each |
//!
//! - *Splits stay on the device*: the host reads none, so that a call is one launch and can be captured, and
//!   each replay moves as many rows as the splits say then.
//! - *One verdict before a row moves*: all ranks have all splits first. Rows that do not fit, negative
//!   splits, splits beyond the input are a [`Refusal`] with the same numbers on every rank; nothing has
//!   moved, and the group goes on. Or rows that do not fit are [dropped](Overflow::Drop), in an order that
//!   is stated, and counted.
//! - *Any number of experts and ranks*, of which some may have nothing at all.
//! - *One copy for each rank*: a token that several experts of a rank have chosen travels there once, and is
//!   copied there.
//! - *The same bits*: a combine adds in the order of a token's choices, whoever has them and however they
//!   came ([`Routing::combine`]); on every backend, at every number of ranks.
//! - *Tiles are part of what they lie in*: rows of any length and any distance, of any memory, private or
//!   symmetric, in place or not. Every type and operator of an all-reduce, with the same bits; without
//!   multicast, and with nothing to be set up.
//!
//! # Layouts
//!
//! What a dispatch gives is one of three [`Layout`]s, part of the [`Routing`] that later calls go by, so that
//! none can be taken for another:
//!
//! | layout | rows of `[capacity, ...]` | a row is |
//! |---|---|---|
//! | [`Compact`](Layout::Compact) | by local expert, then source rank, token, choice; an expert's begin at a multiple of `align` | a choice |
//! | [`Padded`](Layout::Padded) | the same, with a fixed number of rows for each expert | a choice |
//! | [`RankMajor`](Layout::RankMajor) | by source rank, then token; a fixed number of rows for each rank | a token |
//!
//! *Padding* is whatever no token takes: rows between the last of an expert (or rank) and the first of the
//! next. It is never written, never read, and counted in no split, group or origin; what it holds stays. Where
//! a grouped matrix product reads it, the product's rows there mean nothing, and a combine does not look at
//! them. [`Routing::groups`] says on the device how many rows each expert (or rank) has, and where they begin;
//! one without rows may begin past the end.
//!
//! # Does not
//!
//! - Change a bit of what it moves; write padding, rows that no split names, what lies between the rows of a
//!   tile, or the output of a rank that is no root.
//! - Take what it cannot do right: overlapping tensors, private outputs, splits of another type are errors
//!   before anything is sent.
//!
//! # Choices
//!
//! - *Ranks push*: rows go from the input straight to their place in the output of their rank, once that
//!   rank's message has come, which says that its output is there to be written. Nothing is staged, and the
//!   input is free at the end.
//! - *Splits or counts go first, unless there are few*: what all ranks know of each other decides whether rows
//!   fit before one moves. On CPUs, few tokens are shown to all ranks at once instead ([`Route`]); a landing has
//!   room for whatever may come, so that its halves ask nobody.
//! - *A combine reads*: experts' rows stay where they were made, and each token's rank reads those that are its
//!   own: nothing is kept for them, and nothing is copied before it is added.
//! - *A [`Routing`] has memory of its own*: where tokens went is known by what the next calls are made with,
//!   and not by the last call of the group. Two in turn have nothing to do with each other. A [`Landing`]'s
//!   results are values that end: while two live, a third send is refused here, before anything is sent.
//! - *A refusal is told late, never early*: the call that tells of one is issued all the same. A rank that
//!   has heard of it already and one that has not do the same, so that nobody waits for somebody who will
//!   not come.
//! - *A tile is a block of a reduction*, of the one that collectives have: ranks store tiles into the workspace
//!   of their roots, or on the CPU roots read large ones where they lie. There is no second reduction here.
//!
//! # Two ranks
//!
//! ```
//! use symmem_moe::Moe;
//! use symmem_moe::mem::{Tensor, launch};
//!
//! // Each rank has three rows: one for rank 0, two for rank 1.
//! let received = launch::threads(2, |group| {
//!     let device = group.device();
//!     let rows = Tensor::<f32>::zeros(device, &[3, 2])?;
//!     let splits = Tensor::<i64>::zeros(device, &[2])?;
//!     let output = Tensor::<f32>::zeros(device, &[4, 2])?;
//!     let output_splits = Tensor::<i64>::zeros(device, &[2, 2])?;
//!     let _memory = group.rendezvous(&output, &group.wait())?;
//!     rows.write(&[group.rank().index() as f32; 6])?;
//!     splits.write(&[1, 2])?;
//!     group.all_to_all_vdev(&rows, &splits, &output, &output_splits).run()?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>((output.to_vec()?, output_splits.to_vec()?))
//! })?;
//! let received: Vec<_> = received.into_iter().map(Result::unwrap).collect();
//! assert_eq!(received[0], (vec![0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0], vec![1, 1, 0, 1]));
//! assert_eq!(received[1], (vec![0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], vec![2, 2, 0, 2]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A layer of experts
//!
//! ```
//! use symmem_moe::mem::{Tensor, launch};
//! use symmem_moe::{Moe, RoutingOptions};
//!
//! // Two ranks, four experts, of which each token chooses two; expert e multiplies by e + 1.
//! let sums = launch::threads(2, |group| {
//!     let device = group.device();
//!     let routing = group.routing(&RoutingOptions::new(4, 2, 3), &group.wait())?;
//!     let shape = [routing.capacity(), 1];
//!     let (x, y) = (Tensor::<f32>::zeros(device, &[3, 1])?, Tensor::<f32>::zeros(device, &[3, 1])?);
//!     let (rows, made) = (Tensor::<f32>::zeros(device, &shape)?, Tensor::<f32>::zeros(device, &shape)?);
//!     let choices = Tensor::<i64>::zeros(device, &[3, 2])?;
//!     let _rows = group.rendezvous(&rows, &group.wait())?;
//!     let _made = group.rendezvous(&made, &group.wait())?;
//!     x.write(&[1.0, 10.0, 100.0])?;
//!     choices.write(&[0, 3, 1, -1, 2, 3])?;
//!     routing.dispatch(&x, &choices, &rows).run()?;
//!     // Each local expert's rows follow each other.
//!     let (mut products, groups) = (rows.to_vec()?, routing.groups().to_vec()?);
//!     let (counts, starts) = groups.split_at(2);
//!     for (expert, (count, start)) in routing.local_experts().zip(counts.iter().zip(starts)) {
//!         for row in *start..start + count {
//!             products[row as usize] *= expert as f32 + 1.0;
//!         }
//!     }
//!     made.write(&products)?;
//!     routing.combine(&made, &y).run()?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(y.to_vec()?)
//! })?;
//! for sum in sums {
//!     assert_eq!(sum.unwrap(), [1.0 + 4.0, 20.0, 300.0 + 400.0]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod all_to_all_vdev;
mod call;
#[cfg(feature = "cuda")]
pub mod gpu;
mod group;
mod host;
mod kept;
mod landing;
mod routing;
mod tensors;
mod tile_reduce;
mod verdict;

pub use all_to_all_vdev::{AllToAllVdev, AllToAllVdevError, Overflow};
pub use call::{Call, Exchange};
pub use group::{Moe, VerdictError};
pub use landing::{
    Captured, CapturedResult, HalfError, LANDINGS, Landing, LandingError, LandingOptions,
    ReceiveBack, Received, SendBack, SendCall, Sent,
};
pub use routing::{
    Chosen, Combine, Dispatch, Layout, Origin, Route, RoutedError, Routing, RoutingError,
    RoutingOptions, RoutingOptionsError,
};
pub use symmem_collectives as collectives;
pub use symmem_hal as hal;
pub use symmem_mem as mem;
pub use symmem_sync as sync;
pub use tensors::TensorMismatch;
pub use tile_reduce::{TileReduce, TileReduceError};
pub use verdict::{Reason, Refusal};
