//! From costs to the sizes at which to change the algorithm.

use symmem::collectives::Step;

/// What an algorithm costs; `None` where it cannot take the size.
pub type Cost = Option<f64>;

/// The steps of the least product of all sizes' costs; algorithms come in their order, each at most
/// once. Sizes ascend.
pub fn steps(algorithms: &[&str], sizes: &[(u64, Vec<Cost>)]) -> Vec<Step> {
    // For each algorithm: the least sum of logarithms with it at this size, and the choices so far.
    let mut best: Vec<(f64, Vec<usize>)> = vec![(0.0, Vec::new()); algorithms.len()];
    for (_, costs) in sizes {
        let logarithm = |k: usize| costs[k].map_or(f64::INFINITY, f64::ln);
        best = (0..algorithms.len())
            .map(|k| {
                // The same one again if that is no worse.
                let before = best[..=k].iter().rev().min_by(|a, b| a.0.total_cmp(&b.0));
                let (sum, choices) = before.cloned().unwrap_or_default();
                let choices = choices.into_iter().chain([k]).collect();
                (sum + logarithm(k), choices)
            })
            .collect();
    }
    let least = best.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let choices = least.map(|(_, choices)| choices).unwrap_or_default();
    let mut steps: Vec<Step> = Vec::new();
    for ((size, _), k) in sizes.iter().zip(choices) {
        match steps.last_mut() {
            Some(step) if step.algorithm == algorithms[k] => step.up_to = Some(*size),
            _ => steps.push(Step { algorithm: algorithms[k].to_owned(), up_to: Some(*size) }),
        }
    }
    // What is the fastest for the largest size is taken for all larger ones.
    if let Some(last) = steps.last_mut() {
        last.up_to = None;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sizes: &[(u64, [f64; 3])]) -> Vec<(String, Option<u64>)> {
        let cost = |cost: &f64| cost.is_finite().then_some(*cost);
        let sizes: Vec<(u64, Vec<Cost>)> =
            sizes.iter().map(|(size, costs)| (*size, costs.iter().map(cost).collect())).collect();
        let steps = steps(&["a", "b", "c"], &sizes);
        steps.into_iter().map(|step| (step.algorithm, step.up_to)).collect()
    }

    fn step(algorithm: &str, up_to: Option<u64>) -> (String, Option<u64>) {
        (algorithm.to_owned(), up_to)
    }

    #[test]
    fn each_is_taken_where_it_is_the_fastest() {
        let none = f64::INFINITY;
        let sizes = [
            (16, [1.0, 2.0, 3.0]),
            (32, [1.0, 2.0, 3.0]),
            (64, [none, 2.0, 3.0]),
            (128, [none, 4.0, 3.0]),
        ];
        assert_eq!(of(&sizes), [step("a", Some(32)), step("b", Some(64)), step("c", None)]);
        assert_eq!(of(&sizes[..2]), [step("a", None)]);
        assert_eq!(of(&sizes[3..]), [step("c", None)]);
        assert_eq!(of(&[]), []);
    }

    #[test]
    fn one_slow_sample_does_not_make_a_step() {
        let sizes = [
            (16, [1.0, 2.0, 9.0]),
            (32, [1.5, 1.4, 9.0]),
            (64, [1.0, 2.0, 9.0]),
            (128, [9.0, 8.0, 2.0]),
        ];
        assert_eq!(of(&sizes), [step("a", Some(64)), step("c", None)]);
    }
}
