//! Multicast objects: one range of addresses whose stores reach the memory of several devices.
//!
//! # The switch
//!
//! On machines whose GPUs are shared, a program that makes a multicast object can put them out of
//! service. So every switch that users know for it works here, too, and each of them means that no
//! function of the driver whose name begins with `cuMulticast` is called at all:
//! `SYMMEM_MULTICAST=0`, `NCCL_NVLS_ENABLE=0`, `TORCH_SYMM_MEM_DISABLE_MULTICAST=1`,
//! `NVSHMEM_DISABLE_NVLS=1`. To ask a device whether it could is no such call.
#![allow(unsafe_code, reason = "calls the driver")]

use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{
    CUdevice_attribute_enum as Attribute, CUmemGenericAllocationHandle,
    CUmulticastGranularity_flags_enum, CUmulticastObjectProp, CUresult,
};

use super::context::Context;
use super::driver::cu;
use super::virtual_memory::{FD, Mapping, Physical, descriptor};
use crate::driver::DriverError;
use crate::fault::{Fault, Kind};
use crate::memory::{ExportError, Memory, Shareable};
use crate::types::{Bytes, DeviceUuid};
use crate::{Device, DevicePtr, cuda};

/// The switches: a variable, and the value that means off.
const SWITCHES: [(&str, &str); 4] = [
    ("SYMMEM_MULTICAST", "0"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
    ("NVSHMEM_DISABLE_NVLS", "1"),
];

/// Why there is no multicast object, or not this one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MulticastError {
    /// Somebody switched it off.
    #[error("multicast is off: {variable} is {value}")]
    Off {
        /// The environment variable that does.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// The device has none.
    #[error("{device} has no multicast")]
    Unsupported {
        /// The device.
        device: DeviceUuid,
    },
    /// Only memory that this process allocated on the same device, to be shared, is bound.
    #[error("the memory is not an allocation of {bytes} or more on a device of the object")]
    Memory {
        /// Bytes of the object.
        bytes: Bytes,
    },
    /// What came from a peer is no descriptor.
    #[error("a multicast object travels as a descriptor")]
    Handle,
    /// No descriptor could be made of it.
    #[error(transparent)]
    Export(ExportError),
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl Fault for MulticastError {
    fn kind(&self) -> Kind {
        match self {
            MulticastError::Off { .. } | MulticastError::Unsupported { .. } => Kind::Unsupported,
            MulticastError::Memory { .. } => Kind::InvalidArgument,
            MulticastError::Handle => Kind::Disagreement,
            MulticastError::Export(e) => e.kind(),
            MulticastError::Driver(e) => e.kind(),
        }
    }
}

impl MulticastError {
    /// Whether the same may be granted a moment later: what the machine needs for it, its fabric's
    /// manager say, has not come up yet.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        const PASSING: [CUresult; 2] =
            [CUresult::CUDA_ERROR_SYSTEM_NOT_READY, CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY];
        matches!(self, MulticastError::Driver(e) if PASSING.contains(&CUresult(e.code())))
    }
}

/// The switch that is off, if one is.
fn switched_off(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    SWITCHES.iter().find_map(|(name, off)| {
        let value = variable(name)?;
        (value.trim() == *off).then_some((*name, value))
    })
}

fn allowed() -> Result<(), MulticastError> {
    match switched_off(|name| std::env::var(name).ok()) {
        Some((variable, value)) => Err(MulticastError::Off { variable, value }),
        None => Ok(()),
    }
}

/// Whether a device has multicast and nobody switched it off.
pub(super) fn is_usable(context: &Context) -> bool {
    allowed().is_ok() && context.has(Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)
}

/// The context of a device that may be used for multicast.
fn usable(device: &Device) -> Result<&'static Context, MulticastError> {
    allowed()?;
    match device {
        Device::Cuda(d) if d.context().has(Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) => {
            Ok(d.context())
        }
        _ => Err(MulticastError::Unsupported { device: device.uuid() }),
    }
}

/// A multicast object. First every device is added, by its own process; then memory of each is bound;
/// then it is mapped. Clones are the same object.
#[derive(Clone, Debug)]
pub struct Multicast(Arc<Inner>);

impl Multicast {
    /// Whether nobody has switched multicast off, for whatever device.
    ///
    /// # Errors
    ///
    /// [`MulticastError::Off`] names the switch.
    pub fn allowed() -> Result<(), MulticastError> {
        allowed()
    }
}

/// Memory is unbound, then the object released, then the memory let go: fields end in their order.
#[derive(Debug)]
struct Inner {
    bound: Mutex<Vec<Bound>>,
    object: Arc<Physical>,
    memories: Mutex<Vec<Arc<cuda::Memory>>>,
    size: usize,
    unit: usize,
}

/// That memory of a device is bound to an object, neither of which ends before this.
#[derive(Debug)]
struct Bound {
    context: &'static Context,
    object: CUmemGenericAllocationHandle,
    size: usize,
}

impl Drop for Bound {
    fn drop(&mut self) {
        let Bound { context, object, size } = *self;
        if context.can_tidy() {
            let done = context.enter_aside().and_then(|_entered| {
                // SAFETY: bound here with this size; object and memory outlive this (`Inner`).
                unsafe { cu!(context, cuMulticastUnbind(object, context.device, 0, size)) }
            });
            context.complain("unbinding memory from a multicast object", done);
        }
    }
}

/// A mapped multicast object: what is stored at its addresses is stored in all bound memories.
#[derive(Debug)]
pub struct MulticastMapping {
    mapping: Mapping,
    _object: Multicast,
}

impl MulticastMapping {
    /// The address of the first byte, for kernels of the device that it was mapped for.
    #[must_use]
    pub fn base(&self) -> DevicePtr {
        DevicePtr::new(self.mapping.base())
    }

    /// Bytes mapped.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes::from(self.mapping.size())
    }
}

impl Multicast {
    /// Makes an object for `devices` devices, `device` being one of them, of at least `bytes`.
    ///
    /// # Errors
    ///
    /// [`MulticastError::Off`] before the driver is called; [`MulticastError::Unsupported`]; else what
    /// the driver said.
    pub fn create(device: &Device, devices: u32, bytes: Bytes) -> Result<Self, MulticastError> {
        let context = usable(device)?;
        let _entered = context.enter_aside()?;
        let (size, unit, properties) = properties(context, devices, bytes)?;
        let mut handle = 0;
        // SAFETY: writes one handle, reads one struct.
        unsafe { cu!(context, cuMulticastCreate(&raw mut handle, &raw const properties)) }?;
        Ok(Self::new(Physical { context, handle }, size, unit))
    }

    /// Takes up an object that another process made with the same `devices` and `bytes`.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create), and [`MulticastError::Handle`].
    pub fn import(
        device: &Device,
        devices: u32,
        bytes: Bytes,
        shared: &Shareable,
    ) -> Result<Self, MulticastError> {
        let context = usable(device)?;
        let Shareable::Fd(fd) = shared else { return Err(MulticastError::Handle) };
        let _entered = context.enter_aside()?;
        let (size, unit, _) = properties(context, devices, bytes)?;
        let number = usize::try_from(fd.as_raw_fd()).unwrap_or(0);
        // The driver takes the descriptor's number in place of a pointer.
        let os_handle = core::ptr::without_provenance_mut(number);
        let mut handle = 0;
        // SAFETY: writes one handle, takes a descriptor's number.
        unsafe { cu!(context, cuMemImportFromShareableHandle(&raw mut handle, os_handle, FD)) }?;
        Ok(Self::new(Physical { context, handle }, size, unit))
    }

    fn new(object: Physical, size: usize, unit: usize) -> Self {
        let (bound, memories) = (Mutex::default(), Mutex::default());
        Multicast(Arc::new(Inner { bound, object: object.into(), memories, size, unit }))
    }

    /// Bytes of it: those asked for, rounded up to what the devices multicast at once.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes::from(self.0.size)
    }

    /// Makes a handle that another process can import.
    ///
    /// # Errors
    ///
    /// [`MulticastError::Off`], or what the driver said.
    pub fn export(&self) -> Result<Shareable, MulticastError> {
        allowed()?;
        match descriptor(&self.0.object) {
            Ok(fd) => Ok(Shareable::Fd(fd)),
            Err(ExportError::Device(error)) => Err(error.into()),
            Err(error) => Err(MulticastError::Export(error)),
        }
    }

    /// Adds a device. Every device must have been added before any memory is bound.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn add(&self, device: &Device) -> Result<(), MulticastError> {
        let context = usable(device)?;
        let _entered = context.enter_aside()?;
        // SAFETY: the object is alive.
        Ok(unsafe { cu!(context, cuMulticastAddDevice(self.0.object.handle, context.device)) }?)
    }

    /// Binds memory that this process allocated on a device that was added. It is kept until the
    /// object ends, which unbinds it first.
    ///
    /// # Errors
    ///
    /// [`MulticastError::Memory`] where it cannot be bound; else as [`create`](Self::create).
    pub fn bind(&self, device: &Device, memory: &Memory) -> Result<(), MulticastError> {
        let context = usable(device)?;
        let refused = MulticastError::Memory { bytes: self.bytes() };
        let Memory::Cuda(memory) = memory else { return Err(refused) };
        let (object, size) = (self.0.object.handle, self.0.size);
        let fits = |m: &&Mapping| m.size() >= size && core::ptr::eq(m.physical.context, context);
        let Some(mapping) = memory.mapping().filter(fits) else { return Err(refused) };
        let _entered = context.enter_aside()?;
        let handle = mapping.physical.handle;
        // SAFETY: both are alive; the memory stays so until it is unbound.
        unsafe { cu!(context, cuMulticastBindMem(object, 0, handle, 0, size, 0)) }?;
        self.0.memories.lock().push(memory.clone());
        self.0.bound.lock().push(Bound { context, object, size });
        Ok(())
    }

    /// Maps it for the kernels of a device. They may use it once memory of all devices is bound.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn map(&self, device: &Device) -> Result<MulticastMapping, MulticastError> {
        let context = usable(device)?;
        let (object, size, unit) = (self.0.object.clone(), self.0.size, self.0.unit);
        let _entered = context.enter_aside()?;
        let mapping = Mapping::map(context, object, size, unit, FD)?;
        Ok(MulticastMapping { mapping, _object: self.clone() })
    }
}

/// What an object is made with. The switch has been looked at.
///
/// Rounded up by the least granularity, not by the recommended one, which may be many times what memory
/// is allocated by: an object of that size would be larger than most allocations, and none of these
/// could be bound to it.
fn properties(
    context: &Context,
    devices: u32,
    bytes: Bytes,
) -> Result<(usize, usize, CUmulticastObjectProp), MulticastError> {
    let mut properties = CUmulticastObjectProp {
        numDevices: devices,
        size: bytes.to_usize().unwrap_or(usize::MAX),
        handleTypes: FD.0.into(),
        flags: 0,
    };
    let option = CUmulticastGranularity_flags_enum::CU_MULTICAST_GRANULARITY_MINIMUM;
    let mut unit = 0;
    // SAFETY: writes one number, reads one struct.
    unsafe {
        cu!(context, cuMulticastGetGranularity(&raw mut unit, &raw const properties, option))
    }?;
    let size = Bytes(bytes.0.max(1)).round_up(unit as u64).and_then(Bytes::to_usize);
    properties.size = size.ok_or(MulticastError::Memory { bytes })?;
    Ok((properties.size, unit, properties))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serial_test::serial;

    use super::*;

    fn with(set: &[(&str, &str)]) -> Option<&'static str> {
        let value = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        switched_off(value).map(|(name, _)| name)
    }

    #[test]
    fn every_known_switch_turns_it_off() {
        assert_eq!(with(&[]), None);
        for (name, off) in SWITCHES {
            assert_eq!(with(&[(name, off)]), Some(name));
            assert_eq!(with(&[(name, &format!(" {off} "))]), Some(name));
            let on = if off == "0" { "1" } else { "0" };
            assert_eq!(with(&[(name, on)]), None, "{name}={on}");
            assert_eq!(with(&[(name, "")]), None, "{name} empty");
        }
        // One that is on turns no other back on.
        assert_eq!(
            with(&[("SYMMEM_MULTICAST", "1"), ("NCCL_NVLS_ENABLE", "0")]),
            Some("NCCL_NVLS_ENABLE")
        );
    }

    #[test]
    fn only_what_comes_up_later_is_tried_again() {
        let of = |status: CUresult| {
            let (name, text) = (String::new(), String::new());
            MulticastError::from(DriverError::new("cuCall", status.0, name, text, Kind::Device))
        };
        assert!(of(CUresult::CUDA_ERROR_SYSTEM_NOT_READY).is_transient());
        assert!(of(CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY).is_transient());
        assert!(!of(CUresult::CUDA_ERROR_OUT_OF_MEMORY).is_transient());
        assert!(!of(CUresult::CUDA_ERROR_NOT_SUPPORTED).is_transient());
        assert!(!MulticastError::Handle.is_transient());
    }

    #[test]
    #[serial(environment)]
    fn the_switch_is_read_when_it_matters() {
        let device = Device::host();
        let name = "SYMMEM_MULTICAST";
        // SAFETY: the tests that read or write the environment run one after the other.
        unsafe { std::env::set_var(name, "0") };
        let error = Multicast::create(&device, 2, Bytes::mib(2)).unwrap_err();
        assert_eq!(error.to_string(), "multicast is off: SYMMEM_MULTICAST is 0");
        assert_eq!(error.kind(), Kind::Unsupported);
        // SAFETY: as above.
        unsafe { std::env::remove_var(name) };
        let error = Multicast::create(&device, 2, Bytes::mib(2)).unwrap_err();
        assert!(!error.to_string().contains(name), "{error}");
    }
}
