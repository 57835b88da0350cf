//! The operations that can be measured.
//!
//! One that moves data is a [`Collective`], a small file each: its buffers, its call, what every
//! output must hold, and how its bandwidth compares with the hardware's. [`Sweep`] makes an
//! [`Operation`] of it: buffers of every size, checked, measured, checked again. [`Compared`] makes
//! one of a [`Comparison`], an all-reduce beside something else. What moves no data is an
//! [`Operation`] of its own.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod all_to_all_nd;
mod barrier;
mod bounds;
mod broadcast;
mod compared;
mod enqueue;
mod lanes;
mod moe;
mod one_sided;
mod reduce;
mod reduce_scatter;
mod reduce_scatter_offset;
mod rendezvous;
mod sweep;

pub use all_gather::AllGather;
pub use all_reduce::AllReduce;
pub use all_to_all::AllToAll;
pub use all_to_all_nd::AllToAllNd;
pub use barrier::Barrier;
pub use bounds::Bounds;
pub use broadcast::Broadcast;
pub use compared::{Compared, Comparison};
pub use enqueue::Enqueue;
pub use lanes::TwoLanes;
pub use moe::{Arrangement, Moe, Part, RoutesError, Setting};
pub use one_sided::OneSided;
pub use reduce::Reduce;
pub use reduce_scatter::ReduceScatter;
pub use reduce_scatter_offset::ReduceScatterOffset;
pub use rendezvous::Rendezvous;
pub use sweep::{Placement, Sweep};

use symmem::collectives;
use symmem::hal::types::{Bytes, LayoutError};
use symmem::prelude::*;

use super::check;
use super::member::{Member, RankError};
use super::report::Report;

/// An operation with everything that was asked about it; one and the same for all ranks.
pub trait Operation: Sync {
    /// Its name on the command line and in files.
    fn name(&self) -> &'static str;

    /// The element type's name; `-` where it has none.
    fn dtype(&self) -> &'static str;

    /// What exactly is measured, for people.
    fn describe(&self) -> String;

    /// What an isolated iteration is, for people.
    fn isolated(&self) -> &'static str;

    /// What is checked, for people.
    fn checked(&self) -> &'static str;

    /// What bytes are, for people, where they are not the larger of a rank's send and receive buffer.
    fn counted(&self) -> Option<&'static str> {
        None
    }

    /// What else was asked for, for files.
    fn setting(&self) -> Option<serde_json::Value> {
        None
    }

    /// The sizes to measure, ascending: the larger of a rank's send and receive buffer.
    fn sizes(&self) -> &[Bytes];

    /// How many things are measured of each size, beside each other.
    fn variants(&self) -> usize {
        1
    }

    /// What the bandwidth is multiplied with to compare it with the hardware's, as nccl-tests does.
    fn bus_factor(&self, ranks: usize) -> f64;

    /// One rank's part: for each size in turn checks, measures, checks again and reports.
    fn measure(&self, member: &Member<'_>, report: &mut dyn FnMut(Report))
    -> Result<(), RankError>;
}

/// Elements of a rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub input: u64,
    pub output: u64,
}

/// Where a rank stands in one operation.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub rank: usize,
    pub ranks: usize,
    pub shape: Shape,
    /// Whether the smaller buffer lies in the larger one.
    pub in_place: bool,
}

/// A rank's buffers, and where its part runs.
pub struct Call<'a> {
    pub group: &'a Group,
    pub stream: &'a Stream,
    pub input: &'a View,
    pub output: &'a View,
}

/// An operation that moves data between ranks, reducing it or not.
pub trait Collective: Sync {
    /// Its name on the command line and in files.
    fn name(&self) -> &'static str;

    /// What it does with elements of a type, for people.
    fn describe(&self, dtype: DType) -> String;

    /// What inputs are reduced with, if they are.
    fn reduces(&self) -> Option<ReduceOp> {
        None
    }

    /// Whether ranks that it moves data between do not meet in it, so that checking it must make
    /// them meet.
    fn is_one_sided(&self) -> bool {
        false
    }

    /// Elements of which the larger buffer holds a multiple.
    fn granule(&self, ranks: usize) -> u64;

    /// A rank's buffers, of which the larger holds `count` elements, a multiple of the granule.
    fn shape(&self, rank: usize, ranks: usize, count: u64) -> Shape;

    /// How the elements of input and output are arranged, all of them.
    fn layouts(&self, place: &Place) -> Result<(Layout, Layout), LayoutError> {
        let Shape { input, output } = place.shape;
        Ok((Layout::flat(input), Layout::flat(output)))
    }

    /// In place, the element of the larger buffer at which the smaller one begins; for what can be
    /// done in place.
    fn in_place(&self, _: &Place) -> u64 {
        0
    }

    /// What the bandwidth is multiplied with to compare it with the hardware's, as nccl-tests does.
    fn bus_factor(&self, ranks: usize) -> f64;

    /// What a rank's output holds afterwards.
    fn expected(&self, place: &Place) -> Vec<check::Part>;

    /// The name of the algorithm that the call takes; the same on every rank, as are errors.
    fn algorithm(&self, call: &Call<'_>) -> Result<String, RankError>;

    /// Enqueues the call.
    fn issue(&self, call: &Call<'_>) -> Result<(), RankError>;
}

/// The name of the algorithm that one of the library's collectives takes.
fn chosen<O: collectives::Collective>(
    call: &collectives::Call<'_, O>,
) -> Result<String, RankError> {
    Ok(call.chosen()?.name().to_owned())
}
