//! Dispatch and combine of routed tokens.

mod harness;
mod refusals;
mod values;

pub(super) use harness::{expert_of, quantised};

use crate::runner::Test;

/// The tests of the operation.
pub(super) fn tests() -> Vec<Test> {
    [values::TESTS, refusals::TESTS].concat()
}
