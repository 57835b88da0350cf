//! The collectives layer.

mod bits;
mod blocks;
mod concurrency;
pub(in crate::suite) mod data;
mod disagreements;
mod epochs;
mod failing;
mod graphs;
pub(in crate::suite) mod harness;
mod killed;
mod local_errors;
mod mismatches;
mod offsets;
mod operations;
mod sizes;
mod stalls;
mod stub;
mod turns;
mod values;

use crate::runner::Test;
#[cfg(feature = "moe")]
pub(super) use sizes::least_workspace;

/// The tests of the layer.
#[must_use]
pub fn tests() -> Vec<Test> {
    [
        values::TESTS,
        sizes::TESTS,
        operations::TESTS,
        blocks::TESTS,
        bits::TESTS,
        offsets::TESTS,
        epochs::TESTS,
        concurrency::TESTS,
        stalls::TESTS,
        turns::TESTS,
        stub::TESTS,
        graphs::TESTS,
        local_errors::TESTS,
        mismatches::TESTS,
        disagreements::TESTS,
        failing::TESTS,
        killed::TESTS,
    ]
    .concat()
}
