//! Put and get: every rank at once writes to, or reads from, its right neighbour.

use symmem::prelude::*;

use super::{Call, Collective, Place, Shape};
use crate::bench::check::{Part, Source};
use crate::bench::member::RankError;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneSided {
    Put,
    Get,
}

impl Collective for OneSided {
    fn name(&self) -> &'static str {
        match self {
            OneSided::Put => "put",
            OneSided::Get => "get",
        }
    }

    fn describe(&self, dtype: DType) -> String {
        let way = if *self == OneSided::Put { "to" } else { "from" };
        format!("{dtype} {way} the next rank, all at once")
    }

    fn is_one_sided(&self) -> bool {
        true
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
        let from = match self {
            OneSided::Put => place.rank + place.ranks - 1,
            OneSided::Get => place.rank + 1,
        };
        let source = Source::Input(from % place.ranks);
        vec![Part { source, start: 0, count: place.shape.output }]
    }

    /// One of the two ways there are, on the host: the caller's thread copies.
    fn algorithm(&self, _: &Call<'_>) -> Result<String, RankError> {
        Ok("copy".to_owned())
    }

    fn issue(&self, call: &Call<'_>) -> Result<(), RankError> {
        let group = call.group;
        let next = group.rank_at((group.rank().index() + 1) % group.size())?;
        match self {
            OneSided::Put => group.symmetric(call.output)?.put(call.input, next).on(call.stream)?,
            OneSided::Get => group.symmetric(call.input)?.get(call.output, next).on(call.stream)?,
        }
        Ok(())
    }
}
