//! Floats as integers of the same order, for the extremes.

use core::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use super::F16c;
use super::{Bf16, E4m3, E5m2, F16, F32, F64, Format};

/// The bits of a float as an integer that compares as IEEE 754-2019 `minimum` (`LEAST`) or
/// `maximum` does.
///
/// Read as sign and magnitude, the bits are in the order of the numbers, -0 before +0. In two's
/// complement that is the same bits with all but the sign flipped in negative ones. Every NaN
/// becomes the end of the order that wins. All of it is exact: no wider type is needed, and of
/// narrow floats more fit in a vector.
pub(in crate::numerics) struct Ordered<F, const LEAST: bool>(PhantomData<F>);

macro_rules! ordered {
    ($($float:ty: $bits:ty, greatest $greatest:literal;)*) => {$(
        impl<const LEAST: bool> Ordered<$float, LEAST> {
            /// No number has either of these keys.
            const NAN: $bits = if LEAST { <$bits>::MIN } else { <$bits>::MAX };

            /// To the key and back.
            #[inline(always)]
            fn flip(bits: $bits) -> $bits {
                bits ^ ((bits >> (<$bits>::BITS - 1)) & <$bits>::MAX)
            }
        }

        impl<const LEAST: bool> Format<1> for Ordered<$float, LEAST> {
            type Word = $bits;
            type Acc = $bits;

            #[inline(always)]
            fn unpack(word: $bits) -> [$bits; 1] {
                [if word & <$bits>::MAX > $greatest { Self::NAN } else { Self::flip(word) }]
            }

            #[inline(always)]
            fn pack([key]: [$bits; 1]) -> $bits {
                // All bits but the sign: the canonical NaN of every format.
                if key == Self::NAN { <$bits>::MAX } else { Self::flip(key) }
            }
        }
    )*};
}

// The magnitude of the greatest number: infinity, or what e4m3 has instead.
ordered! {
    F64: i64, greatest 0x7ff0_0000_0000_0000;
    F32: i32, greatest 0x7f80_0000;
    F16: i16, greatest 0x7c00;
    Bf16: i16, greatest 0x7f80;
    E4m3: i8, greatest 0x7e;
    E5m2: i8, greatest 0x7c;
}

#[cfg(target_arch = "x86_64")]
ordered! {
    F16c: i16, greatest 0x7c00;
}
