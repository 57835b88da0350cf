//! Reductions of tiles: anywhere in any memory, to any ranks.

mod harness;
mod refusals;
mod streams;
mod values;

use crate::runner::Test;

/// The tests of the operation.
pub(super) fn tests() -> Vec<Test> {
    [values::TESTS, refusals::TESTS, streams::TESTS].concat()
}
