//! Weighted sums, against scalar arithmetic in f64 that rounds to f32 after each operation.

use half::{bf16, f16};
use proptest::collection::vec;
use proptest::prelude::*;
use symmem_hal::types::{DType, F8E4M3, F8E5M2};
use symmem_hal::{Fault, Kind};

use super::random::element;
use super::ranges::Arena;
use super::{Level, ReduceOp, model};
use crate::numerics::{Reducer, UnsupportedType, WeightedSum};

/// The value of an element; exact.
pub(super) fn widened(dtype: DType, code: u64) -> f32 {
    match dtype {
        DType::F32 => f32::from_bits(code as u32),
        DType::F16 => f16::from_bits(code as u16).to_f32(),
        DType::BF16 => bf16::from_bits(code as u16).to_f32(),
        DType::F8E4M3 => F8E4M3(code as u8).to_f32(),
        DType::F8E5M2 => F8E5M2(code as u8).to_f32(),
        _ => panic!("{dtype}"),
    }
}

/// The nearest element.
pub(super) fn narrowed(dtype: DType, value: f32) -> u64 {
    if value.is_nan() {
        return model::Format::of(dtype).unwrap().nan();
    }
    match dtype {
        DType::F32 => u64::from(value.to_bits()),
        DType::F16 => u64::from(f16::from_f32(value).to_bits()),
        DType::BF16 => u64::from(bf16::from_f32(value).to_bits()),
        // What overflows has a sign here: canonical NaNs have none.
        DType::F8E4M3 => match F8E4M3::from_f32(value).0 {
            0xff => 0x7f,
            code => u64::from(code),
        },
        DType::F8E5M2 => u64::from(F8E5M2::from_f32(value).0),
        _ => panic!("{dtype}"),
    }
}

/// Products of f32 are exact in f64, whose sums of two f32 round to f32 as the exact ones do.
fn expected(dtype: DType, weights: &[f32], row: &[u64]) -> u64 {
    let product = |k: usize| (f64::from(weights[k]) * f64::from(widened(dtype, row[k]))) as f32;
    let mut sum = product(0);
    for k in 1..row.len() {
        sum = (f64::from(sum) + f64::from(product(k))) as f32;
    }
    narrowed(dtype, sum)
}

fn sum(level: Level, dtype: DType, weights: &[f32], columns: &[Vec<u64>]) -> Vec<u64> {
    sum_at(level, dtype, weights, columns, &vec![0; columns.len() + 1])
}

/// As `sum`, with each row and the output at an offset; checks all bytes around.
fn sum_at(
    level: Level,
    dtype: DType,
    weights: &[f32],
    columns: &[Vec<u64>],
    offsets: &[usize],
) -> Vec<u64> {
    let sum = WeightedSum::at_level(level, dtype).unwrap();
    Arena::new(dtype, columns, offsets).fold(columns.len(), columns.len(), |rows, out, count| {
        let rows: Vec<_> = weights.iter().copied().zip(rows.iter().copied()).collect();
        // SAFETY: each range holds `count` elements within its own buffer, which nobody else has.
        unsafe { sum.sum(&rows, out, count) };
    })
}

fn check(dtype: DType, weights: &[f32], columns: &[Vec<u64>]) {
    let row = |i: usize| columns.iter().map(|column| column[i]).collect::<Vec<_>>();
    for level in Level::available() {
        let found = sum(level, dtype, weights, columns);
        for (i, found) in found.into_iter().enumerate() {
            let expected = expected(dtype, weights, &row(i));
            let row = row(i);
            assert_eq!(found, expected, "{dtype} {level:?} {weights:?} {row:x?} {found:#x}");
        }
    }
}

const WEIGHTS: [f32; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.3,
    1.0 / 3.0,
    1.5,
    1e-3,
    -2.5e4,
    f32::MIN_POSITIVE,
    f32::from_bits(1),
    f32::MAX,
    f32::INFINITY,
    f32::NAN,
];

#[test]
fn every_narrow_pattern_with_special_weights() {
    for dtype in [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2] {
        let all: Vec<u64> = (0..1 << (8 * dtype.size())).collect();
        let other: Vec<u64> = all.iter().rev().copied().collect();
        for weight in WEIGHTS {
            check(dtype, &[weight], std::slice::from_ref(&all));
            check(dtype, &[0.7, weight], &[all.clone(), other.clone()]);
        }
    }
}

#[test]
fn counts_of_every_remainder() {
    for dtype in WeightedSum::TYPES.iter().copied() {
        let mask = u64::MAX >> (64 - 8 * dtype.size());
        for count in (0..=300).chain([1023, 1024, 1025, 2049]) {
            for rows in [1usize, 2, 3, 8] {
                let columns: Vec<Vec<u64>> = (0..rows as u64)
                    .map(|k| {
                        let element =
                            |i: u64| (i + 1 + 977 * k).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        (0..count).map(|i| element(i) >> 7 & mask).collect()
                    })
                    .collect();
                let weights: Vec<f32> = (0..rows).map(|k| 0.1 + 0.37 * k as f32).collect();
                check(dtype, &weights, &columns);
            }
        }
    }
}

/// (1 + 2^-12)^2 - 1 is 2^-11 + 2^-24; the product rounded before the sum loses the last term.
#[test]
fn products_are_rounded_before_they_are_added() {
    let x = 1.0 + 2f32.powi(-12);
    let columns = [vec![u64::from(1f32.to_bits()); 35], vec![u64::from(x.to_bits()); 35]];
    for level in Level::available() {
        let found = sum(level, DType::F32, &[-1.0, x], &columns);
        assert_eq!(found, vec![u64::from(2f32.powi(-11).to_bits()); 35]);
    }
}

/// 1e8 + 1 - 1e8 is 0 in f32, in this order alone.
#[test]
fn sums_follow_the_order_of_rows() {
    let one = u64::from(1f32.to_bits());
    let columns = vec![vec![one; 19]; 3];
    for level in Level::available() {
        let found = |weights: &[f32]| sum(level, DType::F32, weights, &columns);
        assert_eq!(found(&[1e8, 1.0, -1e8]), vec![0; 19]);
        assert_eq!(found(&[1e8, -1e8, 1.0]), vec![one; 19]);
    }
}

#[test]
fn one_row_has_no_neutral_element_added() {
    for dtype in WeightedSum::TYPES.iter().copied() {
        let negative_zero = model::Format::of(dtype).unwrap().nan() + 1;
        for level in Level::available() {
            let found = sum(level, dtype, &[1.0], &[vec![negative_zero; 21]]);
            assert_eq!(found, vec![negative_zero; 21], "{dtype} {level:?}");
        }
    }
}

#[test]
fn without_rows_the_sum_is_zero() {
    for dtype in WeightedSum::TYPES.iter().copied() {
        for count in [0, 1, 3, 100] {
            let bytes = count * dtype.size();
            let mut out = vec![0xa5u8; bytes + 16];
            let sum = WeightedSum::new(dtype).unwrap();
            assert_eq!(sum.dtype(), dtype);
            // SAFETY: `out` holds more than `count` elements and belongs to this test.
            unsafe { sum.sum(&[], out.as_mut_ptr(), count) };
            assert!(out[..bytes].iter().all(|&byte| byte == 0));
            assert!(out[bytes..].iter().all(|&byte| byte == 0xa5));
        }
    }
}

#[test]
fn types_without_a_weighted_sum_are_refused() {
    for dtype in DType::ALL {
        let made = WeightedSum::new(dtype);
        if WeightedSum::TYPES.contains(&dtype) {
            assert_eq!(made.unwrap().dtype(), dtype);
        } else {
            let error = made.unwrap_err();
            assert_eq!(error, UnsupportedType { dtype, supported: WeightedSum::TYPES });
            assert_eq!(error.kind(), Kind::InvalidArgument);
            let text = format!("defined on f32, f16, bf16, f8e4m3, f8e5m2, not on {dtype}");
            assert_eq!(error.to_string(), text);
        }
    }
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    weights: Vec<f32>,
    columns: Vec<Vec<u64>>,
    offsets: Vec<usize>,
}

fn weight() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -2.0f32..2.0,
        1 => any::<u32>().prop_map(f32::from_bits),
        1 => element(DType::F32).prop_map(|bits| f32::from_bits(bits as u32)),
        1 => (0..WEIGHTS.len()).prop_map(|i| WEIGHTS[i]),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    (0..WeightedSum::TYPES.len(), 1..=10usize, 0..=300usize).prop_flat_map(
        |(dtype, rows, count)| {
            let dtype = WeightedSum::TYPES[dtype];
            let columns = vec(vec(element(dtype), count), rows);
            (vec(weight(), rows), columns, vec(0..9usize, rows + 1)).prop_map(
                move |(weights, columns, offsets)| Case { dtype, weights, columns, offsets },
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_weighted_sum_is_the_models(case in case()) {
        let Case { dtype, weights, columns, offsets } = case;
        let expected: Vec<u64> = (0..columns[0].len())
            .map(|i| {
                let row: Vec<u64> = columns.iter().map(|column| column[i]).collect();
                expected(dtype, &weights, &row)
            })
            .collect();
        for level in Level::available() {
            let found = sum_at(level, dtype, &weights, &columns, &offsets);
            prop_assert_eq!(&found, &expected, "{:?}", level);
        }
    }

    #[test]
    fn weights_of_one_are_the_plain_sum(case in case()) {
        let Case { dtype, columns, .. } = case;
        let reducer = Reducer::new(dtype, ReduceOp::Sum).unwrap();
        let rows = columns.len();
        let mut arena = Arena::new(dtype, &columns, &vec![0; rows + 1]);
        let plain = arena.fold(rows, rows, |rows, out, count| {
            // SAFETY: each range holds `count` elements within its own buffer, which nobody else
            // has.
            unsafe { reducer.reduce(rows, out, count) };
        });
        for level in Level::available() {
            let found = sum(level, dtype, &vec![1.0; rows], &columns);
            prop_assert_eq!(&found, &plain, "{:?}", level);
        }
    }
}
