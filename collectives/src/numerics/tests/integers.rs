//! Integer edges: wrapping, sign, and averages of exact sums.

use symmem_hal::types::DType;

use super::{check, pairs};
use crate::numerics::ReduceOp;

const INTEGERS: [DType; 8] =
    [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

/// Around zero, the sign bit, both ends, and halves and thirds of the range.
fn edges(dtype: DType) -> Vec<u64> {
    let mask = u64::MAX >> (64 - 8 * dtype.size());
    let sign = mask / 2 + 1;
    let mut list = vec![sign / 2, mask / 3, mask / 5 * 2, 0x55aa_1234_9e37_79b9 & mask];
    for center in [0, sign] {
        list.extend((0..=4u64).map(|d| center.wrapping_add(d).wrapping_sub(2) & mask));
    }
    list
}

#[test]
fn every_pair_of_bytes() {
    let all: Vec<u64> = (0..256).collect();
    for dtype in [DType::I8, DType::U8] {
        for op in ReduceOp::ALL {
            check(dtype, op, &pairs(&all, &all));
        }
    }
}

#[test]
fn edges_in_pairs_and_triples() {
    for dtype in INTEGERS {
        let edges = edges(dtype);
        let [a, b] = pairs(&edges, &edges);
        let [ab, c] = pairs(&(0..a.len() as u64).collect::<Vec<_>>(), &edges);
        let triples = [
            ab.iter().map(|&i| a[i as usize]).collect::<Vec<_>>(),
            ab.iter().map(|&i| b[i as usize]).collect(),
            c,
        ];
        for op in ReduceOp::ALL {
            check(dtype, op, &[a.clone(), b.clone()]);
            check(dtype, op, &triples);
        }
    }
}

#[test]
fn averages_divide_the_exact_sum_toward_zero() {
    let average = |dtype, row: &[u64]| {
        let columns: Vec<Vec<u64>> = row.iter().map(|&bits| vec![bits]).collect();
        check(dtype, ReduceOp::Avg, &columns);
        super::reduce(super::Level::best(), dtype, ReduceOp::Avg, &columns)[0]
    };
    // The sum of each of these wraps.
    assert_eq!(average(DType::I8, &[127, 127, 127]), 127);
    assert_eq!(average(DType::U64, &[u64::MAX; 5]), u64::MAX);
    assert_eq!(average(DType::I64, &[1 << 63, 1 << 63, 1 << 63]), 1 << 63);
    // -7 / 2 and -8 / 3: toward zero, not down.
    assert_eq!(average(DType::I16, &[0xfffa, 0xffff]), 0xfffd);
    assert_eq!(average(DType::I32, &[0xffff_fffd, 0xffff_fffd, 0xffff_fffe]), 0xffff_fffe);
}
