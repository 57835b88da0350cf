//! Sizes: small ones, and those at which something changes.

use std::collections::BTreeSet;

use symmem_collectives::{Algorithm, Collectives as _};
use symmem_hal::types::{Bytes, DType, Layout, ReduceOp};
use symmem_mem::{Allocation, Group, Options, View};
use symmem_sync::Lanes as _;

use super::harness::{Bench, Case, Placement};
use crate::runner::{Context, Test, TestError, Verdict, options};
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(small_counts).seconds(120),
    test!(around_every_threshold).seconds(240),
    test!(the_smallest_workspace).seconds(120),
    test!(packets_up_to_their_capacity),
];

fn small_counts(context: &Context) -> Verdict {
    let bench = Bench::new(context, context.group()?, 8 * 1000)?;
    let few = if context.size() > 8 { 18 } else { 40 };
    for dtype in [DType::U8, DType::F16, DType::F32, DType::I64] {
        for count in (0..few).chain([63, 64, 65, 127, 128, 129, 251, 509, 997]) {
            let placement = Placement::number(count as usize);
            bench.check_all(Case { placement, ..Case::new(dtype, ReduceOp::Sum, count) })?;
        }
    }
    Ok(())
}

/// The least number of bytes for which the table no longer chooses `algorithm`, up to `most`.
pub(super) fn end_of(
    group: &Group,
    memory: &Allocation,
    algorithm: Algorithm,
    most: u64,
) -> Result<Option<u64>, TestError> {
    let chosen = |bytes| -> Result<Algorithm, TestError> {
        let view = View::new(memory, Bytes::ZERO, DType::U8, Layout::flat(bytes))?;
        Ok(group.all_reduce(&view).chosen()?)
    };
    // The algorithms of a table follow each other in the order of their codes.
    let past = |bytes| Ok::<_, TestError>(chosen(bytes)?.code() > algorithm.code());
    if !past(most)? {
        return Ok(None);
    }
    let (mut within, mut beyond) = (0, most);
    while within + 1 < beyond {
        let middle = within.midpoint(beyond);
        *(if past(middle)? { &mut beyond } else { &mut within }) = middle;
    }
    Ok(Some(beyond))
}

/// Capacities of the lane, rows of the table, and multiples of both: one element less, the size
/// itself, one more.
fn around_every_threshold(context: &Context) -> Verdict {
    let workspace = Bytes::new(least_workspace(context)?.get() + 160 * 1024);
    let group = context.group_with(&Options { workspace, ..options(context.size()) })?;
    let layout = *group.lane()?.layout();
    let (packets, chunk) = (layout.packet_capacity().get(), layout.chunk_capacity().get());
    let most = 5 * chunk;
    let memory = Allocation::new(context.device(), Bytes::new(most))?;
    let mut sizes = BTreeSet::from([packets, chunk, 2 * chunk, 3 * chunk, 4 * chunk]);
    // Where slices grow by a line, and where pieces of slices do.
    let size = context.size() as u64;
    sizes.extend([128 * size, 2 * 128 * size, 2 * chunk * size].iter().filter(|s| **s < most));
    for algorithm in [Algorithm::Packet, Algorithm::OneShot] {
        sizes.extend(end_of(&group, &memory, algorithm, most)?);
    }
    drop(memory);
    // As far as can be checked in good time: see `affordable`.
    let many = context.size() > 8;
    sizes.retain(|bytes| !many || *bytes <= chunk);
    context.same("sizes", format_args!("{sizes:?}"));
    check!(sizes.len() >= 3, "only {sizes:?}");
    let bench = Bench::new(context, group, most)?;
    for (dtype, op) in [(DType::F32, ReduceOp::Sum), (DType::BF16, ReduceOp::Avg)] {
        for (n, bytes) in sizes.iter().enumerate() {
            let count = bytes / dtype.size() as u64;
            for count in [count - 1, count, count + 1] {
                let placements = [Placement::ALL[n % 2], Placement::ALL[2 + n % 2]];
                bench.check_placed(Case::new(dtype, op, count), &placements)?;
            }
        }
    }
    Ok(())
}

/// The least workspace, as the error says that a group has which lacks it.
pub(in crate::suite) fn least_workspace(context: &Context) -> Result<Bytes, TestError> {
    let workspace = Bytes::kib(4);
    let tiny = context.group_with(&Options { workspace, ..options(context.size()) })?;
    let error = crate::check_err!(tiny.lane(), symmem_sync::PrepareError::Workspace(_));
    let symmem_sync::PrepareError::Workspace(too_small) = &error else {
        return Err(TestError::failed(format!("not of the workspace: {error}")));
    };
    check_eq!(too_small.available, workspace);
    check!(too_small.needed > workspace, "{too_small}");
    Ok(too_small.needed)
}

/// With the least workspace that the group can have, everything takes many chunks; with less there
/// is none, and the error says how much would do.
fn the_smallest_workspace(context: &Context) -> Verdict {
    let with = |workspace| context.group_with(&Options { workspace, ..options(context.size()) });
    let least = least_workspace(context)?;
    context.same("least", least);
    let less = with(Bytes::new(least.get() - 4096))?;
    crate::check_err!(less.lane(), symmem_sync::PrepareError::Workspace(_));
    let group = with(least)?;
    let chunk = group.lane()?.layout().chunk_capacity().get();
    let bench = Bench::new(context, group, 21 * chunk)?;
    // Several chunks, of which the last is short.
    let several = if context.size() > 8 { chunk + 3 } else { 20 * chunk + 3 };
    for bytes in [0, 1, chunk - 1, chunk, chunk + 1, several] {
        let placements = [Placement::InPlace, Placement::Symmetric];
        bench.check_placed(Case::new(DType::I8, ReduceOp::Sum, bytes), &placements)?;
    }
    Ok(())
}

fn packets_up_to_their_capacity(context: &Context) -> Verdict {
    let group = context.group()?;
    let capacity = group.lane()?.layout().packet_capacity().get();
    let bench = Bench::new(context, group, capacity)?;
    for bytes in [1, 3, 7, 8, 9, 255, 256, 257, capacity - 1, capacity] {
        let case = Case::new(DType::U8, ReduceOp::Max, bytes);
        bench.check(Case { algorithm: Algorithm::Packet, ..case })?;
    }
    Ok(())
}
