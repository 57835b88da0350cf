//! Floats with f32's exponent or more.

use super::Format;

pub(in crate::numerics) struct F64;

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

pub(in crate::numerics) struct F32;

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

pub(in crate::numerics) struct Bf16;

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
