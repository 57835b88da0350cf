//! Addresses in a device's memory.

use core::fmt;

use crate::types::Bytes;

/// An address in some device's memory: a number, never a Rust pointer.
///
/// On `host` it is the address in this process; on `stub` it points nowhere. Only a kernel can
/// follow it, through [`LaunchContext::resolve`](crate::LaunchContext::resolve).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct DevicePtr(u64);

impl DevicePtr {
    /// The null address: no memory.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// From a number.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        DevicePtr(address)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether this is [`NULL`](Self::NULL).
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `offset` bytes further; `None` on overflow.
    #[must_use]
    pub const fn checked_add(self, offset: Bytes) -> Option<Self> {
        match self.0.checked_add(offset.0) {
            Some(a) => Some(DevicePtr(a)),
            None => None,
        }
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
