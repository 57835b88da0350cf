//! What a call reads or writes.

use core::marker::PhantomData;

use symmem_hal::DevicePtr;
use symmem_hal::types::{BackendKind, Bytes, DType, Element, Layout};
use symmem_mem::View;

use super::CallError;

/// A range of elements that a call reads or writes: a view, or a slice borrowed for the call, or a
/// block of either.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    ptr: DevicePtr,
    count: u64,
    dtype: DType,
    /// `None` for a slice, which no peer can reach and which lives as long as the call only.
    view: Option<&'a View>,
    /// Bytes from where the view begins to where this does.
    skipped: Bytes,
    borrow: PhantomData<&'a [u8]>,
}

impl<'a> Buffer<'a> {
    /// A view of any layout.
    pub(crate) fn of(view: &'a View) -> Self {
        Buffer {
            ptr: view.ptr(),
            count: view.count(),
            dtype: view.dtype(),
            view: Some(view),
            skipped: Bytes::ZERO,
            borrow: PhantomData,
        }
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
            skipped: Bytes::ZERO,
            borrow: PhantomData,
        }
    }

    /// Block `index` of a buffer without gaps that holds several of `count` elements.
    pub(crate) fn block(&self, index: usize, count: u64) -> Self {
        let size = self.dtype.size() as u64;
        // A view that repeats elements counts more of them than there is memory; it is refused for its
        // layout, after this.
        let skipped = Bytes((index as u64).saturating_mul(count).saturating_mul(size));
        let ptr = self.ptr.checked_add(skipped).unwrap_or(DevicePtr::NULL);
        Buffer { ptr, count, skipped, ..*self }
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
        Bytes(self.count.saturating_mul(self.dtype.size() as u64))
    }

    pub(crate) fn view(&self) -> Option<&'a View> {
        self.view
    }

    /// Shape and strides; a slice has one dimension.
    pub(crate) fn layout(&self) -> Layout {
        self.view.map_or_else(|| Layout::flat(self.count), |view| view.layout().clone())
    }

    /// Bytes from the first element to one past the last.
    pub(crate) fn extent(&self) -> Bytes {
        match self.view {
            Some(view) if view.count() == self.count => {
                Bytes(view.layout().extent().saturating_mul(self.dtype.size() as u64))
            }
            _ => self.bytes(),
        }
    }

    /// Where it begins in its allocation; 0 for a slice.
    pub(crate) fn offset(&self) -> Bytes {
        let view = self.view.map_or(0, |view| view.offset().get());
        Bytes(view + self.skipped.get())
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
        let range = |b: &Buffer<'_>| (b.ptr.get(), b.ptr.get().saturating_add(b.extent().get()));
        let ((a, a_end), (b, b_end)) = (range(self), range(other));
        let backend = |b: &Buffer<'_>| b.view.map(|view| view.memory().backend());
        if backend(self) == backend(other) && a < b_end && b < a_end {
            return Err(CallError::Overlap);
        }
        Ok(())
    }

    /// That the two share no byte, or begin at the same one.
    pub(crate) fn same_or_apart(&self, other: &Buffer<'_>) -> Result<(), CallError> {
        if self.ptr == other.ptr { Ok(()) } else { self.apart(other) }
    }
}
