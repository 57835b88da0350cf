//! All-to-all: block r of rank s's input becomes block s of rank r's output.

use symmem::collectives;
use symmem::prelude::*;

use super::{Call, Collective, Place, Shape, chosen};
use crate::bench::check::{Part, Source};
use crate::bench::member::RankError;

#[derive(Clone, Copy, Debug)]
pub struct AllToAll {
    pub algorithm: Algorithm,
}

impl AllToAll {
    fn call<'a>(&self, call: &Call<'a>) -> collectives::Call<'a, collectives::AllToAll<'a>> {
        call.group.all_to_all(call.input).into(call.output).algorithm(self.algorithm)
    }
}

impl Collective for AllToAll {
    fn name(&self) -> &'static str {
        "all-to-all"
    }

    fn describe(&self, dtype: DType) -> String {
        format!("blocks of {dtype}")
    }

    fn granule(&self, ranks: usize) -> u64 {
        ranks as u64
    }

    fn shape(&self, _: usize, _: usize, count: u64) -> Shape {
        Shape { input: count, output: count }
    }

    fn bus_factor(&self, ranks: usize) -> f64 {
        (ranks as f64 - 1.0) / ranks as f64
    }

    fn expected(&self, place: &Place) -> Vec<Part> {
        let count = place.shape.output / place.ranks as u64;
        let start = place.rank as u64 * count;
        (0..place.ranks).map(|rank| Part { source: Source::Input(rank), start, count }).collect()
    }

    fn algorithm(&self, call: &Call<'_>) -> Result<String, RankError> {
        chosen(&self.call(call))
    }

    fn issue(&self, call: &Call<'_>) -> Result<(), RankError> {
        Ok(self.call(call).on(call.stream)?)
    }
}
