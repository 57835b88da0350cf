//! How one rank holds its share of a layer, and how the shares become a whole again.
//!
//! As in Megatron-LM: the first of two matmuls is split by columns, so that what lies between
//! them (attention heads, an activation) needs no other rank, the second by rows, so that the
//! ranks' products sum to the result. One all-reduce a pair.

use std::ops::Range;

use anyhow::ensure;
use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape, Tensor};
use candle_nn::{Linear, Module, VarBuilder};

/// Sums equal-sized data over the ranks, in place.
pub trait Reduce {
    fn all_reduce(&self, data: &mut [f32]) -> anyhow::Result<()>;
}

/// Which share of each layer this rank holds, and the group of those who hold the others.
#[derive(Clone, Copy)]
pub struct Shard<'a> {
    rank: usize,
    ranks: usize,
    group: Option<&'a dyn Reduce>,
}

impl<'a> Shard<'a> {
    /// All of it.
    pub fn whole() -> Self {
        Shard { rank: 0, ranks: 1, group: None }
    }

    /// The share of `rank`.
    pub fn of(group: &'a dyn Reduce, rank: usize, ranks: usize) -> Self {
        Shard { rank, ranks, group: Some(group) }
    }

    /// This rank's of `count` things: as many as every other rank's, or one more.
    ///
    /// An error where a rank would have none: candle has no matmul without columns.
    pub fn range(&self, count: usize, what: &str) -> anyhow::Result<Range<usize>> {
        ensure!(count >= self.ranks, "{count} {what} cannot be split over {} ranks", self.ranks);
        let start = |rank| rank * count / self.ranks;
        Ok(start(self.rank)..start(self.rank + 1))
    }

    /// The sum of every rank's `partial`, on every rank.
    fn sum(&self, partial: &Tensor) -> Result<Tensor> {
        match self.group {
            Some(group) => partial.contiguous()?.apply_op1_no_bwd(&AllReduce(group)),
            None => Ok(partial.clone()),
        }
    }
}

/// The all-reduce as candle sees it: an operation from one tensor to another.
struct AllReduce<'a>(&'a dyn Reduce);

impl CustomOp1 for AllReduce<'_> {
    fn name(&self) -> &'static str {
        "all-reduce"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (start, end) = layout
            .contiguous_offsets()
            .ok_or_else(|| Error::RequiresContiguous { op: self.name() }.bt())?;
        let mut sum = storage.as_slice::<f32>()?[start..end].to_vec();
        self.0.all_reduce(&mut sum).map_err(|e| Error::msg(format!("{e:#}")))?;
        Ok((CpuStorage::F32(sum), layout.shape().clone()))
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
        // The bias comes after the sum, else it would be in it once a rank.
        self.shard.sum(&self.product.forward(x)?)?.broadcast_add(&self.bias)
    }
}

/// A copy of a part, so that the rest of the tensor need not stay in memory.
fn take(tensor: &Tensor, dim: usize, range: &Range<usize>) -> Result<Tensor> {
    tensor.narrow(dim, range.start, range.len())?.force_contiguous()
}
