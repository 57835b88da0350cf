use core::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Version;

/// The sort of place in which a library was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// The path that the named environment variable holds.
    Override(&'static str),
    /// The path that the caller gave.
    Given,
    /// The dynamic linker's own search: what the process has loaded already, `LD_LIBRARY_PATH`, its
    /// cache, its default folders.
    Linker,
    /// A folder in which toolkits and drivers are usually installed.
    Folder,
    /// A package in a Python environment.
    PythonPackage,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Override(variable) => write!(f, "${variable}"),
            Place::Given => f.write_str("given path"),
            Place::Linker => f.write_str("dynamic linker"),
            Place::Folder => f.write_str("usual folder"),
            Place::PythonPackage => f.write_str("Python package"),
        }
    }
}

/// One try to open a library, and why it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The sort of place.
    pub place: Place,
    /// What was given to the dynamic linker: a path, or a bare name for its own search.
    pub path: PathBuf,
    /// The dynamic linker's reason.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.path.display(), self.place, self.reason)
    }
}

/// A library is not on this machine, or cannot be opened.
///
/// `{}` is one line; `{:#}` adds a line for each place that was searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFound {
    library: &'static str,
    variable: &'static str,
    searched: Arc<[Attempt]>,
}

impl NotFound {
    pub(super) fn new(
        library: &'static str,
        variable: &'static str,
        searched: Vec<Attempt>,
    ) -> Self {
        NotFound { library, variable, searched: searched.into() }
    }

    /// The library's name in prose, such as "CUDA driver".
    #[must_use]
    pub fn library(&self) -> &'static str {
        self.library
    }

    /// The environment variable that would name the library's exact path.
    #[must_use]
    pub fn variable(&self) -> &'static str {
        self.variable
    }

    /// Everything that was tried, in order.
    #[must_use]
    pub fn searched(&self) -> &[Attempt] {
        &self.searched
    }
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.searched {
            [only] if matches!(only.place, Place::Override(_) | Place::Given) => {
                write!(f, "{} could not be opened: {only}", self.library)
            }
            searched => {
                write!(
                    f,
                    "{} not found in {} places; {} can name its path",
                    self.library,
                    searched.len(),
                    self.variable
                )?;
                if f.alternate() {
                    for attempt in searched {
                        write!(f, "\n  {attempt}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for NotFound {}

/// The library that was loaded does not have a function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingSymbol {
    /// The library's name in prose.
    pub library: &'static str,
    /// The function.
    pub symbol: &'static str,
    /// Where the library was loaded from.
    pub path: Arc<Path>,
    /// The version the library states, where it does.
    pub version: Option<Version>,
    /// The first version that has the function, where that is known.
    pub since: Option<Version>,
}

impl fmt::Display for MissingSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.library)?;
        if let Some(version) = self.version {
            write!(f, " {version}")?;
        }
        write!(f, " has no {}", self.symbol)?;
        if let Some(since) = self.since {
            write!(f, ", which came with {since}")?;
        }
        write!(f, " (loaded from {})", self.path.display())
    }
}

impl std::error::Error for MissingSymbol {}
