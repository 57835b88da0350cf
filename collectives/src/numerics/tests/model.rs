//! The contract written as plainly as possible: floats as integers with a sticky bit, no floating
//! point and no bit trick of the code under test.

use symmem_hal::types::DType;

use crate::numerics::ReduceOp;

/// A float format: sign, exponent field, mantissa field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) exponent_bits: u32,
    pub(super) mantissa_bits: u32,
    /// Whether the highest exponent is for infinity and NaN; else only its highest mantissa is
    /// NaN.
    pub(super) infinity: bool,
}

pub(super) const F64: Format = Format { exponent_bits: 11, mantissa_bits: 52, infinity: true };
pub(super) const F32: Format = Format { exponent_bits: 8, mantissa_bits: 23, infinity: true };

impl Format {
    pub(super) fn of(dtype: DType) -> Option<Format> {
        let (exponent_bits, mantissa_bits) = match dtype {
            DType::F64 => (11, 52),
            DType::F32 => (8, 23),
            DType::F16 => (5, 10),
            DType::BF16 => (8, 7),
            DType::F8E4M3 => (4, 3),
            DType::F8E5M2 => (5, 2),
            _ => return None,
        };
        Some(Format { exponent_bits, mantissa_bits, infinity: dtype != DType::F8E4M3 })
    }

    pub(super) fn width(self) -> u32 {
        1 + self.exponent_bits + self.mantissa_bits
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    pub(super) fn nan(self) -> u64 {
        (1 << (self.width() - 1)) - 1
    }

    /// The magnitude of infinity; of a format without, the first code that is no finite number.
    pub(super) fn beyond(self) -> u64 {
        let top = ((1 << self.exponent_bits) - 1) << self.mantissa_bits;
        if self.infinity { top } else { self.nan() }
    }
}

/// What a code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Nan,
    Infinite { negative: bool },
    Finite(Finite),
}

/// `magnitude * 2^exponent`. The lowest bit of `magnitude` may stand for a remainder below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Finite {
    negative: bool,
    magnitude: u128,
    exponent: i32,
}

fn decode(format: Format, code: u64) -> Value {
    let negative = code >> (format.width() - 1) & 1 == 1;
    let magnitude = code & format.nan();
    let mantissa = u128::from(magnitude & ((1 << format.mantissa_bits) - 1));
    let exponent = (magnitude >> format.mantissa_bits) as i32;
    if magnitude >= format.beyond() {
        return if format.infinity && magnitude == format.beyond() {
            Value::Infinite { negative }
        } else {
            Value::Nan
        };
    }
    let unit = 1 - format.bias() - format.mantissa_bits as i32;
    Value::Finite(if exponent == 0 {
        Finite { negative, magnitude: mantissa, exponent: unit }
    } else {
        let magnitude = mantissa | 1 << format.mantissa_bits;
        Finite { negative, magnitude, exponent: unit + exponent - 1 }
    })
}

/// Rounds to nearest, ties to even.
fn encode(format: Format, value: Value) -> u64 {
    let sign = |negative: bool| u64::from(negative) << (format.width() - 1);
    match value {
        Value::Nan => format.nan(),
        Value::Infinite { negative } if format.infinity => sign(negative) | format.beyond(),
        Value::Infinite { .. } => format.nan(),
        Value::Finite(Finite { negative, magnitude: 0, .. }) => sign(negative),
        Value::Finite(Finite { negative, magnitude, exponent }) => {
            let bits = 128 - magnitude.leading_zeros() as i32;
            let unit = 1 - format.bias() - format.mantissa_bits as i32;
            // The place of the result's last mantissa bit.
            let place = (exponent + bits - 1 - format.mantissa_bits as i32).max(unit);
            let quotient = match place - exponent {
                drop if drop <= 0 => magnitude << -drop,
                drop if drop > 127 => 0,
                drop => {
                    let floor = magnitude >> drop;
                    let (rest, half) = (magnitude - (floor << drop), 1u128 << (drop - 1));
                    floor + u128::from(rest > half || (rest == half && floor & 1 == 1))
                }
            };
            // A mantissa that rounded up to the next power of two carries into the exponent.
            let exponent_field =
                if quotient >> format.mantissa_bits == 0 { 0 } else { place - unit };
            let code = ((exponent_field as u64) << format.mantissa_bits) + quotient as u64;
            if code < format.beyond() {
                sign(negative) | code
            } else if format.infinity {
                sign(negative) | format.beyond()
            } else {
                format.nan()
            }
        }
    }
}

fn add(a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinite { negative: x }, Value::Infinite { negative: y }) => {
            if x == y {
                a
            } else {
                Value::Nan
            }
        }
        (Value::Infinite { .. }, _) => a,
        (_, Value::Infinite { .. }) => b,
        (Value::Finite(x), Value::Finite(y)) => {
            if x.magnitude == 0 && y.magnitude == 0 {
                return Value::Finite(Finite { negative: x.negative && y.negative, ..x });
            }
            // Align at 60 bits below the higher exponent; what is lower is one sticky bit.
            let (high, low) = if x.exponent >= y.exponent { (x, y) } else { (y, x) };
            let shift = (high.exponent - low.exponent).min(60);
            let exponent = high.exponent - shift;
            let drop = (exponent - low.exponent) as u32;
            let kept = low.magnitude.checked_shr(drop).unwrap_or(0);
            let lost = kept.checked_shl(drop).unwrap_or(0) != low.magnitude;
            let low_magnitude = (kept << 1 | u128::from(lost)) as i128;
            let high_magnitude = (high.magnitude << shift << 1) as i128;
            let signed =
                |negative: bool, magnitude: i128| if negative { -magnitude } else { magnitude };
            let sum = signed(high.negative, high_magnitude) + signed(low.negative, low_magnitude);
            Value::Finite(Finite {
                negative: sum < 0,
                magnitude: sum.unsigned_abs(),
                exponent: exponent - 1,
            })
        }
    }
}

fn multiply(a: Value, b: Value) -> Value {
    let negative_of = |v| match v {
        Value::Nan => false,
        Value::Infinite { negative } | Value::Finite(Finite { negative, .. }) => negative,
    };
    let negative = negative_of(a) != negative_of(b);
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinite { .. }, Value::Finite(Finite { magnitude: 0, .. }))
        | (Value::Finite(Finite { magnitude: 0, .. }), Value::Infinite { .. }) => Value::Nan,
        (Value::Infinite { .. }, _) | (_, Value::Infinite { .. }) => Value::Infinite { negative },
        (Value::Finite(x), Value::Finite(y)) => Value::Finite(Finite {
            negative,
            magnitude: x.magnitude * y.magnitude,
            exponent: x.exponent + y.exponent,
        }),
    }
}

fn divide(a: Value, ranks: usize) -> Value {
    let Value::Finite(x) = a else { return a };
    let dividend = x.magnitude << 64;
    let divisor = ranks as u128;
    let sticky = u128::from(!dividend.is_multiple_of(divisor));
    Value::Finite(Finite {
        magnitude: (dividend / divisor) << 1 | sticky,
        exponent: x.exponent - 65,
        ..x
    })
}

/// Sorts codes of numbers by value, -0 before +0.
fn order(format: Format, code: u64) -> i128 {
    let magnitude = i128::from(code & format.nan());
    if code > format.nan() { -magnitude - 1 } else { magnitude }
}

fn float(format: Format, op: ReduceOp, row: &[u64]) -> u64 {
    if row.iter().any(|&code| decode(format, code) == Value::Nan) {
        return format.nan();
    }
    if op == ReduceOp::Min {
        return row.iter().copied().min_by_key(|&code| order(format, code)).unwrap();
    }
    if op == ReduceOp::Max {
        return row.iter().copied().max_by_key(|&code| order(format, code)).unwrap();
    }
    let accumulator = if format == F64 { F64 } else { F32 };
    let round = |value| decode(accumulator, encode(accumulator, value));
    let mut folded = decode(format, row[0]);
    for &code in &row[1..] {
        let next = decode(format, code);
        folded = round(match op {
            ReduceOp::Product => multiply(folded, next),
            _ => add(folded, next),
        });
    }
    if op == ReduceOp::Avg {
        folded = round(divide(folded, row.len()));
    }
    encode(format, folded)
}

fn integer(dtype: DType, op: ReduceOp, row: &[u64]) -> u64 {
    let width = 8 * dtype.size() as u32;
    let is_signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let number = |code: u64| {
        let negative = is_signed && code >> (width - 1) & 1 == 1;
        i128::from(code) - if negative { 1 << width } else { 0 }
    };
    let numbers = row.iter().map(|&code| number(code));
    let result = match op {
        ReduceOp::Sum => numbers.sum(),
        ReduceOp::Avg => numbers.sum::<i128>() / row.len() as i128,
        ReduceOp::Min => numbers.min().unwrap(),
        ReduceOp::Max => numbers.max().unwrap(),
        ReduceOp::Product => numbers.fold(1, i128::wrapping_mul),
        ReduceOp::And => numbers.reduce(|a, b| a & b).unwrap(),
        ReduceOp::Or => numbers.reduce(|a, b| a | b).unwrap(),
        ReduceOp::Xor => numbers.reduce(|a, b| a ^ b).unwrap(),
    };
    result.rem_euclid(1 << width) as u64
}

/// The result for one element of each rank, in rank order.
pub(super) fn reduce(dtype: DType, op: ReduceOp, row: &[u64]) -> u64 {
    match Format::of(dtype) {
        Some(format) => float(format, op, row),
        None => integer(dtype, op, row),
    }
}

/// Conversions agree with other implementations of them.
#[test]
fn model_agrees_with_half_and_float8() {
    use half::{bf16, f16};
    use symmem_hal::types::{F8E4M3, F8E5M2};

    let formats = [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];
    for dtype in formats {
        let format = Format::of(dtype).unwrap();
        for code in 0..1u64 << format.width() {
            let widened = match dtype {
                DType::F16 => f16::from_bits(code as u16).to_f32(),
                DType::BF16 => bf16::from_bits(code as u16).to_f32(),
                DType::F8E4M3 => F8E4M3(code as u8).to_f32(),
                _ => F8E5M2(code as u8).to_f32(),
            };
            let expected = encode(F32, decode(format, code));
            if widened.is_nan() {
                assert_eq!(expected, F32.nan());
            } else {
                assert_eq!(u64::from(widened.to_bits()), expected, "{dtype} {code:#x}");
            }
        }
        // Every sign, exponent and upper mantissa bit, with lower bits around ties.
        for upper in 0..1u32 << 15 {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1_0000, 0x1_ffff] {
                let value = f32::from_bits(upper << 17 | lower);
                let narrowed = match dtype {
                    DType::F16 => u64::from(f16::from_f32(value).to_bits()),
                    DType::BF16 => u64::from(bf16::from_f32(value).to_bits()),
                    DType::F8E4M3 => u64::from(F8E4M3::from_f32(value).0),
                    _ => u64::from(F8E5M2::from_f32(value).0),
                };
                let expected = encode(format, decode(F32, u64::from(value.to_bits())));
                if decode(format, narrowed) == Value::Nan {
                    assert_eq!(expected, format.nan(), "{dtype} {value:e}");
                } else {
                    assert_eq!(narrowed, expected, "{dtype} {value:e}");
                }
            }
        }
    }
}

/// The accumulator's arithmetic agrees with the processor's, which is another implementation.
#[test]
fn model_agrees_with_the_processor() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let same = |found: u64, expected: f64| {
        let expected = if expected.is_nan() { F64.nan() } else { expected.to_bits() };
        assert_eq!(found, expected);
    };
    for _ in 0..20_000 {
        let (a, near) = (next(), next());
        // Random exponents seldom interact: half of the time take one close by.
        let b =
            if near & 1 == 0 { near } else { (a & 0xffe0_0000_0000_0000).wrapping_add(near >> 8) };
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        let (u, v) = (decode(F64, a), decode(F64, b));
        same(encode(F64, add(u, v)), x + y);
        same(encode(F64, multiply(u, v)), x * y);
        let ranks = (next() % 1000 + 1) as usize;
        same(encode(F64, divide(u, ranks)), x / ranks as f64);
    }
}
