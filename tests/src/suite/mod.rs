//! The tests, a module for each layer.

#[cfg(feature = "hal")]
pub mod hal;
#[cfg(feature = "mem")]
pub mod mem;

use crate::runner::Test;

/// All tests of the layers that this build has.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut tests = Vec::new();
    #[cfg(feature = "hal")]
    tests.extend(hal::tests());
    #[cfg(feature = "mem")]
    tests.extend(mem::tests());
    tests
}
