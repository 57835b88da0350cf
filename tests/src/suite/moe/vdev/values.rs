//! What comes to whom.

use symmem_hal::StreamMode;
use symmem_hal::types::Bytes;
use symmem_mem::{Completion, Options, Tensor};
use symmem_moe::Moe as _;
use symmem_sync::Lanes as _;

use super::super::model::{Form, Splits};
use super::harness::{FORMS, Scene, random, rounds};
use crate::runner::{Context, PATIENT, Test, Verdict, options};
use crate::support::random::Random;
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(random_splits_of_every_form).seconds(120),
    test!(rows_of_any_length).seconds(120),
    test!(skewed_and_empty_splits),
    test!(any_number_of_experts).seconds(120),
    test!(splits_that_no_packets_hold),
    test!(rows_come_back_where_they_were).seconds(120),
    test!(shrinking_splits_leave_the_rest_alone),
    test!(a_graph_moves_what_the_splits_say_then),
    test!(under_group_completion),
    test!(sub_groups_that_overlap).at_least(3),
];

fn random_splits_of_every_form(context: &Context) -> Verdict {
    let mut random = random(context, 1);
    let group = context.group()?;
    for form in FORMS {
        for round in 0..rounds(context, 3) {
            let all =
                Splits::new(form, context.size(), 8, &mut random, |r, _, _| r.below(10) as i64);
            context.step(format_args!("{form:?}, round {round}"));
            Scene::of(context, group.clone(), 36, &all)?.round(&all, random.next())?;
        }
    }
    Ok(())
}

fn rows_of_any_length(context: &Context) -> Verdict {
    let mut random = random(context, 2);
    let group = context.group()?;
    for (n, row) in [1, 2, 3, 7, 16, 17, 64, 100, 1000, 4096, 5003].into_iter().enumerate() {
        let all =
            Splits::new(FORMS[n % 5], context.size(), 2, &mut random, |r, _, _| r.below(5) as i64);
        context.step(format_args!("rows of {row} bytes"));
        Scene::of(context, group.clone(), row, &all)?.round(&all, random.next())?;
    }
    Ok(())
}

/// All to one rank; all of one rank; none at all; all to one expert.
fn skewed_and_empty_splits(context: &Context) -> Verdict {
    type Draw = fn(&mut Random, usize, usize) -> i64;
    let mut random = random(context, 3);
    let group = context.group()?;
    let draws: [Draw; 4] = [
        |_, _, _| 0,
        |_, _, entry| if entry == 0 { 13 } else { 0 },
        |r, rank, _| if rank == 0 { r.below(9) as i64 } else { 0 },
        |r, rank, entry| if (rank + entry) % 3 == 0 { r.below(40) as i64 } else { 0 },
    ];
    for form in FORMS {
        for (n, draw) in draws.into_iter().enumerate() {
            context.step(format_args!("{form:?}, case {n}"));
            let all = Splits::new(form, context.size(), 3, &mut random, draw);
            Scene::of(context, group.clone(), 20, &all)?.round(&all, random.next())?;
        }
    }
    Ok(())
}

fn any_number_of_experts(context: &Context) -> Verdict {
    let mut random = random(context, 4);
    // Room on a GPU for the splits of 257 experts on each of eight ranks.
    let options = Options { workspace: Bytes::mib(2), ..options(context.size()) };
    let group = context.group_with(&options)?;
    let numbers: &[usize] =
        if context.size() > 8 { &[1, 17] } else { &[1, 2, 5, 16, 17, 33, 129, 257] };
    for experts in numbers {
        for form in [Form::Dispatch { align: 4 }, Form::Combine] {
            context.step(format_args!("{experts} experts, {form:?}"));
            let all = Splits::new(form, context.size(), *experts, &mut random, |r, _, _| {
                r.below(4) as i64
            });
            Scene::of(context, group.clone(), 8, &all)?.round(&all, random.next())?;
        }
    }
    Ok(())
}

/// In a small workspace, messages go through staging, piece by piece.
fn splits_that_no_packets_hold(context: &Context) -> Verdict {
    let mut random = random(context, 5);
    let experts = if context.size() > 8 { 40 } else { 300 };
    // Of each expert every rank's word, and the entries of two ranks.
    let each = 8 * context.size() + 2 * 32;
    let group = super::super::small_group(context, (experts * each + 256) as u64)?;
    for form in [Form::Dispatch { align: 1 }, Form::Combine] {
        for _ in 0..2 {
            let all = Splits::new(form, context.size(), experts, &mut random, |r, _, _| {
                i64::from(r.below(7) == 0)
            });
            let scene = Scene::of(context, group.clone(), 8, &all)?;
            let views = scene.fill(&all, 1, scene.room)?;
            views.call(&scene.group, form).run()?;
            scene.check(&all, 1, &views, &all.received(group.rank().index(), scene.room))?;
        }
    }
    Ok(())
}

/// A dispatch, a change by each expert, a combine by what the dispatch wrote: data, splits and offsets are
/// those of the beginning.
fn rows_come_back_where_they_were(context: &Context) -> Verdict {
    let mut random = random(context, 6);
    let (group, ranks, me) = (context.group()?, context.size(), context.rank());
    let device = context.device();
    for (experts, align) in [(8, 1), (8, 8), (8, 16), (1, 1), (7, 3)] {
        let form = Form::Dispatch { align };
        context.step(format_args!("{experts} experts, multiples of {align}"));
        let all = Splits::new(form, ranks, experts, &mut random, |r, _, _| r.below(10) as i64);
        let room = all.room();
        let count = (ranks * experts) as u64;
        let most = all.rows.iter().copied().max().unwrap_or(0);
        let x = Tensor::<u32>::zeros(device, &[all.rows[me], 5])?;
        let there = Tensor::<u32>::zeros(device, &[room, 5])?;
        let back = Tensor::<u32>::zeros(device, &[most, 5])?;
        let splits = Tensor::<i64>::zeros(device, &[count])?;
        let there_splits = Tensor::<i64>::zeros(device, &[2, count])?;
        let back_splits = Tensor::<i64>::zeros(device, &[2, count])?;
        group.rendezvous(&there, &group.wait())?;
        group.rendezvous(&back, &group.wait())?;
        let value = |row: u64, at: u64| (me as u32) << 20 | (row as u32) << 4 | at as u32;
        let data: Vec<u32> = (0..all.rows[me])
            .flat_map(|row| (0..5).map(move |at| (row, at)))
            .map(|(r, a)| value(r, a))
            .collect();
        x.write(&data)?;
        splits.write(&all.splits[me])?;
        group.all_to_all_vdev_2d(&x, &splits, &there, &there_splits).major_align(align).run()?;
        // Each expert adds its number, so that rows which went to another come back changed otherwise.
        let (mut rows, found) = (there.to_vec()?, there_splits.to_vec()?);
        for (entry, start) in found[count as usize..].iter().enumerate() {
            if found[entry] == 0 {
                // Without rows it may begin past the end.
                continue;
            }
            let expert = me * experts + entry / ranks;
            let rows = &mut rows[*start as usize * 5..][..found[entry] as usize * 5];
            rows.iter_mut().for_each(|value| *value += (expert as u32 + 1) << 10);
        }
        there.write(&rows)?;
        back.write(&vec![u32::MAX; (most * 5) as usize])?;
        group.all_to_all_vdev_2d_offset(&there, &there_splits, &back, &back_splits).run()?;
        let mut expected = Vec::new();
        for (entry, split) in all.splits[me].iter().enumerate() {
            let start = all.offsets[me][entry] as u64;
            for row in start..start + *split as u64 {
                expected.extend((0..5).map(|at| value(row, at) + ((entry as u32 + 1) << 10)));
            }
        }
        let used = expected.len();
        let found = back.to_vec()?;
        check_eq!(found[..used], expected[..], "rows");
        check!(found[used..].iter().all(|value| *value == u32::MAX), "rows past the last");
        let found = back_splits.to_vec()?;
        check_eq!(found[..count as usize], all.splits[me][..], "splits");
        check_eq!(found[count as usize..], all.offsets[me][..], "offsets");
    }
    Ok(())
}

/// The same tensors, fewer and fewer rows: what was there before is not taken for what comes.
fn shrinking_splits_leave_the_rest_alone(context: &Context) -> Verdict {
    let mut random = random(context, 11);
    let group = context.group()?;
    let form = Form::Dispatch { align: 2 };
    let first = Splits::new(form, context.size(), 4, &mut random, |_, _, _| 12);
    let scene = Scene::of(context, group, 24, &first)?;
    for most in (0..if context.size() > 8 { 3 } else { 12 }).rev() {
        for late in 0..context.size().min(3) {
            let all = Splits::new(form, context.size(), 4, &mut random, |r, _, _| {
                r.below(most + 1) as i64
            });
            if context.rank() == late {
                std::thread::sleep(std::time::Duration::from_micros(random.below(500)));
            } else {
                random.below(500);
            }
            scene.round(&all, random.next())?;
        }
    }
    Ok(())
}

fn a_graph_moves_what_the_splits_say_then(context: &Context) -> Verdict {
    let mut random = random(context, 13);
    let modes = [StreamMode::Inline, StreamMode::Worker];
    for stream in modes.iter().filter_map(|mode| context.device().stream(*mode).ok()) {
        let group = context.group()?;
        let form = Form::Dispatch { align: 8 };
        let most = Splits::new(form, context.size(), 4, &mut random, |_, _, _| 9);
        let scene = Scene::of(context, group.clone(), 40, &most)?;
        let mut captured = most.clone();
        captured.rows.iter_mut().for_each(|rows| *rows = 9 * 4 * context.size() as u64);
        group.lane()?.prepare()?;
        group.prepare_moe()?;
        let views = scene.fill(&captured, 0, scene.room)?;
        stream.begin_capture()?;
        views.call(&group, form).on(&stream)?;
        let graph = stream.end_capture()?;
        context.ready()?;
        for round in 0..5 {
            context.step(format_args!("launch {round}"));
            let mut all =
                Splits::new(form, context.size(), 4, &mut random, |r, _, _| r.below(10) as i64);
            all.rows.clone_from(&captured.rows);
            scene.fill(&all, round, scene.room)?;
            context.meet()?;
            graph.launch(&stream, &PATIENT)?;
            stream.synchronize(&PATIENT)?;
            let expected = all.received(context.rank(), scene.room);
            scene.check(&all, round, &views, &expected)?;
        }
        group.check()?;
    }
    Ok(())
}

fn under_group_completion(context: &Context) -> Verdict {
    let mut random = random(context, 14);
    let whole = Options { completion: Completion::Group, ..options(context.size()) };
    let group = context.group_with(&whole)?;
    for form in FORMS {
        let all = Splits::new(form, context.size(), 3, &mut random, |r, _, _| r.below(9) as i64);
        Scene::of(context, group.clone(), 30, &all)?.round(&all, random.next())?;
    }
    Ok(())
}

/// Each rank is in two groups of neighbours.
fn sub_groups_that_overlap(context: &Context) -> Verdict {
    let mut random = random(context, 15);
    let (world, ranks, me) = (context.group()?, context.size(), context.rank());
    for first in 0..ranks - 1 {
        let members = [first, first + 1];
        let seed = random.next();
        let all = Splits::new(Form::Dispatch { align: 8 }, 2, 4, &mut random, |r, _, _| {
            r.below(6) as i64
        });
        let of: Vec<_> = world
            .ranks()
            .enumerate()
            .filter(|(i, _)| members.contains(i))
            .map(|(_, r)| r)
            .collect();
        if members.contains(&me) {
            let group = world.subgroup(of).options(options(2)).create(&world.wait())?;
            Scene::of(context, group, 16, &all)?.round(&all, seed)?;
        }
    }
    Ok(())
}
