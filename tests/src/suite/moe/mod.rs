//! The Mixture-of-Experts layer.

mod tiles;

use crate::runner::Test;

/// The tests of the layer.
#[must_use]
pub fn tests() -> Vec<Test> {
    [tiles::tests()].concat()
}
