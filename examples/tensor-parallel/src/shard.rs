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
use minilm::share;
use symmem::mem::Tensor as SharedTensor;
use symmem::prelude::{Collectives, Group, SymmetricMemory};

/// The sum of a tensor over all ranks, in place, as candle sees it: an operation on its storage.
///
/// The tensor is candle's, so the sum is made beside it: in one buffer of symmetric memory, as large
/// as every tensor that a batch reduces, which each rank maps once and uses for all layers. The
/// other ranks read this rank's part where it lies.
pub struct AllReduce(SymmetricMemory);

impl AllReduce {
    /// For as many elements. Collective: all ranks of the group meet here.
    pub fn of(group: &Group, elements: usize) -> anyhow::Result<Self> {
        let buffer = SharedTensor::<f32>::zeros(group.device(), &[elements as u64])?;
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
pub struct Shard<'a>(&'a AllReduce);

impl<'a> Shard<'a> {
    /// This rank's.
    pub fn of(all_reduce: &'a AllReduce) -> Self {
        Shard(all_reduce)
    }

    /// This rank's of `count` things.
    ///
    /// An error where a rank would have none: candle has no matmul without columns.
    pub fn range(&self, count: usize, what: &str) -> anyhow::Result<Range<usize>> {
        let Shard(AllReduce(memory)) = self;
        let ranks = memory.world_size();
        ensure!(count >= ranks, "{count} {what} cannot be split over {ranks} ranks");
        Ok(share(count, memory.rank().index(), ranks))
    }
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
        let weight = weights.get((outputs, inputs), "weight")?;
        // A copy, so that the rest of the weights need not stay in memory.
        let weight = weight.narrow(1, rows.start, rows.len())?.force_contiguous()?;
        let bias = weights.get(outputs, "bias")?;
        Ok(RowParallel { product: Linear::new(weight, None), bias, shard })
    }
}

impl Module for RowParallel<'_> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let product = self.product.forward(x)?;
        product.inplace_op1(self.shard.0)?;
        // The bias comes after the sum, else it would be in it once a rank.
        product.broadcast_add(&self.bias)
    }
}
