//! Reduce-scatter of uneven blocks: here odd ranks' are twice as long as even ones'.

use symmem::collectives;
use symmem::hal::types::LayoutError;
use symmem::prelude::*;

use super::{Call, Collective, Place, Shape, chosen};
use crate::bench::check::{Part, Source};
use crate::bench::member::RankError;

#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterOffset {
    pub op: ReduceOp,
    pub algorithm: Algorithm,
}

/// How many parts of a message the first ranks get together.
fn parts(ranks: usize) -> u64 {
    (0..ranks).map(|rank| 1 + rank as u64 % 2).sum()
}

/// The first element of a rank's block, where all have so many.
fn start(rank: usize, ranks: usize, count: u64) -> u64 {
    count / parts(ranks) * parts(rank)
}

impl ReduceScatterOffset {
    /// Calls `then` with the call.
    fn with<T>(
        &self,
        call: &Call<'_>,
        then: impl FnOnce(
            collectives::Call<'_, collectives::ReduceScatterOffset<'_>>,
        ) -> Result<T, RankError>,
    ) -> Result<T, RankError> {
        let (ranks, count) = (call.group.size(), call.input.count());
        let ends: Vec<u64> = (0..ranks).map(|rank| start(rank + 1, ranks, count)).collect();
        let outputs = [call.output];
        let reduce_scatter = call.group.reduce_scatter_offset(call.input, &outputs).dim(1);
        then(reduce_scatter.offsets(&ends).op(self.op).algorithm(self.algorithm))
    }
}

impl Collective for ReduceScatterOffset {
    fn name(&self) -> &'static str {
        "reduce-scatter-offset"
    }

    fn describe(&self, dtype: DType) -> String {
        format!("{} of {dtype}, odd ranks' blocks twice as long", self.op)
    }

    fn reduces(&self) -> Option<ReduceOp> {
        Some(self.op)
    }

    fn granule(&self, ranks: usize) -> u64 {
        parts(ranks)
    }

    fn shape(&self, rank: usize, ranks: usize, count: u64) -> Shape {
        let output = start(rank + 1, ranks, count) - start(rank, ranks, count);
        Shape { input: count, output }
    }

    /// One row, of which blocks are cut.
    fn layouts(&self, place: &Place) -> Result<(Layout, Layout), LayoutError> {
        let Shape { input, output } = place.shape;
        Ok((Layout::contiguous(&[1, input])?, Layout::flat(output)))
    }

    fn bus_factor(&self, ranks: usize) -> f64 {
        (ranks as f64 - 1.0) / ranks as f64
    }

    fn expected(&self, place: &Place) -> Vec<Part> {
        let Place { rank, ranks, shape, .. } = *place;
        let start = start(rank, ranks, shape.input);
        vec![Part { source: Source::Reduced, start, count: shape.output }]
    }

    fn algorithm(&self, call: &Call<'_>) -> Result<String, RankError> {
        self.with(call, |call| chosen(&call))
    }

    fn issue(&self, call: &Call<'_>) -> Result<(), RankError> {
        self.with(call, |issued| Ok(issued.on(call.stream)?))
    }
}
