//! Which experts a token chooses.

use std::ops::Range;

use candle_core::{Result, Tensor};

/// Scores experts by the mean, over an expert's neurons, of what their activation is given: the token's
/// product with the centroid of the expert's rows of W1, plus the mean of its b1. A neuron with little
/// input gives next to nothing, and one with much input gives much.
#[derive(Debug)]
pub struct Router {
    hidden: usize,
    /// Of each expert.
    centroids: Vec<(Vec<f32>, f32)>,
}

impl Router {
    /// For experts of these neurons, of W1 `[neurons, hidden]` and b1.
    pub fn of(experts: &[Range<usize>], w1: &Tensor, b1: &Tensor) -> Result<Self> {
        let mean = |all: &Tensor, of: &Range<usize>| all.narrow(0, of.start, of.len())?.mean(0);
        let centroid = |of| Ok((mean(w1, of)?.to_vec1()?, mean(b1, of)?.to_scalar()?));
        let centroids = experts.iter().map(centroid).collect::<Result<_>>()?;
        Ok(Router { hidden: w1.dim(1)?, centroids })
    }

    /// `[tokens, choices]`: for each token of `x` `[tokens, hidden]` the experts of the highest scores, in
    /// ascending order, which is that of the sum in a combine. Of equal scores the lower expert's counts as
    /// the higher.
    ///
    /// Each token by itself: a matmul of another number of tokens could round otherwise, and so choose
    /// otherwise where scores are close.
    #[must_use]
    pub fn choose(&self, x: &[f32], choices: usize) -> Vec<i32> {
        let choose = |token: &[f32]| {
            let score =
                |(centroid, bias): &(Vec<f32>, f32)| dot(token, centroid) + f64::from(*bias);
            let scores: Vec<f64> = self.centroids.iter().map(score).collect();
            let mut experts: Vec<usize> = (0..scores.len()).collect();
            // Stable: of equal ones the first stays first.
            experts.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            experts.truncate(choices);
            experts.sort_unstable();
            experts
        };
        x.chunks(self.hidden).flat_map(choose).map(|expert| expert as i32).collect()
    }
}

/// The product of two vectors, added up in order.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use candle_core::Device;

    use super::*;

    #[test]
    fn tokens_choose_the_experts_that_they_give_most() {
        let w1 = Tensor::new(&[[1f32, 0.0], [3.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], &Device::Cpu);
        let b1 = Tensor::new(&[0f32, 0.0, 0.5, 0.0], &Device::Cpu);
        let router = Router::of(&[0..2, 2..3, 3..4], &w1.unwrap(), &b1.unwrap()).unwrap();
        // Scores 2, 0.5, -1, then -2, 3.5, 1, then those of a tie: 0.5, 0.5, -0.25.
        let tokens = [1.0, 0.0, -1.0, 3.0, 0.25, 0.0];
        assert_eq!(router.choose(&tokens, 1), [0, 1, 0]);
        assert_eq!(router.choose(&tokens, 2), [0, 1, 1, 2, 0, 1]);
        assert_eq!(router.choose(&tokens, 3), [0, 1, 2].repeat(3));
        assert!(router.choose(&[], 2).is_empty());
    }
}
