//! Floats with fewer exponent bits than f32, accumulated in f32.

use super::Format;

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

pub(in crate::numerics) struct F16;
pub(in crate::numerics) struct E4m3;
pub(in crate::numerics) struct E5m2;

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

impl E4m3 {
    /// The code of a value, of ±448 where it is beyond. Elements one by one, for loops whose input is
    /// wider.
    #[inline(always)]
    pub(in crate::numerics) fn saturated(value: f32) -> u8 {
        narrow::<Self>(value.clamp(-448.0, 448.0)) as u8
    }
}

macro_rules! bytes {
    ($($format:ty),*) => {$(
        impl Format<4> for $format {
            type Word = u32;
            type Acc = f32;

            #[inline(always)]
            fn unpack(word: u32) -> [f32; 4] {
                [widen::<Self>(word), widen::<Self>(word >> 8), widen::<Self>(word >> 16), widen::<Self>(word >> 24)]
            }

            #[inline(always)]
            fn pack([a, b, c, d]: [f32; 4]) -> u32 {
                narrow::<Self>(a) | narrow::<Self>(b) << 8 | narrow::<Self>(c) << 16 | narrow::<Self>(d) << 24
            }
        }
    )*};
}

bytes!(E4m3, E5m2);
