//! Defaults of the whole process, fixed when they are first taken.
//!
//! Set them before anything is made: [`Options::default`](crate::Options::default) takes the size of
//! pads, and [`launch`](crate::launch) and [`Group::from_env`](crate::Group::from_env) take the
//! backend. What has been taken is in use, so from then on another value is an error with both; the
//! same value again is none. Whatever a call is given explicitly is not concerned.
//!
//! ```
//! use symmem_mem::settings;
//! use symmem_hal::types::Bytes;
//!
//! settings::set_signal_pad_size(Bytes::kib(64))?;
//! assert_eq!(symmem_mem::Options::default().pad, Bytes::kib(64));
//! settings::set_signal_pad_size(Bytes::kib(64))?;
//! assert!(settings::set_signal_pad_size(Bytes::kib(32)).is_err());
//! # Ok::<(), settings::SettingError>(())
//! ```

use parking_lot::Mutex;
use symmem_hal::types::{BackendKind, Bytes};
use symmem_hal::{Device, Fault, Kind};

/// Why a default cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// The default backend is in use.
    #[error(
        "the default backend is {fixed} and in use; {asked} had to be set before the first group"
    )]
    Backend {
        /// What it is.
        fixed: BackendKind,
        /// What it was to be.
        asked: BackendKind,
    },
    /// The default size of signal pads is in use.
    #[error(
        "signal pads have {fixed} by default, and options were made with it; {asked} had to be set before"
    )]
    SignalPadSize {
        /// What it is.
        fixed: Bytes,
        /// What it was to be.
        asked: Bytes,
    },
    /// There is no such device for this build.
    #[error(
        "no {0} backend: this build lacks it, or this machine has no such device; `symmem info` tells which there are"
    )]
    NoBackend(BackendKind),
}

impl Fault for SettingError {
    fn kind(&self) -> Kind {
        match self {
            SettingError::NoBackend(_) => Kind::Unsupported,
            _ => Kind::InvalidArgument,
        }
    }
}

/// A value, and whether it has been taken.
struct Setting<T>(Mutex<(T, bool)>);

impl<T: Copy + PartialEq> Setting<T> {
    const fn new(value: T) -> Self {
        Setting(Mutex::new((value, false)))
    }

    fn get(&self) -> T {
        self.0.lock().0
    }

    fn take(&self) -> T {
        let mut setting = self.0.lock();
        setting.1 = true;
        setting.0
    }

    /// The value it keeps, where that is another.
    fn set(&self, value: T) -> Result<(), T> {
        let mut setting = self.0.lock();
        if setting.1 && setting.0 != value {
            return Err(setting.0);
        }
        setting.0 = value;
        Ok(())
    }
}

/// 32 blocks of 72 ranks, as PyTorch has it.
static SIGNAL_PAD_SIZE: Setting<Bytes> = Setting::new(Bytes::new(32 * 72 * 4));
static BACKEND: Setting<BackendKind> = Setting::new(BackendKind::Host);

/// Sets the backend of groups that are made without naming a device. The CPU at first.
///
/// # Errors
///
/// [`SettingError`] where another one is in use, or this build does not have it.
pub fn set_backend(backend: BackendKind) -> Result<(), SettingError> {
    if devices_of(backend).is_empty() {
        return Err(SettingError::NoBackend(backend));
    }
    BACKEND.set(backend).map_err(|fixed| SettingError::Backend { fixed, asked: backend })
}

/// The backend of groups that are made without naming a device. Does not fix it.
#[must_use]
pub fn backend() -> BackendKind {
    BACKEND.get()
}

/// Sets the bytes of signal pads of groups whose options do not say. 9216 at first.
///
/// # Errors
///
/// [`SettingError`] where another size is in use.
pub fn set_signal_pad_size(bytes: Bytes) -> Result<(), SettingError> {
    SIGNAL_PAD_SIZE.set(bytes).map_err(|fixed| SettingError::SignalPadSize { fixed, asked: bytes })
}

/// The bytes of signal pads of groups whose options do not say. Does not fix them.
#[must_use]
pub fn signal_pad_size() -> Bytes {
    SIGNAL_PAD_SIZE.get()
}

pub(crate) fn take_signal_pad_size() -> Bytes {
    SIGNAL_PAD_SIZE.take()
}

/// The devices of groups that are made without naming any: all that this process sees, one at least.
pub(crate) fn take_devices() -> Vec<Device> {
    let devices = devices_of(BACKEND.take());
    if devices.is_empty() { vec![Device::host()] } else { devices }
}

/// The device of the rank with this number among those of its host.
pub(crate) fn take_device(local: usize) -> Device {
    let mut devices = take_devices();
    let index = local % devices.len();
    devices.swap_remove(index)
}

/// None where this build or this machine has no such backend.
fn devices_of(backend: BackendKind) -> Vec<Device> {
    match backend {
        BackendKind::Host => vec![Device::host()],
        BackendKind::Stub => vec![Device::stub(0)],
        #[cfg(feature = "cuda")]
        BackendKind::Cuda => {
            let count = Device::cuda_count().unwrap_or(0);
            (0..count).filter_map(|ordinal| Device::cuda(ordinal).ok()).collect()
        }
        _ => Vec::new(),
    }
}
