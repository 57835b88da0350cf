//! Views that begin anywhere an element may.

use symmem_hal::types::{DType, ReduceOp};

use super::harness::{Bench, Case, Placement, affordable};
use crate::runner::{Context, Test, Verdict};
use crate::test;

pub(super) const TESTS: &[Test] =
    &[test!(every_element_offset).seconds(120), test!(offsets_in_large_views).seconds(120)];

fn every_element_offset(context: &Context) -> Verdict {
    let bench = Bench::new(context, context.group()?, 8 * 200)?;
    let offsets = if context.size() > 8 { 5 } else { 17 };
    for dtype in [DType::U8, DType::BF16, DType::F32, DType::F64] {
        for input in 0..offsets {
            // The other end's offset runs against it, so that all differences of alignment occur.
            for output in [0, 1, offsets - 1 - input] {
                let placement = Placement::number(input as usize);
                let case = Case { placement, ..Case::new(dtype, ReduceOp::Sum, 131) };
                bench.check_all(Case { offsets: (input, output), ..case })?;
            }
        }
    }
    Ok(())
}

fn offsets_in_large_views(context: &Context) -> Verdict {
    let bench = Bench::new(context, context.group()?, 140_000)?;
    for (n, offsets) in [(1, 0), (3, 3), (7, 5), (16, 31)].into_iter().enumerate() {
        for (dtype, count) in [(DType::F8E5M2, 130_003), (DType::F16, 65_003), (DType::F32, 33_333)]
        {
            let placement = Placement::number(n);
            let count = affordable(context, count);
            let case = Case { placement, ..Case::new(dtype, ReduceOp::Sum, count) };
            bench.check_all(Case { offsets, ..case })?;
        }
    }
    Ok(())
}
