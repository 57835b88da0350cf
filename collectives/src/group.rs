//! The collectives of a group.

use symmem_hal::types::{DType, Element, Rank, ReduceOp};
use symmem_mem::{Group, View};

use crate::all_gather::{AllGather, AllGatherError};
use crate::all_reduce::{AllReduce, AllReduceError};
use crate::all_to_all::{AllToAll, AllToAllError};
use crate::all_to_all_nd::AllToAllNd;
use crate::broadcast::{Broadcast, BroadcastError};
use crate::call::{self, Buffer, Call, CallError};
use crate::reduce::{Reduce, ReduceError};
use crate::reduce_scatter::{ReduceScatter, ReduceScatterError};
use crate::reduce_scatter_offset::ReduceScatterOffset;

/// The collectives of a [`Group`].
///
/// The calls on views begin one: nothing happens before [`run`](Call::run) or [`on`](Call::on).
/// They work in place unless told `into` where else the result goes; what "in place" means is said
/// by each. Those on slices have happened when they return; they need a group of the host.
pub trait Collectives {
    /// All-reduce: every rank gets the element-wise reduction of all ranks' views, by sum unless
    /// told otherwise.
    fn all_reduce<'a>(&'a self, x: &'a (impl AsRef<View> + ?Sized)) -> Call<'a, AllReduce<'a>>;

    /// All-gather: every rank gets the blocks of all ranks, in rank order.
    ///
    /// In place, the view holds a block for each rank, of which this rank's is its own.
    fn all_gather<'a>(&'a self, x: &'a (impl AsRef<View> + ?Sized)) -> Call<'a, AllGather<'a>>;

    /// Reduce-scatter: every rank gets its block of the element-wise reduction of all ranks' views,
    /// by sum unless told otherwise.
    ///
    /// In place, this rank's block of the view is replaced by the result. The other blocks stay.
    fn reduce_scatter<'a>(
        &'a self,
        x: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, ReduceScatter<'a>>;

    /// Broadcast: every rank gets what the root has.
    fn broadcast<'a>(
        &'a self,
        x: &'a (impl AsRef<View> + ?Sized),
        root: Rank,
    ) -> Call<'a, Broadcast<'a>>;

    /// Reduce: the root gets the element-wise reduction of all ranks' views, by sum unless told
    /// otherwise. The other ranks' memory stays as it is.
    fn reduce<'a>(&'a self, x: &'a (impl AsRef<View> + ?Sized), root: Rank)
    -> Call<'a, Reduce<'a>>;

    /// All-to-all: block r of rank s's view becomes block s of rank r's.
    fn all_to_all<'a>(&'a self, x: &'a (impl AsRef<View> + ?Sized)) -> Call<'a, AllToAll<'a>>;

    /// All-to-all of dimensions: one dimension of a tensor is cut into a part for each rank, and what
    /// comes from all ranks is joined along another; by default 1 is cut and 0 is joined.
    ///
    /// As a sequence-parallel attention needs it: of `[rows, ranks * columns]`, each rank sends every
    /// rank its columns and gets `[ranks * rows, columns]`. With `dims(0, 1)` the other way round.
    fn all_to_all_nd<'a>(
        &'a self,
        input: &'a (impl AsRef<View> + ?Sized),
        output: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, AllToAllNd<'a>>;

    /// Reduce-scatter of uneven blocks: of a tensor `[rows, columns]` that is cut along a dimension,
    /// each block's element-wise reduction goes to one rank; by sum unless told otherwise.
    ///
    /// `outputs` are where this rank's blocks go, in their order. Rows may be further apart than
    /// they are long.
    fn reduce_scatter_offset<'a>(
        &'a self,
        input: &'a (impl AsRef<View> + ?Sized),
        outputs: &'a [&'a View],
    ) -> Call<'a, ReduceScatterOffset<'a>>;

    /// Loads what the operations of this group need, of reductions those of these types and operators,
    /// so that they can be captured: beside [`Lane::prepare`](symmem_sync::Lane::prepare). Local. The
    /// first call outside of a capture loads what it needs itself; on the host nothing has to be. What
    /// [`Algorithm::Multimem`](crate::Algorithm::Multimem) needs is loaded where the group's options and
    /// device allow that.
    ///
    /// Where ranks share a GPU as threads of a process, call it before one of them waits for another: the
    /// driver loads code when no kernel of the process runs on the device. There, start the process with
    /// `CUDA_MODULE_LOADING=EAGER` and `CUDA_DEVICE_MAX_CONNECTIONS=32`, too: the driver loads kernels of its
    /// own, and gives each stream a queue.
    ///
    /// # Errors
    ///
    /// [`CallError`]: an operator that a type does not have; kernels that cannot be had.
    fn prepare(&self, reductions: &[(DType, ReduceOp)]) -> Result<(), CallError>;

    /// As [`all_reduce`](Self::all_reduce), from a slice into another of equal length.
    ///
    /// # Errors
    ///
    /// [`AllReduceError`].
    fn all_reduce_slice<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), AllReduceError>;

    /// As [`all_reduce_slice`](Self::all_reduce_slice), in place.
    ///
    /// # Errors
    ///
    /// [`AllReduceError`].
    fn all_reduce_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<(), AllReduceError>;

    /// As [`all_gather`](Self::all_gather), from this rank's block into a slice of all blocks.
    ///
    /// # Errors
    ///
    /// [`AllGatherError`].
    fn all_gather_slice<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), AllGatherError>;

    /// As [`reduce_scatter`](Self::reduce_scatter), from a slice of all blocks into this rank's.
    ///
    /// # Errors
    ///
    /// [`ReduceScatterError`].
    fn reduce_scatter_slice<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), ReduceScatterError>;

    /// As [`broadcast`](Self::broadcast), from the root's slice into all others.
    ///
    /// # Errors
    ///
    /// [`BroadcastError`].
    fn broadcast_slice<T: Element>(&self, data: &mut [T], root: Rank)
    -> Result<(), BroadcastError>;

    /// As [`reduce`](Self::reduce), into the root's slice.
    ///
    /// # Errors
    ///
    /// [`ReduceError`].
    fn reduce_slice<T: Element>(
        &self,
        data: &mut [T],
        root: Rank,
        op: ReduceOp,
    ) -> Result<(), ReduceError>;

    /// As [`all_to_all`](Self::all_to_all), from a slice into another of equal length.
    ///
    /// # Errors
    ///
    /// [`AllToAllError`].
    fn all_to_all_slice<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), AllToAllError>;
}

impl Collectives for Group {
    fn all_reduce<'a>(&'a self, x: &'a (impl AsRef<View> + ?Sized)) -> Call<'a, AllReduce<'a>> {
        let x = Buffer::of(x.as_ref());
        Call::new(self, AllReduce::new(x, x, ReduceOp::Sum))
    }

    fn all_gather<'a>(&'a self, x: &'a (impl AsRef<View> + ?Sized)) -> Call<'a, AllGather<'a>> {
        Call::new(self, AllGather::new(Buffer::of(x.as_ref()), None))
    }

    fn reduce_scatter<'a>(
        &'a self,
        x: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, ReduceScatter<'a>> {
        Call::new(self, ReduceScatter::new(Buffer::of(x.as_ref()), None, ReduceOp::Sum))
    }

    fn broadcast<'a>(
        &'a self,
        x: &'a (impl AsRef<View> + ?Sized),
        root: Rank,
    ) -> Call<'a, Broadcast<'a>> {
        let x = Buffer::of(x.as_ref());
        Call::new(self, Broadcast::new(x, x, root))
    }

    fn reduce<'a>(
        &'a self,
        x: &'a (impl AsRef<View> + ?Sized),
        root: Rank,
    ) -> Call<'a, Reduce<'a>> {
        let x = Buffer::of(x.as_ref());
        Call::new(self, Reduce::new(x, x, root, ReduceOp::Sum))
    }

    fn all_to_all<'a>(&'a self, x: &'a (impl AsRef<View> + ?Sized)) -> Call<'a, AllToAll<'a>> {
        let x = Buffer::of(x.as_ref());
        Call::new(self, AllToAll::new(x, x))
    }

    fn all_to_all_nd<'a>(
        &'a self,
        input: &'a (impl AsRef<View> + ?Sized),
        output: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, AllToAllNd<'a>> {
        let (input, output) = (Buffer::of(input.as_ref()), Buffer::of(output.as_ref()));
        Call::new(self, AllToAllNd::new(input, output))
    }

    fn reduce_scatter_offset<'a>(
        &'a self,
        input: &'a (impl AsRef<View> + ?Sized),
        outputs: &'a [&'a View],
    ) -> Call<'a, ReduceScatterOffset<'a>> {
        Call::new(self, ReduceScatterOffset::new(Buffer::of(input.as_ref()), outputs))
    }

    fn prepare(&self, reductions: &[(DType, ReduceOp)]) -> Result<(), CallError> {
        call::prepare(self, reductions)
    }

    fn all_reduce_slice<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), AllReduceError> {
        let (input, output) = (Buffer::slice(input), Buffer::slice_mut(output));
        Call::new(self, AllReduce::new(input, output, op)).run()
    }

    fn all_reduce_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<(), AllReduceError> {
        let data = Buffer::slice_mut(data);
        Call::new(self, AllReduce::new(data, data, op)).run()
    }

    fn all_gather_slice<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), AllGatherError> {
        let (input, output) = (Buffer::slice(input), Buffer::slice_mut(output));
        Call::new(self, AllGather::new(input, Some(output))).run()
    }

    fn reduce_scatter_slice<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), ReduceScatterError> {
        let (input, output) = (Buffer::slice(input), Buffer::slice_mut(output));
        Call::new(self, ReduceScatter::new(input, Some(output), op)).run()
    }

    fn broadcast_slice<T: Element>(
        &self,
        data: &mut [T],
        root: Rank,
    ) -> Result<(), BroadcastError> {
        let data = Buffer::slice_mut(data);
        Call::new(self, Broadcast::new(data, data, root)).run()
    }

    fn reduce_slice<T: Element>(
        &self,
        data: &mut [T],
        root: Rank,
        op: ReduceOp,
    ) -> Result<(), ReduceError> {
        let data = Buffer::slice_mut(data);
        Call::new(self, Reduce::new(data, data, root, op)).run()
    }

    fn all_to_all_slice<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), AllToAllError> {
        let (input, output) = (Buffer::slice(input), Buffer::slice_mut(output));
        Call::new(self, AllToAll::new(input, output)).run()
    }
}
