//! cudarc's contexts, streams and slices, in and out without copies: for programs on candle or burn.
//!
//! What comes in is kept alive here as long as it is used. What goes out keeps this library's memory
//! alive as long as cudarc has it, and cannot be freed there. No order is made between the two: a
//! stream that both use is one stream, and other streams are joined by events as ever.
#![allow(unsafe_code, reason = "passes handles and addresses across")]

use core::mem::ManuallyDrop;
use std::sync::Arc;

use bytemuck::AnyBitPattern;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr};
use symmem_sys::cuda::bindings::CUresult;

use super::context::Context;
use super::driver::{Caller as _, driver};
use crate::memory::{AccessError, ImportError, RangeError};
use crate::stream::KeepAlive;
use crate::types::{BackendKind, Bytes};
use crate::{Device, DeviceError, DevicePtr, Fault, Kind, Memory, Stream, cuda};

/// Why something could not be passed to cudarc.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudarcError {
    /// The device is no GPU, or another context's.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The elements do not lie in the memory, or are not aligned there.
    #[error(transparent)]
    Range(#[from] AccessError),
}

impl Fault for CudarcError {
    fn kind(&self) -> Kind {
        match self {
            CudarcError::Device(e) => e.kind(),
            CudarcError::Range(e) => e.kind(),
        }
    }
}

/// An error of cudarc's, in this library's terms.
fn failed(call: &'static str, error: cudarc::driver::DriverError) -> DeviceError {
    match driver() {
        Ok(driver) => (&driver).failed(call, CUresult(error.0 as u32)).into(),
        Err(missing) => missing,
    }
}

fn gpu(device: &Device) -> Result<&'static Context, DeviceError> {
    match device {
        Device::Cuda(device) => Ok(device.context()),
        _ => Err(DeviceError::Foreign { what: "device", reason: "it is no GPU" }),
    }
}

impl Device {
    /// The device of a context of cudarc's.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Foreign`] where it is not the device's primary context; else as
    /// [`cuda`](Self::cuda).
    pub fn from_cudarc(context: &CudaContext) -> Result<Self, DeviceError> {
        let ordinal = u32::try_from(context.ordinal()).unwrap_or(u32::MAX);
        let own = Context::of(ordinal)?;
        if !core::ptr::addr_eq(own.raw(), context.cu_ctx()) {
            let reason = "it is not the device's primary one";
            return Err(DeviceError::Foreign { what: "context", reason });
        }
        Ok(Device::Cuda(cuda::Device::of(own)))
    }

    /// cudarc's context of this device: the same primary one.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Foreign`] where it is no GPU; else what the driver said.
    pub fn to_cudarc(&self) -> Result<Arc<CudaContext>, DeviceError> {
        let context = gpu(self)?;
        // cudarc makes the context current on this thread, which is not what this was called for.
        let _entered = context.enter()?;
        let theirs = CudaContext::new(context.ordinal as usize);
        theirs.map_err(|error| failed("CudaContext::new", error))
    }
}

impl Stream {
    /// A stream of cudarc's: the same queue of work. It is kept alive as long as what this returns.
    ///
    /// # Errors
    ///
    /// As [`Device::from_cudarc`], and [`Stream::from_raw`].
    pub fn from_cudarc(stream: &Arc<CudaStream>) -> Result<Self, DeviceError> {
        let device = Device::from_cudarc(stream.context())?;
        let keep: KeepAlive = stream.clone();
        // SAFETY: the stream lives as long as the `Arc` that is kept.
        unsafe { Stream::from_raw(&device, stream.cu_stream().cast(), Some(keep)) }
    }

    /// This stream as one of cudarc's.
    ///
    /// # Errors
    ///
    /// As [`Device::to_cudarc`].
    ///
    /// # Safety
    ///
    /// This stream must outlive what is returned and everything that retains it, as slices do.
    pub unsafe fn to_cudarc(&self) -> Result<Arc<CudaStream>, DeviceError> {
        let Stream::Cuda(stream) = self else {
            return Err(DeviceError::Foreign { what: "stream", reason: "it is of no GPU" });
        };
        let device = Device::Cuda(cuda::Device::of(stream.inner().context));
        let context = device.to_cudarc()?;
        // SAFETY: a stream of this context; the caller keeps it alive.
        Ok(unsafe { context.wrap_borrowed_stream(stream.inner().raw().cast()) })
    }
}

impl Memory {
    /// The memory of a slice of cudarc's, which is freed when nobody here uses it any more.
    ///
    /// What cudarc has enqueued on it is not waited for.
    ///
    /// # Errors
    ///
    /// As [`Device::from_cudarc`], told as [`ImportError::Foreign`], and [`Memory::from_raw`].
    pub fn from_cudarc<T: Send + Sync + 'static>(
        slice: Arc<CudaSlice<T>>,
    ) -> Result<Self, ImportError> {
        use cudarc::driver::DevicePtr as _;
        let stream = slice.stream().clone();
        let device = Device::from_cudarc(stream.context()).map_err(ImportError::Foreign)?;
        let bytes = Bytes::from(slice.num_bytes());
        let (address, recorded) = slice.device_ptr(&stream);
        drop(recorded);
        // SAFETY: the slice is one allocation, which lives as long as the `Arc` that is kept.
        unsafe { Memory::from_raw(&device, DevicePtr::new(address), bytes, Some(slice.clone())) }
    }

    /// `count` elements from `offset` on, as a slice of cudarc's on `stream`. It keeps this memory until
    /// that stream's work at its end is done, and frees nothing.
    ///
    /// # Errors
    ///
    /// [`CudarcError::Range`] where they do not lie in the memory or are not aligned;
    /// [`CudarcError::Device`] where memory and stream are not of one GPU, or the driver refused.
    pub fn to_cudarc<T: DeviceRepr + AnyBitPattern>(
        &self,
        stream: &Arc<CudaStream>,
        offset: Bytes,
        count: usize,
    ) -> Result<CudarcSlice<T>, CudarcError> {
        let size = self.bytes();
        let length = Bytes::of(count as u64, size_of::<T>() as u64).unwrap_or(Bytes(u64::MAX));
        let outside = AccessError::Range(RangeError { offset, length, size });
        let fits = offset.checked_add(length).is_some_and(|end| end <= size);
        let address = self.base().checked_add(offset);
        let aligned = |a: &DevicePtr| a.get().is_multiple_of(align_of::<T>() as u64);
        let address = address.filter(|a| fits && aligned(a)).ok_or(outside)?;
        let own = Stream::from_cudarc(stream)?;
        let of = Device::from_cudarc(stream.context())?;
        if self.backend() != BackendKind::Cuda || self.device() != Some(of.uuid()) {
            let reason = "it is not of the stream's device";
            return Err(DeviceError::Foreign { what: "memory", reason }.into());
        }
        // What cudarc does next, and takes for granted.
        let event = stream.context().new_event(None);
        event.map_err(|error| failed("CudaContext::new_event", error))?;
        // SAFETY: the elements lie in this memory, which the result keeps, are aligned and valid
        // whatever their bits; the result never lets cudarc free them.
        let slice = unsafe { stream.upgrade_device_ptr(address.get(), count) };
        Ok(CudarcSlice { slice: ManuallyDrop::new(slice), memory: self.clone(), stream: own })
    }

    /// The GPU that it is mapped for.
    fn device(&self) -> Option<crate::types::DeviceUuid> {
        match self {
            Memory::Cuda(memory) => Some(memory.context().uuid),
            _ => None,
        }
    }
}

/// Memory of this library's as a slice of cudarc's.
#[derive(Debug)]
pub struct CudarcSlice<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    memory: Memory,
    stream: Stream,
}

impl<T> CudarcSlice<T> {
    /// To be read.
    #[must_use]
    pub fn view(&self) -> CudaView<'_, T> {
        self.slice.as_view()
    }

    /// To be written.
    #[must_use]
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }
}

impl<T> Drop for CudarcSlice<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here. The address is not freed but forgotten, after the stream has been
        // made to wait for what was done with the slice on others.
        let _ = unsafe { ManuallyDrop::take(&mut self.slice) }.leak();
        if let (Stream::Cuda(stream), Memory::Cuda(memory)) = (&self.stream, &self.memory) {
            let memory: KeepAlive = memory.clone();
            stream.keep_until_now(memory);
        }
    }
}
