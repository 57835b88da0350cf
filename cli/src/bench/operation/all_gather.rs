//! All-gather: every rank gets the blocks of all ranks, in rank order.

use symmem::collectives;
use symmem::prelude::*;

use super::{Call, Collective, Place, Shape, chosen};
use crate::bench::check::{Part, Source};
use crate::bench::member::RankError;

#[derive(Clone, Copy, Debug)]
pub struct AllGather {
    pub algorithm: Algorithm,
}

impl AllGather {
    fn call<'a>(&self, call: &Call<'a>) -> collectives::Call<'a, collectives::AllGather<'a>> {
        call.group.all_gather(call.input).into(call.output).algorithm(self.algorithm)
    }
}

impl Collective for AllGather {
    fn name(&self) -> &'static str {
        "all-gather"
    }

    fn describe(&self, dtype: DType) -> String {
        format!("blocks of {dtype}")
    }

    fn granule(&self, ranks: usize) -> u64 {
        ranks as u64
    }

    fn shape(&self, _: usize, ranks: usize, count: u64) -> Shape {
        Shape { input: count / ranks as u64, output: count }
    }

    fn in_place(&self, place: &Place) -> u64 {
        place.rank as u64 * place.shape.input
    }

    fn bus_factor(&self, ranks: usize) -> f64 {
        (ranks as f64 - 1.0) / ranks as f64
    }

    fn expected(&self, place: &Place) -> Vec<Part> {
        let block = |rank| Part { source: Source::Input(rank), start: 0, count: place.shape.input };
        (0..place.ranks).map(block).collect()
    }

    fn algorithm(&self, call: &Call<'_>) -> Result<String, RankError> {
        chosen(&self.call(call))
    }

    fn issue(&self, call: &Call<'_>) -> Result<(), RankError> {
        Ok(self.call(call).on(call.stream)?)
    }
}
