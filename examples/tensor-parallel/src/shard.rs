//! How one rank holds its share of a layer, and how the shares become a whole again.
//!
//! As in Megatron-LM: the first of two matmuls is split by columns, so that what lies between
//! them (attention heads, an activation) needs no other rank, the second by rows, so that the
//! ranks' products sum to the result. One all-reduce a pair.

use std::ops::Range;

use anyhow::ensure;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Error, InplaceOp1, Layout, Result, Tensor};
use candle_nn::{Linear, Module, VarBuilder};
use symmem::mem::Tensor as SharedTensor;
use symmem::prelude::{Collectives, Group, SymmetricMemory};

/// The sum of a tensor over all ranks, in place, as candle sees it: an operation on its storage.
///
/// The tensor is candle's, so the sum is made beside it: in one buffer of symmetric memory, as large
/// as every tensor that a batch reduces, which each rank maps once and uses for all layers. The
/// other ranks read this rank's part where it lies.
pub struct AllReduce(SymmetricMemory);

impl AllReduce {
    /// For tensors of this shape. Collective: all ranks of the group meet here.
    pub fn of_shape(group: &Group, shape: &[usize]) -> anyhow::Result<Self> {
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let buffer = SharedTensor::<f32>::zeros(group.device(), &shape)?;
        Ok(AllReduce(group.rendezvous(&buffer, &group.wait())?))
    }

    fn sum(&self, data: &mut [f32]) -> anyhow::Result<()> {
        let buffer = self.0.view();
        buffer.write(data)?;
        self.0.group().all_reduce(buffer).run()?;
        Ok(buffer.read(data)?)
    }
}

impl InplaceOp1 for AllReduce {
    fn name(&self) -> &'static str {
        "all-reduce"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (start, end) = layout
            .contiguous_offsets()
            .ok_or_else(|| Error::RequiresContiguous { op: self.name() }.bt())?;
        let CpuStorage::F32(data) = storage else {
            return Err(Error::UnsupportedDTypeForOp(storage.dtype(), self.name()).bt());
        };
        self.sum(&mut data[start..end]).map_err(|e| Error::msg(format!("{e:#}")))
    }
}

/// Which share of each layer this rank holds, and how it reaches those who hold the others.
#[derive(Clone, Copy)]
pub struct Shard<'a> {
    rank: usize,
    ranks: usize,
    all_reduce: Option<&'a AllReduce>,
}

impl<'a> Shard<'a> {
    /// All of it.
    pub fn whole() -> Self {
        Shard { rank: 0, ranks: 1, all_reduce: None }
    }

    /// This rank's.
    pub fn of(all_reduce: &'a AllReduce) -> Self {
        let memory = &all_reduce.0;
        Shard {
            rank: memory.rank().index(),
            ranks: memory.world_size(),
            all_reduce: Some(all_reduce),
        }
    }

    /// This rank's of `count` things: as many as every other rank's, or one more or less.
    ///
    /// An error where a rank would have none: candle has no matmul without columns.
    pub fn range(&self, count: usize, what: &str) -> anyhow::Result<Range<usize>> {
        ensure!(count >= self.ranks, "{count} {what} cannot be split over {} ranks", self.ranks);
        let start = |rank| rank * count / self.ranks;
        Ok(start(self.rank)..start(self.rank + 1))
    }
}

/// The `columns` of `x W^T + b` that this rank computes; no other rank is needed.
///
/// A checkpoint stores W with one row an output, so columns of the result are rows of W.
pub fn column_parallel(
    (inputs, outputs): (usize, usize),
    columns: &Range<usize>,
    weights: VarBuilder,
) -> Result<Linear> {
    let weight = take(&weights.get((outputs, inputs), "weight")?, 0, columns)?;
    let bias = take(&weights.get(outputs, "bias")?, 0, columns)?;
    Ok(Linear::new(weight, Some(bias)))
}

/// `x W^T + b` where each rank has some columns of x, and the rows of W^T that they meet.
pub struct RowParallel<'a> {
    product: Linear,
    bias: Tensor,
    shard: Shard<'a>,
}

impl<'a> RowParallel<'a> {
    pub fn load(
        (inputs, outputs): (usize, usize),
        rows: &Range<usize>,
        weights: VarBuilder,
        shard: Shard<'a>,
    ) -> Result<Self> {
        let weight = take(&weights.get((outputs, inputs), "weight")?, 1, rows)?;
        let bias = weights.get(outputs, "bias")?;
        Ok(RowParallel { product: Linear::new(weight, None), bias, shard })
    }
}

impl Module for RowParallel<'_> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let product = self.product.forward(x)?;
        if let Some(all_reduce) = self.shard.all_reduce {
            product.inplace_op1(all_reduce)?;
        }
        // The bias comes after the sum, else it would be in it once a rank.
        product.broadcast_add(&self.bias)
    }
}

/// A copy of a part, so that the rest of the tensor need not stay in memory.
fn take(tensor: &Tensor, dim: usize, range: &Range<usize>) -> Result<Tensor> {
    tensor.narrow(dim, range.start, range.len())?.force_contiguous()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn ranges(count: usize, ranks: usize) -> anyhow::Result<Vec<Range<usize>>> {
        (0..ranks)
            .map(|rank| Shard { rank, ranks, all_reduce: None }.range(count, "things"))
            .collect()
    }

    #[test]
    fn shares_are_consecutive_and_as_equal_as_can_be() {
        for ranks in 1..=16 {
            for count in ranks..=3 * ranks + 1 {
                let ranges = ranges(count, ranks).unwrap();
                let mut next = 0;
                for range in &ranges {
                    assert_eq!(range.start, next, "{count} over {ranks}: {ranges:?}");
                    next = range.end;
                    let even = count / ranks..=count.div_ceil(ranks);
                    assert!(even.contains(&range.len()), "{count} over {ranks}: {ranges:?}");
                }
                assert_eq!(next, count, "{count} over {ranks}: {ranges:?}");
            }
        }
    }

    #[test]
    fn known_splits() {
        assert_eq!(ranges(12, 2).unwrap(), [0..6, 6..12]);
        assert_eq!(ranges(12, 3).unwrap(), [0..4, 4..8, 8..12]);
        assert_eq!(ranges(12, 5).unwrap(), [0..2, 2..4, 4..7, 7..9, 9..12]);
        assert_eq!(Shard::whole().range(7, "things").unwrap(), 0..7);
    }

    #[test]
    fn no_rank_goes_without() {
        for ranks in [1, 2, 13] {
            let error = ranges(ranks - 1, ranks).unwrap_err().to_string();
            assert_eq!(error, format!("{} things cannot be split over {ranks} ranks", ranks - 1));
        }
    }
}
