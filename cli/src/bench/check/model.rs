//! The reductions' documented numerics, one element at a time.

use symmem::hal::types::{DType, ReduceOp};

use super::format::{from_f32, from_f64, from_integer, to_f32, to_integer};

/// The reduction of one element of each rank, folded in rank order.
pub(super) fn fold(dtype: DType, op: ReduceOp, ranks: &[u64]) -> u64 {
    match dtype {
        DType::F64 => {
            let values = ranks.iter().map(|bits| f64::from_bits(*bits));
            let total = values.reduce(|a, b| combine_f64(op, a, b)).unwrap_or_default();
            from_f64(if op == ReduceOp::Avg { total / ranks.len() as f64 } else { total })
        }
        _ if dtype.is_float() => {
            let values = ranks.iter().map(|bits| to_f32(dtype, *bits));
            let total = values.reduce(|a, b| combine_f32(op, a, b)).unwrap_or_default();
            from_f32(dtype, if op == ReduceOp::Avg { total / ranks.len() as f32 } else { total })
        }
        _ => {
            let values = ranks.iter().map(|bits| to_integer(dtype, *bits));
            integers(dtype, op, values)
        }
    }
}

/// The reduction of integers that every partial result holds exactly, whatever the order.
pub(super) fn exact(dtype: DType, op: ReduceOp, ranks: &[i8]) -> u64 {
    let values = ranks.iter().map(|x| i128::from(*x));
    if !dtype.is_float() {
        return integers(dtype, op, values);
    }
    // At most 24 bits: exact as f64 and as f32.
    let total = match op {
        ReduceOp::Product => values.product::<i128>(),
        ReduceOp::Min => values.min().unwrap_or_default(),
        ReduceOp::Max => values.max().unwrap_or_default(),
        _ => values.sum(),
    } as f64;
    let divisor = if op == ReduceOp::Avg { ranks.len() as f64 } else { 1.0 };
    match dtype {
        DType::F64 => from_f64(total / divisor),
        _ => from_f32(dtype, total as f32 / divisor as f32),
    }
}

fn integers(dtype: DType, op: ReduceOp, values: impl Iterator<Item = i128> + Clone) -> u64 {
    let ranks = values.clone().count() as i128;
    let total = match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Avg => values.sum::<i128>() / ranks.max(1),
        ReduceOp::Min => values.min().unwrap_or_default(),
        ReduceOp::Max => values.max().unwrap_or_default(),
        // Wraps at every step, which is the product modulo the width all the same.
        ReduceOp::Product => {
            values.fold(1i128, |a, b| to_integer(dtype, from_integer(dtype, a.wrapping_mul(b))))
        }
        ReduceOp::And => values.reduce(|a, b| a & b).unwrap_or_default(),
        ReduceOp::Or => values.reduce(|a, b| a | b).unwrap_or_default(),
        ReduceOp::Xor => values.reduce(|a, b| a ^ b).unwrap_or_default(),
    };
    from_integer(dtype, total)
}

macro_rules! combine {
    ($name:ident, $float:ty) => {
        /// One step of a fold. `min` and `max` are IEEE 754-2019's `minimum` and `maximum`.
        fn $name(op: ReduceOp, a: $float, b: $float) -> $float {
            let least = |a: $float, b: $float| match () {
                () if a.is_nan() || b.is_nan() => <$float>::NAN,
                // Zeros are equal, and the negative one is the lesser.
                () if a == b => {
                    if a.is_sign_negative() {
                        a
                    } else {
                        b
                    }
                }
                () if a < b => a,
                () => b,
            };
            match op {
                ReduceOp::Min => least(a, b),
                ReduceOp::Max => -least(-a, -b),
                ReduceOp::Product => a * b,
                _ => a + b,
            }
        }
    };
}

combine!(combine_f32, f32);
combine!(combine_f64, f64);

#[cfg(test)]
mod tests {
    use super::*;

    const fn bits(x: f32) -> u64 {
        x.to_bits() as u64
    }

    #[test]
    fn order_and_rounding_are_ranks_order() {
        let tiny = 2f32.powi(-24);
        let sum = |ranks: &[f32]| {
            let ranks: Vec<u64> = ranks.iter().map(|x| bits(*x)).collect();
            fold(DType::F32, ReduceOp::Sum, &ranks)
        };
        assert_eq!(sum(&[1.0, tiny, tiny]), bits(1.0));
        assert_eq!(sum(&[tiny, tiny, 1.0]), bits(1.0 + 2.0 * tiny));
    }

    #[test]
    fn narrow_floats_round_once() {
        // 1 + 2^-8 + 2^-8 is 1 + 2^-7 in f32, a bf16; rounding at each step would lose both.
        let (one, tiny) = (0x3f80, 0x3b80);
        assert_eq!(fold(DType::BF16, ReduceOp::Sum, &[one, tiny, tiny]), 0x3f81);
        // 448 + 448 overflows e4m3, -inf + inf is NaN in e5m2: the one quiet NaN.
        assert_eq!(fold(DType::F8E4M3, ReduceOp::Sum, &[0xfe, 0xfe]), 0x7f);
        assert_eq!(fold(DType::F8E5M2, ReduceOp::Sum, &[0xfc, 0x7c]), 0x7f);
        assert_eq!(fold(DType::F8E5M2, ReduceOp::Sum, &[0x7b, 0x7b]), 0x7c);
    }

    #[test]
    fn extremes_know_nan_and_negative_zero() {
        let min = |a, b| fold(DType::F32, ReduceOp::Min, &[bits(a), bits(b)]);
        let max = |a, b| fold(DType::F32, ReduceOp::Max, &[bits(a), bits(b)]);
        assert_eq!((min(0.0, -0.0), min(-0.0, 0.0)), (bits(-0.0), bits(-0.0)));
        assert_eq!((max(0.0, -0.0), max(-0.0, 0.0)), (bits(0.0), bits(0.0)));
        assert_eq!((min(1.0, f32::NAN), max(f32::NAN, 1.0)), (0x7fff_ffff, 0x7fff_ffff));
        assert_eq!((min(1.0, 2.0), max(1.0, 2.0)), (bits(1.0), bits(2.0)));
    }

    #[test]
    fn integers_wrap_and_divide_the_exact_sum() {
        assert_eq!(fold(DType::I8, ReduceOp::Sum, &[0x7f, 0x7f]), 0xfe);
        assert_eq!(fold(DType::I8, ReduceOp::Avg, &[0x7f, 0x7f]), 0x7f);
        assert_eq!(fold(DType::I8, ReduceOp::Avg, &[0xff, 0xfe]), 0xff);
        assert_eq!(fold(DType::U64, ReduceOp::Avg, &[u64::MAX, u64::MAX]), u64::MAX);
        assert_eq!(fold(DType::U64, ReduceOp::Product, &[u64::MAX, u64::MAX, 3]), 3);
        assert_eq!(fold(DType::U16, ReduceOp::Xor, &[0xff00, 0x0ff0]), 0xf0f0);
    }

    #[test]
    fn both_models_agree_on_small_integers() {
        use super::super::data::{Data, Seed};
        let data = Data::Small(Seed::new(3));
        for dtype in DType::ALL {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
                for ranks in [1, 2, 3, 8, 40] {
                    for i in 0..50 {
                        let bits: Vec<_> = (0..ranks).map(|r| data.bits(dtype, op, r, i)).collect();
                        let values: Vec<_> =
                            (0..ranks).map(|r| data.integer(dtype, op, r, i)).collect();
                        let found = (fold(dtype, op, &bits), exact(dtype, op, &values));
                        assert_eq!(found.0, found.1, "{op} of {dtype}, {ranks} ranks: {values:?}");
                    }
                }
            }
        }
    }
}
