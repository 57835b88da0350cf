//! What a call reads or writes.

use core::marker::PhantomData;

use symmem_hal::DevicePtr;
use symmem_hal::types::{BackendKind, Bytes, DType, Element};
use symmem_mem::View;

use super::CallError;

/// A range of elements that a call reads or writes: a view, or a slice borrowed for the call.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    ptr: DevicePtr,
    count: u64,
    dtype: DType,
    /// `None` for a slice, which no peer can reach and which lives as long as the call only.
    view: Option<&'a View>,
    borrow: PhantomData<&'a [u8]>,
}

impl<'a> Buffer<'a> {
    /// A view of any layout.
    pub(crate) fn of(view: &'a View) -> Self {
        let (ptr, count, dtype) = (view.ptr(), view.count(), view.dtype());
        Buffer { ptr, count, dtype, view: Some(view), borrow: PhantomData }
    }

    /// What a call reads.
    pub(crate) fn slice<T: Element>(data: &'a [T]) -> Self {
        Self::borrowed::<T>(data.as_ptr().expose_provenance(), data.len())
    }

    /// What a call writes, and may read.
    pub(crate) fn slice_mut<T: Element>(data: &'a mut [T]) -> Self {
        Self::borrowed::<T>(data.as_mut_ptr().expose_provenance(), data.len())
    }

    fn borrowed<T: Element>(address: usize, count: usize) -> Self {
        Buffer {
            ptr: DevicePtr::new(address as u64),
            count: count as u64,
            dtype: T::DTYPE,
            view: None,
            borrow: PhantomData,
        }
    }

    pub(crate) fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.count * self.dtype.size() as u64)
    }

    pub(crate) fn view(&self) -> Option<&'a View> {
        self.view
    }

    /// Bytes from the first element to one past the last.
    pub(crate) fn extent(&self) -> Bytes {
        let elements = self.view.map_or(self.count, |view| view.layout().extent());
        Bytes(elements.saturating_mul(self.dtype.size() as u64))
    }

    pub(crate) fn contiguous(&self) -> Result<(), CallError> {
        Ok(self.view.map_or(Ok(()), View::contiguous)?)
    }

    /// That it lies where the group is.
    pub(crate) fn on(&self, group: BackendKind, what: &'static str) -> Result<(), CallError> {
        match self.view.map(|view| view.memory().backend()) {
            Some(found) if found != group => Err(CallError::Backend { what, group, found }),
            _ => Ok(()),
        }
    }

    pub(crate) fn same_type(&self, output: &Buffer<'_>) -> Result<(), CallError> {
        let (input, output) = (self.dtype, output.dtype);
        if input == output { Ok(()) } else { Err(CallError::DType { input, output }) }
    }

    /// That the two share no byte. Slices are Rust's to keep apart.
    pub(crate) fn apart(&self, other: &Buffer<'_>) -> Result<(), CallError> {
        match (self.view, other.view) {
            (Some(a), Some(b)) if a.overlaps(b) => Err(CallError::Overlap),
            _ => Ok(()),
        }
    }

    /// That the two share no byte, or begin at the same one.
    pub(crate) fn same_or_apart(&self, other: &Buffer<'_>) -> Result<(), CallError> {
        if self.ptr == other.ptr { Ok(()) } else { self.apart(other) }
    }
}
