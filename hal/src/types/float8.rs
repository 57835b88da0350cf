//! OCP 8-bit floats.

use bytemuck::{Pod, Zeroable};

/// OCP `e4m3fn`: 4 exponent bits, 3 mantissa bits, no infinities; `S.1111.111` is NaN.
///
/// A carrier of bits. Arithmetic happens in f32, in the layer that reduces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// OCP `e5m2`: 5 exponent bits, 2 mantissa bits, infinities and NaNs as in IEEE formats.
///
/// A carrier of bits. Arithmetic happens in f32, in the layer that reduces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

impl F8E4M3 {
    /// The exact value in f32.
    #[must_use]
    pub fn to_f32(self) -> f32 {
        let (exponent, mantissa) = (u32::from(self.0 >> 3 & 0xf), u32::from(self.0 & 7));
        if exponent == 0xf && mantissa == 7 {
            return f32::NAN;
        }
        signed(self.0, widen(exponent, mantissa, 3, 7))
    }

    /// Rounds to nearest even. A magnitude that rounds beyond 448 becomes NaN, as do infinities:
    /// the format has none.
    #[must_use]
    pub fn from_f32(x: f32) -> Self {
        // The largest finite value is 448 = 1.75 * 2^8. 464, halfway to the NaN code, ties to the
        // even mantissa, which is 448's.
        let sign = sign(x);
        let magnitude = x.abs();
        if magnitude.is_nan() || magnitude > 464.0 {
            return F8E4M3(sign | 0x7f);
        }
        F8E4M3(sign | narrow(magnitude, 3, 7))
    }
}

impl F8E5M2 {
    /// The exact value in f32.
    #[must_use]
    pub fn to_f32(self) -> f32 {
        let (exponent, mantissa) = (u32::from(self.0 >> 2 & 0x1f), u32::from(self.0 & 3));
        if exponent == 0x1f {
            return if mantissa == 0 { signed(self.0, f32::INFINITY) } else { f32::NAN };
        }
        signed(self.0, widen(exponent, mantissa, 2, 15))
    }

    /// Rounds to nearest even. A magnitude that rounds beyond 57344 becomes infinity.
    #[must_use]
    pub fn from_f32(x: f32) -> Self {
        let sign = sign(x);
        let magnitude = x.abs();
        if magnitude.is_nan() {
            return F8E5M2(sign | 0x7f);
        }
        // 57344 = 1.75 * 2^15; from 61440 up, halfway included, the result is 2^16 = infinity.
        if magnitude >= 61440.0 {
            return F8E5M2(sign | 0x7c);
        }
        F8E5M2(sign | narrow(magnitude, 2, 15))
    }
}

fn sign(x: f32) -> u8 {
    if x.is_sign_negative() { 0x80 } else { 0 }
}

fn signed(bits: u8, magnitude: f32) -> f32 {
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// A finite value of `mantissa_bits` bits and this exponent bias; exact.
fn widen(exponent: u32, mantissa: u32, mantissa_bits: u32, bias: u32) -> f32 {
    if exponent == 0 {
        // mantissa * 2^(1 - bias - mantissa_bits): a product of exact powers of two.
        return mantissa as f32 * f32::from_bits((127 + 1 - bias - mantissa_bits) << 23);
    }
    f32::from_bits((exponent + 127 - bias) << 23 | mantissa << (23 - mantissa_bits))
}

/// The code of a non-negative finite value that does not overflow, rounded to nearest even.
fn narrow(x: f32, mantissa_bits: u32, bias: u32) -> u8 {
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let lowest = 1 - bias as i32;
    let code = if exponent < lowest {
        // Subnormal here: adding a power of two whose unit in the last place is this format's
        // smallest step lets the addition itself round to nearest even.
        let anchor = f32::from_bits(((lowest - mantissa_bits as i32 + 23 + 127) as u32) << 23);
        (x + anchor).to_bits() - anchor.to_bits()
    } else {
        let shift = 23 - mantissa_bits;
        let rounded = bits + (1 << (shift - 1)) - 1 + (bits >> shift & 1);
        (rounded >> shift) - ((127 - bias) << mantissa_bits)
    };
    (code & 0x7f) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nearest code by search over all finite values, ties to the even code: independent of
    /// the arithmetic above.
    fn nearest(x: f32, value: impl Fn(u8) -> f32, overflow: f32, over: u8) -> u8 {
        if x >= overflow {
            return over;
        }
        let mut best = 0u8;
        for code in 0..0x80u8 {
            let v = value(code);
            if !v.is_finite() {
                continue;
            }
            let (d, b) = (
                (f64::from(v) - f64::from(x)).abs(),
                (f64::from(value(best)) - f64::from(x)).abs(),
            );
            if d < b || (d == b && code & 1 == 0) {
                best = code;
            }
        }
        best
    }

    fn probes() -> impl Iterator<Item = f32> {
        // Every f32 exponent with mantissas around every rounding boundary of 2 and 3 bits.
        (0..255u32).flat_map(|e| {
            (0..64u32).flat_map(move |m| {
                [-1i64, 0, 1].into_iter().map(move |d| {
                    let bits = i64::from(e << 23 | m << 17) + d;
                    f32::from_bits(bits.max(0) as u32)
                })
            })
        })
    }

    #[test]
    fn e4m3_rounds_to_nearest_even() {
        for x in probes() {
            // 464 itself ties between 448 and 480, and 480 would be the NaN code with an odd
            // mantissa: the tie goes to 448.
            let want = if x > 464.0 {
                0x7f
            } else {
                nearest(x, |c| F8E4M3(c).to_f32(), f32::INFINITY, 0x7f)
            };
            assert_eq!(F8E4M3::from_f32(x).0, want, "{x:e}");
            assert_eq!(F8E4M3::from_f32(-x).0, want | 0x80, "-{x:e}");
        }
    }

    #[test]
    fn e5m2_rounds_to_nearest_even() {
        for x in probes() {
            let want = nearest(x, |c| F8E5M2(c).to_f32(), 61440.0, 0x7c);
            assert_eq!(F8E5M2::from_f32(x).0, want, "{x:e}");
        }
    }

    #[test]
    fn every_code_round_trips() {
        for code in 0..=255u8 {
            let x = F8E4M3(code).to_f32();
            if !x.is_nan() {
                assert_eq!(F8E4M3::from_f32(x).0, code);
            }
            let y = F8E5M2(code).to_f32();
            if !y.is_nan() {
                assert_eq!(F8E5M2::from_f32(y).0, code);
            }
        }
        assert_eq!(F8E4M3(0x7e).to_f32(), 448.0);
        assert_eq!(F8E5M2(0x7b).to_f32(), 57344.0);
        assert_eq!(F8E5M2(0x01).to_f32(), 2f32.powi(-16));
        assert_eq!(F8E4M3(0x01).to_f32(), 2f32.powi(-9));
    }
}
