//! Reduce-scatter: every rank gets its block of the element-wise reduction of all ranks' inputs.

use symmem::collectives;
use symmem::prelude::*;

use super::{Call, Collective, Place, Shape, chosen};
use crate::bench::check::{Part, Source};
use crate::bench::member::RankError;

#[derive(Clone, Copy, Debug)]
pub struct ReduceScatter {
    pub op: ReduceOp,
    pub algorithm: Algorithm,
}

impl ReduceScatter {
    fn call<'a>(&self, call: &Call<'a>) -> collectives::Call<'a, collectives::ReduceScatter<'a>> {
        let reduce_scatter = call.group.reduce_scatter(call.input).into(call.output);
        reduce_scatter.op(self.op).algorithm(self.algorithm)
    }
}

impl Collective for ReduceScatter {
    fn name(&self) -> &'static str {
        "reduce-scatter"
    }

    fn describe(&self, dtype: DType) -> String {
        format!("{} of {dtype}", self.op)
    }

    fn reduces(&self) -> Option<ReduceOp> {
        Some(self.op)
    }

    fn granule(&self, ranks: usize) -> u64 {
        ranks as u64
    }

    fn shape(&self, _: usize, ranks: usize, count: u64) -> Shape {
        Shape { input: count, output: count / ranks as u64 }
    }

    fn in_place(&self, place: &Place) -> u64 {
        place.rank as u64 * place.shape.output
    }

    fn bus_factor(&self, ranks: usize) -> f64 {
        (ranks as f64 - 1.0) / ranks as f64
    }

    fn expected(&self, place: &Place) -> Vec<Part> {
        let count = place.shape.output;
        vec![Part { source: Source::Reduced, start: place.rank as u64 * count, count }]
    }

    fn algorithm(&self, call: &Call<'_>) -> Result<String, RankError> {
        chosen(&self.call(call))
    }

    fn issue(&self, call: &Call<'_>) -> Result<(), RankError> {
        Ok(self.call(call).on(call.stream)?)
    }
}
