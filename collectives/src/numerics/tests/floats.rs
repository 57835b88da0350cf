//! Special values of every float type.

use symmem_hal::types::DType;

use super::model::Format;
use super::{Level, check, pairs, reduce};
use crate::numerics::ReduceOp;

const OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];
const FLOATS: [DType; 6] =
    [DType::F64, DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];

/// Codes of both signs with mantissas at the ends, in the middle and alternating, of exponents in
/// steps of `stride` and all that lie `near` to subnormals, one, and overflow.
fn edges(dtype: DType, stride: u64, near: u64) -> Vec<u64> {
    let format = Format::of(dtype).unwrap();
    let top = (1u64 << format.exponent_bits) - 1;
    let ones = (1u64 << format.mantissa_bits) - 1;
    let mut list = Vec::new();
    for exponent in 0..=top {
        let close = [0, top / 2, top].iter().any(|&e| exponent.abs_diff(e) <= near);
        if close || exponent.is_multiple_of(stride) {
            let middle = (ones >> 1) + 1;
            for mantissa in [0, 1, middle - 1, middle, middle + 1, ones / 3, ones - 1, ones] {
                for sign in [0, format.nan() + 1] {
                    list.push(sign | exponent << format.mantissa_bits | mantissa & ones);
                }
            }
        }
    }
    list.sort_unstable();
    list.dedup();
    list
}

#[test]
fn every_pair_of_f8() {
    let all: Vec<u64> = (0..256).collect();
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        for op in OPS {
            check(dtype, op, &pairs(&all, &all));
        }
    }
}

#[test]
fn pairs_of_f16() {
    let edges = edges(DType::F16, 1, 0);
    assert!(edges.len() > 450, "{}", edges.len());
    for op in OPS {
        check(DType::F16, op, &pairs(&edges, &edges));
    }
}

#[test]
fn pairs_of_bf16() {
    let edges = edges(DType::BF16, 8, 3);
    assert!(edges.len() > 450, "{}", edges.len());
    for op in OPS {
        check(DType::BF16, op, &pairs(&edges, &edges));
    }
}

#[test]
fn every_16_bit_pattern_against_special_ones() {
    let all: Vec<u64> = (0..1 << 16).collect();
    for dtype in [DType::F16, DType::BF16] {
        let special = edges(dtype, u64::MAX, 0);
        assert!(special.len() > 40, "{}", special.len());
        for op in OPS {
            check(dtype, op, &pairs(&special, &all));
        }
    }
}

#[test]
fn every_narrow_pattern_alone() {
    for dtype in [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2] {
        let all: Vec<u64> = (0..1 << (8 * dtype.size())).collect();
        for op in OPS {
            check(dtype, op, std::slice::from_ref(&all));
        }
    }
}

#[test]
fn wide_edges_in_pairs() {
    for (dtype, stride) in [(DType::F32, 16), (DType::F64, 128)] {
        let edges = edges(dtype, stride, 2);
        assert!(edges.len() > 300, "{}", edges.len());
        for op in OPS {
            check(dtype, op, &pairs(&edges, &edges));
        }
    }
}

#[test]
fn edges_in_triples() {
    for dtype in FLOATS {
        let edges = edges(dtype, u64::MAX, 0);
        let [a, b] = pairs(&edges, &edges);
        let [ab, c] = pairs(&(0..a.len() as u64).collect::<Vec<_>>(), &edges);
        let triples = [
            ab.iter().map(|&i| a[i as usize]).collect::<Vec<_>>(),
            ab.iter().map(|&i| b[i as usize]).collect(),
            c,
        ];
        for op in OPS {
            check(dtype, op, &triples);
        }
    }
}

#[test]
fn every_nan_becomes_the_canonical_one() {
    for dtype in FLOATS {
        let format = Format::of(dtype).unwrap();
        let sign = format.nan() + 1;
        let first = format.beyond() + u64::from(format.infinity);
        let one = ((1u64 << (format.exponent_bits - 1)) - 1) << format.mantissa_bits;
        for nan in [first, format.nan(), sign | first, sign | format.nan()] {
            for op in OPS {
                for row in [vec![nan], vec![nan, one], vec![one, nan], vec![one, nan, one, one]] {
                    let columns: Vec<Vec<u64>> = row.iter().map(|&bits| vec![bits; 67]).collect();
                    for level in Level::available() {
                        let found = reduce(level, dtype, op, &columns);
                        assert_eq!(found, vec![format.nan(); 67], "{dtype} {op} {row:x?}");
                    }
                }
            }
        }
    }
}

/// 1e8 + 1 - 1e8 is 0 in f32, in the order of the ranks; any other order gives 1.
#[test]
fn sums_follow_rank_order() {
    let bits = |x: f32| u64::from(x.to_bits());
    let columns = |row: [f32; 3]| row.map(|x| vec![bits(x); 19]);
    for level in Level::available() {
        let sum = |row| reduce(level, DType::F32, ReduceOp::Sum, &columns(row));
        assert_eq!(sum([1e8, 1.0, -1e8]), vec![bits(0.0); 19]);
        assert_eq!(sum([1e8, -1e8, 1.0]), vec![bits(1.0); 19]);
    }
}

/// Narrow types keep f32 between the ranks: 2048 + 1 + 1 loses both ones in f16, and e4m3 leaves
/// its range and comes back.
#[test]
fn narrow_types_accumulate_in_f32() {
    let f16 = |x: f32| u64::from(half::f16::from_f32(x).to_bits());
    let e4m3 = |x: f32| u64::from(symmem_hal::types::F8E4M3::from_f32(x).0);
    for level in Level::available() {
        let sum = |dtype, row: &[u64]| {
            let columns: Vec<Vec<u64>> = row.iter().map(|&bits| vec![bits]).collect();
            reduce(level, dtype, ReduceOp::Sum, &columns)[0]
        };
        assert_eq!(sum(DType::F16, &[f16(2048.0), f16(1.0), f16(1.0)]), f16(2050.0));
        assert_eq!(sum(DType::F8E4M3, &[e4m3(448.0), e4m3(448.0), e4m3(-448.0)]), e4m3(448.0));
    }
}
