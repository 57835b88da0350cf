//! All-to-all-v with splits on the device.

mod harness;
mod refusals;
mod values;

use crate::runner::Test;

/// The tests of the operation.
pub(super) fn tests() -> Vec<Test> {
    [values::TESTS, refusals::TESTS].concat()
}
