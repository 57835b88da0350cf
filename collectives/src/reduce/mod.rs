//! Reduce: one rank, the root, gets the element-wise reduction of all ranks' inputs.

pub(crate) mod host;

use symmem_hal::types::{Bytes, Rank, ReduceOp};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, View};

use crate::call::{Buffer, Call, CallError, Collective, Geometry, Request, faults};

/// Why a reduction to one rank did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// The group has failed, or this rank has left it. The output is unspecified if the operation
    /// itself failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It could not be issued.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Input and output hold different numbers of elements.
    #[error("the input holds {input} elements, the output {output}")]
    Count {
        /// Elements of the input.
        input: u64,
        /// Elements of the output.
        output: u64,
    },
}

faults!(ReduceError);

/// The root gets the element-wise reduction of all ranks' inputs; see
/// [`Collectives::reduce`](crate::Collectives::reduce).
#[derive(Clone, Copy, Debug)]
pub struct Reduce<'a> {
    input: Buffer<'a>,
    output: Buffer<'a>,
    root: Rank,
    op: ReduceOp,
}

impl<'a> Reduce<'a> {
    pub(crate) fn new(input: Buffer<'a>, output: Buffer<'a>, root: Rank, op: ReduceOp) -> Self {
        Reduce { input, output, root, op }
    }
}

impl<'a> Call<'a, Reduce<'a>> {
    /// The operator, instead of the sum.
    #[inline]
    pub fn op(mut self, op: ReduceOp) -> Self {
        self.what.op = op;
        self
    }

    /// Where the root's result goes, instead of in place. May be the input itself; may not overlap
    /// it otherwise. On other ranks nothing is written, whatever is given.
    #[inline]
    pub fn into(mut self, output: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.output = Buffer::of(output.as_ref());
        self
    }
}

impl Collective for Reduce<'_> {
    type Error = ReduceError;

    #[inline]
    fn request(&self, group: &Group) -> Result<Request<'_>, ReduceError> {
        let Reduce { input, root, op, .. } = *self;
        let root = group.index_of(root).map_err(CallError::from)?;
        let is_receiver = root == group.rank().index();
        input.contiguous()?;
        let output = if is_receiver { self.output } else { input };
        input.same_type(&output)?;
        if input.count() != output.count() {
            let (input, output) = (input.count(), output.count());
            return Err(ReduceError::Count { input, output });
        }
        output.contiguous()?;
        input.same_or_apart(&output)?;
        let geometry = Geometry::flat(input.bytes(), Bytes::ZERO, Bytes::ZERO);
        let shape = [input.count(), 0, 0];
        let request = Request::new(Operation::Reduce, input, output, geometry, shape);
        Ok(Request { op: Some(op), root: Some(root), is_receiver, ..request })
    }
}
