//! What each rank gets of a collective, by plain loops.

use symmem_hal::types::{DType, Layout, LayoutError, ReduceOp};
use symmem_mem::call::Operation;

use super::reduce::reduce;

/// One collective.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// Which.
    pub operation: Operation,
    /// The element type.
    pub dtype: DType,
    /// The operator of those that reduce.
    pub op: ReduceOp,
    /// How buffers are cut.
    pub shape: Shape,
    /// The root of those that have one.
    pub root: usize,
}

/// How a buffer is cut into a part for each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Into parts that follow each other.
    Flat,
    /// A reduce-scatter along the last of two dimensions; so many rows.
    LastDim(u64),
    /// An all-to-all that cuts one dimension of a tensor and joins the other.
    Dims(Dims),
}

/// Which dimension an all-to-all cuts, and how its tensors are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// The dimension that is cut, 0 or 1; the other is joined.
    pub scatter: usize,
    /// Rows of a part.
    pub rows: u64,
    /// Whether the dimension that holds all ranks' is given as two, in input and output.
    pub split: (bool, bool),
}

impl Shape {
    /// Layouts of input and output for parts of `count` elements; `None` for flat ones.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] for more elements than there are.
    pub fn layouts(
        self,
        count: u64,
        ranks: u64,
    ) -> Result<(Option<Layout>, Option<Layout>), LayoutError> {
        match self {
            Shape::Flat => Ok((None, None)),
            Shape::LastDim(rows) => {
                let columns = count / rows;
                let layout = |columns| Layout::contiguous(&[rows, columns]).map(Some);
                Ok((layout(columns * ranks)?, layout(columns)?))
            }
            Shape::Dims(Dims { scatter, rows, split }) => {
                let columns = count / rows;
                let wide = |split| match split {
                    true => Layout::contiguous(&[rows, ranks, columns]),
                    false => Layout::contiguous(&[rows, ranks * columns]),
                };
                let tall = |split| match split {
                    true => Layout::contiguous(&[ranks, rows, columns]),
                    false => Layout::contiguous(&[ranks * rows, columns]),
                };
                let (input, output) = match scatter {
                    0 => (tall(split.0)?, wide(split.1)?),
                    _ => (wide(split.0)?, tall(split.1)?),
                };
                Ok((Some(input), Some(output)))
            }
        }
    }
}

/// How many parts input and output hold.
#[must_use]
pub fn parts(operation: Operation, ranks: u64) -> (u64, u64) {
    match operation {
        Operation::AllGather => (1, ranks),
        Operation::ReduceScatter => (ranks, 1),
        Operation::AllToAll | Operation::AllToAllNd => (ranks, ranks),
        _ => (1, 1),
    }
}

impl Collective {
    /// What `rank` gets, from what each rank has; `None` where it gets nothing.
    #[must_use]
    pub fn output(&self, rank: usize, inputs: &[Vec<u8>]) -> Option<Vec<u8>> {
        let ranks = inputs.len();
        let reduced = || reduce(self.dtype, self.op, inputs);
        Some(match self.operation {
            Operation::AllReduce => reduced(),
            Operation::Reduce if rank == self.root => reduced(),
            Operation::Reduce => return None,
            Operation::Broadcast => inputs[self.root].clone(),
            Operation::AllGather => inputs.concat(),
            Operation::ReduceScatter => {
                let parts: Vec<_> =
                    inputs.iter().map(|input| self.part(input, rank, ranks)).collect();
                reduce(self.dtype, self.op, &parts)
            }
            Operation::AllToAll => {
                inputs.iter().flat_map(|input| self.part(input, rank, ranks)).collect()
            }
            Operation::AllToAllNd => self.joined(rank, inputs),
            _ => return None,
        })
    }

    /// What an all-to-all of dimensions makes of all parts for `rank`.
    fn joined(&self, rank: usize, inputs: &[Vec<u8>]) -> Vec<u8> {
        let ranks = inputs.len();
        let parts: Vec<_> = inputs.iter().map(|input| self.part(input, rank, ranks)).collect();
        match self.shape {
            Shape::Dims(Dims { scatter: 0, rows, .. }) => {
                let row = parts[0].len() / rows as usize;
                let rows = (0..rows as usize).map(|i| i * row..(i + 1) * row);
                rows.flat_map(|r| parts.iter().flat_map(move |p| p[r.clone()].to_vec())).collect()
            }
            _ => parts.concat(),
        }
    }

    /// The part of a buffer that is for `rank`.
    fn part(&self, buffer: &[u8], rank: usize, ranks: usize) -> Vec<u8> {
        let bytes = buffer.len() / ranks;
        match self.shape {
            Shape::Flat | Shape::Dims(Dims { scatter: 0, .. }) => {
                buffer[rank * bytes..(rank + 1) * bytes].to_vec()
            }
            Shape::LastDim(rows) | Shape::Dims(Dims { rows, .. }) => {
                let row = bytes / rows as usize;
                let rows = buffer.chunks_exact((row * ranks).max(1));
                rows.flat_map(|r| r[rank * row..(rank + 1) * row].to_vec()).collect()
            }
        }
    }
}
