//! Epochs where they turn over: the scrub in the middle, the wrap at the end.

use symmem_hal::types::{DType, ReduceOp};
use symmem_mem::Options;
use symmem_sync::protocol::Epoch;

use super::harness::{Bench, Case, Placement, affordable};
use crate::runner::{Context, Test, Verdict, options};
use crate::support::random::Random;
use crate::test;

pub(super) const TESTS: &[Test] = &[
    test!(across_the_scrub).seconds(120),
    test!(across_the_wrap).seconds(120),
    test!(from_the_first_epoch_on),
];

/// Operations of mixed sizes and algorithms from `before` epochs under a turn to well past it.
fn across(context: &Context, turn: Epoch, before: u32) -> Verdict {
    for checked in [true, false] {
        let first_epoch = turn.get() - before;
        let options = Options { first_epoch, checked, ..options(context.size()) };
        let bench = Bench::new(context, context.group_with(&options)?, 120_000)?;
        let mut random = Random::new(context.seed(), &[first_epoch.into()]);
        for _ in 0..before + 12 {
            // Large ones leave words that small ones do not overwrite.
            let count = [0, 1, 17, 400, affordable(context, 5000), affordable(context, 30_000)];
            let count = count[random.below(6) as usize];
            let case = Case::new(DType::F32, ReduceOp::Sum, count);
            let algorithms = bench.algorithms(&case)?;
            let algorithm = algorithms[random.below(algorithms.len() as u64) as usize];
            let placement = Placement::number(random.below(5) as usize);
            bench.check(Case { algorithm, placement, ..case })?;
        }
    }
    Ok(())
}

fn across_the_scrub(context: &Context) -> Verdict {
    for before in [1, 2, 3, 10] {
        across(context, Epoch::MIDDLE, before)?;
    }
    Ok(())
}

fn across_the_wrap(context: &Context) -> Verdict {
    across(context, Epoch::MAX, 0)?;
    for before in [1, 2, 9] {
        across(context, Epoch::MAX, before)?;
    }
    Ok(())
}

fn from_the_first_epoch_on(context: &Context) -> Verdict {
    for first_epoch in [2, 3, 4, 5] {
        let options = Options { first_epoch, ..options(context.size()) };
        let bench = Bench::new(context, context.group_with(&options)?, 40_000)?;
        for count in [10_000, 1, 100, 10_000, 10, 0, 3].map(|n| affordable(context, n)) {
            bench.check_all(Case::new(DType::F32, ReduceOp::Sum, count))?;
        }
    }
    Ok(())
}
