//! Memory of GPUs: allocated here, a peer's, or somebody else's.
#![allow(unsafe_code, reason = "calls the driver")]

use symmem_sys::cuda::bindings::CUdevice_attribute_enum as Attribute;

use super::Device;
use super::context::Context;
use super::driver::cu;
use super::legacy::{Opened, Sort, is_of};
use super::virtual_memory::{Mapping, is_exhausted};
use crate::backend::MemoryOps;
use crate::driver::DriverError;
use crate::memory::{AllocError, ExportError, ImportError, Shareable};
use crate::shm::Segment;
use crate::stream::KeepAlive;
use crate::types::{BackendKind, Bytes};
use crate::{DeviceMemory, DevicePtr};

/// Memory that a GPU has mapped.
#[derive(Debug)]
pub struct Memory {
    context: &'static Context,
    base: u64,
    bytes: Bytes,
    backing: Backing,
}

/// What lies behind it, and ends with it.
enum Backing {
    /// Allocated here, to be shared.
    Own(Mapping),
    /// A peer's.
    Peer(Mapping),
    /// A peer's, which goes when the peer does.
    Opened(#[allow(dead_code, reason = "held, to be closed")] Opened),
    /// Allocated here, for this process alone.
    Private(#[allow(dead_code, reason = "held, to be freed")] Private),
    /// Somebody else's.
    Foreign(Sort, #[allow(dead_code, reason = "held, to be dropped")] Option<KeepAlive>),
}

impl core::fmt::Debug for Backing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Backing::Own(_) => "own",
            Backing::Peer(_) => "a peer's",
            Backing::Opened(_) => "a peer's, by a legacy handle",
            Backing::Private(_) => "private",
            Backing::Foreign(..) => "foreign",
        })
    }
}

/// An allocation that only this process sees.
///
/// From the driver's pool where there is one: to free memory of the other sort waits for all work of
/// the device, of which some may wait for what the caller has yet to do.
#[derive(Debug)]
pub(super) struct Private {
    context: &'static Context,
    base: u64,
    pooled: bool,
}

impl Private {
    pub(super) fn new(context: &'static Context, bytes: Bytes) -> Result<Self, DriverError> {
        let size = bytes.to_usize().unwrap_or(usize::MAX).max(4).saturating_add(3) & !3;
        let pooled = context.has(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
        let stream = context.copier()?;
        let mut base = 0;
        let entered = context.enter_aside()?;
        // SAFETY: writes one address, which is valid once the stream has come so far, if not at once.
        unsafe {
            if pooled {
                cu!(context, cuMemAllocAsync(&raw mut base, size, stream))
            } else {
                cu!(context, cuMemAlloc_v2(&raw mut base, size))
            }
        }?;
        drop(entered);
        // From here on it is freed, whatever fails.
        let private = Private { context, base, pooled };
        context.aside(|stream| {
            // SAFETY: allocated just now, with at least this size, and known to nobody else.
            unsafe { cu!(context, cuMemsetD32Async(base, 0, size / 4, stream)) }
        })?;
        Ok(private)
    }

    pub(super) fn base(&self) -> DevicePtr {
        DevicePtr::new(self.base)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let context = self.context;
        if !context.can_tidy() {
            return;
        }
        let freed = context.copier().and_then(|stream| {
            let _entered = context.enter_aside()?;
            // SAFETY: allocated in this way; whoever used it kept this alive.
            unsafe {
                if self.pooled {
                    cu!(context, cuMemFreeAsync(self.base, stream))
                } else {
                    cu!(context, cuMemFree_v2(self.base))
                }
            }
        });
        context.complain("freeing memory", freed);
    }
}

/// How much memory a device has.
pub(super) fn info(context: &'static Context) -> Result<DeviceMemory, DriverError> {
    let (mut free, mut total) = (0, 0);
    let _entered = context.enter_aside()?;
    // SAFETY: writes two sizes.
    unsafe { cu!(context, cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
    Ok(DeviceMemory { free: Bytes::from(free), total: Bytes::from(total) })
}

/// What a device says when it does not give memory, with what it has left.
fn refused(context: &'static Context, needed: Bytes, error: DriverError) -> AllocError {
    let available = match info(context) {
        Ok(memory) => memory.free,
        // A device that does not answer has not run out of memory.
        Err(other) => {
            context.complain("asking for free memory", Err(other));
            return AllocError::Device { needed, error };
        }
    };
    // Of absurd sizes some releases of the driver say only that they are invalid.
    if !is_exhausted(&error) && needed <= available {
        return AllocError::Device { needed, error };
    }
    let device = format!("{} (device {})", context.name, context.ordinal);
    AllocError::Exhausted { needed, available, device, error }
}

impl Memory {
    pub(super) fn allocate(context: &'static Context, bytes: Bytes) -> Result<Self, AllocError> {
        context.reap();
        let mapping = Mapping::create(context, bytes);
        let mapping = match mapping.map_err(|error| refused(context, bytes, error))? {
            Some(mapping) => mapping,
            None => {
                let error = super::driver::too_large("cuMemCreate");
                return Err(refused(context, bytes, error));
            }
        };
        let base = mapping.base();
        Ok(Memory { context, base, bytes, backing: Backing::Own(mapping) })
    }

    pub(super) fn private(context: &'static Context, bytes: Bytes) -> Result<Self, AllocError> {
        context.reap();
        let private =
            Private::new(context, bytes).map_err(|error| refused(context, bytes, error))?;
        let base = private.base;
        Ok(Memory { context, base, bytes, backing: Backing::Private(private) })
    }

    pub(super) fn import(
        context: &'static Context,
        shared: &Shareable,
        bytes: Bytes,
    ) -> Result<Self, ImportError> {
        let failed = |error| ImportError::Device { bytes, error };
        let (base, backing) = match shared {
            Shareable::Ipc { handle, offset } => {
                let opened = Opened::open(context, handle).map_err(failed)?;
                let size = opened.size().map_err(failed)?;
                if offset.checked_add(bytes).is_none_or(|end| end.0 > size) {
                    let found = Bytes(size.saturating_sub(offset.0));
                    let error = crate::shm::SegmentError::WrongSize { expected: bytes, found };
                    return Err(error.into());
                }
                (opened.base() + offset.0, Backing::Opened(opened))
            }
            Shareable::Fd(_) | Shareable::Fabric(_) => {
                let mapping = Mapping::import(context, shared, bytes).map_err(failed)?;
                (mapping.base(), Backing::Peer(mapping))
            }
        };
        Ok(Memory { context, base, bytes, backing })
    }

    /// # Safety
    ///
    /// As for the public `Memory::from_raw`.
    pub(crate) unsafe fn from_raw(
        device: &Device,
        address: DevicePtr,
        bytes: Bytes,
        keep: Option<KeepAlive>,
    ) -> Result<Self, ImportError> {
        let context = device.context();
        let failed = |error| ImportError::Device { bytes, error };
        let _entered = context.enter_aside().map_err(failed)?;
        if !is_of(context, address.get()) {
            let what = "an address that is not in its device's memory";
            return Err(ImportError::Unsupported { backend: BackendKind::Cuda, what });
        }
        let sort = Sort::of(context, address.get(), bytes);
        let backing = Backing::Foreign(sort, keep);
        Ok(Memory { context, base: address.get(), bytes, backing })
    }

    /// Gives another device of this process access.
    pub(super) fn open_to(&self, context: &'static Context) -> Result<(), ImportError> {
        if core::ptr::eq(self.context, context) {
            return Ok(());
        }
        match &self.backing {
            Backing::Own(mapping) | Backing::Peer(mapping) => {
                let bytes = self.bytes;
                mapping.open_to(context).map_err(|error| ImportError::Device { bytes, error })
            }
            Backing::Opened(_) | Backing::Private(_) | Backing::Foreign(..) => {
                let what = "memory of another device that was not allocated to be shared";
                Err(ImportError::Unsupported { backend: BackendKind::Cuda, what })
            }
        }
    }

    #[cfg(feature = "cudarc")]
    pub(super) fn context(&self) -> &'static Context {
        self.context
    }

    /// The allocation behind it, where that is one of this process's own.
    pub(super) fn mapping(&self) -> Option<&Mapping> {
        match &self.backing {
            Backing::Own(mapping) => Some(mapping),
            _ => None,
        }
    }

    pub(crate) fn export_fabric(&self) -> Result<Shareable, ExportError> {
        match &self.backing {
            Backing::Own(mapping) => mapping.export_fabric(),
            Backing::Peer(_) | Backing::Opened(_) => Err(ExportError::NotOwner),
            Backing::Private(_) => Err(ExportError::NotShareable { reason: PRIVATE }),
            Backing::Foreign(..) => {
                Err(ExportError::NotShareable { reason: "somebody else allocated it" })
            }
        }
    }

    pub(crate) fn survives_peer_loss(&self) -> bool {
        !matches!(self.backing, Backing::Opened(_))
    }
}

const PRIVATE: &str = "it was allocated for this process alone";

impl MemoryOps for Memory {
    fn base(&self) -> DevicePtr {
        DevicePtr::new(self.base)
    }

    fn bytes(&self) -> Bytes {
        self.bytes
    }

    fn export(&self) -> Result<Shareable, ExportError> {
        match &self.backing {
            Backing::Own(mapping) => mapping.export(),
            Backing::Peer(_) | Backing::Opened(_) => Err(ExportError::NotOwner),
            // As on the other backends: there is nothing to export.
            Backing::Private(_) => Err(ExportError::NotOwner),
            Backing::Foreign(sort, _) => sort.export(self.context, self.base),
        }
    }

    fn read(&self, start: usize, out: &mut [u8]) -> Result<(), DriverError> {
        if out.is_empty() {
            return Ok(());
        }
        let (context, source) = (self.context, self.base + start as u64);
        context.aside(|stream| {
            let (to, bytes) = (out.as_mut_ptr().cast(), out.len());
            // SAFETY: the range lies in this memory (checked by the caller), which stays mapped, and
            // `out` is borrowed until the stream has been waited for.
            unsafe { cu!(context, cuMemcpyDtoHAsync_v2(to, source, bytes, stream)) }
        })
    }

    fn write(&self, start: usize, data: &[u8]) -> Result<(), DriverError> {
        if data.is_empty() {
            return Ok(());
        }
        let (context, target) = (self.context, self.base + start as u64);
        context.aside(|stream| {
            let (from, bytes) = (data.as_ptr().cast(), data.len());
            // SAFETY: as in `read`, the other way.
            unsafe { cu!(context, cuMemcpyHtoDAsync_v2(target, from, bytes, stream)) }
        })
    }

    fn fill32(
        &self,
        start: usize,
        pitch: usize,
        value: u32,
        count: usize,
    ) -> Result<(), DriverError> {
        let (context, target) = (self.context, self.base + start as u64);
        context.aside(|stream| {
            // SAFETY: the words are aligned and lie in this memory (checked by the caller): rows of
            // one word each.
            unsafe {
                if pitch == 4 {
                    cu!(context, cuMemsetD32Async(target, value, count, stream))
                } else {
                    cu!(context, cuMemsetD2D32Async(target, pitch, value, 1, count, stream))
                }
            }
        })
    }

    fn host_segment(&self) -> Option<&Segment> {
        None
    }
}
