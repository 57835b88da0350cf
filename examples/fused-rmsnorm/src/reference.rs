//! The same in f64, on the CPU, and how far a result is from it.

use anyhow::{Result, ensure};
use symmem::prelude::bf16;

/// Of the last place of bf16, beside half a place of rounding: what the f32 arithmetic of the kernel,
/// and the rounding of the residual it is made from, may be off by.
const PLACES: f64 = 1.5;

/// Inputs of all ranks, residual, weight.
#[derive(Clone, Debug)]
pub struct Model<'a> {
    pub inputs: &'a [Vec<bf16>],
    pub residual: &'a [bf16],
    pub weight: &'a [bf16],
    pub epsilon: f64,
}

/// What must come out.
#[derive(Clone, Debug)]
pub struct Expected {
    pub residual: Vec<f64>,
    pub output: Vec<f64>,
}

impl Model<'_> {
    pub fn expected(&self) -> Expected {
        let sums = (0..self.residual.len()).map(|i| {
            let sum: f64 = self.inputs.iter().map(|input| f64::from(input[i])).sum();
            // The all-reduce rounds, and so does the residual.
            f64::from(bf16::from_f64(f64::from(bf16::from_f64(sum)) + f64::from(self.residual[i])))
        });
        let residual: Vec<f64> = sums.collect();
        let rows = residual.chunks(self.weight.len()).flat_map(|row| {
            let mean = row.iter().map(|h| h * h).sum::<f64>() / row.len() as f64;
            let scale = (mean + self.epsilon).sqrt().recip();
            row.iter().zip(self.weight).map(move |(h, w)| h * scale * f64::from(*w))
        });
        let output = rows.collect();
        Expected { residual, output }
    }
}

/// The largest distance, in last places of bf16.
pub fn distance(what: &str, found: &[bf16], expected: &[f64]) -> Result<f64> {
    let mut largest = 0.0f64;
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        // 8 bits of significand; below the smallest normal number places are no finer.
        let exponent = expected.abs().max(f64::from(bf16::MIN_POSITIVE)).log2().floor();
        let places = (f64::from(*found) - expected).abs() / (exponent - 7.0).exp2();
        ensure!(
            places <= 0.5 + PLACES,
            "{what}, element {index}: found {found}, expected {expected}: {places:.2} places off"
        );
        largest = largest.max(places);
    }
    Ok(largest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn one_row_by_hand() {
        let of = |all: &[f32]| all.iter().copied().map(bf16::from_f32).collect::<Vec<_>>();
        let inputs = [of(&[1.0, 2.0]), of(&[2.0, 0.0])];
        let (residual, weight) = (of(&[0.0, 2.0]), of(&[1.0, 2.0]));
        let model = Model { inputs: &inputs, residual: &residual, weight: &weight, epsilon: 0.0 };
        let Expected { residual, output } = model.expected();
        assert_eq!(residual, [3.0, 4.0]);
        let scale = 12.5f64.sqrt().recip();
        assert!((output[0] - 3.0 * scale).abs() < 1e-12 && (output[1] - 8.0 * scale).abs() < 1e-12);
        assert!(distance("row", &of(&[3.0, 4.0]), &[3.0, 4.0]).unwrap() == 0.0);
        assert!(distance("row", &of(&[3.0, 4.125]), &[3.0, 4.0]).is_err());
    }
}
