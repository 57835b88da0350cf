//! Logarithmic axes: their ranges, ticks and labels. Coordinates are logarithms.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use symmem::hal::types::Bytes;

/// Labels that fit beside each other below a panel.
const MOST_LABELS: i32 = 8;

/// An axis: its range, where it is labelled, and where it has a line only.
#[derive(Clone, Debug)]
pub struct Axis {
    pub range: Range<f64>,
    pub labelled: Vec<f64>,
    pub lines: Vec<f64>,
    /// The label of a coordinate.
    label: fn(f64) -> String,
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, at: &f64, (from, to): (i32, i32)) -> i32 {
        let part = (at - self.range.start) / (self.range.end - self.range.start);
        from + (part * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let lines = hint.weight().allow_light_points();
        if lines { self.lines.clone() } else { self.labelled.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, at: &f64) -> String {
        (self.label)(*at)
    }
}

/// The coordinate of a message size.
pub fn of_bytes(bytes: u64) -> f64 {
    (bytes as f64).log2()
}

/// The coordinate of a time or a bandwidth.
pub fn of_value(value: f64) -> f64 {
    value.log10()
}

/// An axis of message sizes, labelled at powers of two.
pub fn sizes(bytes: impl Iterator<Item = u64>) -> Axis {
    let range = padded(bytes.map(of_bytes), 0.03, 0.5);
    let (first, last) = (range.start.ceil() as i32, range.end.floor() as i32);
    // Steps of a factor of 2, 4, 16, 64 ...: names that are round.
    let steps = [1, 2, 4, 6, 10, 20, 40];
    let step = steps.into_iter().find(|step| (last - first) / step < MOST_LABELS).unwrap_or(60);
    let labelled = (first..=last).filter(|power| power % step == 0).map(f64::from).collect();
    Axis { range, labelled, lines: Vec::new(), label: size_label }
}

fn size_label(coordinate: f64) -> String {
    Bytes(coordinate.exp2().round() as u64).to_string()
}

/// An axis of values above 0, labelled at powers of ten, and at 2 and 5 times that where it is short.
pub fn values(values: impl Iterator<Item = f64>) -> Axis {
    let range = padded(values.map(of_value), 0.06, 0.15);
    let decades = range.start.floor() as i32..=range.end.ceil() as i32;
    let at = |factors: &[f64]| -> Vec<f64> {
        let all = decades.clone().flat_map(|decade| {
            factors.iter().map(move |factor| f64::from(decade) + factor.log10())
        });
        all.filter(|at| range.contains(at)).collect()
    };
    let few = at(&[1.0]).len() < 3;
    let labelled = if few { at(&[1.0, 2.0, 5.0]) } else { at(&[1.0]) };
    let lines = at(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    Axis { range, labelled, lines, label: value_label }
}

fn value_label(coordinate: f64) -> String {
    let value = 10f64.powf(coordinate);
    // As many decimals as its first digit needs.
    let decimals = (-(coordinate + 1e-9).floor()).max(0.0) as usize;
    format!("{value:.decimals$}")
}

/// From the least to the largest, and a part of that more on both sides; at least so much.
fn padded(coordinates: impl Iterator<Item = f64>, part: f64, least: f64) -> Range<f64> {
    let ends = (f64::INFINITY, f64::NEG_INFINITY);
    let (low, high) = coordinates
        .filter(|c| c.is_finite())
        .fold(ends, |(low, high), c| (low.min(c), high.max(c)));
    let more = (part * (high - low)).max(least);
    low - more..high + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_round_and_not_too_many() {
        let axis = sizes([64, 64 << 20].into_iter());
        let labels: Vec<_> = axis.labelled.iter().map(|at| axis.format_ext(at)).collect();
        assert_eq!(labels, ["256 B", "4 KiB", "64 KiB", "1 MiB", "16 MiB"]);
        assert!(axis.range.start < 6.0 && axis.range.end > 26.0);
        assert!(!sizes([4096].into_iter()).labelled.is_empty());
        let axis = values([0.3, 29_000.0].into_iter());
        let labels: Vec<_> = axis.labelled.iter().map(|at| axis.format_ext(at)).collect();
        assert_eq!(labels, ["1", "10", "100", "1000", "10000"]);
        let axis = values([0.017, 0.3].into_iter());
        let labels: Vec<_> = axis.labelled.iter().map(|at| axis.format_ext(at)).collect();
        assert_eq!(labels, ["0.02", "0.05", "0.1", "0.2"]);
    }
}
