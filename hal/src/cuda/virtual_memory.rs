//! Memory by the driver's page tables: a physical allocation, a range of addresses, and the mapping
//! of one to the other, each of which ends by itself.
//!
//! What can be shared is allocated so. The importer maps the owner's physical allocation, which lives
//! as long as anybody has it: the owner's death takes nothing away from its peers.
#![allow(unsafe_code, reason = "calls the driver")]

use core::ffi::c_int;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{
    CUdevice_attribute_enum as Attribute, CUmemAccess_flags_enum, CUmemAccessDesc,
    CUmemAllocationGranularity_flags_enum, CUmemAllocationHandleType_enum as HandleType,
    CUmemAllocationProp, CUmemAllocationType_enum, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType_enum, CUresult,
};

use super::context::Context;
use super::driver::cu;
use crate::driver::DriverError;
use crate::memory::{ExportError, Shareable};
use crate::types::Bytes;

/// Descriptors.
pub(super) const FD: HandleType = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const FABRIC: HandleType = HandleType::CU_MEM_HANDLE_TYPE_FABRIC;

/// Why memory does not leave that has neither.
pub(super) const NO_HANDLES: &str =
    "its allocation was made without descriptors and fabric handles";

/// A physical allocation, this process's reference to it.
#[derive(Debug)]
pub(super) struct Physical {
    pub(super) context: &'static Context,
    pub(super) handle: CUmemGenericAllocationHandle,
}

impl Drop for Physical {
    fn drop(&mut self) {
        tidy(self.context, "releasing an allocation", |context| {
            // SAFETY: this reference was its holder's alone; mappings hold their own.
            unsafe { cu!(context, cuMemRelease(self.handle)) }
        });
    }
}

/// Addresses that nothing else uses.
#[derive(Debug)]
struct Range {
    context: &'static Context,
    base: u64,
    size: usize,
}

impl Drop for Range {
    fn drop(&mut self) {
        tidy(self.context, "freeing addresses", |context| {
            // SAFETY: reserved here with this size, and unmapped before.
            unsafe { cu!(context, cuMemAddressFree(self.base, self.size)) }
        });
    }
}

/// Addresses behind which an allocation lies.
#[derive(Debug)]
struct Mapped {
    range: Range,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Range { context, base, size } = self.range;
        tidy(context, "unmapping memory", |context| {
            // SAFETY: mapped here with this size; whoever used it kept this alive.
            unsafe { cu!(context, cuMemUnmap(base, size)) }
        });
    }
}

fn tidy(
    context: &'static Context,
    what: &'static str,
    act: impl FnOnce(&Context) -> Result<(), DriverError>,
) {
    if context.can_tidy() {
        let done = context.enter_aside().and_then(|_entered| act(context));
        context.complain(what, done);
    }
}

/// A mapped allocation of this process's or a peer's. Unmapped, then freed, then released: its fields
/// end in their order.
#[derive(Debug)]
pub(super) struct Mapping {
    mapped: Mapped,
    pub(super) physical: Arc<Physical>,
    /// By which it can leave.
    handles: HandleType,
    /// The ordinals of the devices that have access.
    open: Mutex<Vec<u32>>,
}

/// How memory is allocated that can leave by these handles.
fn properties(context: &Context, handles: HandleType) -> CUmemAllocationProp {
    let mut properties = CUmemAllocationProp {
        type_: CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handles,
        location: location(context),
        ..CUmemAllocationProp::default()
    };
    let direct = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    properties.allocFlags.gpuDirectRDMACapable = u8::from(context.has(direct));
    properties
}

fn location(context: &Context) -> CUmemLocation {
    let type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemLocation { type_, id: context.device }
}

/// `bytes`, rounded up to what is allocated at once; at least that.
fn rounded(
    context: &Context,
    properties: &CUmemAllocationProp,
    bytes: Bytes,
) -> Result<Option<(usize, usize)>, DriverError> {
    let option = CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let mut unit = 0;
    // SAFETY: writes one number, reads one struct.
    unsafe { cu!(context, cuMemGetAllocationGranularity(&raw mut unit, properties, option)) }?;
    let size = Bytes(bytes.0.max(1)).round_up(unit as u64).and_then(Bytes::to_usize);
    Ok(size.map(|size| (size, unit)))
}

/// Descriptors, if the device makes some.
fn descriptors(context: &Context) -> HandleType {
    let able = Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    HandleType(if context.has(able) { FD.0 } else { 0 })
}

/// Whether the device makes fabric handles: it says so, and a trial shows that this process may.
pub(super) fn has_fabric(context: &'static Context) -> bool {
    *context.fabric.get_or_init(|| {
        context.has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)
            && match try_fabric(context) {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!(%error, device = context.name, "no fabric handles");
                    false
                }
            }
    })
}

fn try_fabric(context: &'static Context) -> Result<(), DriverError> {
    let _entered = context.enter_aside()?;
    let properties = properties(context, HandleType(descriptors(context).0 | FABRIC.0));
    let Some((size, _)) = rounded(context, &properties, Bytes(1))? else { return Ok(()) };
    let physical = create(context, size, &properties)?;
    fabric_handle(&physical).map(|_| ())
}

fn create(
    context: &'static Context,
    size: usize,
    properties: &CUmemAllocationProp,
) -> Result<Physical, DriverError> {
    let mut handle = 0;
    // SAFETY: writes one handle, reads one struct.
    unsafe { cu!(context, cuMemCreate(&raw mut handle, size, properties, 0)) }?;
    Ok(Physical { context, handle })
}

fn fabric_handle(physical: &Physical) -> Result<[u8; 64], DriverError> {
    let mut handle = [0u8; 64];
    let out = handle.as_mut_ptr().cast();
    // SAFETY: writes the 64 bytes of a fabric handle.
    unsafe {
        cu!(physical.context, cuMemExportToShareableHandle(out, physical.handle, FABRIC, 0))
    }?;
    Ok(handle)
}

/// A descriptor of an allocation that was made for it.
pub(super) fn descriptor(physical: &Physical) -> Result<OwnedFd, ExportError> {
    let context = physical.context;
    let _entered = context.enter_aside()?;
    let mut fd: c_int = -1;
    let out = (&raw mut fd).cast();
    // SAFETY: for this sort of handle, writes one int.
    unsafe { cu!(context, cuMemExportToShareableHandle(out, physical.handle, FD, 0)) }?;
    // SAFETY: the driver made the descriptor for the caller, and nobody else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
        .map_err(|e| ExportError::Descriptor(e.into()))?;
    Ok(fd)
}

/// A handle of an allocation by which it can leave: to this host by a descriptor, where there are some.
pub(super) fn export(physical: &Physical, handles: HandleType) -> Result<Shareable, ExportError> {
    if handles.0 & FD.0 != 0 {
        return descriptor(physical).map(Shareable::Fd);
    }
    if handles.0 & FABRIC.0 == 0 {
        return Err(ExportError::NotShareable { reason: NO_HANDLES });
    }
    let _entered = physical.context.enter_aside()?;
    Ok(Shareable::Fabric(fabric_handle(physical)?))
}

/// The allocation behind an address, and by what it can leave; none where the memory is not of this
/// sort.
pub(super) fn behind(context: &'static Context, address: u64) -> Option<(Physical, HandleType)> {
    let mut handle = 0;
    let pointer = core::ptr::without_provenance_mut(usize::try_from(address).ok()?);
    // SAFETY: writes one handle; the address is only looked up.
    unsafe { cu!(context, cuMemRetainAllocationHandle(&raw mut handle, pointer)) }.ok()?;
    let physical = Physical { context, handle };
    let mut properties = CUmemAllocationProp::default();
    // SAFETY: writes one struct.
    unsafe { cu!(context, cuMemGetAllocationPropertiesFromHandle(&raw mut properties, handle)) }
        .ok()?;
    Some((physical, properties.requestedHandleTypes))
}

impl Mapping {
    /// Allocates zeroed memory that can leave by a descriptor and by a fabric handle, where there are
    /// some. `None` where no machine has so much.
    pub(super) fn create(
        context: &'static Context,
        bytes: Bytes,
    ) -> Result<Option<Self>, DriverError> {
        let fabric = if has_fabric(context) { FABRIC.0 } else { 0 };
        let _entered = context.enter_aside()?;
        let handles = HandleType(descriptors(context).0 | fabric);
        let properties = properties(context, handles);
        let Some((size, unit)) = rounded(context, &properties, bytes)? else { return Ok(None) };
        let physical = create(context, size, &properties)?.into();
        let mapping = Self::map(context, physical, size, unit, handles)?;
        let base = mapping.base();
        context.aside(|stream| {
            // SAFETY: mapped just now, with access for this device, and known to nobody else.
            unsafe { cu!(context, cuMemsetD8Async(base, 0, size, stream)) }
        })?;
        Ok(Some(mapping))
    }

    /// Maps a peer's allocation of `bytes`.
    pub(super) fn import(
        context: &'static Context,
        shared: &Shareable,
        bytes: Bytes,
    ) -> Result<Self, DriverError> {
        let _entered = context.enter_aside()?;
        let (handle_type, mut fabric) = match shared {
            Shareable::Fabric(handle) => (FABRIC, *handle),
            _ => (FD, [0; 64]),
        };
        let os_handle = match shared {
            // The driver takes the descriptor's number in place of a pointer.
            Shareable::Fd(fd) => {
                core::ptr::without_provenance_mut(usize::try_from(fd.as_raw_fd()).unwrap_or(0))
            }
            _ => fabric.as_mut_ptr().cast(),
        };
        let mut handle = 0;
        // SAFETY: writes one handle, reads a descriptor's number or 64 bytes.
        unsafe {
            cu!(context, cuMemImportFromShareableHandle(&raw mut handle, os_handle, handle_type))
        }?;
        let physical = Arc::new(Physical { context, handle });
        let mut properties = CUmemAllocationProp::default();
        // SAFETY: writes one struct.
        unsafe {
            cu!(context, cuMemGetAllocationPropertiesFromHandle(&raw mut properties, handle))
        }?;
        // What the owner rounded up by: its device is of this sort, and may not be visible here.
        properties.location = location(context);
        let size = rounded(context, &properties, bytes)?;
        let (size, unit) = size.unwrap_or((usize::MAX, 0));
        Self::map(context, physical, size, unit, properties.requestedHandleTypes)
    }

    /// Maps an allocation where there is room, for the use of one device.
    pub(super) fn map(
        context: &'static Context,
        physical: Arc<Physical>,
        size: usize,
        unit: usize,
        handles: HandleType,
    ) -> Result<Self, DriverError> {
        let mut base = 0;
        // SAFETY: writes one address.
        unsafe { cu!(context, cuMemAddressReserve(&raw mut base, size, unit, 0, 0)) }?;
        let range = Range { context, base, size };
        // SAFETY: the addresses were reserved just now. An allocation that is smaller is refused.
        unsafe { cu!(context, cuMemMap(base, size, 0, physical.handle, 0)) }?;
        let open = Mutex::default();
        let mapping = Mapping { mapped: Mapped { range }, physical, handles, open };
        mapping.open_to(context)?;
        Ok(mapping)
    }

    /// Gives a device access to it.
    pub(super) fn open_to(&self, context: &'static Context) -> Result<(), DriverError> {
        let mut open = self.open.lock();
        if open.contains(&context.ordinal) {
            return Ok(());
        }
        let _entered = context.enter_aside()?;
        let flags = CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location: location(context), flags };
        let Range { base, size, .. } = self.mapped.range;
        // SAFETY: the range is mapped; access is only ever added, so no user of it is cut off.
        unsafe { cu!(context, cuMemSetAccess(base, size, &raw const access, 1)) }?;
        open.push(context.ordinal);
        Ok(())
    }

    pub(super) fn base(&self) -> u64 {
        self.mapped.range.base
    }

    /// Bytes mapped, which are at least those asked for.
    pub(super) fn size(&self) -> usize {
        self.mapped.range.size
    }

    pub(super) fn export(&self) -> Result<Shareable, ExportError> {
        export(&self.physical, self.handles)
    }

    pub(super) fn export_fabric(&self) -> Result<Shareable, ExportError> {
        if self.handles.0 & FABRIC.0 == 0 {
            let reason = "its device makes no fabric handles, or this process may not have them";
            return Err(ExportError::NotShareable { reason });
        }
        export(&self.physical, FABRIC)
    }
}

/// Whether an error says that the memory is all taken.
pub(super) fn is_exhausted(error: &DriverError) -> bool {
    CUresult(error.code()) == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}
