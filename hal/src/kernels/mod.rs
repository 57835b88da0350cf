//! Device code: its sources, and how it becomes something a device can load.

#[cfg(feature = "cuda")]
use std::sync::Arc;

#[cfg(feature = "cuda")]
use crate::module::LoadError;

/// The device code of one crate: a source and the headers that it includes, all in memory.
#[derive(Clone, Copy, Debug)]
pub struct KernelSource {
    /// Name of the set, unique among all sources of a program.
    pub name: &'static str,
    /// The file that is compiled: its name in messages, and its text.
    pub file: (&'static str, &'static str),
    /// Headers, by the names under which they are included.
    pub headers: &'static [(&'static str, &'static str)],
}

/// One compilation: a source and its definitions.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// What is compiled.
    pub source: &'static KernelSource,
    /// Macros and their values.
    pub defines: &'a [(&'a str, &'a str)],
}

/// The code of a unit for an architecture: an image that the driver loads.
#[cfg(feature = "cuda")]
pub(crate) fn cubin(unit: &Unit<'_>, arch: (u32, u32)) -> Result<Arc<[u8]>, LoadError> {
    Err(LoadError::NoCode {
        set: unit.source.name,
        arch: format!("sm_{}{}", arch.0, arch.1),
        reason: "this build has no compiler".to_owned(),
    })
}
