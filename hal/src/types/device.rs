//! Identities of devices.

use core::fmt;

/// The kinds of device a build knows.
///
/// `Cuda` and `Hip` exist in every build, so that a message or a file written by one build can be
/// read by another; a build without the feature cannot open such a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum BackendKind {
    /// The CPU and its memory.
    Host = 1,
    /// An asynchronous, in-order device in software whose memory the host cannot touch.
    Stub = 2,
    /// An NVIDIA GPU.
    Cuda = 3,
    /// An AMD GPU.
    Hip = 4,
}

impl BackendKind {
    /// The name that the command line and messages use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::Host => "host",
            BackendKind::Stub => "stub",
            BackendKind::Cuda => "cuda",
            BackendKind::Hip => "hip",
        }
    }

    /// The code that travels between ranks.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Names one physical device, equal in every process that sees it, whatever its ordinal there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
