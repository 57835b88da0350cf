//! Broadcast: every rank gets what the root has.

use symmem::collectives;
use symmem::prelude::*;

use super::{Call, Collective, Place, Shape, chosen};
use crate::bench::check::{Part, Source};
use crate::bench::member::RankError;

#[derive(Clone, Copy, Debug)]
pub struct Broadcast {
    /// Below the number of ranks.
    pub root: usize,
    pub algorithm: Algorithm,
}

impl Broadcast {
    fn call<'a>(
        &self,
        call: &Call<'a>,
    ) -> Result<collectives::Call<'a, collectives::Broadcast<'a>>, RankError> {
        let broadcast = call.group.broadcast(call.input, call.group.rank_at(self.root)?);
        Ok(broadcast.into(call.output).algorithm(self.algorithm))
    }
}

impl Collective for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }

    fn describe(&self, dtype: DType) -> String {
        format!("{dtype} of rank {}", self.root)
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
        vec![Part { source: Source::Input(self.root), start: 0, count: place.shape.output }]
    }

    fn algorithm(&self, call: &Call<'_>) -> Result<String, RankError> {
        chosen(&self.call(call)?)
    }

    fn issue(&self, call: &Call<'_>) -> Result<(), RankError> {
        Ok(self.call(call)?.on(call.stream)?)
    }
}
