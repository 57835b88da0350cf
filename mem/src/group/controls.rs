//! The memory that a rank gives to its group, and the control pages among it.

use symmem_hal::types::{BackendKind, Bytes};
use symmem_hal::{AllocError, Device, DevicePtr, ImportError, Memory};

/// What a rank gives to its group: its region and, where the host does not reach that, its control page.
pub(super) fn allocate(
    device: &Device,
    region: Bytes,
    control: Bytes,
) -> Result<(Memory, Option<Memory>), AllocError> {
    let memory = device.allocate(region)?;
    let apart = device.kind() == BackendKind::Cuda;
    Ok((memory, apart.then(|| Device::host().allocate(control)).transpose()?))
}

/// The members' control pages in host memory, by group rank: none of those on other hosts.
#[derive(Debug)]
pub(super) struct Controls {
    pub memories: Vec<Option<Memory>>,
    /// Where this rank's device finds them.
    pub addresses: Vec<DevicePtr>,
}

impl Controls {
    pub fn open(device: &Device, memories: Vec<Option<Memory>>) -> Result<Self, ImportError> {
        let find = |memory: &Option<Memory>| {
            memory.as_ref().map_or(Ok(DevicePtr::NULL), |memory| device.map_host(memory))
        };
        let addresses: Result<_, _> = memories.iter().map(find).collect();
        Ok(Controls { addresses: addresses?, memories })
    }
}
