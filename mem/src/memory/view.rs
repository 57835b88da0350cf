//! Views: a range of memory, with a type and a shape.

use std::sync::Arc;
use symmem_hal::types::{Bytes, DType, Element, Layout};
use symmem_hal::{DevicePtr, Fault, KeepAlive, Kind, Memory};

use super::Allocation;

/// A typed, shaped range of an allocation, or of a peer's memory. Holds what it views.
///
/// What every operation takes. A view is never a Rust reference: peers may write what it shows, so
/// the way in and out is [`read`](Self::read) and [`write`](Self::write), which copy. Elements that
/// one rank or thread reads while another writes them have unspecified values: order the two by a
/// signal, a barrier, or an operation's completion.
#[derive(Clone, Debug)]
pub struct View {
    memory: Memory,
    allocation: Option<Allocation>,
    offset: Bytes,
    dtype: DType,
    layout: Layout,
}

/// Why a view cannot be made or used so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The view would end past its memory.
    #[error("{length} at offset {offset} end past memory of {size}")]
    PastEnd {
        /// Where the view begins.
        offset: Bytes,
        /// Bytes it spans.
        length: Bytes,
        /// Bytes there are.
        size: Bytes,
    },
    /// The first element would not be aligned.
    #[error("offset {offset} is not a multiple of {dtype}'s {} bytes", dtype.size())]
    Misaligned {
        /// Where the view begins.
        offset: Bytes,
        /// Its element type.
        dtype: DType,
    },
    /// A slice's elements are of another type.
    #[error("the view holds {expected}, the slice {found}")]
    DType {
        /// The view's type.
        expected: DType,
        /// The slice's type.
        found: DType,
    },
    /// A slice's length is another.
    #[error("the view holds {expected} elements, the slice {found}")]
    Count {
        /// Elements of the view.
        expected: u64,
        /// Elements of the slice.
        found: u64,
    },
    /// The operation needs elements without gaps.
    #[error("the view is not contiguous: {layout:?}")]
    NotContiguous {
        /// Its layout.
        layout: Box<Layout>,
    },
}

impl Fault for ViewError {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}

impl View {
    /// A view of an allocation, `offset` bytes from its start.
    ///
    /// # Errors
    ///
    /// [`ViewError::PastEnd`] or [`ViewError::Misaligned`].
    pub fn new(
        allocation: &Allocation,
        offset: Bytes,
        dtype: DType,
        layout: Layout,
    ) -> Result<Self, ViewError> {
        let memory = allocation.memory().clone();
        let view = View { memory, allocation: Some(allocation.clone()), offset, dtype, layout };
        view.checked()
    }

    /// A view of a peer's memory.
    pub(crate) fn of_peer(
        memory: Memory,
        offset: Bytes,
        dtype: DType,
        layout: Layout,
    ) -> Result<Self, ViewError> {
        View { memory, allocation: None, offset, dtype, layout }.checked()
    }

    fn checked(self) -> Result<Self, ViewError> {
        let (offset, dtype, size) = (self.offset, self.dtype, self.memory.bytes());
        if !offset.get().is_multiple_of(dtype.size() as u64) {
            return Err(ViewError::Misaligned { offset, dtype });
        }
        let length =
            Bytes::of(self.layout.extent(), dtype.size() as u64).unwrap_or(Bytes(u64::MAX));
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(self),
            _ => Err(ViewError::PastEnd { offset, length, size }),
        }
    }

    /// The elements `start..start + count` of a contiguous view, as a flat view.
    ///
    /// # Errors
    ///
    /// [`ViewError::NotContiguous`], or [`ViewError::PastEnd`] where they are not all in this view.
    pub fn slice(&self, start: u64, count: u64) -> Result<View, ViewError> {
        self.contiguous()?;
        let size = self.dtype.size() as u64;
        let past = |length| ViewError::PastEnd {
            offset: Bytes::of(start, size).unwrap_or(Bytes(u64::MAX)),
            length,
            size: self.bytes(),
        };
        let length = Bytes::of(count, size).unwrap_or(Bytes(u64::MAX));
        match start.checked_add(count) {
            Some(end) if end <= self.count() => {}
            _ => return Err(past(length)),
        }
        let offset = Bytes::of(start, size)
            .and_then(|o| o.checked_add(self.offset))
            .ok_or_else(|| past(length))?;
        View { offset, layout: Layout::flat(count), ..self.clone() }.checked()
    }

    /// The address of the first element, for kernels.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.memory.base().checked_add(self.offset).unwrap_or(DevicePtr::NULL)
    }

    /// Where it begins, from the start of its memory.
    #[must_use]
    pub fn offset(&self) -> Bytes {
        self.offset
    }

    /// Its element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its shape and strides.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its number of elements.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.layout.count()
    }

    /// The bytes of its elements, without gaps.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.count() * self.dtype.size() as u64)
    }

    /// The memory it lies in.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The allocation it lies in; `None` for a peer's memory.
    #[must_use]
    pub fn allocation(&self) -> Option<&Allocation> {
        self.allocation.as_ref()
    }

    /// What must live while work on the view is in flight.
    #[must_use]
    pub fn keep_alive(&self) -> KeepAlive {
        match &self.allocation {
            Some(allocation) => allocation.0.clone(),
            None => Arc::new(self.memory.clone()),
        }
    }

    /// That it has no gaps.
    ///
    /// # Errors
    ///
    /// [`ViewError::NotContiguous`].
    pub fn contiguous(&self) -> Result<(), ViewError> {
        if self.layout.is_contiguous() {
            Ok(())
        } else {
            Err(ViewError::NotContiguous { layout: Box::new(self.layout.clone()) })
        }
    }

    /// Whether two views share a byte of the same memory (gaps of strided views count as theirs).
    #[must_use]
    pub fn overlaps(&self, other: &View) -> bool {
        let range = |v: &View| {
            let start = v.ptr().get();
            start..start.saturating_add(v.layout.extent().saturating_mul(v.dtype.size() as u64))
        };
        let (a, b) = (range(self), range(other));
        self.memory.backend() == other.memory.backend() && a.start < b.end && b.start < a.end
    }

    fn matches<T: Element>(&self, found: usize) -> Result<(), ViewError> {
        if self.dtype != T::DTYPE {
            return Err(ViewError::DType { expected: self.dtype, found: T::DTYPE });
        }
        if self.count() != found as u64 {
            return Err(ViewError::Count { expected: self.count(), found: found as u64 });
        }
        self.contiguous()
    }

    /// Copies all elements in, blocking, beside all streams: order it with work in flight yourself.
    ///
    /// # Errors
    ///
    /// [`ViewError`] for another type or count, or a view with gaps; nothing is written.
    pub fn write<T: Element>(&self, data: &[T]) -> Result<(), ViewError> {
        self.matches::<T>(data.len())?;
        self.memory.write(self.offset, bytemuck::cast_slice(data)).map_err(|e| past_end(&e))
    }

    /// Copies all elements out; as [`write`](Self::write), the other way.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write); `out` is untouched.
    pub fn read<T: Element>(&self, out: &mut [T]) -> Result<(), ViewError> {
        self.matches::<T>(out.len())?;
        self.memory.read(self.offset, bytemuck::cast_slice_mut(out)).map_err(|e| past_end(&e))
    }
}

fn past_end(e: &symmem_hal::RangeError) -> ViewError {
    ViewError::PastEnd { offset: e.offset, length: e.length, size: e.size }
}
