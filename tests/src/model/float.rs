//! Floating-point formats, by integers alone.
//!
//! A value of any format but f64 itself is exact in f64. Rounding goes from there to the format's
//! integers and uses no conversion of the processor's or the compiler's.

use symmem_hal::types::DType;

/// A binary floating-point format of at most 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    exponent: u32,
    mantissa: u32,
    /// Whether the largest exponent holds infinity and NaNs; else only the all-ones code is NaN.
    ieee: bool,
}

/// Bits of exponent and mantissa of an element type; `None` for integers.
#[must_use]
pub fn fields(dtype: DType) -> Option<(u32, u32)> {
    match dtype {
        DType::F64 => Some((11, 52)),
        DType::F32 => Some((8, 23)),
        DType::F16 => Some((5, 10)),
        DType::BF16 => Some((8, 7)),
        DType::F8E4M3 => Some((4, 3)),
        DType::F8E5M2 => Some((5, 2)),
        _ => None,
    }
}

/// IEEE binary32.
pub const F32: Format = Format { exponent: 8, mantissa: 23, ieee: true };

impl Format {
    /// The format of an element type; `None` for integers and f64.
    #[must_use]
    pub fn of(dtype: DType) -> Option<Self> {
        let (exponent, mantissa) = fields(dtype).filter(|_| dtype != DType::F64)?;
        Some(Format { exponent, mantissa, ieee: dtype != DType::F8E4M3 })
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// All ones but the sign.
    fn ones(self) -> u64 {
        (1 << (self.exponent + self.mantissa)) - 1
    }

    /// The code of positive infinity.
    fn infinity(self) -> Option<u64> {
        self.ieee.then(|| ((1 << self.exponent) - 1) << self.mantissa)
    }

    /// The one NaN of results.
    #[must_use]
    pub fn nan(self) -> u64 {
        self.ones()
    }

    /// The value of a code, exactly.
    #[must_use]
    pub fn decode(self, code: u64) -> f64 {
        let magnitude = code & self.ones();
        let sign = if code > self.ones() { -1.0 } else { 1.0 };
        match self.infinity() {
            Some(infinity) if magnitude == infinity => return sign * f64::INFINITY,
            Some(infinity) if magnitude > infinity => return f64::NAN,
            None if magnitude == self.ones() => return f64::NAN,
            _ => {}
        }
        let field = (magnitude >> self.mantissa) as i32;
        let fraction = magnitude & ((1 << self.mantissa) - 1);
        let (digits, exponent) = if field == 0 {
            (fraction, 1 - self.bias())
        } else {
            (fraction | 1 << self.mantissa, field - self.bias())
        };
        sign * digits as f64 * power_of_two(exponent - self.mantissa as i32)
    }

    /// The code nearest to a value, ties to even. What rounds beyond the largest finite value is
    /// infinity where there is one, else NaN.
    #[must_use]
    pub fn encode(self, value: f64) -> u64 {
        if value.is_nan() {
            return self.nan();
        }
        let bits = value.to_bits();
        let sign = bits >> 63 << (self.exponent + self.mantissa);
        if value.is_infinite() {
            return self.infinity().map_or(self.nan(), |infinity| sign | infinity);
        }
        // |value| = digits * 2^(exponent - 52).
        let field = (bits >> 52 & 0x7ff) as i32;
        let fraction = bits & ((1 << 52) - 1);
        let (digits, exponent) =
            if field == 0 { (fraction, -1022) } else { (fraction | 1 << 52, field - 1023) };
        let least = 1 - self.bias();
        // What one unit of the result is worth, as a shift of the digits.
        let place = exponent.max(least);
        let shift = (place - exponent) + 52 - self.mantissa as i32;
        let units = round_shift(digits, shift as u32);
        let magnitude = if units >> self.mantissa == 0 {
            units
        } else {
            // A carry out of the digits moves into the exponent by itself.
            (((place + self.bias()) as u64) << self.mantissa) + units - (1 << self.mantissa)
        };
        match self.infinity() {
            Some(infinity) => sign | magnitude.min(infinity),
            None if magnitude >= self.ones() => self.nan(),
            None => sign | magnitude,
        }
    }

    /// A value rounded to the format.
    #[must_use]
    pub fn round(self, value: f64) -> f64 {
        self.decode(self.encode(value))
    }
}

/// `digits` / 2^`shift`, to nearest, ties to even. `digits` have at most 53 bits.
fn round_shift(digits: u64, shift: u32) -> u64 {
    match shift {
        0 => digits,
        1..=54 => {
            let (whole, rest) = (digits >> shift, digits & ((1 << shift) - 1));
            let half = 1 << (shift - 1);
            whole + u64::from(rest > half || (rest == half && whole % 2 == 1))
        }
        _ => 0,
    }
}

/// 2^`exponent`, for an exponent of a normal f64.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
