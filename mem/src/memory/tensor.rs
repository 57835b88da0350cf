//! A view whose element type Rust knows.

use core::marker::PhantomData;
use core::ops::Deref;

use symmem_hal::types::{Bytes, DType, Element, Layout, LayoutError};
use symmem_hal::{AllocError, Device, Fault, Kind};

use super::{Allocation, View, ViewError};

/// A [`View`] of elements `T`. Derefs to the view; costs nothing over it.
#[derive(Clone, Debug)]
pub struct Tensor<T> {
    view: View,
    element: PhantomData<T>,
}

/// Why a tensor cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// There is no memory for it.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The shape is none.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The view does not hold this type, or does not fit.
    #[error(transparent)]
    View(#[from] ViewError),
}

impl Fault for TensorError {
    fn kind(&self) -> Kind {
        match self {
            TensorError::Alloc(e) => e.kind(),
            TensorError::Layout(_) | TensorError::View(_) => Kind::InvalidArgument,
        }
    }
}

impl<T: Element> Tensor<T> {
    /// A new allocation of this shape, zeroed.
    ///
    /// # Errors
    ///
    /// [`TensorError`] where the shape is none or memory is short.
    pub fn zeros(device: &Device, shape: &[u64]) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape)?;
        let bytes =
            Bytes::of(layout.count(), T::DTYPE.size() as u64).ok_or(LayoutError::Overflow)?;
        let allocation = Allocation::new(device, bytes)?;
        Ok(Self::typed(View::new(&allocation, Bytes::ZERO, T::DTYPE, layout)?))
    }

    fn typed(view: View) -> Self {
        Tensor { view, element: PhantomData }
    }

    /// The flat tensor of elements `start..start + count`.
    ///
    /// # Errors
    ///
    /// As [`View::slice`].
    pub fn slice(&self, start: u64, count: u64) -> Result<Self, ViewError> {
        self.view.slice(start, count).map(Self::typed)
    }

    /// Copies all elements in; see [`View::write`].
    ///
    /// # Errors
    ///
    /// [`ViewError`] for another count, or a view with gaps; nothing is written.
    pub fn write(&self, data: &[T]) -> Result<(), ViewError> {
        self.view.write(data)
    }

    /// Copies all elements out; see [`View::read`].
    ///
    /// # Errors
    ///
    /// [`ViewError`] for another count, or a view with gaps; `out` is untouched.
    pub fn read(&self, out: &mut [T]) -> Result<(), ViewError> {
        self.view.read(out)
    }

    /// All elements, copied out.
    ///
    /// # Errors
    ///
    /// [`ViewError::NotContiguous`].
    pub fn to_vec(&self) -> Result<Vec<T>, ViewError> {
        let mut out = vec![T::zeroed(); usize::try_from(self.view.count()).unwrap_or(0)];
        self.view.read(&mut out)?;
        Ok(out)
    }

    /// The view.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }
}

impl<T: Element> TryFrom<View> for Tensor<T> {
    type Error = ViewError;

    fn try_from(view: View) -> Result<Self, ViewError> {
        let (expected, found): (DType, DType) = (view.dtype(), T::DTYPE);
        if expected == found {
            Ok(Self::typed(view))
        } else {
            Err(ViewError::DType { expected, found })
        }
    }
}

impl<T> Deref for Tensor<T> {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

impl<T> AsRef<View> for Tensor<T> {
    fn as_ref(&self) -> &View {
        &self.view
    }
}

impl AsRef<View> for View {
    fn as_ref(&self) -> &View {
        self
    }
}
