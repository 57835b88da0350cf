//! Reduce-scatter: every rank gets its block of the element-wise reduction of all ranks' inputs.

pub(crate) mod host;

use symmem_hal::types::{Bytes, Layout, ReduceOp};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, View};

use crate::call::{Buffer, Call, CallError, Collective, Geometry, Pitch, Request, faults};
use crate::choice;

/// Why a reduce-scatter did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReduceScatterError {
    /// The group has failed, or this rank has left it. The output is unspecified if the operation
    /// itself failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It could not be issued.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The input does not hold one block of the output's length for each rank.
    #[error(
        "the input holds {input} elements, not a block of the output's {output} for each of {ranks} ranks"
    )]
    Count {
        /// Elements of the input.
        input: u64,
        /// Elements of the output.
        output: u64,
        /// Ranks of the group.
        ranks: usize,
    },
    /// In place: the buffer does not hold one block for each rank.
    #[error("{elements} elements are no {ranks} blocks of equal length")]
    Blocks {
        /// Elements of the buffer.
        elements: u64,
        /// Ranks of the group.
        ranks: usize,
    },
    /// Along the last dimension: the output's shape is not the input's with that dimension divided
    /// by the number of ranks.
    #[error(
        "an output {output:?} is no part, of {ranks} along the last dimension, of an input {input:?}"
    )]
    Shape {
        /// The input's shape.
        input: Box<Layout>,
        /// The output's shape.
        output: Box<Layout>,
        /// Ranks of the group.
        ranks: usize,
    },
}

faults!(ReduceScatterError);

/// Every rank gets its block of the reduction of all ranks' inputs; see
/// [`Collectives::reduce_scatter`](crate::Collectives::reduce_scatter).
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatter<'a> {
    input: Buffer<'a>,
    /// `None` for this rank's block of the input.
    output: Option<Buffer<'a>>,
    op: ReduceOp,
    last_dim: bool,
}

impl<'a> ReduceScatter<'a> {
    pub(crate) fn new(input: Buffer<'a>, output: Option<Buffer<'a>>, op: ReduceOp) -> Self {
        ReduceScatter { input, output, op, last_dim: false }
    }

    /// The last dimension is cut: a part has as many runs as the leading dimensions have indices.
    fn along_last_dim(
        &self,
        output: Buffer<'a>,
        ranks: usize,
    ) -> Result<(Geometry, [u64; 3]), ReduceScatterError> {
        let layouts = (self.input.layout(), output.layout());
        let fits = match (layouts.0.shape(), layouts.1.shape()) {
            ([lead @ .., last], [out_lead @ .., out_last]) => {
                lead == out_lead && out_last.checked_mul(ranks as u64) == Some(*last)
            }
            _ => false,
        };
        let (input, output) = (Box::new(layouts.0), Box::new(layouts.1));
        let Some(columns) = output.shape().last().copied().filter(|_| fits) else {
            return Err(ReduceScatterError::Shape { input, output, ranks });
        };
        // Where there are no elements, the other dimensions may be of any size; nothing is read by them.
        let leading = &input.shape()[..input.shape().len() - 1];
        let rows = leading.iter().fold(1, |rows: u64, n| rows.saturating_mul(*n));
        let row = columns.saturating_mul(self.input.dtype().size() as u64);
        let geometry = Geometry {
            rows,
            row,
            input: Pitch { step: row, stride: row.saturating_mul(ranks as u64) },
            output: Pitch { step: 0, stride: row },
        };
        Ok((geometry, [columns, rows, 1]))
    }

    fn flat(
        &self,
        output: Buffer<'a>,
        ranks: usize,
    ) -> Result<(Geometry, [u64; 3]), ReduceScatterError> {
        let (input, count) = (self.input.count(), output.count());
        if count.checked_mul(ranks as u64) != Some(input) {
            return Err(ReduceScatterError::Count { input, output: count, ranks });
        }
        let block = output.bytes();
        Ok((Geometry::flat(block, block, Bytes::ZERO), [count, 1, 0]))
    }
}

impl<'a> Call<'a, ReduceScatter<'a>> {
    /// The operator, instead of the sum.
    #[inline]
    pub fn op(mut self, op: ReduceOp) -> Self {
        self.what.op = op;
        self
    }

    /// Where this rank's block goes, instead of in place. It may be the very block of the input
    /// that it is reduced from, and may not overlap the input otherwise.
    #[inline]
    pub fn into(mut self, output: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.output = Some(Buffer::of(output.as_ref()));
        self
    }

    /// Cuts the last dimension instead of the whole: of an input `[.., n * ranks]`, rank r gets
    /// columns `n * r` to `n * (r + 1)` as an output `[.., n]`. Never in place.
    #[inline]
    pub fn last_dim(mut self) -> Self {
        self.what.last_dim = true;
        self
    }
}

impl Collective for ReduceScatter<'_> {
    type Error = ReduceScatterError;

    #[inline]
    fn request(&self, group: &Group) -> Result<Request<'_>, ReduceScatterError> {
        let (me, ranks) = (group.rank().index(), group.size());
        let elements = self.input.count();
        let output = match self.output {
            Some(output) => output,
            None if elements.is_multiple_of(ranks as u64) => {
                self.input.block(me, elements / ranks as u64)
            }
            None => return Err(ReduceScatterError::Blocks { elements, ranks }),
        };
        self.input.same_type(&output)?;
        let (geometry, shape) = match self.last_dim {
            true => self.along_last_dim(output, ranks)?,
            false => self.flat(output, ranks)?,
        };
        self.input.contiguous()?;
        output.contiguous()?;
        // The runs of a rank's columns are its block of the input where there is one run.
        let is_block = !self.last_dim || geometry.rows == 1;
        if !(is_block && output.ptr() == self.input.block(me, output.count()).ptr()) {
            self.input.apart(&output)?;
        }
        let request = Request::new(Operation::ReduceScatter, self.input, output, geometry, shape);
        let is_staged = choice::is_piecemeal(geometry.row, geometry.input.stride);
        Ok(Request { op: Some(self.op), is_staged, ..request })
    }
}
