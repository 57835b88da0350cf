//! The hardware layer: memory and streams of one process.

mod memory;
mod streams;

use crate::runner::Test;

/// The tests of the layer.
#[must_use]
pub fn tests() -> Vec<Test> {
    [memory::TESTS, streams::TESTS].concat()
}
