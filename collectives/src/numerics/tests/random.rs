//! Random bits, types, operators, counts, offsets and numbers of ranks.

use proptest::collection::vec;
use proptest::prelude::*;
use symmem_hal::types::DType;

use super::ranges::Arena;
use super::{Level, model};
use crate::numerics::ReduceOp;

/// Bits of an element: any, or few of them set or clear, which makes zeros, infinities, NaNs and
/// subnormals of every float type.
pub(super) fn element(dtype: DType) -> impl Strategy<Value = u64> {
    let width = 8 * dtype.size() as u32;
    let mask = u64::MAX >> (64 - width);
    prop_oneof![
        3 => any::<u64>().prop_map(move |bits| bits & mask),
        1 => (0..width, any::<bool>()).prop_map(move |(shift, sign)| {
            (mask >> 1 >> shift) | if sign { mask / 2 + 1 } else { 0 }
        }),
        1 => (0..width, any::<bool>()).prop_map(move |(shift, sign)| {
            (mask << shift & mask >> 1) | if sign { mask / 2 + 1 } else { 0 }
        }),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    op: ReduceOp,
    columns: Vec<Vec<u64>>,
    offsets: Vec<usize>,
    in_place: Option<usize>,
}

fn case() -> impl Strategy<Value = Case> {
    let shape = (0..DType::ALL.len(), 0..ReduceOp::ALL.len(), 1..=9usize, 0..200usize);
    shape
        .prop_map(|(dtype, op, ranks, count)| (DType::ALL[dtype], ReduceOp::ALL[op], ranks, count))
        .prop_filter("defined", |(dtype, op, ..)| op.supports(*dtype))
        .prop_flat_map(|(dtype, op, ranks, count)| {
            let columns = vec(vec(element(dtype), count), ranks);
            let offsets = vec(0..9usize, ranks + 1);
            let in_place = proptest::option::of(0..ranks);
            (columns, offsets, in_place).prop_map(move |(columns, offsets, in_place)| Case {
                dtype,
                op,
                columns,
                offsets,
                in_place,
            })
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_reduction_is_the_models(case in case()) {
        let ranks = case.columns.len();
        let expected: Vec<u64> = (0..case.columns[0].len())
            .map(|i| {
                let row: Vec<u64> = case.columns.iter().map(|column| column[i]).collect();
                model::reduce(case.dtype, case.op, &row)
            })
            .collect();
        for level in Level::available() {
            let mut arena = Arena::new(case.dtype, &case.columns, &case.offsets);
            let found = arena.reduce(level, case.op, ranks, case.in_place.unwrap_or(ranks));
            prop_assert_eq!(&found, &expected, "{:?}", level);
        }
    }
}
