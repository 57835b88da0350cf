//! All-to-all of dimensions: a tensor cut along one dimension is joined along another.

pub(crate) mod host;

use symmem_hal::types::Layout;
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group};

use crate::call::{Buffer, Call, CallError, Collective, Geometry, Pitch, Request, faults};

/// Why an all-to-all of dimensions did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllToAllNdError {
    /// The group has failed, or this rank has left it. The output is unspecified if the operation
    /// itself failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It could not be issued.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Other dimensions than 0 and 1, or the same twice.
    #[error(
        "cannot cut dimension {scatter} and join dimension {gather}: one must be 0, the other 1"
    )]
    Dims {
        /// The dimension to be cut.
        scatter: usize,
        /// The dimension to be joined.
        gather: usize,
    },
    /// The shapes are not those of one tensor cut along one dimension and joined along the other.
    #[error(
        "an input {input:?}, cut along dimension {scatter} for {ranks} ranks, does not make an output {output:?}"
    )]
    Shape {
        /// The input's shape.
        input: Box<Layout>,
        /// The output's shape.
        output: Box<Layout>,
        /// The dimension to be cut.
        scatter: usize,
        /// Ranks of the group.
        ranks: usize,
    },
}

faults!(AllToAllNdError);

/// A tensor cut along one dimension is joined along another; see
/// [`Collectives::all_to_all_nd`](crate::Collectives::all_to_all_nd).
#[derive(Clone, Copy, Debug)]
pub struct AllToAllNd<'a> {
    input: Buffer<'a>,
    output: Buffer<'a>,
    scatter: usize,
    gather: usize,
}

/// The parts of a tensor: `rows` of `columns` elements for, or from, each rank.
struct Parts {
    rows: u64,
    columns: u64,
}

impl<'a> AllToAllNd<'a> {
    pub(crate) fn new(input: Buffer<'a>, output: Buffer<'a>) -> Self {
        AllToAllNd { input, output, scatter: 1, gather: 0 }
    }

    /// The parts, if the shapes fit: a dimension that holds all ranks' may be given as one or two.
    fn parts(&self, input: &[u64], output: &[u64], ranks: u64) -> Option<Parts> {
        // Of `tall`, dimension 0 holds a part's rows for each rank; of `wide`, dimension 1 its
        // columns, and so dimension 0 its rows. What follows is a part's shape beside its rows.
        let (wide, tall) = if self.scatter == 1 { (input, output) } else { (output, input) };
        let (&rows, across) = wide.split_first()?;
        let (&first, below) = tall.split_first()?;
        let joined = across.split_first().filter(|(n, _)| n.is_multiple_of(ranks));
        let joined = joined.map(|(n, rest)| (Some(n / ranks), rest));
        let split = across.split_first().filter(|(n, rest)| **n == ranks && !rest.is_empty());
        let split = split.map(|(_, rest)| (None, rest));
        let wides = [joined, split].into_iter().flatten();
        let stacked = (Some(first) == rows.checked_mul(ranks)).then_some(below);
        let apart = below.split_first().filter(|(n, _)| first == ranks && **n == rows);
        let talls = [stacked, apart.map(|(_, rest)| rest)].into_iter().flatten();
        let fits = wides
            .into_iter()
            .any(|(lead, rest)| talls.clone().any(|inner| lead.iter().chain(rest).eq(inner)));
        // Where there are no elements, dimensions may be of any size; nothing is read by them.
        let all = across.iter().fold(1, |columns: u64, n| columns.saturating_mul(*n));
        fits.then_some(Parts { rows, columns: all / ranks })
    }
}

impl Call<'_, AllToAllNd<'_>> {
    /// The dimension of the input that is cut, and that of the output along which parts are joined:
    /// 1 and 0, or 0 and 1.
    ///
    /// With `r` ranks, (1, 0) makes of `[n, r * m]` or `[n, r, m]` an output `[r * n, m]` or
    /// `[r, n, m]`, and (0, 1) of `[r * n, m]` or `[r, n, m]` an output `[n, r * m]` or
    /// `[n, r, m]`; further dimensions follow `m`.
    #[inline]
    pub fn dims(mut self, scatter: usize, gather: usize) -> Self {
        (self.what.scatter, self.what.gather) = (scatter, gather);
        self
    }
}

impl Collective for AllToAllNd<'_> {
    type Error = AllToAllNdError;

    #[inline]
    fn request(&self, group: &Group) -> Result<Request<'_>, AllToAllNdError> {
        let AllToAllNd { input, output, scatter, gather } = *self;
        if !matches!((scatter, gather), (1, 0) | (0, 1)) {
            return Err(AllToAllNdError::Dims { scatter, gather });
        }
        input.same_type(&output)?;
        let (from, to) = (input.layout(), output.layout());
        let ranks = group.size() as u64;
        let Some(Parts { rows, columns }) = self.parts(from.shape(), to.shape(), ranks) else {
            let (input, output) = (Box::new(from), Box::new(to));
            return Err(AllToAllNdError::Shape { input, output, scatter, ranks: group.size() });
        };
        input.contiguous()?;
        output.contiguous()?;
        input.apart(&output)?;
        let row = columns.saturating_mul(input.dtype().size() as u64);
        let wide = Pitch { step: row, stride: row.saturating_mul(ranks) };
        let tall = Pitch { step: row.saturating_mul(rows), stride: row };
        let (from, to) = if scatter == 1 { (wide, tall) } else { (tall, wide) };
        let geometry = Geometry { rows, row, input: from, output: to };
        let shape = [rows, columns, scatter as u64];
        let request = Request::new(Operation::AllToAllNd, input, output, geometry, shape);
        Ok(Request { is_written_by_peers: true, ..request })
    }
}
