//! Where ranks' memory is.

use clap::ValueEnum;
use symmem::hal::DeviceError;
use symmem::hal::types::BackendKind;
use symmem::prelude::*;

/// Which devices the ranks are on.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Devices {
    /// Where the ranks' memory is
    #[arg(long, value_enum, default_value_t = Backend::Host)]
    pub backend: Backend,
    /// All ranks share the first device; else they take devices in turn
    #[arg(long)]
    pub one_device: bool,
}

/// What drives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The CPU
    Host,
    /// An asynchronous device in software, one for each rank
    Stub,
    /// NVIDIA GPUs
    Cuda,
}

impl Backend {
    pub fn kind(self) -> BackendKind {
        match self {
            Backend::Host => BackendKind::Host,
            Backend::Stub => BackendKind::Stub,
            Backend::Cuda => BackendKind::Cuda,
        }
    }

    /// Its name in files and tables.
    pub fn name(self) -> &'static str {
        self.kind().name()
    }
}

impl From<Backend> for Devices {
    fn from(backend: Backend) -> Self {
        Devices { backend, one_device: false }
    }
}

impl Devices {
    /// How many devices there are for ranks; asks the driver, and makes no context.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] where there is none.
    pub fn count(self) -> Result<u32, DeviceError> {
        let found = match self.backend {
            Backend::Host => 1,
            Backend::Stub => u32::MAX,
            Backend::Cuda => Device::cuda_count()?,
        };
        match found {
            0 => Err(DeviceError::NoDevice { backend: self.backend.kind(), wanted: 0, found }),
            _ if self.one_device => Ok(1),
            found => Ok(found),
        }
    }

    /// A rank's device. Asked for in the process that is the rank.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] where it cannot be had.
    pub fn device(self, rank: usize) -> Result<Device, DeviceError> {
        let ordinal = u32::try_from(rank).unwrap_or(u32::MAX) % self.count()?;
        match self.backend {
            Backend::Host => Ok(Device::host()),
            Backend::Stub => Ok(Device::stub(ordinal)),
            Backend::Cuda => Device::cuda(ordinal),
        }
    }
}
