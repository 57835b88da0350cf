//! The collectives of a group.

use symmem_hal::types::{Element, ReduceOp};
use symmem_mem::{Group, View};

use crate::all_reduce::{AllReduce, AllReduceError};
use crate::call::{Buffer, Call};

/// The collectives of a [`Group`].
///
/// The calls on views begin one: nothing happens before [`run`](Call::run) or [`on`](Call::on).
/// Those on slices have happened when they return; they need a group of the host.
pub trait Collectives {
    /// All-reduce: every rank gets the element-wise reduction of all ranks' views, by sum and in
    /// place unless told otherwise.
    fn all_reduce<'a>(&'a self, input: &'a (impl AsRef<View> + ?Sized)) -> Call<'a, AllReduce<'a>>;

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
}

impl Collectives for Group {
    fn all_reduce<'a>(&'a self, input: &'a (impl AsRef<View> + ?Sized)) -> Call<'a, AllReduce<'a>> {
        let view = Buffer::of(input.as_ref());
        Call::new(self, AllReduce::new(view, view, ReduceOp::Sum))
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
}
