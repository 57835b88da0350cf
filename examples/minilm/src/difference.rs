//! How far embeddings are from those of the whole model on one rank.

use anyhow::{Result, ensure};

/// The largest difference that passes, of vectors of length 1. Ranks add the same products in another
/// order, which moves the last bits of an f32.
pub const TOLERANCE: f32 = 1e-5;

/// The element that differs most.
#[derive(Debug)]
pub struct Difference {
    sentence: usize,
    index: usize,
    expected: f32,
    found: f32,
}

impl Difference {
    /// Of two lists of embeddings of one shape. Any NaN is further away than any number.
    pub fn largest(expected: &[Vec<f32>], found: &[Vec<f32>]) -> Result<Self> {
        let shapes = [expected, found].map(|all| all.iter().map(Vec::len).collect::<Vec<_>>());
        ensure!(shapes[0] == shapes[1], "expected shape {:?}, found {:?}", shapes[0], shapes[1]);
        let mut largest = Difference { sentence: 0, index: 0, expected: 0.0, found: 0.0 };
        for (sentence, (expected, found)) in expected.iter().zip(found).enumerate() {
            for (index, (&expected, &found)) in expected.iter().zip(found).enumerate() {
                let here = Difference { sentence, index, expected, found };
                if here.size().total_cmp(&largest.size()).is_gt() {
                    largest = here;
                }
            }
        }
        Ok(largest)
    }

    pub fn size(&self) -> f32 {
        (self.expected - self.found).abs()
    }

    /// An error that names the element, if it is too far.
    pub fn check(&self) -> Result<()> {
        let Difference { sentence, index, expected, found } = self;
        ensure!(
            self.size() <= TOLERANCE,
            "sentence {sentence}, index {index}: expected {expected}, found {found}: \
             {:e} apart, {TOLERANCE:e} allowed",
            self.size()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn check(expected: &[f32], found: &[f32]) -> Result<()> {
        let rows = |flat: &[f32]| flat.chunks(2).map(<[f32]>::to_vec).collect::<Vec<_>>();
        Difference::largest(&rows(expected), &rows(found))?.check()
    }

    #[test]
    fn the_tolerance_is_the_bound() {
        let base = [0.0, 1.0, 0.5, 0.0];
        check(&base, &base).unwrap();
        check(&base, &[TOLERANCE, 1.0, 0.5, -TOLERANCE]).unwrap();
        check(&base, &[0.0, 1.0, 0.5, -TOLERANCE.next_up()]).unwrap_err();
    }

    #[test]
    fn the_error_names_the_element_that_is_furthest() {
        let error = check(&[0.0, 1.0, 0.5, 0.25], &[0.125, 1.0, 0.5, -0.25]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sentence 1, index 1: expected 0.25, found -0.25: 5e-1 apart, 1e-5 allowed"
        );
    }

    #[test]
    fn a_nan_never_passes() {
        for nan in [f32::NAN, -f32::NAN] {
            let error = check(&[0.0, 1.0, 0.5, 0.25], &[9.0, 1.0, nan, f32::INFINITY]).unwrap_err();
            assert!(error.to_string().starts_with("sentence 1, index 0: expected 0.5, found NaN"));
            check(&[nan, 0.0], &[nan, 0.0]).unwrap_err();
        }
    }

    #[test]
    fn shapes_must_agree() {
        check(&[0.0, 1.0, 0.5], &[0.0, 1.0, 0.5, 0.25]).unwrap_err();
        check(&[], &[0.0]).unwrap_err();
    }
}
