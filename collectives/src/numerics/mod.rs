//! Reductions on the host, to the bit.
//!
//! A reduction folds the ranks' elements in group-rank order, starting from rank 0's value:
//!
//! - f8, f16, bf16 and f32 in f32, f64 in f64: one operation at a time, rounded to nearest even,
//!   never fused, subnormals kept, and one final conversion. `avg` divides the sum by the number
//!   of ranks in the accumulator.
//! - Every NaN result is one quiet NaN, set by a select after that conversion: f64
//!   `0x7fff_ffff_ffff_ffff`, f32 `0x7fff_ffff`, f16 and bf16 `0x7fff`, f8 `0x7f`. f8e4m3
//!   overflows to it; f8e5m2 and wider types overflow to infinity.
//! - `min` and `max` are IEEE 754-2019 `minimum` and `maximum`.
//! - Integer sums and products wrap; `avg` divides the exact sum, toward zero.
//!
//! - [`WeightedSum`] folds rows in their order, each element multiplied by its row's weight before,
//!   as one more rounded operation.
//! - [`BlockQuantiser`] says how blocks become f8e4m3 with a scale each.
//!
//! So every rank, repetition, size, algorithm and backend gets the same bits. The same holds for
//! the vector instructions in use: the loops are compiled for several sets of them and the best
//! one is picked at run time.
//!
//! Does: the arithmetic on ranges of memory that the caller has ordered. Does not: wait, check
//! ranges, choose an algorithm, or store past the cache.

mod accumulate;
mod dispatch;
mod environment;
mod format;
mod kernel;
mod quantise;
#[cfg(test)]
mod tests;
mod weighted;

use core::fmt;

use symmem_hal::types::DType;
use symmem_hal::{Fault, Kind};

use dispatch::{Kernel, Level, Ranges};
use environment::DefaultEnvironment;
pub use quantise::BlockQuantiser;
pub use symmem_hal::types::{ReduceOp, UnsupportedOp};
pub use weighted::WeightedSum;

/// An element type that an operation is not defined on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("defined on {}, not on {dtype}", Names(supported))]
pub struct UnsupportedType {
    /// The element type asked for.
    pub dtype: DType,
    /// Those that the operation is defined on.
    pub supported: &'static [DType],
}

impl Fault for UnsupportedType {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}

struct Names<'a>(&'a [DType]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, dtype) in self.0.iter().enumerate() {
            write!(f, "{}{dtype}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// The reduction of one element type by one operator: looked up once, then called for each slice.
#[derive(Clone, Copy, Debug)]
pub struct Reducer {
    dtype: DType,
    op: ReduceOp,
    kernel: Kernel,
    /// What `kernel` counts for one element.
    units: usize,
}

impl Reducer {
    /// The fastest reduction that this processor runs.
    ///
    /// # Errors
    ///
    /// [`UnsupportedOp`] where the operator is not defined on the type.
    pub fn new(dtype: DType, op: ReduceOp) -> Result<Self, UnsupportedOp> {
        Self::at_level(Level::best(), dtype, op)
    }

    fn at_level(level: Level, dtype: DType, op: ReduceOp) -> Result<Self, UnsupportedOp> {
        let (kernel, units) =
            dispatch::lookup(level, dtype, op).ok_or(UnsupportedOp { op, dtype })?;
        Ok(Reducer { dtype, op, kernel, units })
    }

    /// The element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// The operator.
    #[must_use]
    pub const fn op(&self) -> ReduceOp {
        self.op
    }

    /// Reduces `count` elements of each source, in the order of the sources, into `out`.
    ///
    /// `sources` holds one address a rank, in group-rank order; `avg` divides by their number.
    /// One source makes a pass too: floats get the canonical NaN, integers are copied. Without
    /// sources or elements nothing happens. Bytes past `count` elements of `out` are untouched.
    ///
    /// # Safety
    ///
    /// With n = `count` times the element's size, until this returns:
    ///
    /// - n bytes can be read at each source and written at `out`; all are aligned to the element.
    /// - Each source that overlaps the n bytes at `out` starts exactly there (in place).
    /// - Nobody else writes the sources or touches `out`. What a peer wrote to a source happens
    ///   before this call: the caller has acquired the word that the peer released after it.
    #[allow(unsafe_code)] // Reads memory that peers wrote, which is never behind a reference.
    pub unsafe fn reduce(&self, sources: &[*const u8], out: *mut u8, count: usize) {
        let _environment = DefaultEnvironment::enter();
        // SAFETY: `kernel` counts in elements or, for bitwise operators, in bytes of them, and
        // `at_level` chose one that this processor runs; all else is the caller's promise.
        unsafe { (self.kernel)(Ranges { sources, out, count: count * self.units }) }
    }
}
