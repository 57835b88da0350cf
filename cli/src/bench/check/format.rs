//! Elements as bits: the formats' widths, conversions and spelling.

use half::{bf16, f16};
use symmem::hal::types::{DType, F8E4M3, F8E5M2};

/// Widths of a float's exponent and mantissa.
#[derive(Clone, Copy)]
pub(super) struct Float {
    pub exponent: u32,
    pub mantissa: u32,
}

/// `None` for an integer.
pub(super) fn float(dtype: DType) -> Option<Float> {
    let (exponent, mantissa) = match dtype {
        DType::F64 => (11, 52),
        DType::F32 => (8, 23),
        DType::F16 => (5, 10),
        DType::BF16 => (8, 7),
        DType::F8E4M3 => (4, 3),
        DType::F8E5M2 => (5, 2),
        _ => return None,
    };
    Some(Float { exponent, mantissa })
}

/// The lowest bits of a word that an element of the type has.
pub(super) fn mask(dtype: DType) -> u64 {
    u64::MAX >> (64 - 8 * dtype.size())
}

/// The one NaN that results have: quiet, positive, all mantissa bits set.
pub(super) fn quiet_nan(dtype: DType) -> u64 {
    mask(dtype) >> 1
}

/// The exact value of a float of at most 32 bits.
pub fn to_f32(dtype: DType, bits: u64) -> f32 {
    match dtype {
        DType::F32 => f32::from_bits(bits as u32),
        DType::F16 => f16::from_bits(bits as u16).to_f32(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f32(),
        DType::F8E4M3 => F8E4M3(bits as u8).to_f32(),
        DType::F8E5M2 => F8E5M2(bits as u8).to_f32(),
        _ => f32::NAN,
    }
}

/// The nearest float of at most 32 bits, ties to even.
pub fn from_f32(dtype: DType, x: f32) -> u64 {
    match dtype {
        _ if x.is_nan() => quiet_nan(dtype),
        DType::F16 => f16::from_f32(x).to_bits().into(),
        DType::BF16 => bf16::from_f32(x).to_bits().into(),
        // Beyond its largest finite value this format has NaN only, of either sign.
        DType::F8E4M3 if F8E4M3::from_f32(x).to_f32().is_nan() => quiet_nan(dtype),
        DType::F8E4M3 => F8E4M3::from_f32(x).0.into(),
        DType::F8E5M2 => F8E5M2::from_f32(x).0.into(),
        _ => x.to_bits().into(),
    }
}

pub(super) fn from_f64(x: f64) -> u64 {
    if x.is_nan() { quiet_nan(DType::F64) } else { x.to_bits() }
}

/// The value of an integer.
pub(super) fn to_integer(dtype: DType, bits: u64) -> i128 {
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    if signed {
        let unused = 64 - 8 * dtype.size() as u32;
        i128::from((bits << unused) as i64 >> unused)
    } else {
        i128::from(bits)
    }
}

/// The integer modulo its width.
pub(super) fn from_integer(dtype: DType, x: i128) -> u64 {
    x as u64 & mask(dtype)
}

/// An element for people: its value and its bits.
pub fn spell(dtype: DType, bits: u64) -> String {
    let digits = 2 * dtype.size();
    let value = match dtype {
        DType::F64 => f64::from_bits(bits).to_string(),
        _ if dtype.is_float() => to_f32(dtype, bits).to_string(),
        _ => to_integer(dtype, bits).to_string(),
    };
    format!("{value} (0x{bits:0digits$x})")
}
