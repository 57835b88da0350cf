//! The tests, a module for each layer.

#[cfg(feature = "collectives")]
pub mod collectives;
#[cfg(feature = "hal")]
pub mod hal;
#[cfg(feature = "mem")]
pub mod mem;
#[cfg(feature = "sync")]
pub mod streams;
#[cfg(feature = "sync")]
pub mod sync;

use crate::runner::Test;

/// All tests of the layers that this build has.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut tests = Vec::new();
    #[cfg(feature = "hal")]
    tests.extend(hal::tests());
    #[cfg(feature = "mem")]
    tests.extend(mem::tests());
    #[cfg(feature = "sync")]
    tests.extend(sync::tests());
    #[cfg(feature = "sync")]
    tests.extend(streams::tests());
    #[cfg(feature = "collectives")]
    tests.extend(collectives::tests());
    tests
}
