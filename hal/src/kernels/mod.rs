//! Kernels of devices: their sources, and how code is made of them.
//!
//! Does: names compilations by what they are made from ([`Unit`]), and finds their code in the disk
//! cache, in a registered bundle (`register_bundle`), or by compiling with NVRTC, in that order.
//!
//! Does not: need a toolkit or NVRTC to be built, or any of them to run where a bundle is
//! registered. Include a header from disk: sources are texts, and so are their headers.
//!
//! Choices:
//! - *Code for the very device*, compiled at its first use, not PTX for the oldest: the driver's
//!   compiler would have to run at every start.
//! - *A lock for each unit*: ranks that are threads compile each unit once, and different ones at
//!   the same time.
//! - *Failures are not kept*: a bundle may be registered later.

mod arch;
#[cfg(all(feature = "cuda", not(fuzzing)))]
mod bundle;
#[cfg(all(feature = "cuda", fuzzing))]
#[doc(hidden)]
pub mod bundle;
#[cfg(feature = "cuda")]
mod cache;
#[cfg(feature = "cuda")]
mod compile;
mod fields;
#[cfg(feature = "cuda")]
mod lookup;
mod sources;
#[cfg(all(feature = "cuda", feature = "stalls"))]
pub(crate) mod stalled;
#[cfg(feature = "cuda")]
pub(crate) mod unbounded;

pub use arch::{Arch, ArchError, Target};
#[cfg(feature = "cuda")]
pub use bundle::{BundleError, BundleWriter, register_bundle};
#[cfg(feature = "cuda")]
pub use compile::{CompileError, Compiled, compile};
#[doc(hidden)]
pub use fields::struct_fields;
#[cfg(feature = "cuda")]
pub(crate) use lookup::origin;
#[cfg(feature = "cuda")]
pub use lookup::{CodeError, cubin};
pub use sources::{KernelSource, KernelUnits, OPTIONS, Unit, UnitHash, Visit, source_hash};

#[cfg(all(feature = "cuda", feature = "stalls"))]
#[doc(hidden)]
pub use stalled::Stalled;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use unbounded::Unbounded;

/// The folder in which compiled kernels are kept for later processes, whether it exists or not:
/// `SYMMEM_CACHE_DIR`, else `symmem` in `XDG_CACHE_HOME`, else `~/.cache/symmem`. `None` where none of
/// the three is an absolute path.
#[cfg(feature = "cuda")]
#[must_use]
pub fn cache_folder() -> Option<std::path::PathBuf> {
    cache::Cache::of_user().folder().map(Into::into)
}

/// `symmem.cuh`, what kernels on symmetric memory are made of: memory order at system scope, packets,
/// vectors. Name and text, as [`KernelSource::headers`] takes them.
pub const SYMMEM_CUH: (&str, &str) = ("symmem.cuh", include_str!("../../kernels/symmem.cuh"));

/// The kernels of this crate: none, but the header of all.
pub static UNITS: KernelUnits = KernelUnits { name: "hal", headers: &[SYMMEM_CUH], each: |_| {} };

/// What code is filed under.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    unit: UnitHash,
    arch: Arch,
}
