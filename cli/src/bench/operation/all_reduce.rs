//! All-reduce: every rank gets the element-wise reduction of all ranks' inputs.

use symmem::collectives;
use symmem::prelude::*;

use super::{Call, Collective, Place, Shape, chosen};
use crate::bench::check::{Part, Source};
use crate::bench::member::RankError;

#[derive(Clone, Copy, Debug)]
pub struct AllReduce {
    pub op: ReduceOp,
    pub algorithm: Algorithm,
}

impl AllReduce {
    fn call<'a>(&self, call: &Call<'a>) -> collectives::Call<'a, collectives::AllReduce<'a>> {
        let all_reduce = call.group.all_reduce(call.input).into(call.output);
        all_reduce.op(self.op).algorithm(self.algorithm)
    }
}

impl Collective for AllReduce {
    fn name(&self) -> &'static str {
        "all-reduce"
    }

    fn describe(&self, dtype: DType) -> String {
        format!("{} of {dtype}", self.op)
    }

    fn reduces(&self) -> Option<ReduceOp> {
        Some(self.op)
    }

    fn granule(&self, _: usize) -> u64 {
        1
    }

    fn shape(&self, _: usize, _: usize, count: u64) -> Shape {
        Shape { input: count, output: count }
    }

    fn bus_factor(&self, ranks: usize) -> f64 {
        2.0 * (ranks as f64 - 1.0) / ranks as f64
    }

    fn expected(&self, place: &Place) -> Vec<Part> {
        vec![Part { source: Source::Reduced, start: 0, count: place.shape.output }]
    }

    fn algorithm(&self, call: &Call<'_>) -> Result<String, RankError> {
        chosen(&self.call(call))
    }

    fn issue(&self, call: &Call<'_>) -> Result<(), RankError> {
        Ok(self.call(call).on(call.stream)?)
    }
}
