//! How elements lie in memory words, and the way from there to accumulators and back.
//!
//! Every conversion is branch-free integer and f32 arithmetic, so that loops over it vectorise.
//! Narrow floats are taken from memory as 32-bit words of two or four elements: the shifts and
//! masks that part a word stay within 32-bit lanes, where widening each element on its own would
//! shuffle across them. Which end of a word an element sits at does not matter, since its result
//! goes back to the same place.

use core::marker::PhantomData;

use bytemuck::Pod;

use super::accumulate::Accumulator;

/// `LANES` elements in one memory word.
pub(super) trait Format<const LANES: usize> {
    /// What is read and written at once.
    type Word: Pod;
    /// What one element is accumulated in.
    type Acc: Copy;

    fn unpack(word: Self::Word) -> [Self::Acc; LANES];

    /// The one final conversion: rounds to nearest even and makes every NaN the canonical one.
    fn pack(values: [Self::Acc; LANES]) -> Self::Word;
}

/// An integer that is its own accumulator.
pub(super) struct Native<T>(PhantomData<T>);

impl<T: Accumulator + Pod> Format<1> for Native<T> {
    type Word = T;
    type Acc = T;

    #[inline(always)]
    fn unpack(word: T) -> [T; 1] {
        [word]
    }

    #[inline(always)]
    fn pack([value]: [T; 1]) -> T {
        value
    }
}

/// An integer accumulated in a type that holds the sum of 2^32 of them exactly.
pub(super) struct Wide<T>(PhantomData<T>);

macro_rules! wide {
    ($($integer:ty => $wide:ty),* $(,)?) => {$(
        impl Format<1> for Wide<$integer> {
            type Word = $integer;
            type Acc = $wide;

            #[inline(always)]
            fn unpack(word: $integer) -> [$wide; 1] {
                [word as $wide]
            }

            #[inline(always)]
            fn pack([value]: [$wide; 1]) -> $integer {
                value as $integer
            }
        }
    )*};
}

wide!(i8 => i64, i16 => i64, i32 => i64, i64 => i128, u8 => u64, u16 => u64, u32 => u64, u64 => u128);

pub(super) struct F64;

impl Format<1> for F64 {
    type Word = f64;
    type Acc = f64;

    #[inline(always)]
    fn unpack(word: f64) -> [f64; 1] {
        [word]
    }

    #[inline(always)]
    fn pack([value]: [f64; 1]) -> f64 {
        if value.is_nan() { f64::from_bits(0x7fff_ffff_ffff_ffff) } else { value }
    }
}

pub(super) struct F32;

impl Format<1> for F32 {
    type Word = f32;
    type Acc = f32;

    #[inline(always)]
    fn unpack(word: f32) -> [f32; 1] {
        [word]
    }

    #[inline(always)]
    fn pack([value]: [f32; 1]) -> f32 {
        if value.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
    }
}

pub(super) struct Bf16;

impl Bf16 {
    /// The rounded element in the upper half; the lower half is leftover.
    #[inline(always)]
    fn round(value: f32) -> u32 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        if value.is_nan() { 0x7fff_0000 } else { rounded }
    }
}

impl Format<2> for Bf16 {
    type Word = u32;
    type Acc = f32;

    #[inline(always)]
    fn unpack(word: u32) -> [f32; 2] {
        [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
    }

    #[inline(always)]
    fn pack([low, high]: [f32; 2]) -> u32 {
        Self::round(low) >> 16 | Self::round(high) & 0xffff_0000
    }
}

/// A float of at most 16 bits with an exponent field narrower than f32's.
trait Minifloat {
    /// Bits of an element.
    const BITS: u32;
    /// Bits of the mantissa field.
    const MANTISSA: u32;
    const BIAS: u32;
    /// The magnitude code that what overflows becomes.
    const OVERFLOW: u32;
    /// Whether the highest exponent holds infinity and NaNs; else its highest code alone is NaN.
    const INFINITY: bool;

    const MAGNITUDE: u32 = (1 << (Self::BITS - 1)) - 1;
    const NAN: u32 = Self::MAGNITUDE;
}

pub(super) struct F16;
pub(super) struct E4m3;
pub(super) struct E5m2;

impl Minifloat for F16 {
    const BITS: u32 = 16;
    const MANTISSA: u32 = 10;
    const BIAS: u32 = 15;
    const OVERFLOW: u32 = 0x7c00;
    const INFINITY: bool = true;
}

impl Minifloat for E4m3 {
    const BITS: u32 = 8;
    const MANTISSA: u32 = 3;
    const BIAS: u32 = 7;
    const OVERFLOW: u32 = 0x7f;
    const INFINITY: bool = false;
}

impl Minifloat for E5m2 {
    const BITS: u32 = 8;
    const MANTISSA: u32 = 2;
    const BIAS: u32 = 15;
    const OVERFLOW: u32 = 0x7c;
    const INFINITY: bool = true;
}

/// The value of the element in the low bits of `code`; exact. Bits above it are ignored.
#[inline(always)]
fn widen<M: Minifloat>(code: u32) -> f32 {
    // f32's bits of 1.0 in the lowest normal binade of the narrow format.
    let lowest = (127 + 1 - M::BIAS) << 23;
    let magnitude = code & M::MAGNITUDE;
    let shifted = magnitude << (23 - M::MANTISSA);
    let normal = shifted + ((127 - M::BIAS) << 23);
    // A subnormal is its mantissa put behind a leading one, less that one. No operand is a
    // subnormal f32, which processors are slow at.
    let subnormal = f32::from_bits(shifted + lowest) - f32::from_bits(lowest);
    let finite = if magnitude < 1 << M::MANTISSA { subnormal.to_bits() } else { normal };
    let bits = if M::INFINITY {
        if magnitude >= M::OVERFLOW { shifted | 0x7f80_0000 } else { finite }
    } else if magnitude == M::NAN {
        0x7fff_ffff
    } else {
        finite
    };
    f32::from_bits(bits | (code >> (M::BITS - 1) & 1) << 31)
}

/// The code of a value, rounded to nearest even.
#[inline(always)]
fn narrow<M: Minifloat>(value: f32) -> u32 {
    let shift = 23 - M::MANTISSA;
    let bits = value.to_bits() & 0x7fff_ffff;
    // The power of two whose unit in the last place is the narrow format's smallest step: adding
    // it makes the addition round a subnormal result.
    let anchor = (127 + 1 - M::BIAS + shift) << 23;
    let subnormal = (f32::from_bits(bits) + f32::from_bits(anchor)).to_bits().wrapping_sub(anchor);
    let rounded = bits.wrapping_add((1 << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift;
    let normal = rounded.wrapping_sub((127 - M::BIAS) << M::MANTISSA);
    let finite = if bits < (127 + 1 - M::BIAS) << 23 { subnormal } else { normal };
    // Codes grow with values, so whatever exceeds the highest finite code has overflowed.
    let magnitude = finite.min(M::OVERFLOW);
    let signed = magnitude | value.to_bits() >> 31 << (M::BITS - 1);
    let nan = if M::INFINITY { value.is_nan() } else { magnitude == M::NAN };
    if nan { M::NAN } else { signed }
}

impl Format<2> for F16 {
    type Word = u32;
    type Acc = f32;

    #[inline(always)]
    fn unpack(word: u32) -> [f32; 2] {
        [widen::<Self>(word), widen::<Self>(word >> 16)]
    }

    #[inline(always)]
    fn pack([low, high]: [f32; 2]) -> u32 {
        narrow::<Self>(low) | narrow::<Self>(high) << 16
    }
}

macro_rules! bytes {
    ($($format:ty),*) => {$(
        impl Format<4> for $format {
            type Word = u32;
            type Acc = f32;

            #[inline(always)]
            fn unpack(word: u32) -> [f32; 4] {
                [0, 8, 16, 24].map(|shift| widen::<Self>(word >> shift))
            }

            #[inline(always)]
            fn pack(values: [f32; 4]) -> u32 {
                let [a, b, c, d] = values.map(narrow::<Self>);
                a | b << 8 | c << 16 | d << 24
            }
        }
    )*};
}

bytes!(E4m3, E5m2);
