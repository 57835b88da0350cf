//! Where tests run: the backend, the kind of rank, how many.

use core::fmt;
use core::str::FromStr;

use symmem_hal::Device;
use symmem_hal::types::BackendKind;

/// What a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// A process.
    Processes,
    /// A thread of a process that holds all ranks.
    Threads,
    /// No rank: a process in which the test makes what it needs.
    Local,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::Processes, Mode::Threads, Mode::Local];

    /// The name used in test names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Processes => "processes",
            Mode::Threads => "threads",
            Mode::Local => "local",
        }
    }
}

/// Where a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The backend.
    pub backend: BackendKind,
    /// The kind of rank.
    pub mode: Mode,
    /// How many.
    pub ranks: usize,
}

impl Place {
    /// Where a test without ranks runs.
    #[must_use]
    pub const fn local(backend: BackendKind) -> Self {
        Place { backend, mode: Mode::Local, ranks: 1 }
    }

    /// The device of a rank: the CPU, or a device in software of its own.
    #[must_use]
    pub fn device(&self, rank: usize) -> Device {
        match self.backend {
            BackendKind::Stub => Device::stub(u32::try_from(rank).unwrap_or(u32::MAX)),
            _ => Device::host(),
        }
    }
}

impl fmt::Display for Place {
    /// As in `host-processes-3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.backend, self.mode.name(), self.ranks)
    }
}

/// A text that names no [`Place`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no place: expected BACKEND-MODE-RANKS, as in host-processes-3")]
pub struct NoPlace(String);

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let parse = || {
            let mut parts = text.split('-');
            let (backend, mode) = (parts.next()?, parts.next()?);
            Some(Place {
                backend: backend_of(backend)?,
                mode: Mode::ALL.into_iter().find(|m| m.name() == mode)?,
                ranks: parts.next()?.parse().ok()?,
            })
        };
        parse().ok_or_else(|| NoPlace(text.to_owned()))
    }
}

/// The backend of this name, among those that every build has.
#[must_use]
pub fn backend_of(name: &str) -> Option<BackendKind> {
    [BackendKind::Host, BackendKind::Stub].into_iter().find(|b| b.name() == name)
}
