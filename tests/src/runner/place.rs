//! Where tests run: the backend, the kind of rank, how many.

use core::fmt;
use core::str::FromStr;

use symmem_hal::types::BackendKind;
use symmem_hal::{Device, DeviceError};

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
    /// Whether all ranks share the first device, however many there are.
    pub one_device: bool,
}

/// What the name of a place ends with where all ranks share a device.
const ONE_DEVICE: &str = "one_device";

impl Place {
    /// So many ranks of a kind; each has a device of its own as far as there are as many.
    #[must_use]
    pub const fn new(backend: BackendKind, mode: Mode, ranks: usize) -> Self {
        Place { backend, mode, ranks, one_device: false }
    }

    /// Where a test without ranks runs.
    #[must_use]
    pub const fn local(backend: BackendKind) -> Self {
        Place::new(backend, Mode::Local, 1)
    }

    /// How many times longer than elsewhere a test may take: on GPUs kernels are compiled at their first
    /// use, each type and operator by itself.
    pub(super) fn patience(&self) -> u32 {
        if self.backend == BackendKind::Cuda { 5 } else { 1 }
    }

    /// The device of a rank: the CPU, or a device of its own, or one that it shares where there are
    /// fewer devices than ranks. Only a process that is a rank asks.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] where the machine has no such device, or this build no such backend.
    pub fn device(&self, rank: usize) -> Result<Device, DeviceError> {
        let ordinal = if self.one_device { 0 } else { u32::try_from(rank).unwrap_or(u32::MAX) };
        match self.backend {
            BackendKind::Host => Ok(Device::host()),
            BackendKind::Stub => Ok(Device::stub(ordinal)),
            #[cfg(feature = "cuda")]
            BackendKind::Cuda => Device::cuda(ordinal % devices(self.backend)?),
            backend => Err(DeviceError::NoDevice { backend, wanted: ordinal, found: 0 }),
        }
    }
}

impl fmt::Display for Place {
    /// As in `host-processes-3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.backend, self.mode.name(), self.ranks)?;
        if self.one_device { write!(f, "-{ONE_DEVICE}") } else { Ok(()) }
    }
}

/// A text that names no [`Place`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no place: expected BACKEND-MODE-RANKS[-one_device], as in host-processes-3")]
pub struct NoPlace(String);

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let parse = || {
            let mut parts = text.split('-');
            let (backend, mode) = (backend_of(parts.next()?)?, parts.next()?);
            let mode = Mode::ALL.into_iter().find(|m| m.name() == mode)?;
            let place = Place::new(backend, mode, parts.next()?.parse().ok()?);
            match (parts.next(), parts.next()) {
                (None, _) => Some(place),
                (Some(ONE_DEVICE), None) => Some(Place { one_device: true, ..place }),
                _ => None,
            }
        };
        parse().ok_or_else(|| NoPlace(text.to_owned()))
    }
}

/// The backends of this build.
pub(super) const BACKENDS: &[BackendKind] = &[
    BackendKind::Host,
    BackendKind::Stub,
    #[cfg(feature = "cuda")]
    BackendKind::Cuda,
];

/// The backend of this name, among those of this build.
#[must_use]
pub fn backend_of(name: &str) -> Option<BackendKind> {
    BACKENDS.iter().copied().find(|b| b.name() == name)
}

/// How many devices of a backend this machine has, one at least.
///
/// # Errors
///
/// [`DeviceError`] where it has none: what was searched, or what the driver said.
pub(super) fn devices(backend: BackendKind) -> Result<u32, DeviceError> {
    match backend {
        BackendKind::Host => Ok(1),
        BackendKind::Stub => Ok(u32::MAX),
        #[cfg(feature = "cuda")]
        BackendKind::Cuda => match Device::cuda_count()? {
            0 => Err(DeviceError::NoDevice { backend, wanted: 0, found: 0 }),
            found => Ok(found),
        },
        backend => Err(DeviceError::NoDevice { backend, wanted: 0, found: 0 }),
    }
}
