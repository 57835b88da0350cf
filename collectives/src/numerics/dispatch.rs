//! Which compiled copy of the loops runs.
//!
//! The loops are generic and always inlined; each [`Level`] inlines them into a function with its
//! own target features. The arithmetic is the same IEEE arithmetic in each, so are the bits.
#![allow(unsafe_code)] // Functions with target features are unsafe to call.

use core::marker::PhantomData;

use bytemuck::Pod;
use symmem_hal::types::DType;

use super::ReduceOp;
use super::accumulate::{Accumulator, And, Avg, Max, Min, Operator, Or, Product, Sum, Xor};
#[cfg(target_arch = "x86_64")]
use super::format::F16c;
use super::format::{Bf16, E4m3, E5m2, Exact, F16, F32, F64, Format, Native, Ordered};
use super::kernel;

/// Loops that are compiled for each level.
pub(super) trait Loops {
    type Arguments<'a>;

    /// Always inlined.
    ///
    /// # Safety
    ///
    /// As the public function that these loops are of.
    unsafe fn run(arguments: Self::Arguments<'_>);
}

/// Loops at a level, which must be available; else the contract is [`Loops::run`]'s.
pub(super) type Compiled<L> = for<'a> unsafe fn(<L as Loops>::Arguments<'a>);

/// Sources of elements, and where as many go.
pub(super) struct Ranges<'a, S> {
    pub(super) sources: &'a [S],
    pub(super) out: *mut u8,
    pub(super) count: usize,
}

/// A compiled reduction; the contract is [`Reducer::reduce`](super::Reducer::reduce)'s.
pub(super) type Kernel = for<'a> unsafe fn(Ranges<'a, *const u8>);

/// The reduction of one format by one operator.
struct Reduction<F, O, const LANES: usize>(PhantomData<(F, O)>);

impl<F, O, const LANES: usize> Loops for Reduction<F, O, LANES>
where
    F: Format<LANES>,
    O: Operator<F::Acc>,
{
    type Arguments<'a> = Ranges<'a, *const u8>;

    #[inline(always)]
    unsafe fn run(Ranges { sources, out, count }: Ranges<'_, *const u8>) {
        // SAFETY: the caller's promise, passed on.
        unsafe { kernel::reduce::<F, O, LANES>(sources, out, count) }
    }
}

/// A set of vector instructions that the loops are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Those of the compilation target: SSE2 on x86-64, NEON on AArch64.
    Baseline,
    /// 256-bit vectors, and conversions of f16.
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
            Level::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Level::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
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

    /// The loops at this level, which must be available when they run.
    pub(super) fn compiled<L: Loops>(self) -> Compiled<L> {
        match self {
            Level::Baseline => baseline::<L>,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::<L>,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::<L>,
        }
    }

    fn reduction<F, O, const LANES: usize>(self) -> Kernel
    where
        F: Format<LANES>,
        O: Operator<F::Acc>,
    {
        self.compiled::<Reduction<F, O, LANES>>()
    }
}

macro_rules! levels {
    ($($(#[$attribute:meta])* fn $name:ident;)*) => {$(
        /// # Safety
        ///
        /// As [`Loops::run`], on a processor with the target features.
        $(#[$attribute])*
        unsafe fn $name<L: Loops>(arguments: L::Arguments<'_>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { L::run(arguments) }
        }
    )*};
}

levels! {
    fn baseline;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    fn avx2;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn avx512;
}

/// The loops for an operator on a type, and the units they count for each element; `None` where
/// the operator is not defined on the type.
pub(super) fn lookup(level: Level, dtype: DType, op: ReduceOp) -> Option<(Kernel, usize)> {
    if op.is_bitwise() {
        let kernel = bitwise(level, op).filter(|_| !dtype.is_float());
        return kernel.map(|kernel| (kernel, dtype.size()));
    }
    let kernel = match dtype {
        DType::F64 => float::<F64, 1>(level, op),
        DType::F32 => float::<F32, 1>(level, op),
        DType::F16 => f16(level, op),
        DType::BF16 => float::<Bf16, 2>(level, op),
        DType::F8E4M3 => float::<E4m3, 4>(level, op),
        DType::F8E5M2 => float::<E5m2, 4>(level, op),
        DType::I8 => integer::<i8, u8>(level, op),
        DType::I16 => integer::<i16, u16>(level, op),
        DType::I32 => integer::<i32, u32>(level, op),
        DType::I64 => integer::<i64, u64>(level, op),
        DType::U8 => integer::<u8, u8>(level, op),
        DType::U16 => integer::<u16, u16>(level, op),
        DType::U32 => integer::<u32, u32>(level, op),
        DType::U64 => integer::<u64, u64>(level, op),
    };
    kernel.map(|kernel| (kernel, 1))
}

fn float<F, const LANES: usize>(level: Level, op: ReduceOp) -> Option<Kernel>
where
    F: Format<LANES, Acc: Accumulator>,
    Ordered<F, true>: Format<1, Acc: Ord>,
    Ordered<F, false>: Format<1, Acc: Ord>,
{
    match op {
        ReduceOp::Sum => Some(level.reduction::<F, Sum, LANES>()),
        ReduceOp::Avg => Some(level.reduction::<F, Avg, LANES>()),
        ReduceOp::Product => Some(level.reduction::<F, Product, LANES>()),
        ReduceOp::Min => Some(level.reduction::<Ordered<F, true>, Min, 1>()),
        ReduceOp::Max => Some(level.reduction::<Ordered<F, false>, Max, 1>()),
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => None,
    }
}

/// f16 is converted by instructions where a level has them.
fn f16(level: Level, op: ReduceOp) -> Option<Kernel> {
    match level {
        Level::Baseline => float::<F16, 2>(level, op),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => float::<F16c, 8>(level, op),
    }
}

/// `U` is the unsigned type as wide as `T`: wrapped sums and products have the same bits.
fn integer<T, U>(level: Level, op: ReduceOp) -> Option<Kernel>
where
    T: Pod + Ord,
    U: Pod + Accumulator,
    Exact<T>: Format<1, Acc: Accumulator>,
{
    match op {
        ReduceOp::Sum => Some(level.reduction::<Native<U>, Sum, 1>()),
        ReduceOp::Avg => Some(level.reduction::<Exact<T>, Avg, 1>()),
        ReduceOp::Product => Some(level.reduction::<Native<U>, Product, 1>()),
        ReduceOp::Min => Some(level.reduction::<Native<T>, Min, 1>()),
        ReduceOp::Max => Some(level.reduction::<Native<T>, Max, 1>()),
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => None,
    }
}

/// Bits have no width: integers of every size are reduced as bytes.
fn bitwise(level: Level, op: ReduceOp) -> Option<Kernel> {
    match op {
        ReduceOp::And => Some(level.reduction::<Native<u8>, And, 1>()),
        ReduceOp::Or => Some(level.reduction::<Native<u8>, Or, 1>()),
        ReduceOp::Xor => Some(level.reduction::<Native<u8>, Xor, 1>()),
        _ => None,
    }
}
