//! Shapes and strides.

use arrayvec::ArrayVec;
use core::fmt;

/// The most dimensions a [`Layout`] can have.
pub const MAX_DIMS: usize = 8;

/// Shape and strides of a tensor, in elements.
///
/// Operations that need contiguous data ask [`is_contiguous`](Self::is_contiguous) and refuse
/// the rest; a layout is never silently read as if it were another.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: ArrayVec<u64, MAX_DIMS>,
    strides: ArrayVec<u64, MAX_DIMS>,
}

/// Why a [`Layout`] cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// More dimensions than [`MAX_DIMS`].
    #[error("{found} dimensions, at most {MAX_DIMS} are supported")]
    TooManyDims {
        /// Dimensions asked for.
        found: usize,
    },
    /// Shape and strides of different lengths.
    #[error("{shape} dimensions but {strides} strides")]
    StrideCount {
        /// Length of the shape.
        shape: usize,
        /// Length of the strides.
        strides: usize,
    },
    /// Elements or extent do not fit in 64 bits.
    #[error("the extent of the layout does not fit in 64 bits")]
    Overflow,
}

impl crate::Fault for LayoutError {
    fn kind(&self) -> crate::Kind {
        crate::Kind::InvalidArgument
    }
}

impl Layout {
    /// A row-major layout without gaps.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] where the shape has too many dimensions or elements.
    pub fn contiguous(shape: &[u64]) -> Result<Self, LayoutError> {
        let mut dims = ArrayVec::new();
        dims.try_extend_from_slice(shape)
            .map_err(|_| LayoutError::TooManyDims { found: shape.len() })?;
        let mut strides: ArrayVec<u64, MAX_DIMS> = shape.iter().copied().collect();
        let mut step = 1u64;
        for (stride, &dim) in strides.iter_mut().zip(shape).rev() {
            *stride = step;
            step = step.checked_mul(dim.max(1)).ok_or(LayoutError::Overflow)?;
        }
        Ok(Layout { shape: dims, strides })
    }

    /// One dimension of `n` elements.
    #[must_use]
    pub fn flat(n: u64) -> Self {
        let mut shape = ArrayVec::new();
        shape.push(n);
        let mut strides = ArrayVec::new();
        strides.push(1);
        Layout { shape, strides }
    }

    /// Any shape with any strides, both in elements.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] for lengths that differ, too many dimensions, or an extent over 64 bits.
    pub fn strided(shape: &[u64], strides: &[u64]) -> Result<Self, LayoutError> {
        if shape.len() != strides.len() {
            return Err(LayoutError::StrideCount { shape: shape.len(), strides: strides.len() });
        }
        let mut layout = Self::contiguous(shape)?;
        layout.strides = strides.iter().copied().collect();
        layout.checked_extent().ok_or(LayoutError::Overflow)?;
        Ok(layout)
    }

    /// The lengths of the dimensions, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Elements from one index of a dimension to the next.
    #[must_use]
    pub fn strides(&self) -> &[u64] {
        &self.strides
    }

    /// Number of elements; 1 for a scalar (no dimensions).
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Elements from the first to one past the last that the layout touches; 0 if it has none.
    #[must_use]
    pub fn extent(&self) -> u64 {
        self.checked_extent().unwrap_or(u64::MAX)
    }

    fn checked_extent(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let mut last = 0u64;
        for (&dim, &stride) in self.shape.iter().zip(&self.strides) {
            last = last.checked_add((dim - 1).checked_mul(stride)?)?;
        }
        last.checked_add(1)
    }

    /// Whether the elements lie row-major without gaps (dimensions of length 1 have no say).
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut step = 1;
        for (&dim, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if dim != 1 && stride != step {
                return false;
            }
            step *= dim;
        }
        true
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.shape.as_slice())?;
        if !self.is_contiguous() {
            write!(f, " strides {:?}", self.strides.as_slice())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguity() {
        assert!(Layout::contiguous(&[2, 3, 4]).is_ok_and(|l| l.is_contiguous() && l.count() == 24));
        assert!(Layout::strided(&[2, 3], &[3, 1]).is_ok_and(|l| l.is_contiguous()));
        assert!(Layout::strided(&[1, 3], &[99, 1]).is_ok_and(|l| l.is_contiguous()));
        assert!(
            Layout::strided(&[2, 3], &[4, 1]).is_ok_and(|l| !l.is_contiguous() && l.extent() == 7)
        );
        assert!(Layout::strided(&[3, 2], &[1, 3]).is_ok_and(|l| !l.is_contiguous()));
        assert!(Layout::contiguous(&[]).is_ok_and(|l| l.count() == 1 && l.is_contiguous()));
    }

    #[test]
    fn refusals() {
        assert_eq!(Layout::contiguous(&[1; 9]), Err(LayoutError::TooManyDims { found: 9 }));
        assert_eq!(Layout::contiguous(&[1 << 40, 1 << 40]), Err(LayoutError::Overflow));
        assert_eq!(
            Layout::strided(&[1], &[]),
            Err(LayoutError::StrideCount { shape: 1, strides: 0 })
        );
        assert_eq!(Layout::strided(&[3], &[u64::MAX]), Err(LayoutError::Overflow));
    }
}
