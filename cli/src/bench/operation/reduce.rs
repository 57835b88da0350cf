//! Reduce: the root gets the element-wise reduction of all ranks' inputs.

use symmem::collectives;
use symmem::prelude::*;

use super::{Call, Collective, Place, Shape, chosen};
use crate::bench::check::{Part, Source};
use crate::bench::member::RankError;

#[derive(Clone, Copy, Debug)]
pub struct Reduce {
    pub op: ReduceOp,
    /// Below the number of ranks.
    pub root: usize,
    pub algorithm: Algorithm,
}

impl Reduce {
    fn call<'a>(
        &self,
        call: &Call<'a>,
    ) -> Result<collectives::Call<'a, collectives::Reduce<'a>>, RankError> {
        let reduce = call.group.reduce(call.input, call.group.rank_at(self.root)?);
        Ok(reduce.into(call.output).op(self.op).algorithm(self.algorithm))
    }
}

impl Collective for Reduce {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn describe(&self, dtype: DType) -> String {
        format!("{} of {dtype} to rank {}", self.op, self.root)
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

    fn bus_factor(&self, _: usize) -> f64 {
        1.0
    }

    fn expected(&self, place: &Place) -> Vec<Part> {
        let source = match place.rank == self.root {
            true => Source::Reduced,
            // In place, what must stay is its input.
            false if place.in_place => Source::Input(place.rank),
            false => Source::Untouched,
        };
        vec![Part { source, start: 0, count: place.shape.output }]
    }

    fn algorithm(&self, call: &Call<'_>) -> Result<String, RankError> {
        chosen(&self.call(call)?)
    }

    fn issue(&self, call: &Call<'_>) -> Result<(), RankError> {
        Ok(self.call(call)?.on(call.stream)?)
    }
}
