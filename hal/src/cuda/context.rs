//! A device's primary context and what the process keeps for it: one of these a device, until the
//! process ends.
//!
//! It is never released. Handles of memory, streams and modules may be dropped at any moment of the
//! process's end, and a context that outlives them all has no order to get wrong; the driver takes
//! everything back when the process is gone.
#![allow(unsafe_code, reason = "calls the driver")]

use core::ffi::{CStr, c_char, c_int};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{OnceLock, Weak};

use parking_lot::Mutex;
use symmem_sys::cuda::Driver;
use symmem_sys::cuda::bindings::{
    CUcontext, CUctx_st, CUdevice, CUdevice_P2PAttribute_enum as P2p,
    CUdevice_attribute_enum as Attribute, CUevent_st, CUresult, CUstream, CUstream_flags_enum,
    CUstream_st, CUuuid,
};

use super::cancel::Cancels;
use super::driver::{Caller, Entered, absent, cu, driver, error, is_sticky};
use super::event::{Point, until};
use super::module::Modules;
use super::queue::Queue;
use super::spare::Spare;
use crate::driver::DriverError;
use crate::types::{BackendKind, DeviceUuid};
use crate::{Capabilities, DeviceError, PeerAccessError, SyncError, Wait};

/// A handle of the driver's, which any thread may use.
#[derive(Debug)]
pub(super) struct Raw<T>(pub(super) *mut T);

impl<T> Copy for Raw<T> {}

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

// SAFETY: the driver's handles name objects of the driver, which is thread-safe; the pointer is
// never followed here.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as for Send.
unsafe impl<T> Sync for Raw<T> {}

/// A device of this process.
pub(crate) struct Context {
    driver: &'static Driver,
    pub(super) ordinal: u32,
    pub(super) device: CUdevice,
    raw: Raw<CUctx_st>,
    pub(super) uuid: DeviceUuid,
    pub(super) name: String,
    pub(super) arch: (u32, u32),
    /// The first status after which nothing works any more; 0 before.
    lost: AtomicU32,
    warned: AtomicBool,
    /// Events that mark nothing any more.
    pub(super) points: Mutex<Vec<Raw<CUevent_st>>>,
    copier: OnceLock<Raw<CUstream_st>>,
    pub(super) spare: Spare,
    /// By the driver's id.
    pub(super) streams: Mutex<HashMap<u64, Weak<Queue>>>,
    pub(super) modules: Modules,
    /// Words by which cancelled tokens reach kernels, once one was needed.
    pub(super) cancels: Mutex<Option<&'static Cancels>>,
    /// Whether fabric handles can be made, once that was tried.
    pub(super) fabric: OnceLock<bool>,
    /// What the device can do, but for multicast, once that was asked.
    pub(super) capabilities: OnceLock<Capabilities>,
}

impl core::fmt::Debug for Context {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({})", self.ordinal, self.name)
    }
}

/// The devices in use.
static CONTEXTS: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());

/// Lets go of everything that finished work of any device kept alive.
pub(crate) fn reap() {
    let contexts = CONTEXTS.lock().clone();
    contexts.iter().for_each(|context| context.reap());
}

/// Whether no known stream of any device has work, one that nobody holds any more among them.
pub(super) fn are_idle() -> bool {
    let contexts = CONTEXTS.lock().clone();
    let is_idle = |context: &&'static Context| {
        // One that is there and cannot be had is about to end.
        let streams: Option<Vec<_>> = context.streams.lock().values().map(Weak::upgrade).collect();
        streams.is_some_and(|streams| streams.iter().all(|stream| stream.is_idle()))
            && context.spare.is_idle(context)
    };
    contexts.iter().all(is_idle)
}

/// How many devices the driver shows to this process.
pub(super) fn count() -> Result<u32, DeviceError> {
    let driver = driver()?;
    let mut count = 0;
    // SAFETY: writes one int.
    unsafe { cu!(&driver, cuDeviceGetCount(&raw mut count)) }?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// The ordinal of a visible device.
pub(super) fn find(uuid: DeviceUuid) -> Result<u32, DeviceError> {
    let (driver, found) = (driver()?, count()?);
    for ordinal in 0..found {
        if identity(driver, handle(driver, ordinal)?)? == uuid {
            return Ok(ordinal);
        }
    }
    Err(DeviceError::NoUuid { backend: BackendKind::Cuda, wanted: uuid, found })
}

fn handle(driver: &'static Driver, ordinal: u32) -> Result<CUdevice, DriverError> {
    let mut device = 0;
    let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: writes one int.
    unsafe { cu!(&driver, cuDeviceGet(&raw mut device, ordinal)) }?;
    Ok(device)
}

fn identity(driver: &'static Driver, device: CUdevice) -> Result<DeviceUuid, DriverError> {
    let mut uuid = CUuuid::default();
    // SAFETY: writes 16 bytes.
    unsafe { cu!(&driver, cuDeviceGetUuid_v2(&raw mut uuid, device)) }?;
    Ok(DeviceUuid(bytemuck::cast(uuid.bytes)))
}

impl Context {
    /// The context of the `ordinal`-th visible device, made at its first use.
    pub(super) fn of(ordinal: u32) -> Result<&'static Self, DeviceError> {
        let (driver, found) = (driver()?, count()?);
        if ordinal >= found {
            return Err(DeviceError::NoDevice {
                backend: BackendKind::Cuda,
                wanted: ordinal,
                found,
            });
        }
        let mut contexts = CONTEXTS.lock();
        if let Some(context) = contexts.iter().find(|c| c.ordinal == ordinal) {
            return Ok(context);
        }
        let context: &'static Self = Box::leak(Box::new(Self::make(driver, ordinal)?));
        contexts.push(context);
        Ok(context)
    }

    fn make(driver: &'static Driver, ordinal: u32) -> Result<Self, DriverError> {
        let device = handle(driver, ordinal)?;
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: writes at most 255 characters and a zero.
        unsafe { cu!(&driver, cuDeviceGetName(name.as_mut_ptr(), 255, device)) }?;
        // SAFETY: the array ends in a zero, whatever was written before it.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut raw = core::ptr::null_mut();
        // SAFETY: writes one handle, which is never released.
        unsafe { cu!(&driver, cuDevicePrimaryCtxRetain(&raw mut raw, device)) }?;
        let mut context = Context {
            driver,
            ordinal,
            device,
            raw: Raw(raw),
            uuid: identity(driver, device)?,
            name,
            arch: (0, 0),
            lost: AtomicU32::new(0),
            warned: AtomicBool::new(false),
            points: Mutex::default(),
            copier: OnceLock::new(),
            spare: Spare::default(),
            streams: Mutex::default(),
            modules: Modules::default(),
            cancels: Mutex::default(),
            fabric: OnceLock::new(),
            capabilities: OnceLock::new(),
        };
        context.arch = (
            context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        Ok(context)
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.raw.0
    }

    /// What the device says of itself; never negative.
    pub(super) fn attribute(&self, attribute: Attribute) -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: writes one int.
        unsafe { cu!(self, cuDeviceGetAttribute(&raw mut value, attribute, self.device)) }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Whether the device says yes; one that does not know the question does not.
    pub(super) fn has(&self, attribute: Attribute) -> bool {
        self.attribute(attribute).is_ok_and(|value| value != 0)
    }

    /// Makes this the calling thread's context for a while, for calls on a stream that may capture.
    pub(super) fn enter(&'static self) -> Result<Entered, DriverError> {
        Entered::new(self, false)
    }

    pub(super) fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: the primary context is retained until the process ends.
        unsafe { cu!(self, cuCtxSetCurrent(self.raw())) }
    }

    /// As [`enter`](Self::enter), for calls that no capture of anybody's is to notice.
    pub(super) fn enter_aside(&'static self) -> Result<Entered, DriverError> {
        Entered::new(self, true)
    }

    /// Whether nothing works any more.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) != 0
    }

    /// Whether there is still something to tidy up; says once why not.
    pub(super) fn can_tidy(&self) -> bool {
        let lost = self.lost.load(Ordering::Relaxed);
        let over = lost == CUresult::CUDA_ERROR_DEINITIALIZED.0;
        if lost != 0 && !over && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                device = self.name,
                status = lost,
                "the device failed: what this process holds of it is left to the driver"
            );
        }
        lost == 0
    }

    /// For calls that have no way to return their error.
    pub(super) fn complain(&self, what: &'static str, outcome: Result<(), DriverError>) {
        if let Err(error) = outcome
            && !self.is_lost()
        {
            tracing::error!(device = self.name, %error, "{what} failed");
        }
    }

    /// Least and greatest priority of streams. The context is current.
    pub(super) fn priorities(&self) -> Result<(c_int, c_int), DriverError> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: writes two ints.
        unsafe { cu!(self, cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest))? };
        Ok((least, greatest))
    }

    /// The stream of copies beside all others. Of the greatest priority, as few are: in the queue of a
    /// device that it goes to, no kernel of an ordinary stream is before a copy.
    pub(super) fn copier(&'static self) -> Result<CUstream, DriverError> {
        if let Some(stream) = self.copier.get() {
            return Ok(stream.0);
        }
        let _entered = self.enter_aside()?;
        let mut stream = core::ptr::null_mut();
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING.0;
        let (_, greatest) = self.priorities()?;
        // SAFETY: writes one handle.
        unsafe { cu!(self, cuStreamCreateWithPriority(&raw mut stream, flags, greatest)) }?;
        let kept = self.copier.get_or_init(|| Raw(stream)).0;
        if kept != stream {
            // SAFETY: of two threads, this one came late; nobody else has its stream.
            self.complain("destroying a stream", unsafe { cu!(self, cuStreamDestroy_v2(stream)) });
        }
        Ok(kept)
    }

    /// Enqueues work on the stream of copies, and waits for it: bounded by the work, which waits for
    /// nothing.
    pub(super) fn aside(
        &'static self,
        enqueue: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let stream = self.copier()?;
        let _entered = self.enter_aside()?;
        enqueue(stream)?;
        // SAFETY: the stream lives as long as the context.
        unsafe { cu!(self, cuStreamSynchronize(stream)) }
    }

    /// Waits until the stream of copies is idle: for what cannot be waited for by itself.
    pub(super) fn await_copies(&'static self, wait: &Wait) -> Result<(), SyncError> {
        let stream = self.copier()?;
        until(wait, || {
            let _entered = self.enter_aside()?;
            self.is_done(stream)
        })
    }

    /// Whether all work of a stream is done. The context is current; the stream is alive, and in no
    /// capture.
    pub(super) fn is_done(&self, stream: CUstream) -> Result<bool, DriverError> {
        let query = self.table().cuStreamQuery().map_err(|e| absent("cuStreamQuery", &e))?;
        // SAFETY: the stream is alive.
        match unsafe { query(stream) } {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => Err(self.failed("cuStreamQuery", status)),
        }
    }

    /// An event to record.
    pub(super) fn point(&'static self) -> Result<Point, DriverError> {
        Point::new(self)
    }

    /// Lets go of everything that finished work kept alive.
    pub(super) fn reap(&self) {
        super::capture::reap();
        let streams: Vec<_> = self.streams.lock().values().filter_map(Weak::upgrade).collect();
        streams.iter().for_each(|stream| stream.reap());
    }

    /// The driver's word on a pair of devices.
    pub(super) fn pair(&self, attribute: P2p, other: CUdevice) -> Result<bool, DriverError> {
        let mut value = 0;
        // SAFETY: writes one int.
        unsafe {
            cu!(self, cuDeviceGetP2PAttribute(&raw mut value, attribute, self.device, other))
        }?;
        Ok(value != 0)
    }

    /// All visible devices but this one.
    fn others(&self) -> Result<Vec<CUdevice>, DeviceError> {
        let ordinals = (0..count()?).filter(|ordinal| *ordinal != self.ordinal);
        Ok(ordinals.map(|ordinal| handle(self.driver, ordinal)).collect::<Result<_, _>>()?)
    }

    /// Whether atomics work natively on every device that this one reaches.
    pub(super) fn has_peer_atomics(&self) -> bool {
        let native = |other: &CUdevice| {
            let ask = |attribute| self.pair(attribute, *other).unwrap_or(false);
            !ask(P2p::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)
                || ask(P2p::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)
        };
        self.others().is_ok_and(|others| others.iter().all(native))
    }

    pub(super) fn can_access_peer(&self, other: DeviceUuid) -> Result<(), PeerAccessError> {
        if other == self.uuid {
            return Ok(());
        }
        let ordinal = match find(other) {
            Ok(ordinal) => ordinal,
            Err(DeviceError::Driver(error)) => return Err(error.into()),
            Err(_) => return Err(PeerAccessError::NotVisible { from: self.uuid, to: other }),
        };
        let peer = handle(self.driver, ordinal)?;
        let mut able = 0;
        // SAFETY: writes one int.
        unsafe { cu!(self, cuDeviceCanAccessPeer(&raw mut able, self.device, peer)) }?;
        if able == 0 {
            return Err(PeerAccessError::NoPath {
                from: format!("{} ({}, {})", self.ordinal, self.name, self.uuid),
                to: format!("{ordinal} ({other})"),
            });
        }
        Ok(())
    }
}

impl Caller for Context {
    fn table(&self) -> &'static Driver {
        self.driver
    }

    #[cold]
    fn failed(&self, call: &'static str, status: CUresult) -> DriverError {
        if is_sticky(status) {
            let first =
                self.lost.compare_exchange(0, status.0, Ordering::Relaxed, Ordering::Relaxed);
            if first.is_ok() {
                tracing::debug!(device = self.name, call, status = status.0, "the device is lost");
            }
        }
        error(self.driver, call, status)
    }
}
