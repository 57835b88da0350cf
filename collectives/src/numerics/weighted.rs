//! Sums of rows with weights.
#![allow(unsafe_code)] // Reads memory that peers wrote, which is never behind a reference.

use core::marker::PhantomData;

use symmem_hal::types::DType;

use super::UnsupportedType;
use super::dispatch::{Compiled, Level, Loops, Ranges};
use super::environment::DefaultEnvironment;
#[cfg(target_arch = "x86_64")]
use super::format::F16c;
use super::format::{Bf16, E4m3, E5m2, F16, F32, Format};
use super::kernel;

/// `w[0] * x[0] + w[1] * x[1] + ...` for each element of rows `x`: looked up once, then called for
/// each sum.
///
/// Products and sums are f32, one operation at a time in the order of the rows, rounded to nearest
/// even, never fused, subnormals kept: `acc = w[0] * x[0]`, then `acc = acc + (w[k] * x[k])`. One
/// conversion to the element type is last, with the canonical NaN and the overflow that the
/// [module](super) states. There is no neutral element to start from: -0 with a weight of 1 stays -0.
///
/// With weights of 1 this is [`Reducer`](super::Reducer)'s `sum`, to the bit.
#[derive(Clone, Copy, Debug)]
pub struct WeightedSum {
    dtype: DType,
    kernel: for<'a> unsafe fn(Ranges<'a, (f32, *const u8)>),
}

impl WeightedSum {
    /// The element types.
    pub const TYPES: &[DType] =
        &[DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];

    /// The fastest sum that this processor runs.
    ///
    /// # Errors
    ///
    /// [`UnsupportedType`] for others than [`TYPES`](Self::TYPES).
    pub fn new(dtype: DType) -> Result<Self, UnsupportedType> {
        Self::at_level(Level::best(), dtype)
    }

    pub(super) fn at_level(level: Level, dtype: DType) -> Result<Self, UnsupportedType> {
        let kernel = match (dtype, level) {
            (DType::F32, _) => compiled::<F32, 1>(level),
            (DType::F16, Level::Baseline) => compiled::<F16, 2>(level),
            #[cfg(target_arch = "x86_64")]
            (DType::F16, Level::Avx2 | Level::Avx512) => compiled::<F16c, 8>(level),
            (DType::BF16, _) => compiled::<Bf16, 2>(level),
            (DType::F8E4M3, _) => compiled::<E4m3, 4>(level),
            (DType::F8E5M2, _) => compiled::<E5m2, 4>(level),
            _ => return Err(UnsupportedType { dtype, supported: Self::TYPES }),
        };
        Ok(WeightedSum { dtype, kernel })
    }

    /// The element type of rows and of the sum.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sums `count` elements of each row, a weight and an address, in their order, into `out`.
    ///
    /// A row may come more than once. Without rows the sum is +0. Bytes past `count` elements of
    /// `out` are untouched.
    ///
    /// # Safety
    ///
    /// With n = `count` times the element's size, until this returns:
    ///
    /// - n bytes can be read at each row and written at `out`; all are aligned to the element.
    /// - No row overlaps the n bytes at `out`.
    /// - Nobody else writes the rows or touches `out`. What a peer wrote to a row happens before this
    ///   call: the caller has acquired the word that the peer released after it.
    pub unsafe fn sum(&self, rows: &[(f32, *const u8)], out: *mut u8, count: usize) {
        if rows.is_empty() {
            // SAFETY: n bytes can be written, by the caller's promise. Zero bits are +0.
            unsafe { out.write_bytes(0, count * self.dtype.size()) };
            return;
        }
        let _environment = DefaultEnvironment::enter();
        // SAFETY: `at_level` chose loops that this processor runs; all else is the caller's promise.
        unsafe { (self.kernel)(Ranges { sources: rows, out, count }) }
    }
}

fn compiled<F, const LANES: usize>(level: Level) -> Compiled<Weighted<F, LANES>>
where
    F: Format<LANES, Acc = f32>,
{
    level.compiled::<Weighted<F, LANES>>()
}

struct Weighted<F, const LANES: usize>(PhantomData<F>);

impl<F, const LANES: usize> Loops for Weighted<F, LANES>
where
    F: Format<LANES, Acc = f32>,
{
    type Arguments<'a> = Ranges<'a, (f32, *const u8)>;

    #[inline(always)]
    unsafe fn run(Ranges { sources, out, count }: Ranges<'_, (f32, *const u8)>) {
        // SAFETY: the caller's promise, passed on.
        unsafe { kernel::weighted::<F, LANES>(sources, out, count) }
    }
}
