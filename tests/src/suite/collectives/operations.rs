//! Every operation but the all-reduce, which has its own tests: values, sizes, places, roots, and
//! what comes of mixing them.

use std::collections::BTreeSet;

use symmem_collectives::{Algorithm, Collectives as _, ReduceOp};
use symmem_hal::types::{BackendKind, DType};
use symmem_mem::call::Operation;
use symmem_mem::{Options, Tensor};
use symmem_sync::Lanes as _;

use super::harness::{Bench, Case, Placement, affordable, run};
use super::sizes::least_workspace;
use crate::model::collective::{Dims, Shape, parts};
use crate::runner::{Context, Test, Verdict, options};
use crate::support::random::Random;
use crate::{check, test};

pub(super) const TESTS: &[Test] = &[
    test!(every_type).seconds(120),
    test!(every_reduction_by_every_operator).seconds(120),
    test!(small_parts).seconds(120),
    test!(parts_around_every_threshold).seconds(240),
    test!(large_parts_in_every_place).seconds(120),
    test!(many_pieces).ranks(1, 4).seconds(120),
    test!(outputs_that_no_cache_holds).ranks(1, 2).seconds(120),
    test!(parts_at_any_offset).seconds(120),
    test!(every_root),
    test!(along_the_last_dimension).seconds(120),
    test!(from_one_dimension_into_another).seconds(120),
    test!(rooted_one_after_the_other),
    test!(all_mixed).seconds(120),
    test!(all_mixed_across_the_turns_of_epochs).seconds(120),
    test!(all_under_group_completion).seconds(120),
    test!(group_completion_is_everybodys),
    test!(slices_of_the_caller).only_on(&[BackendKind::Host]),
];

const MOVING: [Operation; 3] = [Operation::AllGather, Operation::Broadcast, Operation::AllToAll];
const REDUCING: [Operation; 2] = [Operation::ReduceScatter, Operation::Reduce];

fn operations() -> impl Iterator<Item = Operation> {
    MOVING.into_iter().chain(REDUCING)
}

/// A count for a large part: of operations that have one for each rank, every rank computes what
/// all have for all.
fn affordable_part(context: &Context, count: u64) -> u64 {
    let ranks = context.size() as u64;
    affordable(context, count) / if ranks > 8 { ranks } else { ranks.div_ceil(2) }
}

/// A bench with room for parts of so many bytes, whatever the operation.
fn bench(context: &Context, part: u64) -> Result<Bench<'_>, crate::runner::TestError> {
    Bench::new(context, context.group()?, part * context.size() as u64)
}

fn every_type(context: &Context) -> Verdict {
    let bench = bench(context, 8 * 100)?;
    for (n, dtype) in DType::ALL.into_iter().enumerate() {
        for (m, operation) in operations().enumerate() {
            let case =
                Case::of(operation, dtype, ReduceOp::Sum, if context.size() > 8 { 9 } else { 97 });
            let root = n % context.size();
            bench.check_all(Case { root, placement: Placement::number(n + m), ..case })?;
        }
    }
    Ok(())
}

fn every_reduction_by_every_operator(context: &Context) -> Verdict {
    let bench = bench(context, 8 * 100)?;
    let count = if context.size() > 8 { 3 } else { 67 };
    for dtype in DType::ALL {
        for (n, op) in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)).enumerate() {
            for operation in REDUCING {
                let root = n % context.size();
                let placement = Placement::number(n);
                let algorithm = [Algorithm::Auto, Algorithm::OneShot][n % 2];
                let case = Case::of(operation, dtype, op, count);
                bench.check(Case { root, placement, algorithm, ..case })?;
            }
        }
    }
    Ok(())
}

fn small_parts(context: &Context) -> Verdict {
    let bench = bench(context, 4 * 130)?;
    let few = if context.size() > 8 { 4 } else { 18 };
    let more: &[u64] = if context.size() > 8 { &[33] } else { &[31, 32, 33, 127, 128, 129] };
    for operation in operations() {
        for dtype in [DType::U8, DType::BF16, DType::F32] {
            for count in (0..few).chain(more.iter().copied()) {
                let placement = Placement::number(count as usize);
                let root = count as usize % context.size();
                let case = Case::of(operation, dtype, ReduceOp::Max, count);
                bench.check_all(Case { root, placement, ..case })?;
            }
        }
    }
    Ok(())
}

/// Where the choice changes, where packets and pieces are full, and multiples of those: one element
/// less, the size itself, one more.
fn parts_around_every_threshold(context: &Context) -> Verdict {
    let group = context.group()?;
    let layout = *group.lane()?.layout();
    let (packets, chunk) = (layout.packet_capacity().get(), layout.chunk_capacity().get());
    let ranks = context.size() as u64;
    let most = affordable(context, 5 * chunk);
    let bench = Bench::new(context, group, most + 8 * ranks)?;
    for operation in operations() {
        let (inputs, outputs) = parts(operation, ranks);
        // Pieces are cut to a line, of all parts that a rank has for others.
        let piece = 2 * chunk / inputs / 128 * 128;
        let mut parts = BTreeSet::from([48 / inputs, packets / inputs]);
        parts.extend([piece, 2 * piece, 3 * piece, chunk / inputs, 2 * chunk / inputs]);
        parts.extend([16 << 10, 64 << 10].map(|bytes: u64| bytes / inputs.max(outputs)));
        parts.retain(|part| part * inputs.max(outputs) <= most);
        check!(parts.len() >= 2, "only {parts:?}");
        for (n, part) in parts.into_iter().enumerate() {
            let dtype = [DType::U16, DType::U8][n % 2];
            let count = part / dtype.size() as u64;
            for count in [count.saturating_sub(1), count, count + 1] {
                let case = Case::of(operation, dtype, ReduceOp::Sum, count);
                let root = n % context.size();
                let placement = Placement::number(n + count as usize);
                bench.check_all(Case { root, placement, ..case })?;
            }
        }
    }
    Ok(())
}

fn large_parts_in_every_place(context: &Context) -> Verdict {
    let count = affordable_part(context, 40_000);
    let bench = bench(context, 4 * count)?;
    for operation in operations() {
        let case = Case::of(operation, DType::F32, ReduceOp::Avg, count);
        bench.check_placed(Case { root: context.size() - 1, ..case }, &Placement::ALL)?;
    }
    Ok(())
}

/// With the least workspace there can be, all but tiny parts take many pieces, through room for two.
fn many_pieces(context: &Context) -> Verdict {
    let workspace = least_workspace(context)?;
    let group = context.group_with(&Options { workspace, ..options(context.size()) })?;
    let chunk = group.lane()?.layout().chunk_capacity().get();
    let ranks = context.size() as u64;
    let most = if ranks > 8 { 4 * chunk } else { 60 * chunk };
    let bench = Bench::new(context, group, most + 8)?;
    for operation in operations().chain([Operation::AllReduce]) {
        let (inputs, outputs) = parts(operation, ranks);
        for count in [most / inputs.max(outputs), most / inputs.max(outputs) / 3 + 1] {
            let case = Case::of(operation, DType::U8, ReduceOp::Sum, count);
            for root in [0, context.size() - 1] {
                bench.check_placed(Case { root, ..case }, &Placement::ALL)?;
            }
        }
    }
    Ok(())
}

/// With the workspace that programs have, where what is staged at a time is not all there is room
/// for; and outputs of a size from which on they are written another way.
fn outputs_that_no_cache_holds(context: &Context) -> Verdict {
    let ranks = context.size() as u64;
    let workspace = Options::default().on(context.device().kind()).workspace;
    let group = context.group_with(&Options { workspace, ..options(context.size()) })?;
    let bytes = (8 << 20) + 8 * 5 * ranks;
    let bench = Bench::new(context, group, bytes)?;
    let every = [Operation::AllGather, Operation::Broadcast, Operation::AllToAll];
    for (n, operation) in every.into_iter().chain([Operation::AllReduce]).enumerate() {
        let (inputs, outputs) = parts(operation, ranks);
        let count = bytes / 8 / inputs.max(outputs);
        let case = Case::of(operation, DType::U64, ReduceOp::Xor, count);
        let places = [Placement::Apart, Placement::Symmetric, Placement::SymmetricOutput];
        let case = Case { offsets: (n as u64, 3), ..case };
        let inputs = bench.inputs(&case);
        for placement in places {
            bench.check_inputs(Case { placement, ..case }, &inputs)?;
        }
    }
    Ok(())
}

fn parts_at_any_offset(context: &Context) -> Verdict {
    let count = affordable_part(context, 9_001).max(131);
    let bench = bench(context, 8 * count)?;
    for (n, offsets) in [(1, 0), (0, 1), (3, 5), (7, 2), (16, 31)].into_iter().enumerate() {
        for (m, operation) in operations().enumerate() {
            let dtype = [DType::U8, DType::F16, DType::F32, DType::F64][(n + m) % 4];
            for count in [131, count] {
                let placement = Placement::number(n + m);
                let case = Case::of(operation, dtype, ReduceOp::Sum, count);
                bench.check_all(Case { placement, offsets, ..case })?;
            }
        }
    }
    Ok(())
}

fn every_root(context: &Context) -> Verdict {
    let bench = bench(context, 4 * 30_000)?;
    for operation in [Operation::Broadcast, Operation::Reduce] {
        // All, or of many some.
        for root in (0..context.size()).step_by(context.size().div_ceil(8)) {
            for count in [3, 500, affordable(context, 30_000)] {
                let case = Case::of(operation, DType::F32, ReduceOp::Sum, count);
                let placement = Placement::number(root);
                bench.check_all(Case { root, placement, ..case })?;
            }
        }
    }
    Ok(())
}

/// Rows of any length, from one element on.
fn along_the_last_dimension(context: &Context) -> Verdict {
    let bench = bench(context, 4 * 40_000)?;
    let many = affordable_part(context, 40_000);
    let few = many.min(3000);
    for (rows, columns) in
        [(1, 1), (1, few), (7, 1), (5, 3), (64, few / 64 + 1), (3, many / 3), (many / 5, 5)]
    {
        for dtype in [DType::BF16, DType::F32] {
            let case = Case::of(Operation::ReduceScatter, dtype, ReduceOp::Sum, rows * columns);
            let places = [Placement::Apart, Placement::Symmetric, Placement::SymmetricOutput];
            bench.check_placed(Case { shape: Shape::LastDim(rows), ..case }, &places)?;
        }
    }
    Ok(())
}

/// Both ways, in two and three dimensions, of rows from one element on.
fn from_one_dimension_into_another(context: &Context) -> Verdict {
    let bench = bench(context, 8 * 40_000)?;
    let many = affordable_part(context, 40_000);
    for (n, (rows, columns)) in
        [(1, 1), (8, 4), (4, 4), (1, 33), (33, 1), (3, many / 3), (many / 5, 5)]
            .into_iter()
            .enumerate()
    {
        for scatter in [0, 1] {
            for split in [(false, false), (false, true), (true, false), (true, true)] {
                let dtype = [DType::F32, DType::U8, DType::F64][n % 3];
                let shape = Shape::Dims(Dims { scatter, rows, split });
                let case = Case::of(Operation::AllToAllNd, dtype, ReduceOp::Sum, rows * columns);
                let places = [Placement::Apart, Placement::Symmetric, Placement::SymmetricOutput];
                bench.check_placed(Case { shape, ..case }, &places)?;
            }
        }
    }
    Ok(())
}

/// A root may run ahead of the others: whoever it is next must not overtake them.
fn rooted_one_after_the_other(context: &Context) -> Verdict {
    let bench = bench(context, 4 * 3000)?;
    let mut random = Random::new(context.seed(), &[]);
    for _ in 0..if context.size() > 8 { 40 } else { 200 } {
        let operation = [Operation::Broadcast, Operation::Reduce][random.below(2) as usize];
        let root = random.below(context.size() as u64) as usize;
        let count = [0, 1, 9, 500, 3000][random.below(5) as usize];
        let case = Case::of(operation, DType::U32, ReduceOp::Sum, count);
        bench.check(Case { root, placement: Placement::number(count as usize), ..case })?;
    }
    Ok(())
}

/// Any operation of any size by any algorithm anywhere, after any other.
fn mix(bench: &Bench<'_>, random: &mut Random, rounds: usize, most: u64) -> Verdict {
    let ranks = bench.context.size();
    for _ in 0..rounds {
        let every: Vec<Operation> = operations().chain([Operation::AllReduce]).collect();
        let operation = every[random.below(every.len() as u64) as usize];
        let count = [0, 1, 5, 60, 700, most][random.below(6) as usize].min(most);
        let case = Case {
            root: random.below(ranks as u64) as usize,
            placement: Placement::number(random.below(5) as usize),
            ..Case::of(operation, DType::F16, ReduceOp::Sum, count)
        };
        let algorithms = bench.algorithms(&case)?;
        let algorithm = algorithms[random.below(algorithms.len() as u64) as usize];
        bench.check(Case { algorithm, ..case })?;
    }
    Ok(())
}

fn all_mixed(context: &Context) -> Verdict {
    let most = affordable_part(context, 20_000);
    let bench = bench(context, 2 * most)?;
    let rounds = if context.size() > 8 { 60 } else { 400 };
    mix(&bench, &mut Random::new(context.seed(), &[]), rounds, most)
}

fn all_mixed_across_the_turns_of_epochs(context: &Context) -> Verdict {
    use symmem_sync::protocol::Epoch;

    let most = affordable_part(context, 9000);
    for (turn, before) in [(Epoch::MIDDLE, 2), (Epoch::MIDDLE, 5), (Epoch::MAX, 0), (Epoch::MAX, 6)]
    {
        let first_epoch = turn.get() - before;
        let group = context.group_with(&Options { first_epoch, ..options(context.size()) })?;
        let bench = Bench::new(context, group, 2 * most * context.size() as u64)?;
        mix(&bench, &mut Random::new(context.seed(), &[first_epoch.into()]), 25, most)?;
    }
    Ok(())
}

fn all_under_group_completion(context: &Context) -> Verdict {
    let completion = symmem_mem::Completion::Group;
    let most = affordable_part(context, 20_000);
    let group = context.group_with(&Options { completion, ..options(context.size()) })?;
    let bench = Bench::new(context, group, 2 * most * context.size() as u64)?;
    mix(&bench, &mut Random::new(context.seed(), &[]), 100, most)
}

/// Under group completion, whoever has returned knows that every rank has its result, the root of a
/// broadcast too.
fn group_completion_is_everybodys(context: &Context) -> Verdict {
    let completion = symmem_mem::Completion::Group;
    let group = context.group_with(&Options { completion, ..options(context.size()) })?;
    let stream = crate::suite::sync::stream_of(&group)?;
    let ranks = context.size() as u64;
    let x = Tensor::<u32>::zeros(context.device(), &[5000 * ranks])?;
    let y = Tensor::<u32>::zeros(context.device(), &[5000 * ranks])?;
    let handle = group.rendezvous(&y, &group.wait())?;
    for round in 1..=12u32 {
        let count = [3, 500, 5000][round as usize % 3];
        let (part, all) = (x.slice(0, count)?, x.slice(0, count * ranks)?);
        let (block, whole) = (y.slice(0, count)?, y.slice(0, count * ranks)?);
        all.write(&vec![round; (count * ranks) as usize])?;
        let root = group.rank_at(round as usize % context.size())?;
        let (length, expected) = match round % 4 {
            0 => {
                run(group.broadcast(&part, root).into(&block), &stream)?;
                (count, round)
            }
            1 => {
                run(group.all_gather(&part).into(&whole), &stream)?;
                (count * ranks, round)
            }
            2 => {
                run(group.reduce_scatter(&all).into(&block), &stream)?;
                (count, round * ranks as u32)
            }
            _ => {
                run(group.all_to_all(&all).into(&whole), &stream)?;
                (count * ranks, round)
            }
        };
        for rank in group.ranks() {
            let mut found = vec![0u32; length as usize];
            handle.remote(rank)?.slice(0, length)?.read(&mut found)?;
            check!(found.iter().all(|x| *x == expected), "round {round}: rank {rank} is not done");
        }
        // Before the next round's results, all have looked.
        context.meet()?;
    }
    Ok(())
}

fn slices_of_the_caller(context: &Context) -> Verdict {
    let group = context.group()?;
    let (me, ranks) = (context.rank() as u64, context.size());
    let number = |rank: u64, i: usize| rank * 1_000_000 + i as u64;
    let sum = |i: usize| (0..ranks as u64).map(|rank| number(rank, i)).sum::<u64>();
    let root = group.rank_at(ranks - 1)?;
    for count in [0, 1, 5, 40, 3000] {
        let mine = |n: usize| (0..n).map(|i| number(me, i)).collect::<Vec<u64>>();
        let mut all = vec![7; count * ranks];
        group.all_gather_slice(&mine(count), &mut all)?;
        check!(all.iter().enumerate().all(|(i, x)| *x == number((i / count) as u64, i % count)));
        let mut block = vec![7; count];
        group.reduce_scatter_slice(&mine(count * ranks), &mut block, ReduceOp::Sum)?;
        let start = context.rank() * count;
        check!(block.iter().enumerate().all(|(i, x)| *x == sum(start + i)), "reduce-scatter");
        let mut data = mine(count);
        group.broadcast_slice(&mut data, root)?;
        check!(data.iter().enumerate().all(|(i, x)| *x == number(ranks as u64 - 1, i)));
        let mut data = mine(count);
        group.reduce_slice(&mut data, root, ReduceOp::Sum)?;
        let expected = |i| if group.rank() == root { sum(i) } else { number(me, i) };
        check!(data.iter().enumerate().all(|(i, x)| *x == expected(i)), "reduce");
        group.all_to_all_slice(&mine(count * ranks), &mut all)?;
        let from = |i: usize| number((i / count) as u64, start + i % count);
        check!(all.iter().enumerate().all(|(i, x)| *x == from(i)), "all-to-all");
    }
    Ok(())
}
