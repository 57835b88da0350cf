//! Reduce-scatter of uneven blocks, each of which goes to a rank of the caller's choice.

pub(crate) mod host;

use symmem_hal::types::{Bytes, Layout, Rank, ReduceOp};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{Failure, Group, View};

use crate::call::{Block, Buffer, Call, CallError, Collective, Geometry, Request, Rows, faults};
use crate::choice;

/// Why a reduce-scatter of blocks did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReduceScatterOffsetError {
    /// The group has failed, or this rank has left it. The output is unspecified if the operation
    /// itself failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It could not be issued.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The input is no tensor of rows.
    #[error("the input {layout:?} is not two dimensions of rows without gaps in them")]
    NotRows {
        /// Its shape.
        layout: Box<Layout>,
    },
    /// Blocks can be cut along dimension 0 or 1.
    #[error("blocks are cut along dimension 0 or 1, not {dim}")]
    Dim {
        /// The dimension asked for.
        dim: usize,
    },
    /// A block would end before it begins, or past the end of its dimension.
    #[error("block {index} begins at {start} and ends at {end}, in a dimension of {size}")]
    Offset {
        /// Which block.
        index: usize,
        /// Where it begins: where the one before ends.
        start: u64,
        /// Where it ends.
        end: u64,
        /// The length of the dimension.
        size: u64,
    },
    /// Without offsets, blocks are equal.
    #[error("a dimension of {size} cannot be cut into {blocks} equal blocks")]
    Uneven {
        /// The length of the dimension.
        size: u64,
        /// How many blocks.
        blocks: usize,
    },
    /// Each block needs a destination.
    #[error("{destinations} destinations for {blocks} blocks")]
    Destinations {
        /// How many blocks.
        blocks: usize,
        /// How many destinations.
        destinations: usize,
    },
    /// Each block of this rank needs an output.
    #[error("{outputs} outputs for {owned} blocks of this rank")]
    Outputs {
        /// Blocks of this rank.
        owned: usize,
        /// How many outputs.
        outputs: usize,
    },
    /// An output is of another length than its block.
    #[error("output {index} holds {found} elements, its block {expected}")]
    Count {
        /// Which output.
        index: usize,
        /// Elements of the block.
        expected: u64,
        /// Elements of the output.
        found: u64,
    },
}

faults!(ReduceScatterOffsetError);

/// Each block's reduction goes to one rank; see
/// [`Collectives::reduce_scatter_offset`](crate::Collectives::reduce_scatter_offset).
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterOffset<'a> {
    input: Buffer<'a>,
    outputs: &'a [&'a View],
    dim: usize,
    offsets: Option<&'a [u64]>,
    destinations: Option<&'a [Rank]>,
    op: ReduceOp,
}

impl<'a> ReduceScatterOffset<'a> {
    pub(crate) fn new(input: Buffer<'a>, outputs: &'a [&'a View]) -> Self {
        let (offsets, destinations) = (None, None);
        ReduceScatterOffset { input, outputs, dim: 0, offsets, destinations, op: ReduceOp::Sum }
    }
}

impl<'a> Call<'a, ReduceScatterOffset<'a>> {
    /// The operator, instead of the sum.
    #[inline]
    pub fn op(mut self, op: ReduceOp) -> Self {
        self.what.op = op;
        self
    }

    /// The dimension along which blocks are cut, instead of 0: 0 cuts rows, 1 columns.
    #[inline]
    pub fn dim(mut self, dim: usize) -> Self {
        self.what.dim = dim;
        self
    }

    /// Where each block ends along the dimension, ascending; each begins where the one before ends.
    /// Blocks may be empty, and what is past the last one is left alone. Without offsets, as many
    /// equal blocks as there are destinations, or ranks.
    #[inline]
    pub fn offsets(mut self, offsets: &'a [u64]) -> Self {
        self.what.offsets = Some(offsets);
        self
    }

    /// The rank that gets each block. Without them, ranks take turns: block i goes to rank i modulo
    /// the number of ranks.
    #[inline]
    pub fn destinations(mut self, destinations: &'a [Rank]) -> Self {
        self.what.destinations = Some(destinations);
        self
    }
}

impl ReduceScatterOffset<'_> {
    /// All blocks, with owners, without outputs.
    fn blocks(&self, rows: Rows, group: &Group) -> Result<Vec<Block>, ReduceScatterOffsetError> {
        let size = match self.dim {
            0 => rows.rows,
            1 => rows.columns,
            dim => return Err(ReduceScatterOffsetError::Dim { dim }),
        };
        let default = self.destinations.map_or(group.size(), <[Rank]>::len);
        let blocks = self.offsets.map_or(default, <[u64]>::len);
        if self.offsets.is_none() && !(blocks > 0 && size.is_multiple_of(blocks as u64)) {
            return Err(ReduceScatterOffsetError::Uneven { size, blocks });
        }
        if let Some(destinations) = self.destinations.map(<[Rank]>::len)
            && destinations != blocks
        {
            return Err(ReduceScatterOffsetError::Destinations { blocks, destinations });
        }
        let mut list = Vec::with_capacity(blocks);
        let (mut from, mut start) = (0, 0);
        for index in 0..blocks {
            let to = match self.offsets {
                Some(offsets) => offsets[index],
                None => from + size / blocks as u64,
            };
            if to < from || to > size {
                return Err(ReduceScatterOffsetError::Offset { index, start: from, end: to, size });
            }
            let owner = match self.destinations {
                Some(ranks) => group.index_of(ranks[index]).map_err(CallError::from)?,
                None => index % group.size(),
            };
            let block = Block { owner: owner as u64, ..rows.cut(self.dim, from, to, start) };
            (from, start) = (to, start + block.bytes());
            list.push(block);
        }
        Ok(list)
    }

    /// Gives this rank's blocks their outputs.
    fn assign(&self, blocks: &mut [Block], me: usize) -> Result<(), ReduceScatterOffsetError> {
        let owned = || blocks.iter().filter(|block| block.owner == me as u64).count();
        if owned() != self.outputs.len() {
            let (owned, outputs) = (owned(), self.outputs.len());
            return Err(ReduceScatterOffsetError::Outputs { owned, outputs });
        }
        let mine = blocks.iter_mut().filter(|block| block.owner == me as u64);
        for (index, (block, view)) in mine.zip(self.outputs).enumerate() {
            let output = Buffer::of(view);
            self.input.same_type(&output)?;
            output.contiguous()?;
            let (expected, found) = (block.bytes() / view.dtype().size() as u64, output.count());
            if expected != found {
                return Err(ReduceScatterOffsetError::Count { index, expected, found });
            }
            self.input.apart(&output)?;
            (block.output, block.output_stride) = (output.ptr(), block.row);
        }
        self.apart()
    }

    /// That no two outputs share a byte.
    fn apart(&self) -> Result<(), ReduceScatterOffsetError> {
        let mut ranges: Vec<_> =
            self.outputs.iter().map(|v| (v.ptr().get(), v.ptr().get() + v.bytes().get())).collect();
        ranges.retain(|(from, to)| from < to);
        ranges.sort_unstable();
        let overlap = ranges.windows(2).any(|pair| pair[1].0 < pair[0].1);
        if overlap { Err(CallError::Overlap.into()) } else { Ok(()) }
    }
}

impl Collective for ReduceScatterOffset<'_> {
    type Error = ReduceScatterOffsetError;

    #[inline]
    fn request(&self, group: &Group) -> Result<Request<'_>, ReduceScatterOffsetError> {
        let layout = self.input.layout();
        let Some(rows) = Rows::of(&layout, self.input.dtype()) else {
            return Err(ReduceScatterOffsetError::NotRows { layout: Box::new(layout) });
        };
        let mut blocks = self.blocks(rows, group)?;
        self.assign(&mut blocks, group.rank().index())?;
        let digest = |digest, block: &Block| {
            let words = [digest, block.at, block.rows, block.row, block.owner];
            Signature::new(Operation::ReduceScatterOffset, None, None, &words).0
        };
        let shape = [rows.columns, rows.stride, blocks.iter().fold(rows.rows, digest)];
        let total = Bytes(blocks.iter().map(Block::bytes).sum());
        let geometry = Geometry::flat(total, Bytes::ZERO, Bytes::ZERO);
        let is_staged = blocks.iter().any(|block| choice::is_piecemeal(block.row, block.stride));
        let operation = Operation::ReduceScatterOffset;
        let request = Request::new(operation, self.input, self.input, geometry, shape);
        Ok(Request {
            op: Some(self.op),
            input_bytes: self.input.extent(),
            // Results go to the blocks' own outputs.
            is_receiver: false,
            blocks,
            outputs: self.outputs,
            is_staged,
            ..request
        })
    }
}
