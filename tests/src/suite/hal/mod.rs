//! The hardware layer: memory and streams of one process.

mod memory;

use crate::runner::Test;

/// The tests of the layer.
#[must_use]
pub fn tests() -> Vec<Test> {
    memory::TESTS.to_vec()
}
