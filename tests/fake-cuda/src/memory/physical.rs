//! Pieces of a device's memory, each an anonymous file, and the handles by which they are known.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::{fcntl_dupfd_cloexec, pwrite};
use symmem_sys::cuda::bindings::CUresult as Code;

use crate::config::CONFIG;
use crate::entry::Outcome;
use crate::multicast::Object;
use crate::{device, table};

/// What fresh memory is full of: whoever needs zeros has to write them.
const PATTERN: u8 = 0xa5;
/// Larger pieces carry the pattern at both ends only, so that tests of size stay cheap.
const PATTERN_END: u64 = 32 << 20;

/// What is to be known of a piece of memory in every process; the name of its file tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The physical ordinal of the device that has it.
    pub owner: u32,
    /// The handle types it was made for, as bits.
    pub types: u32,
    pub rdma: bool,
}

impl Identity {
    fn name(self) -> String {
        format!("symmem-fake-cuda:memory:{}:{}:{}", self.owner, self.types, u8::from(self.rdma))
    }

    /// What the name of an open file says; nothing where it is no file of this library.
    fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let link = name_of(file)?;
        let mut fields = link.strip_prefix("memory:")?.split(':');
        let mut field = || fields.next()?.parse().ok();
        Some(Identity { owner: field()?, types: field()?, rdma: field()? != 0 })
    }
}

/// The name that this library gave an anonymous file, without the part that all have in common.
pub(crate) fn name_of(file: BorrowedFd<'_>) -> Option<String> {
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let name = link.to_str()?.strip_prefix("/memfd:symmem-fake-cuda:")?;
    Some(name.strip_suffix(" (deleted)")?.to_owned())
}

/// Another descriptor of the same file.
pub(crate) fn duplicate(file: BorrowedFd<'_>) -> Outcome<OwnedFd> {
    fcntl_dupfd_cloexec(file, 0).map_err(|_| Code::CUDA_ERROR_OPERATING_SYSTEM)
}

/// Bytes in use on each device by this process.
static USED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// A device's budget where a test set another than the environment's.
static BUDGETS: Mutex<Vec<Option<u64>>> = Mutex::new(Vec::new());

fn at<T: Default + Clone>(values: &mut Vec<T>, device: usize) -> &mut T {
    values.resize(device::count().max(device + 1), T::default());
    &mut values[device]
}

fn budget(device: usize) -> u64 {
    at(&mut BUDGETS.lock(), device).unwrap_or(CONFIG.memory)
}

pub(crate) fn set_budget(device: usize, bytes: Option<u64>) {
    *at(&mut BUDGETS.lock(), device) = bytes;
}

/// Free and total bytes of a device.
pub(crate) fn information(device: usize) -> (u64, u64) {
    let total = budget(device);
    (total.saturating_sub(*at(&mut USED.lock(), device)), total)
}

fn charge(device: usize, bytes: u64) -> Outcome {
    let mut used = USED.lock();
    let used = at(&mut used, device);
    let after = used.checked_add(bytes).filter(|&after| after <= budget(device));
    *used = after.ok_or(Code::CUDA_ERROR_OUT_OF_MEMORY)?;
    Ok(())
}

/// A piece of memory, made here or by another process. It ends with its last handle and mapping.
#[derive(Debug)]
pub(crate) struct Physical {
    pub file: OwnedFd,
    pub bytes: u64,
    pub identity: Identity,
    /// The device whose budget it is counted in; none where another process made it.
    charged: Option<usize>,
}

impl Physical {
    /// Takes memory from `device`, full of a pattern.
    pub fn create(device: usize, bytes: u64, types: u32, rdma: bool) -> Outcome<Self> {
        charge(device, bytes)?;
        let identity = Identity { owner: device::physical(device), types, rdma };
        let file = memfd_create(identity.name(), MemfdFlags::CLOEXEC);
        let file = file.map_err(|_| Code::CUDA_ERROR_OPERATING_SYSTEM);
        let file = file.inspect_err(|_| *at(&mut USED.lock(), device) -= bytes)?;
        let piece = Physical { file, bytes, identity, charged: Some(device) };
        piece.fill().map_err(|_| Code::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(piece)
    }

    fn fill(&self) -> rustix::io::Result<()> {
        ftruncate(&self.file, self.bytes)?;
        let chunk = [PATTERN; 64 << 10];
        let ends = [
            (0, self.bytes.min(PATTERN_END)),
            (self.bytes.saturating_sub(PATTERN_END).max(PATTERN_END), self.bytes),
        ];
        for (mut from, to) in ends {
            while from < to {
                let length = usize::try_from(to - from).unwrap_or(usize::MAX).min(chunk.len());
                from += pwrite(&self.file, &chunk[..length], from)? as u64;
            }
        }
        Ok(())
    }

    /// The memory that a descriptor from elsewhere means.
    pub fn import(file: OwnedFd) -> Outcome<Self> {
        use std::os::fd::AsFd;
        let identity = Identity::of(file.as_fd()).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let status = fstat(&file).map_err(|_| Code::CUDA_ERROR_OPERATING_SYSTEM)?;
        let bytes = u64::try_from(status.st_size).unwrap_or(0);
        Ok(Physical { file, bytes, identity, charged: None })
    }

    /// The visible device that has it.
    pub fn device(&self) -> Option<usize> {
        (0..device::count()).find(|&device| device::physical(device) == self.identity.owner)
    }

    /// Whether a device can be given access.
    pub fn in_reach_of(&self, device: usize) -> bool {
        device::physical(device) == self.identity.owner
            || device::reaches_physical(device, self.identity.owner)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(device) = self.charged {
            *at(&mut USED.lock(), device) -= self.bytes;
        }
    }
}

/// What a generic allocation handle stands for.
#[derive(Clone, Debug)]
pub(crate) enum Allocation {
    Memory(Arc<Physical>),
    Multicast(Arc<Object>),
}

impl Allocation {
    pub fn memory(self) -> Outcome<Arc<Physical>> {
        match self {
            Allocation::Memory(physical) => Ok(physical),
            Allocation::Multicast(_) => Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
    }

    pub fn multicast(self) -> Outcome<Arc<Object>> {
        match self {
            Allocation::Multicast(object) => Ok(object),
            Allocation::Memory(_) => Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Allocation::Memory(a), Allocation::Memory(b)) => Arc::ptr_eq(a, b),
            (Allocation::Multicast(a), Allocation::Multicast(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

struct Held {
    allocation: Allocation,
    references: u64,
}

static HANDLES: Mutex<Option<HashMap<u64, Held>>> = Mutex::new(None);

/// A first handle of something.
pub(crate) fn hold(allocation: Allocation) -> u64 {
    let handle = table::fresh();
    let held = Held { allocation, references: 1 };
    HANDLES.lock().get_or_insert_default().insert(handle, held);
    handle
}

/// The handle of something that is mapped, with one reference more.
pub(crate) fn retain(allocation: &Allocation) -> u64 {
    let mut handles = HANDLES.lock();
    let handles = handles.get_or_insert_default();
    let known = handles.iter_mut().find(|(_, held)| held.allocation.is(allocation));
    if let Some((handle, held)) = known {
        held.references += 1;
        return *handle;
    }
    let handle = table::fresh();
    handles.insert(handle, Held { allocation: allocation.clone(), references: 1 });
    handle
}

pub(crate) fn held(handle: u64) -> Outcome<Allocation> {
    let handles = HANDLES.lock();
    let held = handles.as_ref().and_then(|handles| handles.get(&handle));
    held.map(|held| held.allocation.clone()).ok_or(Code::CUDA_ERROR_INVALID_VALUE)
}

/// Gives one reference back. The last handle of a multicast object ends its life for importers.
pub(crate) fn release(handle: u64) -> Outcome {
    let mut handles = HANDLES.lock();
    let handles = handles.get_or_insert_default();
    let held = handles.get_mut(&handle).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
    held.references -= 1;
    if held.references == 0
        && let Some(Held { allocation: Allocation::Multicast(object), .. }) =
            handles.remove(&handle)
    {
        object.released();
    }
    Ok(())
}

/// Handles that nobody released.
pub(crate) fn live() -> usize {
    HANDLES.lock().as_ref().map_or(0, HashMap::len)
}
