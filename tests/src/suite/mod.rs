//! The tests, a module for each layer.

#[cfg(feature = "collectives")]
pub mod collectives;
#[cfg(feature = "hal")]
pub mod hal;
#[cfg(feature = "mem")]
pub mod mem;
#[cfg(feature = "moe")]
pub mod moe;
#[cfg(feature = "collectives")]
pub mod soak;
#[cfg(feature = "sync")]
pub mod streams;
#[cfg(feature = "sync")]
pub mod sync;

use crate::runner::Test;

/// All tests of the layers that this build has.
#[must_use]
pub fn all() -> Vec<Test> {
    let layers: &[fn() -> Vec<Test>] = &[
        #[cfg(feature = "hal")]
        hal::tests,
        #[cfg(feature = "mem")]
        mem::tests,
        #[cfg(feature = "sync")]
        sync::tests,
        #[cfg(feature = "sync")]
        streams::tests,
        #[cfg(feature = "collectives")]
        collectives::tests,
        #[cfg(feature = "moe")]
        moe::tests,
        #[cfg(feature = "collectives")]
        soak::tests,
    ];
    layers.iter().flat_map(|tests| tests()).collect()
}
