//! All-to-all of dimensions: of a tensor, every rank gets a part along one dimension from each rank,
//! and joins the parts along another.

use symmem::collectives;
use symmem::hal::types::LayoutError;
use symmem::prelude::*;

use super::{Call, Collective, Place, Shape, chosen};
use crate::bench::check::{Part, Source};
use crate::bench::member::RankError;

/// Elements of a row of one part: what a head of an attention has.
const COLUMNS: u64 = 64;

#[derive(Clone, Copy, Debug)]
pub struct AllToAllNd {
    /// The dimension that is cut, 0 or 1; the other one is joined.
    pub scatter: usize,
    pub algorithm: Algorithm,
}

impl AllToAllNd {
    fn call<'a>(&self, call: &Call<'a>) -> collectives::Call<'a, collectives::AllToAllNd<'a>> {
        let all_to_all = call.group.all_to_all_nd(call.input, call.output);
        all_to_all.dims(self.scatter, 1 - self.scatter).algorithm(self.algorithm)
    }
}

/// Rows of one part.
fn rows(place: &Place) -> u64 {
    place.shape.input / COLUMNS / place.ranks as u64
}

impl Collective for AllToAllNd {
    fn name(&self) -> &'static str {
        "all-to-all-nd"
    }

    fn describe(&self, dtype: DType) -> String {
        let (from, to) = (self.scatter, 1 - self.scatter);
        format!("{dtype}, dimension {from} cut and {to} joined, {COLUMNS} columns a rank")
    }

    fn granule(&self, ranks: usize) -> u64 {
        COLUMNS * ranks as u64
    }

    fn shape(&self, _: usize, _: usize, count: u64) -> Shape {
        Shape { input: count, output: count }
    }

    /// Of n rows of a part: wide is n by all ranks' columns, tall is all ranks' rows by columns.
    fn layouts(&self, place: &Place) -> Result<(Layout, Layout), LayoutError> {
        let (rows, ranks) = (rows(place), place.ranks as u64);
        let wide = Layout::contiguous(&[rows, ranks * COLUMNS])?;
        let tall = Layout::contiguous(&[ranks * rows, COLUMNS])?;
        Ok(if self.scatter == 1 { (wide, tall) } else { (tall, wide) })
    }

    fn bus_factor(&self, ranks: usize) -> f64 {
        (ranks as f64 - 1.0) / ranks as f64
    }

    fn expected(&self, place: &Place) -> Vec<Part> {
        let (rows, ranks, me) = (rows(place), place.ranks as u64, place.rank as u64);
        let part =
            |rank: u64, start| Part { source: Source::Input(rank as usize), start, count: COLUMNS };
        if self.scatter == 1 {
            let of = |rank| move |row| part(rank, (row * ranks + me) * COLUMNS);
            (0..ranks).flat_map(|rank| (0..rows).map(of(rank))).collect()
        } else {
            let of = |row| move |rank| part(rank, (me * rows + row) * COLUMNS);
            (0..rows).flat_map(|row| (0..ranks).map(of(row))).collect()
        }
    }

    fn algorithm(&self, call: &Call<'_>) -> Result<String, RankError> {
        chosen(&self.call(call))
    }

    fn issue(&self, call: &Call<'_>) -> Result<(), RankError> {
        Ok(self.call(call).on(call.stream)?)
    }
}
