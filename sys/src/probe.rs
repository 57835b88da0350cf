//! What is on this machine.

use std::path::PathBuf;

use crate::loader::{MissingSymbol, NotFound, Place, Version};
use crate::{cuda, nvrtc};

/// One library: found or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LibraryReport {
    /// The library's name in prose.
    pub name: &'static str,
    /// The environment variable that names its exact path.
    pub variable: &'static str,
    /// What was found, or everything that was searched.
    pub outcome: Result<Found, NotFound>,
}

/// A library that was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Where it was loaded from.
    pub path: PathBuf,
    /// The sort of place in which it was found.
    pub place: Place,
    /// The version it states, where it does.
    pub version: Option<Version>,
    /// How many functions symmem knows of it.
    pub known: usize,
    /// Those of them that this release does not have.
    pub missing: Vec<MissingSymbol>,
}

/// Looks for every library that symmem can use.
///
/// Opens those that are there and asks for their versions. It initialises none: no driver is
/// started, no device touched, no context made. Later calls reuse what the first one loaded.
#[must_use]
pub fn probe() -> Vec<LibraryReport> {
    vec![cuda::Driver::report(), nvrtc::Nvrtc::report()]
}
