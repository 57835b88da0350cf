//! The operations of a group.

use symmem_collectives::CallError;
use symmem_hal::Wait;
use symmem_hal::types::Rank;
use symmem_mem::{Group, View};
use symmem_sync::Lane;

use crate::all_to_all_vdev::AllToAllVdev;
use crate::call::Call;
use crate::kept::Kept;
use crate::landing::{Landing, LandingError, LandingOptions};
use crate::routing::{Routing, RoutingError, RoutingOptions};
use crate::tile_reduce::TileReduce;
use crate::verdict::Refusal;

/// Routed rows and tiles of a [`Group`].
///
/// Each begins a call: nothing happens before [`run`](Call::run) or [`on`](Call::on).
pub trait Moe {
    /// All-to-all-v with splits on the device: rows of `input` go to the ranks that `in_splits` says, in
    /// rank order, and those from all ranks come to `output`, in rank order.
    ///
    /// `input` `[rows, ...]`, `output` `[capacity, ...]` of the same row, symmetric; `in_splits` `[ranks]`
    /// of i64: rows for each rank, one after the other from the input's first on; `out_splits` `[2, ranks]`
    /// of i64, written: rows from each rank, and where they begin in the output. No two share bytes.
    ///
    /// Rows of the output that no split names stay as they are. The input may be overwritten once the call
    /// has completed.
    fn all_to_all_vdev<'a>(
        &'a self,
        input: &'a (impl AsRef<View> + ?Sized),
        in_splits: &'a (impl AsRef<View> + ?Sized),
        output: &'a (impl AsRef<View> + ?Sized),
        out_splits: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, AllToAllVdev<'a>>;

    /// As [`all_to_all_vdev`](Self::all_to_all_vdev), of rows for experts, `experts` on each rank: what a
    /// dispatch moves.
    ///
    /// `in_splits` `[ranks * experts]`: rows for each expert of each rank, by rank then expert, one after
    /// the other from the input's first on. The output is by expert, then source rank; `out_splits`
    /// `[2, experts * ranks]` in that order. Each expert's rows begin at a multiple of
    /// [`major_align`](Call::major_align), 1 unless told otherwise; an expert without rows takes one such
    /// multiple. Padding lies after an expert's last row and is not written; splits do not count it.
    fn all_to_all_vdev_2d<'a>(
        &'a self,
        input: &'a (impl AsRef<View> + ?Sized),
        in_splits: &'a (impl AsRef<View> + ?Sized),
        output: &'a (impl AsRef<View> + ?Sized),
        out_splits: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, AllToAllVdev<'a>>;

    /// The way back of [`all_to_all_vdev_2d`](Self::all_to_all_vdev_2d): rows by expert and rank go to the
    /// ranks.
    ///
    /// `in_splits` `[2, experts * ranks]`: what the dispatch wrote, splits by expert then rank and where the
    /// rows of each begin in `input`; `output` gets them by source rank, then expert, without padding, and
    /// `out_splits` `[2, ranks * experts]` in that order. After a dispatch, that is its input.
    fn all_to_all_vdev_2d_offset<'a>(
        &'a self,
        input: &'a (impl AsRef<View> + ?Sized),
        in_splits: &'a (impl AsRef<View> + ?Sized),
        output: &'a (impl AsRef<View> + ?Sized),
        out_splits: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, AllToAllVdev<'a>>;

    /// A routing, for [`dispatch`](Routing::dispatch) and [`combine`](Routing::combine), with the memory that
    /// those need. Collective: every rank makes the same, in the same order among its rendezvous.
    ///
    /// # Errors
    ///
    /// [`RoutingError`], for other options on every rank.
    fn routing(&self, options: &RoutingOptions, wait: &Wait) -> Result<Routing, RoutingError>;

    /// A landing, for dispatch and combine in halves, with the memory that those need. Collective: every rank
    /// makes the same, in the same order among its rendezvous.
    ///
    /// # Errors
    ///
    /// [`LandingError`], for other options on every rank.
    fn landing(&self, options: &LandingOptions, wait: &Wait) -> Result<Landing, LandingError>;

    /// Tile reduction: the root gets the element-wise reduction of all ranks' tiles, by sum unless told
    /// otherwise.
    ///
    /// A tile is a view of two dimensions, whose rows have no gaps in them and any gap between them, or of one,
    /// which is a row. Tiles have the same shape and type everywhere, and rows as far apart as each rank likes;
    /// only where `in_tile` is symmetric memory, it lies at the same place with the same strides on every rank.
    ///
    /// Nothing but the elements of the root's `out_tile` is written. It may be `in_tile` itself, which is in
    /// place; else the two share no element, though they may lie in one matrix. On other ranks it is not looked
    /// at.
    fn tile_reduce<'a>(
        &'a self,
        in_tile: &'a (impl AsRef<View> + ?Sized),
        out_tile: &'a (impl AsRef<View> + ?Sized),
        root: Rank,
    ) -> Call<'a, TileReduce<'a>>;

    /// As [`tile_reduce`](Self::tile_reduce), of several tiles at once: the reduction of tile `i` goes to rank
    /// `roots[i]`.
    ///
    /// A rank is the root of one tile at most, and passes where its reduction goes; who is the root of none
    /// passes no output, and takes part. Tiles are of one type, each of a shape of its own, and in any
    /// allocations. Where all lie in one that is symmetric memory, they lie at the same places with the same
    /// strides on every rank. The output may be this rank's own tile itself, and shares no element with any
    /// other.
    fn multi_root_tile_reduce<'a>(
        &'a self,
        in_tiles: &'a [&'a View],
        out_tile: Option<&'a View>,
        roots: &'a [Rank],
    ) -> Call<'a, TileReduce<'a>>;

    /// Loads what the operations of this layer need, so that they can be captured: beside
    /// [`Lane::prepare`](symmem_sync::Lane::prepare). Local. The first call outside of a capture loads what it
    /// needs itself; on the host nothing has to be. Where ranks share a GPU as threads of a process, call it
    /// before one of them waits for another, as
    /// [`Collectives::prepare`](symmem_collectives::Collectives::prepare).
    ///
    /// # Errors
    ///
    /// [`CallError`]: kernels that cannot be had.
    fn prepare_moe(&self) -> Result<(), CallError>;

    /// Whether a call that has completed on a lane was refused since this was last asked, or told by a call
    /// on the lane. Local; waits for nothing.
    ///
    /// # Errors
    ///
    /// [`VerdictError::Refused`] says which rank's splits or output it was for.
    fn verdict(&self, lane: Lane<'_>) -> Result<(), VerdictError>;

    /// Rows sent to this rank that calls of [`Overflow::Drop`](crate::Overflow::Drop) on a lane have dropped
    /// since this was last asked. Local; of calls that have completed.
    ///
    /// # Errors
    ///
    /// [`CallError`] where the group has no room for what this layer keeps.
    fn take_dropped(&self, lane: Lane<'_>) -> Result<u64, CallError>;
}

/// Why there is no good verdict.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerdictError {
    /// A call was refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The lane is another group's, or the group has no room for what this layer keeps.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl symmem_hal::Fault for VerdictError {
    fn kind(&self) -> symmem_hal::Kind {
        match self {
            VerdictError::Refused(e) => e.kind(),
            VerdictError::Call(e) => e.kind(),
        }
    }

    fn ranks(&self) -> symmem_hal::types::RankSet {
        match self {
            VerdictError::Refused(e) => e.ranks(),
            VerdictError::Call(e) => e.ranks(),
        }
    }
}

impl Moe for Group {
    fn all_to_all_vdev<'a>(
        &'a self,
        input: &'a (impl AsRef<View> + ?Sized),
        in_splits: &'a (impl AsRef<View> + ?Sized),
        output: &'a (impl AsRef<View> + ?Sized),
        out_splits: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, AllToAllVdev<'a>> {
        let views = [input.as_ref(), in_splits.as_ref(), output.as_ref(), out_splits.as_ref()];
        Call::new(self, AllToAllVdev::flat(views))
    }

    fn all_to_all_vdev_2d<'a>(
        &'a self,
        input: &'a (impl AsRef<View> + ?Sized),
        in_splits: &'a (impl AsRef<View> + ?Sized),
        output: &'a (impl AsRef<View> + ?Sized),
        out_splits: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, AllToAllVdev<'a>> {
        let views = [input.as_ref(), in_splits.as_ref(), output.as_ref(), out_splits.as_ref()];
        Call::new(self, AllToAllVdev::dispatch(views))
    }

    fn all_to_all_vdev_2d_offset<'a>(
        &'a self,
        input: &'a (impl AsRef<View> + ?Sized),
        in_splits: &'a (impl AsRef<View> + ?Sized),
        output: &'a (impl AsRef<View> + ?Sized),
        out_splits: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, AllToAllVdev<'a>> {
        let views = [input.as_ref(), in_splits.as_ref(), output.as_ref(), out_splits.as_ref()];
        Call::new(self, AllToAllVdev::combine(views))
    }

    fn routing(&self, options: &RoutingOptions, wait: &Wait) -> Result<Routing, RoutingError> {
        Routing::new(self, options, wait)
    }

    fn landing(&self, options: &LandingOptions, wait: &Wait) -> Result<Landing, LandingError> {
        Landing::new(self, options, wait)
    }

    fn tile_reduce<'a>(
        &'a self,
        in_tile: &'a (impl AsRef<View> + ?Sized),
        out_tile: &'a (impl AsRef<View> + ?Sized),
        root: Rank,
    ) -> Call<'a, TileReduce<'a>> {
        Call::new(self, TileReduce::one(in_tile.as_ref(), out_tile.as_ref(), root))
    }

    fn multi_root_tile_reduce<'a>(
        &'a self,
        in_tiles: &'a [&'a View],
        out_tile: Option<&'a View>,
        roots: &'a [Rank],
    ) -> Call<'a, TileReduce<'a>> {
        Call::new(self, TileReduce::several(in_tiles, out_tile, roots))
    }

    fn prepare_moe(&self) -> Result<(), CallError> {
        Kept::of(self)?.kernels.prepare()
    }

    fn verdict(&self, lane: Lane<'_>) -> Result<(), VerdictError> {
        Ok(kept(self, &lane)?.status.take(self, lane.index())?)
    }

    fn take_dropped(&self, lane: Lane<'_>) -> Result<u64, CallError> {
        Ok(kept(self, &lane)?.status.take_dropped(lane.index()))
    }
}

fn kept<'g>(group: &'g Group, lane: &Lane<'_>) -> Result<&'g Kept, CallError> {
    if lane.is_of(group) { Kept::of(group) } else { Err(CallError::Lane) }
}
