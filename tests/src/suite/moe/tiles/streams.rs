//! Among other calls, in graphs, and for a group that completes together.

use symmem_collectives::{Collectives as _, ReduceOp};
use symmem_hal::types::{Bytes, DType, Layout};
use symmem_hal::{Stream, StreamMode};
use symmem_mem::{Allocation, Completion, Options, Tensor, View};
use symmem_moe::Moe as _;
use symmem_sync::Lanes as _;
use symmem_sync::protocol::Epoch;

use super::harness::{Case, Place, check_case, run};
use crate::runner::{Context, PATIENT, Test, Verdict, options};
use crate::suite::collectives::harness::{affordable, synchronize};
use crate::suite::sync::stream_of;
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(group_completion_is_everybodys),
    test!(a_graph_with_new_data),
    test!(many_calls_in_flight),
    test!(by_itself_and_on_a_lane),
    test!(across_the_turn_of_epochs),
];

/// A tile of ones times `value` in memory of its own, with rows `gap` elements apart.
fn tile(
    context: &Context,
    rows: u64,
    columns: u64,
    gap: u64,
) -> Result<View, crate::runner::TestError> {
    let stride = columns + gap;
    let memory = Allocation::new(context.device(), Bytes::new(4 * rows * stride))?;
    let layout = Layout::strided(&[rows, columns], &[stride, 1])?;
    Ok(View::new(&memory, Bytes::ZERO, DType::U32, layout)?)
}

/// Fills all of a tile's memory, gaps too.
fn fill(tile: &View, value: u32) -> Verdict {
    let elements = tile.layout().extent() as usize;
    let bytes: Vec<u8> = core::iter::repeat_n(value.to_ne_bytes(), elements).flatten().collect();
    Ok(tile.memory().write(tile.offset(), &bytes)?)
}

/// Whoever has returned knows that every root has its result.
fn group_completion_is_everybodys(context: &Context) -> Verdict {
    let completion = Completion::Group;
    let group = context.group_with(&Options { completion, ..options(context.size()) })?;
    let stream = stream_of(&group)?;
    let ranks = context.size();
    for (round, columns) in (1_u32..).zip([3, 90, affordable(context, 300)]) {
        let rows = 70;
        let x = tile(context, rows, columns, 5)?;
        let y = Tensor::<u32>::zeros(context.device(), &[rows, columns])?;
        let handle = group.rendezvous(&y, &group.wait())?;
        fill(&x, round)?;
        // Every second rank is a root.
        let roots: Vec<_> = group.ranks().step_by(2).collect();
        let tiles = vec![&x; roots.len()];
        let output = roots.contains(&group.rank()).then_some(y.view());
        run(group.multi_root_tile_reduce(&tiles, output, &roots), &stream)?;
        for root in &roots {
            let mut found = vec![0_u32; (rows * columns) as usize];
            handle.remote(*root)?.read(&mut found)?;
            let expected = round * ranks as u32;
            check!(found.iter().all(|v| *v == expected), "round {round}: rank {root} is not done");
        }
        // Before memory is freed, all have looked.
        context.meet()?;
    }
    let case = Case::new(vec![Place::new(0, 1, [40, 50], 60)], vec![ranks - 1]).symmetric();
    check_case(context, &group, &case, 0)?;
    check_case(context, &group, &case.in_place(), 1)
}

/// Views and lists go before the graph is launched; launches and calls take turns.
fn a_graph_with_new_data(context: &Context) -> Verdict {
    let (ranks, me) = (context.size(), context.rank());
    let modes = [StreamMode::Inline, StreamMode::Worker];
    let streams = modes.iter().filter_map(|mode| context.device().stream(*mode).ok());
    for stream in streams.collect::<Vec<Stream>>() {
        let group = context.group()?;
        let columns = affordable(context, 200);
        let (x, symmetric) = (tile(context, 30, columns, 3)?, tile(context, 90, columns, 7)?);
        group.rendezvous(&symmetric, &group.wait())?;
        let (y, z) = (tile(context, 30, columns, 1)?, tile(context, 90, columns, 0)?);
        group.lane()?.prepare()?;
        group.prepare(&[(DType::U32, ReduceOp::Sum)])?;
        let last = group.rank_at(ranks - 1)?;
        let output = (group.rank() == last).then_some(());
        stream.begin_capture()?;
        {
            let (tiles, roots) = ([x.clone(), symmetric.clone()], [group.rank_at(0)?, last]);
            let tiles: Vec<&View> = tiles.iter().take(ranks).collect();
            let z = z.clone();
            let mine = match me {
                0 => Some(&y),
                _ => output.map(|()| &z),
            };
            let roots = &roots[..tiles.len()];
            group.multi_root_tile_reduce(&tiles, mine, roots).on(&stream)?;
            // Of symmetric memory, in place.
            group.tile_reduce(&symmetric, &symmetric, last).on(&stream)?;
        }
        let graph = stream.end_capture()?;
        context.ready()?;
        let sum = |round: u32| (0..ranks as u32).map(|rank| 10 * rank + round).sum::<u32>();
        let first = |view: &View| -> Result<u32, crate::runner::TestError> {
            let mut word = [0; 4];
            let end = view.offset().get() + 4 * (view.layout().extent() - 1);
            view.memory().read(Bytes::new(end), &mut word)?;
            Ok(u32::from_ne_bytes(word))
        };
        for round in 0..4 {
            context.step(format_args!("launch {round}"));
            for view in [&x, &symmetric] {
                fill(view, 10 * me as u32 + round)?;
            }
            graph.launch(&stream, &PATIENT)?;
            synchronize(&stream)?;
            if me == 0 {
                check_eq!(first(&y)?, sum(round), "launch {round}");
            }
            if output.is_some() {
                check_eq!(first(&symmetric)?, sum(round), "launch {round}, in place");
                if ranks > 1 {
                    check_eq!(first(&z)?, sum(round), "launch {round}");
                }
            }
            fill(&x, 1)?;
            group.tile_reduce(&x, &y, last).on(&stream)?;
            synchronize(&stream)?;
            if output.is_some() {
                check_eq!(first(&y)?, ranks as u32, "a call after launch {round}");
            }
        }
        group.check()?;
    }
    Ok(())
}

/// Of different sizes and roots, one after the other without a wait.
fn many_calls_in_flight(context: &Context) -> Verdict {
    let group = context.group()?;
    let ranks = context.size();
    let stream = context.device().stream(StreamMode::Worker)?;
    let mut results = Vec::new();
    for i in 0..30_u64 {
        let (rows, columns) = (1 + i * 7 % 40, 1 + affordable(context, i * 13 % 90));
        let (x, y) = (tile(context, rows, columns, i % 3)?, tile(context, rows, columns, 0)?);
        fill(&x, i as u32 + context.rank() as u32)?;
        fill(&y, 0)?;
        let root = i as usize % ranks;
        group.tile_reduce(&x, &y, group.rank_at(root)?).on(&stream)?;
        results.push((root, i as u32, y));
    }
    stream.synchronize(&PATIENT)?;
    for (root, i, y) in results {
        let mut found = vec![0_u32; y.count() as usize];
        y.read(&mut found)?;
        let sum = (0..ranks as u32).map(|rank| rank + i).sum();
        let expected = if root == context.rank() { sum } else { 0 };
        check!(found.iter().all(|v| *v == expected), "call {i}: {found:?}, not {expected}");
    }
    Ok(())
}

/// The other ways to issue one; whose output it is not is not looked at.
fn by_itself_and_on_a_lane(context: &Context) -> Verdict {
    let options = Options { max_lanes: 2, ..options(context.size()) };
    let group = context.group_with(&options)?;
    let lanes = group.lanes(2, &group.wait())?;
    let (x, y) = (tile(context, 20, 30, 2)?, tile(context, 20, 30, 0)?);
    let stray = Tensor::<i64>::zeros(context.device(), &[1])?;
    for (i, lane) in lanes.iter().enumerate() {
        fill(&x, 5 + i as u32)?;
        let root = group.rank_at(i % context.size())?;
        let output = if group.rank() == root { &y } else { stray.view() };
        group.tile_reduce(&x, output, root).lane(*lane).tag(9).wait(&PATIENT).run()?;
        let mut found = vec![0_u32; 600];
        y.read(&mut found)?;
        let sum = (5 + i as u32) * context.size() as u32;
        let is_root = group.rank() == root;
        check!(!is_root || found.iter().all(|v| *v == sum), "lane {i}: {found:?}");
    }
    Ok(())
}

fn across_the_turn_of_epochs(context: &Context) -> Verdict {
    for (number, turn) in (0..).zip([Epoch::MIDDLE, Epoch::MAX]) {
        let first_epoch = turn.get() - 4;
        let options = Options { first_epoch, ..options(context.size()) };
        let group = context.group_with(&options)?;
        for i in 0..10 {
            let columns = [1, 0, affordable(context, 150)][i as usize % 3];
            let tile = Place::new(0, i, [23, columns], columns + 2);
            let case = Case::new(vec![tile], vec![i as usize % context.size()]);
            let case = if i % 2 == 0 { case.symmetric() } else { case };
            check_case(context, &group, &case, 20 * number + i)?;
        }
    }
    Ok(())
}
