//! Every byte of every result, and of what lies around it.

use symmem_collectives::{Collectives as _, ReduceOp};
use symmem_hal::types::{Bytes, DType, Layout};
use symmem_mem::{Allocation, View};
use symmem_moe::Moe as _;

use super::harness::{Case, Place, check_case, run};
use crate::runner::{Context, Test, Verdict};
use crate::suite::collectives::data::random;
use crate::suite::collectives::harness::affordable;
use crate::suite::sync::stream_of;
use crate::support::random::Random;
use crate::{check, test};

pub(super) const TESTS: &[Test] = &[
    test!(every_type_and_operator).seconds(120),
    test!(a_tile_of_a_matrix).seconds(120),
    test!(a_tile_for_each_of_some_ranks).seconds(120),
    test!(random_tiles).seconds(120),
    test!(in_place),
    test!(side_by_side_in_one_matrix),
    test!(tiles_of_several_allocations),
    test!(one_tile_for_several_roots),
    test!(elsewhere_on_every_rank),
    test!(of_one_dimension),
    test!(nothing_at_all),
    test!(the_bits_of_an_all_reduce),
];

fn every_type_and_operator(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    let (tile, out) = (Place::new(0, 3, [9, 13], 17), Place::new(1, 5, [9, 13], 14));
    let mut number = 0;
    for dtype in DType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
            let some = matches!(dtype, DType::F32 | DType::BF16 | DType::I16 | DType::U64);
            if op == ReduceOp::Sum || some {
                let case = Case::new(vec![tile], vec![last]);
                let case = Case { dtype, op, outputs: vec![out], ..case };
                check_case(context, &group, &case, number)?;
                number += 1;
            }
        }
    }
    Ok(())
}

/// As tensor programs cut them: squares in a larger matrix, to each root.
fn a_tile_of_a_matrix(context: &Context) -> Verdict {
    let group = context.group()?;
    let ranks = context.size();
    for (number, side) in [32, 128, 512].into_iter().enumerate() {
        let side = affordable(context, side);
        let width = side + 56;
        let tile = Place::new(0, 7 * width + 24, [side, side], width);
        let output = Place { arena: 1, at: 5 * width + 8, ..tile };
        for (dtype, symmetric) in
            [(DType::F32, false), (DType::F16, true), (DType::BF16, true), (DType::F32, true)]
        {
            let case = Case::new(vec![tile], vec![(number + side as usize) % ranks]);
            let case = Case { dtype, outputs: vec![output], ..case };
            let case = if symmetric { case.symmetric() } else { case };
            check_case(context, &group, &case, number as u64)?;
        }
    }
    Ok(())
}

/// All ranks, every second one, the last one alone: the others take part without a tile of theirs.
fn a_tile_for_each_of_some_ranks(context: &Context) -> Verdict {
    let group = context.group()?;
    let ranks = context.size();
    let every = |ratio: usize| (0..ranks).step_by(ratio).collect::<Vec<_>>();
    let reversed = (0..ranks).rev().collect();
    for (number, roots) in [every(1), every(2), reversed, vec![ranks - 1]].into_iter().enumerate() {
        let side = affordable(context, 40 + 60 * (number as u64 % 2));
        let width = side * roots.len() as u64 + 9;
        let tiles = (0..roots.len() as u64)
            .map(|i| Place::new(0, 3 * width + 4 + i * side, [side, side], width));
        let case = Case { is_one: false, ..Case::new(tiles.collect(), roots) };
        check_case(context, &group, &case, number as u64)?;
        check_case(context, &group, &case.symmetric(), number as u64)?;
    }
    Ok(())
}

/// A case of any tiles, one after the other in any of three memories.
fn random_case(random: &mut Random, ranks: usize, most: u64) -> Case {
    let mut free: Vec<usize> = (0..ranks).collect();
    let mut ends = [0; 4];
    let mut case = Case::new(vec![], vec![]);
    let mut put = |random: &mut Random, arena: usize, [rows, columns]: [u64; 2]| {
        let stride = columns + random.below(2) * random.below(20);
        let place = Place::new(arena, ends[arena] + random.below(9), [rows, columns], stride);
        ends[arena] = place.end();
        place
    };
    for _ in 0..1 + random.below(ranks.min(6) as u64) {
        let root = free.swap_remove(random.below(free.len() as u64) as usize);
        let length = |random: &mut Random| {
            if random.below(12) == 0 { 0 } else { 1 + random.below(most) }
        };
        let shape = [length(random), length(random)];
        let arena = random.below(3) as usize;
        let tile = put(random, arena, shape);
        let output = match random.below(4) {
            0 => tile,
            // Also where tiles are.
            1 => put(random, arena, shape),
            _ => put(random, 3, shape),
        };
        case.tiles.push(tile);
        case.outputs.push(output);
        case.roots.push(root);
    }
    let varies = random.below(4) == 0;
    Case {
        dtype: DType::ALL[random.below(14) as usize],
        op: [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg][random.below(3) as usize],
        symmetric: (0..4).map(|_| !varies && random.below(2) == 0).collect(),
        // What follows each other must not, then: in memories that hold one tile alone.
        varies: varies && case.tiles.len() == 1 && case.outputs[0].arena == 3,
        is_one: case.tiles.len() == 1 && random.below(2) == 0,
        ..case
    }
}

fn random_tiles(context: &Context) -> Verdict {
    let group = context.group()?;
    let mut random = Random::new(context.seed(), &[7]);
    let ranks = context.size();
    for number in 0..if ranks > 8 { 8 } else { 40 } {
        // Few that are large.
        let most = affordable(context, if number % 4 == 0 { 200 } else { 50 });
        let case = random_case(&mut random, ranks, most);
        check_case(context, &group, &case, number)?;
    }
    Ok(())
}

/// A root's result replaces its tile.
fn in_place(context: &Context) -> Verdict {
    let group = context.group()?;
    let ranks = context.size();
    for (number, columns) in [5, 64, affordable(context, 400)].into_iter().enumerate() {
        let most = ranks.min(8) as u64;
        let width = (most + 1) * (columns + 2);
        let tile = |i: u64| Place::new(0, 3 + i * (columns + 2), [60, columns], width);
        let tiles: Vec<_> = (0..most).map(tile).collect();
        let roots: Vec<_> = (0..tiles.len()).rev().collect();
        for case in [
            Case::new(vec![tile(1)], vec![ranks - 1]).in_place(),
            Case { is_one: false, ..Case::new(tiles, roots) }.in_place(),
            // Without gaps.
            Case::new(vec![Place::new(0, 1, [60, columns], columns)], vec![0]).in_place(),
        ] {
            check_case(context, &group, &case, number as u64)?;
            check_case(context, &group, &case.symmetric(), number as u64)?;
        }
    }
    Ok(())
}

/// Tile and output lie between each other's rows, as far apart as those or not, and share no element.
fn side_by_side_in_one_matrix(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    for columns in [4, affordable(context, 300)] {
        let tile = Place::new(0, 2, [31, columns], 6 * columns);
        let beside = Place { at: 2 + columns, ..tile };
        let between = Place { at: 2 + columns, stride: 3 * columns, ..tile };
        for output in [beside, between] {
            let case = Case { outputs: vec![output], ..Case::new(vec![tile], vec![last]) };
            check_case(context, &group, &case, columns)?;
            check_case(context, &group, &case.symmetric(), columns)?;
        }
    }
    Ok(())
}

/// Of which none, some or all are symmetric; large, so that they would be read where they lie.
fn tiles_of_several_allocations(context: &Context) -> Verdict {
    let group = context.group()?;
    let ranks = context.size();
    let side = affordable(context, 150);
    let tile = |arena: usize| Place::new(arena, 1 + arena as u64, [side, side], side + 3);
    let tiles: Vec<_> = (0..ranks.min(3)).map(tile).collect();
    let roots: Vec<_> = (0..tiles.len()).map(|i| ranks - 1 - i).collect();
    let case = Case { is_one: false, ..Case::new(tiles, roots) };
    let some = (0..case.symmetric.len()).map(|arena| arena % 2 == 0).collect();
    check_case(context, &group, &case, 0)?;
    check_case(context, &group, &Case { symmetric: some, ..case.clone() }, 1)?;
    check_case(context, &group, &case.symmetric(), 2)
}

/// Tiles may share elements, and be one: each root gets the reduction.
fn one_tile_for_several_roots(context: &Context) -> Verdict {
    let group = context.group()?;
    let ranks = context.size();
    let side = affordable(context, 100);
    let tiles = (0..ranks as u64).map(|i| Place::new(0, i / 2 * 5, [side, side], side + 9));
    let case = Case { is_one: false, ..Case::new(tiles.collect(), (0..ranks).collect()) };
    check_case(context, &group, &case, 0)?;
    check_case(context, &group, &case.symmetric(), 0)
}

/// Private tiles have strides of each rank's own.
fn elsewhere_on_every_rank(context: &Context) -> Verdict {
    let group = context.group()?;
    for (number, side) in [6, affordable(context, 130)].into_iter().enumerate() {
        let tile = Place::new(0, 2, [side, side], side + 1);
        let case = Case { varies: true, ..Case::new(vec![tile], vec![context.size() / 2]) };
        check_case(context, &group, &case, number as u64)?;
    }
    Ok(())
}

/// One dimension is a row, and fits one.
fn of_one_dimension(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = stream_of(&group)?;
    let memory = Allocation::new(context.device(), Bytes::new(4 * 100))?;
    let view = |at: u64, layout| View::new(&memory, Bytes::new(4 * at), DType::U32, layout);
    let all = view(0, Layout::flat(100))?;
    let (row, flat) =
        (view(50, Layout::strided(&[1, 20], &[90, 1])?)?, view(10, Layout::flat(20))?);
    for (input, output, at) in [(&flat, &row, 50), (&row, &flat, 10)] {
        all.write(&[1_u32; 100])?;
        run(group.tile_reduce(input, output, group.rank_at(0)?), &stream)?;
        let mut expected = vec![1; 100];
        if context.rank() == 0 {
            expected[at..at + 20].fill(context.size() as u32);
        }
        let mut found = vec![0_u32; 100];
        all.read(&mut found)?;
        check!(found == expected, "{found:?}");
    }
    Ok(())
}

fn nothing_at_all(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    for (number, shape) in [[0, 5], [5, 0], [0, 0]].into_iter().enumerate() {
        let empty = Place::new(0, 1, shape, 7);
        let case = Case::new(vec![empty], vec![last]);
        check_case(context, &group, &case, 0)?;
        check_case(context, &group, &case.symmetric(), 0)?;
        // Beside one of some.
        let some = Place::new(number % 2, 3, [4, 4], 5);
        let mut tiles = vec![empty, some];
        tiles.truncate(context.size());
        let roots = (0..tiles.len()).collect();
        let case = Case { is_one: false, ..Case::new(tiles, roots) };
        check_case(context, &group, &case, 1)?;
        check_case(context, &group, &case.symmetric(), 1)?;
    }
    Ok(())
}

/// Strided elements to one root, in whatever number, are reduced as flat ones for all.
fn the_bits_of_an_all_reduce(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = stream_of(&group)?;
    let me = context.rank();
    for (number, dtype) in
        [DType::F32, DType::BF16, DType::F8E4M3, DType::I64].into_iter().enumerate()
    {
        let (rows, columns, size) = (37, affordable(context, 101), dtype.size() as u64);
        let bytes = random(dtype, rows * columns, context.seed(), number as u64, me as u64);
        let stride = columns + 5;
        let memory = |elements: u64| Allocation::new(context.device(), Bytes::new(elements * size));
        let (flat, strided, outputs) =
            (memory(rows * columns)?, memory(rows * stride)?, memory(rows * stride)?);
        let layout = Layout::strided(&[rows, columns], &[stride, 1])?;
        let view = |memory, layout| View::new(memory, Bytes::ZERO, dtype, layout);
        let all = view(&flat, Layout::flat(rows * columns))?;
        let (tile, output) = (view(&strided, layout.clone())?, view(&outputs, layout)?);
        let row = (columns * size) as usize;
        for (i, bytes) in bytes.chunks_exact(row).enumerate() {
            strided.memory().write(Bytes::new(i as u64 * stride * size), bytes)?;
        }
        flat.memory().write(Bytes::ZERO, &bytes)?;
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Product] {
            let whole = View::new(
                &memory(rows * columns)?,
                Bytes::ZERO,
                dtype,
                Layout::flat(rows * columns),
            )?;
            crate::suite::collectives::harness::run(
                group.all_reduce(&all).into(&whole).op(op),
                &stream,
            )?;
            let mut expected = vec![0; bytes.len()];
            whole.memory().read(whole.offset(), &mut expected)?;
            for root in [0, context.size() - 1] {
                run(group.tile_reduce(&tile, &output, group.rank_at(root)?).op(op), &stream)?;
                for (i, expected) in expected.chunks_exact(row).enumerate().filter(|_| root == me) {
                    let mut found = vec![0; row];
                    outputs.memory().read(Bytes::new(i as u64 * stride * size), &mut found)?;
                    check!(found == expected, "{dtype} {op}, root {root}: row {i}");
                }
            }
        }
    }
    Ok(())
}
