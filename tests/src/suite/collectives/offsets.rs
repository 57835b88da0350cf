//! Views that begin anywhere an element may.

use symmem_collectives::{Algorithm, Collectives as _};
use symmem_hal::types::{DType, ReduceOp};
use symmem_mem::MemoryPool;

use super::harness::{Bench, Case, Placement, affordable};
use crate::runner::{Context, PATIENT, Test, Verdict};
use crate::suite::sync::stream_of;
use crate::{check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(every_element_offset).seconds(120),
    test!(offsets_in_large_views).seconds(120),
    test!(blocks_of_a_pool),
];

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

/// The second of three blocks, read by peers where it lies: the others stay as they were.
fn blocks_of_a_pool(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = MemoryPool::new(context.device());
    let stream = stream_of(&group)?;
    let ranks = context.size() as u32;
    for count in [1, 100, 20_000] {
        let blocks = [pool.empty::<u32>(&[count])?, pool.empty(&[count])?, pool.empty(&[count])?];
        for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
            for block in &blocks {
                block.write(&vec![context.rank() as u32 + 1; count as usize])?;
            }
            group.rendezvous(&blocks[1], &group.wait())?;
            group.all_reduce(&blocks[1]).algorithm(algorithm).on(&stream)?;
            stream.synchronize(&PATIENT)?;
            let sum = ranks * (ranks + 1) / 2;
            check_eq!(blocks[1].to_vec()?, vec![sum; count as usize], "{count}, {algorithm:?}");
            for block in [&blocks[0], &blocks[2]] {
                let own = vec![context.rank() as u32 + 1; count as usize];
                check_eq!(block.to_vec()?, own, "{count}, {algorithm:?}, another block");
            }
            group.split(None, 0, &group.wait())?;
        }
    }
    Ok(())
}
