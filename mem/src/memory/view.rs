//! Views: a range of memory, with a type and a shape.

use std::sync::Arc;

use symmem_hal::types::{Bytes, DType, Element, Layout};
use symmem_hal::{AccessError, Device, DevicePtr, Fault, KeepAlive, Kind, Memory};

use super::Allocation;
use crate::rendezvous::Place;

/// A typed, shaped range of an allocation, or of a peer's memory. Holds what it views.
///
/// What every operation takes. A view is never a Rust reference: peers may write what it shows, so
/// the way in and out is [`read`](Self::read) and [`write`](Self::write), which copy. Elements that
/// one rank or thread reads while another writes them have unspecified values: order the two by a
/// signal, a barrier, or an operation's completion.
#[derive(Clone, Debug)]
pub struct View {
    memory: Memory,
    owner: Owner,
    /// From the start of the memory.
    offset: Bytes,
    dtype: DType,
    layout: Layout,
}

/// Whose memory a view shows, and what keeps it mapped.
#[derive(Clone, Debug)]
enum Owner {
    /// An allocation of this rank.
    Me(Allocation),
    /// A member's counterpart of an allocation.
    Peer(Arc<Place>),
    /// A group, whose pad it is; with its device.
    Group(Device),
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
    /// The view would begin further on than 64 bits count bytes.
    #[error("offset of {elements} elements of {dtype} is past any memory; this is of {size}")]
    PastAll {
        /// Where the view would begin, in elements.
        elements: u64,
        /// Their type.
        dtype: DType,
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
    #[error("the view is not contiguous: {layout:?}; take one without gaps, in order")]
    NotContiguous {
        /// Its layout.
        layout: Box<Layout>,
    },
    /// The device's driver refused to copy.
    #[error(transparent)]
    Access(AccessError),
}

impl Fault for ViewError {
    fn kind(&self) -> Kind {
        match self {
            ViewError::Access(e) => e.kind(),
            _ => Kind::InvalidArgument,
        }
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
        let owner = Owner::Me(allocation.clone());
        let range = (allocation.offset(), allocation.bytes());
        Self::within(allocation.memory().clone(), owner, range, offset, dtype, layout)
    }

    /// A view of a member's counterpart of an allocation, `offset` bytes from its start.
    pub(crate) fn of_peer(
        place: &Arc<Place>,
        index: usize,
        offset: Bytes,
        dtype: DType,
        layout: Layout,
    ) -> Result<Self, ViewError> {
        let memory = place.mapping.memories[index].clone();
        let range = (place.offset, place.bytes);
        Self::within(memory, Owner::Peer(place.clone()), range, offset, dtype, layout)
    }

    /// A view of the first `size` bytes of a group's memory, `offset` bytes from its start.
    pub(crate) fn of_group(
        device: &Device,
        memory: Memory,
        size: Bytes,
        offset: Bytes,
        dtype: DType,
        layout: Layout,
    ) -> Result<Self, ViewError> {
        let owner = Owner::Group(device.clone());
        Self::within(memory, owner, (Bytes::ZERO, size), offset, dtype, layout)
    }

    /// The one place in which a range is checked. `offset` counts from `start`, where `size` bytes of
    /// the memory are the owner's.
    fn within(
        memory: Memory,
        owner: Owner,
        (start, size): (Bytes, Bytes),
        offset: Bytes,
        dtype: DType,
        layout: Layout,
    ) -> Result<Self, ViewError> {
        if !offset.get().is_multiple_of(dtype.size() as u64) {
            return Err(ViewError::Misaligned { offset, dtype });
        }
        let length = Bytes::of(layout.extent(), dtype.size() as u64).unwrap_or(Bytes(u64::MAX));
        let past = ViewError::PastEnd { offset, length, size };
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(past);
        }
        let offset = start.checked_add(offset).ok_or(past)?;
        Ok(View { memory, owner, offset, dtype, layout })
    }

    /// The elements `start..start + count` of a contiguous view, as a flat view.
    ///
    /// # Errors
    ///
    /// [`ViewError::NotContiguous`]; [`ViewError::PastEnd`] where they are not all in this view, or
    /// [`ViewError::PastAll`] where they begin further on than 64 bits count bytes.
    pub fn slice(&self, start: u64, count: u64) -> Result<View, ViewError> {
        self.contiguous()?;
        let size = self.dtype.size() as u64;
        let past_all =
            ViewError::PastAll { elements: start, dtype: self.dtype, size: self.bytes() };
        let Some(offset) = Bytes::of(start, size) else { return Err(past_all) };
        let length = Bytes::of(count, size).unwrap_or(Bytes(u64::MAX));
        if start.checked_add(count).is_none_or(|end| end > self.count()) {
            return Err(ViewError::PastEnd { offset, length, size: self.bytes() });
        }
        let offset = offset.checked_add(self.offset).ok_or(past_all)?;
        Ok(View { offset, layout: Layout::flat(count), ..self.clone() })
    }

    /// The address of the first element, for kernels.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.memory.base().checked_add(self.offset).unwrap_or(DevicePtr::NULL)
    }

    /// Where it begins, from the start of its [`memory`](Self::memory): in a pool's block, from the
    /// start of the block's segment.
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
        // More than there can be, where elements are repeated by strides of 0.
        Bytes::of(self.count(), self.dtype.size() as u64).unwrap_or(Bytes(u64::MAX))
    }

    /// The memory it lies in.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The allocation it lies in; `None` for a peer's memory.
    #[must_use]
    pub fn allocation(&self) -> Option<&Allocation> {
        match &self.owner {
            Owner::Me(allocation) => Some(allocation),
            Owner::Peer(_) | Owner::Group(_) => None,
        }
    }

    /// The device whose streams reach it.
    #[must_use]
    pub fn device(&self) -> &Device {
        match &self.owner {
            Owner::Me(allocation) => allocation.device(),
            Owner::Peer(place) => place.mapping.device(),
            Owner::Group(device) => device,
        }
    }

    /// What must live while work on the view is in flight.
    #[must_use]
    pub fn keep_alive(&self) -> KeepAlive {
        match &self.owner {
            Owner::Me(allocation) => allocation.keep_alive(),
            Owner::Peer(place) => place.clone(),
            Owner::Group(_) => Arc::new(self.memory.clone()),
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
        self.memory.write(self.offset, bytemuck::cast_slice(data)).map_err(refused)
    }

    /// Copies all elements out; as [`write`](Self::write), the other way.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write); `out` is untouched.
    pub fn read<T: Element>(&self, out: &mut [T]) -> Result<(), ViewError> {
        self.matches::<T>(out.len())?;
        self.memory.read(self.offset, bytemuck::cast_slice_mut(out)).map_err(refused)
    }
}

fn refused(error: AccessError) -> ViewError {
    match error {
        AccessError::Range(e) => {
            ViewError::PastEnd { offset: e.offset, length: e.length, size: e.size }
        }
        error => ViewError::Access(error),
    }
}
