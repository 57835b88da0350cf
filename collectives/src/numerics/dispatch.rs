//! Which compiled copy of the loops runs.
//!
//! The loops are generic and always inlined; each [`Level`] inlines them into a function with its
//! own target features. The arithmetic is the same IEEE arithmetic in each, so are the bits.
#![allow(unsafe_code)] // Functions with target features are unsafe to call.

use symmem_hal::types::DType;

use super::ReduceOp;
use super::accumulate::{Accumulator, And, Avg, Max, Min, Operator, Or, Product, Sum, Xor};
use super::format::{Bf16, E4m3, E5m2, F16, F32, F64, Format, Native, Wide};
use super::kernel;

/// A compiled reduction; the contract is [`Reducer::reduce`](super::Reducer::reduce)'s.
pub(super) type Kernel = unsafe fn(&[*const u8], *mut u8, usize);

/// A set of vector instructions that the loops are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Those of the compilation target: SSE2 on x86-64, NEON on AArch64.
    Baseline,
    /// 256-bit integers and floats.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit vectors with masks.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    const ALL: &[Level] = &[
        Level::Baseline,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512,
    ];

    /// Whether this processor and operating system run it.
    fn is_available(self) -> bool {
        match self {
            Level::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
        }
    }

    /// Those that run here, the fastest last.
    pub(super) fn available() -> impl Iterator<Item = Level> {
        Self::ALL.iter().copied().filter(|level| level.is_available())
    }

    /// The fastest that runs here.
    pub(super) fn best() -> Level {
        Self::available().last().unwrap_or(Level::Baseline)
    }

    /// The loops of one format and operator at this level, which must be available when they run.
    fn compiled<F, O, const LANES: usize>(self) -> Kernel
    where
        F: Format<LANES>,
        O: Operator<F::Acc>,
    {
        match self {
            Level::Baseline => baseline::<F, O, LANES>,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::<F, O, LANES>,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::<F, O, LANES>,
        }
    }
}

macro_rules! levels {
    ($($(#[$attribute:meta])* fn $name:ident;)*) => {$(
        /// # Safety
        ///
        /// As [`kernel::reduce`], on a processor with the target features.
        $(#[$attribute])*
        unsafe fn $name<F, O, const LANES: usize>(
            sources: &[*const u8],
            out: *mut u8,
            count: usize,
        ) where
            F: Format<LANES>,
            O: Operator<F::Acc>,
        {
            // SAFETY: the caller's promise, passed on.
            unsafe { kernel::reduce::<F, O, LANES>(sources, out, count) }
        }
    )*};
}

levels! {
    fn baseline;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn avx2;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn avx512;
}

/// The loops for an operator on a type, and the units they count for each element; `None` where
/// the operator is not defined on the type.
pub(super) fn lookup(level: Level, dtype: DType, op: ReduceOp) -> Option<(Kernel, usize)> {
    let arithmetic = match dtype {
        DType::F64 => arithmetic::<F64, F64, F64, 1>,
        DType::F32 => arithmetic::<F32, F32, F32, 1>,
        DType::F16 => arithmetic::<F16, F16, F16, 2>,
        DType::BF16 => arithmetic::<Bf16, Bf16, Bf16, 2>,
        DType::F8E4M3 => arithmetic::<E4m3, E4m3, E4m3, 4>,
        DType::F8E5M2 => arithmetic::<E5m2, E5m2, E5m2, 4>,
        DType::I8 => arithmetic::<Native<u8>, Native<i8>, Wide<i8>, 1>,
        DType::I16 => arithmetic::<Native<u16>, Native<i16>, Wide<i16>, 1>,
        DType::I32 => arithmetic::<Native<u32>, Native<i32>, Wide<i32>, 1>,
        DType::I64 => arithmetic::<Native<u64>, Native<i64>, Wide<i64>, 1>,
        DType::U8 => arithmetic::<Native<u8>, Native<u8>, Wide<u8>, 1>,
        DType::U16 => arithmetic::<Native<u16>, Native<u16>, Wide<u16>, 1>,
        DType::U32 => arithmetic::<Native<u32>, Native<u32>, Wide<u32>, 1>,
        DType::U64 => arithmetic::<Native<u64>, Native<u64>, Wide<u64>, 1>,
    };
    if op.is_bitwise() && !dtype.is_float() {
        return bitwise(level, op).map(|kernel| (kernel, dtype.size()));
    }
    arithmetic(level, op).map(|kernel| (kernel, 1))
}

/// One type's formats: `Wrapping` for sum and product, whose bits are the same with and without a
/// sign; `Ordered` for the extremes; `Exact`, which does not wrap, for the average.
fn arithmetic<Wrapping, Ordered, Exact, const LANES: usize>(
    level: Level,
    op: ReduceOp,
) -> Option<Kernel>
where
    Wrapping: Format<LANES, Acc: Accumulator>,
    Ordered: Format<LANES, Acc: Accumulator>,
    Exact: Format<LANES, Acc: Accumulator>,
{
    match op {
        ReduceOp::Sum => Some(level.compiled::<Wrapping, Sum, LANES>()),
        ReduceOp::Product => Some(level.compiled::<Wrapping, Product, LANES>()),
        ReduceOp::Min => Some(level.compiled::<Ordered, Min, LANES>()),
        ReduceOp::Max => Some(level.compiled::<Ordered, Max, LANES>()),
        ReduceOp::Avg => Some(level.compiled::<Exact, Avg, LANES>()),
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => None,
    }
}

/// Bits have no width: integers of every size are reduced as bytes.
fn bitwise(level: Level, op: ReduceOp) -> Option<Kernel> {
    match op {
        ReduceOp::And => Some(level.compiled::<Native<u8>, And, 1>()),
        ReduceOp::Or => Some(level.compiled::<Native<u8>, Or, 1>()),
        ReduceOp::Xor => Some(level.compiled::<Native<u8>, Xor, 1>()),
        _ => None,
    }
}
