//! All-to-all-v with splits on the device.

use symmem_hal::types::{Bytes, DType, Layout, RankSet};
use symmem_hal::{Fault as _, Kind, StreamMode, Wait};
use symmem_mem::call::Operation;
use symmem_mem::{Completion, Failure, Group, Options, Tensor, View};
use symmem_moe::{
    AllToAllVdev, AllToAllVdevError as Error, Call, Moe as _, Overflow, Reason, Refusal,
    VerdictError,
};
use symmem_sync::Lanes as _;

use super::model::{Form, Received, Splits, byte, bytes};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict, options};
use crate::suite::collectives::least_workspace;
use crate::support::random::Random;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(random_splits_of_every_form).seconds(120),
    test!(rows_of_any_length).seconds(120),
    test!(skewed_and_empty_splits),
    test!(any_number_of_experts).seconds(120),
    test!(splits_that_no_packets_hold),
    test!(rows_come_back_where_they_were).seconds(120),
    test!(too_small_an_output_is_refused_everywhere),
    test!(what_does_not_fit_is_dropped_in_order),
    test!(wrong_splits_are_refused_everywhere),
    test!(a_refusal_is_told_by_the_next_call),
    test!(shrinking_splits_leave_the_rest_alone),
    test!(outputs_of_different_sizes).at_least(2),
    test!(a_graph_moves_what_the_splits_say_then),
    test!(under_group_completion),
    test!(sub_groups_that_overlap).at_least(3),
    test!(bad_tensors_are_refused),
    test!(other_rows_are_a_mismatch).at_least(2),
    test!(a_missing_rank_is_named).at_least(2),
];

/// Bytes that nobody may touch.
const POISON: u8 = 0xa5;

const FORMS: [Form; 5] = [
    Form::Flat,
    Form::Dispatch { align: 1 },
    Form::Dispatch { align: 8 },
    Form::Dispatch { align: 0 },
    Form::Combine,
];

/// Tensors of one call, with room before and behind.
struct Scene<'c> {
    context: &'c Context,
    group: Group,
    row: usize,
    room: u64,
    input: Tensor<u8>,
    in_splits: Tensor<i64>,
    output: Tensor<u8>,
    out_splits: Tensor<i64>,
}

/// Rows of poison around an output.
const MARGIN: u64 = 2;

impl<'c> Scene<'c> {
    /// With room for so many rows on either side, and splits for so many experts of each rank.
    fn new(
        context: &'c Context,
        group: Group,
        row: usize,
        (rows, room): (u64, u64),
        experts: usize,
    ) -> Result<Self, TestError> {
        let device = context.device();
        let count = (experts * group.size()) as u64;
        let input = Tensor::zeros(device, &[rows.max(1), row as u64])?;
        let in_splits = Tensor::zeros(device, &[2 * count])?;
        let output = Tensor::zeros(device, &[room + 2 * MARGIN, row as u64])?;
        let out_splits = Tensor::zeros(device, &[2 * count])?;
        group.rendezvous(&output, &group.wait())?;
        Ok(Scene { context, group, row, room, input, in_splits, output, out_splits })
    }

    /// For a case, with an output that is as large as it must be.
    fn of(context: &'c Context, group: Group, row: usize, all: &Splits) -> Result<Self, TestError> {
        let rows = all.rows.iter().copied().max().unwrap_or(0);
        Self::new(context, group, row, (rows, all.room()), all.experts)
    }

    /// The tensors of a case, poisoned where they are written.
    fn fill(&self, all: &Splits, seed: u64, capacity: u64) -> Result<Views, TestError> {
        let (me, row) = (self.group.rank().index(), self.row as u64);
        let rows = all.rows[me];
        let splits = all.input(me);
        let view = |tensor: &Tensor<u8>, start: u64, rows: u64| -> Result<_, TestError> {
            let flat = tensor.slice(start * row, rows * row)?;
            let layout = Layout::contiguous(&[rows, row])?;
            let allocation = flat.allocation().ok_or_else(|| TestError::failed("no allocation"))?;
            Ok(View::new(allocation, flat.offset(), DType::U8, layout)?)
        };
        self.input.slice(0, rows * row)?.write(&bytes(seed, me, rows, self.row))?;
        self.output.write(&vec![POISON; self.output.count() as usize])?;
        self.in_splits.slice(0, splits.len() as u64)?.write(&splits)?;
        self.out_splits.write(&vec![-7; self.out_splits.count() as usize])?;
        Ok(Views {
            input: view(&self.input, 0, rows)?,
            in_splits: self.in_splits.slice(0, splits.len() as u64)?,
            output: view(&self.output, MARGIN, capacity)?,
            out_splits: self.out_splits.slice(0, 2 * all.splits[me].len() as u64)?,
        })
    }

    /// That all is as it should be, and nothing else was touched.
    fn check(&self, all: &Splits, seed: u64, views: &Views, expected: &Received) -> Verdict {
        let me = self.group.rank().index();
        let count = all.splits[me].len();
        let found = views.out_splits.to_vec()?;
        check_eq!(found[..count], expected.splits[..], "splits received");
        check_eq!(found[count..], expected.offsets[..], "where they begin");
        check_eq!(views.in_splits.to_vec()?, all.input(me), "input splits");
        let output = self.output.to_vec()?;
        for (at, bytes) in output.chunks_exact(self.row.max(1)).enumerate() {
            let row =
                (at as u64).checked_sub(MARGIN).and_then(|row| expected.rows.get(row as usize));
            let from = row.copied().flatten();
            let right = bytes.iter().enumerate().all(|(i, found)| match from {
                Some((rank, row)) => *found == byte(seed, rank, row, i),
                None => *found == POISON,
            });
            check!(right, "row {at} of the output, {MARGIN} of them before it, is not {from:?}");
        }
        Ok(())
    }

    /// Poisons, calls and checks.
    fn round(&self, all: &Splits, seed: u64) -> Verdict {
        let views = self.fill(all, seed, self.room)?;
        views.call(&self.group, all.form).run()?;
        let expected = all.received(self.group.rank().index(), self.room);
        self.check(all, seed, &views, &expected)
    }
}

struct Views {
    input: View,
    in_splits: Tensor<i64>,
    output: View,
    out_splits: Tensor<i64>,
}

impl Views {
    fn call<'a>(&'a self, group: &'a Group, form: Form) -> Call<'a, AllToAllVdev<'a>> {
        let Views { input, in_splits, output, out_splits } = self;
        match form {
            Form::Flat => group.all_to_all_vdev(input, in_splits, output, out_splits),
            Form::Dispatch { align } => {
                let call = group.all_to_all_vdev_2d(input, in_splits, output, out_splits);
                if align == 1 { call } else { call.major_align(align) }
            }
            Form::Combine => group.all_to_all_vdev_2d_offset(input, in_splits, output, out_splits),
        }
    }
}

fn random(context: &Context, name: u64) -> Random {
    Random::new(context.seed(), &[name])
}

/// Fewer where every rank computes what all others have for it.
fn rounds(context: &Context, few: u64) -> u64 {
    if context.size() > 8 { 1 } else { few }
}

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
    let group = context.group()?;
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

/// In the smallest workspace, messages go through staging, piece by piece.
fn splits_that_no_packets_hold(context: &Context) -> Verdict {
    let mut random = random(context, 5);
    let small = Options { workspace: least_workspace(context)?, ..options(context.size()) };
    let group = context.group_with(&small)?;
    let experts = if context.size() > 8 { 40 } else { 300 };
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

/// The refusal of a call that must have one.
fn refused(found: Result<(), Error>) -> Result<Refusal, TestError> {
    match found {
        Err(Error::Refused(refusal)) => Ok(refusal),
        other => Err(TestError::failed(format!("{other:?} is no refusal"))),
    }
}

/// That a call is refused, on every rank alike, and nothing has moved.
fn check_refused(
    scene: &Scene<'_>,
    all: &Splits,
    views: &Views,
    found: Result<(), Error>,
) -> Result<Refusal, TestError> {
    let refusal = refused(found)?;
    scene.context.same("refusal", refusal);
    check_eq!(refusal.kind(), Kind::InvalidArgument);
    check_eq!(refusal.ranks(), RankSet::one(refusal.rank.index()));
    check_eq!(views.out_splits.to_vec()?, vec![0; 2 * all.splits[0].len()], "output splits");
    check!(scene.output.to_vec()?.iter().all(|byte| *byte == POISON), "something has moved");
    // The group goes on.
    scene.group.check()?;
    Ok(refusal)
}

fn too_small_an_output_is_refused_everywhere(context: &Context) -> Verdict {
    let mut random = random(context, 7);
    let group = context.group()?;
    for form in FORMS {
        let all =
            Splits::new(form, context.size(), 3, &mut random, |r, _, _| 1 + r.below(9) as i64);
        let scene = Scene::of(context, group.clone(), 12, &all)?;
        let room = scene.room - 1;
        let views = scene.fill(&all, 1, room)?;
        context.step(format_args!("{form:?}"));
        let refusal = check_refused(&scene, &all, &views, views.call(&group, form).run())?;
        let Reason::Overflow { needed, capacity } = refusal.reason else {
            return Err(TestError::failed(format!("{refusal}")));
        };
        check_eq!((needed, capacity), (room + 1, room), "{refusal}");
        let short = |rank: usize| all.received(rank, room).dropped > 0;
        check_eq!(Some(refusal.rank.index()), (0..context.size()).find(|rank| short(*rank)));
        scene.round(&all, 2)?;
    }
    Ok(())
}

fn what_does_not_fit_is_dropped_in_order(context: &Context) -> Verdict {
    let mut random = random(context, 8);
    let (group, me) = (context.group()?, context.rank());
    for form in FORMS {
        for cut in [1, 3, 1000] {
            let all =
                Splits::new(form, context.size(), 3, &mut random, |r, _, _| r.below(9) as i64);
            let scene = Scene::of(context, group.clone(), 12, &all)?;
            let room = scene.room.saturating_sub(cut);
            context.step(format_args!("{form:?}, room for {room} rows of {}", scene.room));
            let views = scene.fill(&all, 3, room)?;
            views.call(&group, form).overflow(Overflow::Drop).run()?;
            let expected = all.received(me, room);
            scene.check(&all, 3, &views, &expected)?;
            check_eq!(group.take_dropped(group.lane()?)?, expected.dropped, "dropped");
            check_eq!(group.take_dropped(group.lane()?)?, 0, "told twice");
            group.verdict(group.lane()?)?;
        }
    }
    Ok(())
}

fn wrong_splits_are_refused_everywhere(context: &Context) -> Verdict {
    let mut random = random(context, 9);
    let (group, ranks) = (context.group()?, context.size());
    for form in FORMS {
        let right = Splits::new(form, ranks, 2, &mut random, |r, _, _| 1 + r.below(5) as i64);
        let scene = Scene::of(context, group.clone(), 12, &right)?;
        let culprit = random.below(ranks as u64) as usize;
        let entry = random.below(right.splits[0].len() as u64) as usize;
        for case in 0..3 {
            context.step(format_args!("{form:?}, case {case} of rank {culprit}"));
            let mut all = right.clone();
            let (splits, offsets) = (&mut all.splits[culprit], &mut all.offsets[culprit]);
            let rows = all.rows[culprit];
            match case {
                0 => splits[entry] = -3,
                1 => splits[entry] = i64::MAX,
                _ => offsets[entry] = if form == Form::Combine { -1 } else { 0 },
            }
            if case == 2 && form != Form::Combine {
                continue;
            }
            let (index, end) = (entry as u64, all.offsets[culprit][entry] as u64);
            for overflow in [Overflow::Error, Overflow::Drop] {
                let views = scene.fill(&all, 4, scene.room)?;
                let found = views.call(&group, form).overflow(overflow).run();
                let refusal = check_refused(&scene, &all, &views, found)?;
                let reason = match (case, form) {
                    (0, _) => Reason::NegativeSplit { index, value: -3 },
                    (1, Form::Combine) => {
                        Reason::OutsideInput { index, end: end + i64::MAX as u64, rows }
                    }
                    (1, _) => {
                        let others: i64 = right.splits[culprit].iter().sum::<i64>()
                            - right.splits[culprit][entry];
                        Reason::PastInput { needed: i64::MAX as u64 + others as u64, rows }
                    }
                    _ => Reason::OutsideInput { index, end: u64::MAX, rows },
                };
                check_eq!((refusal.rank.index(), refusal.reason), (culprit, reason));
            }
        }
        scene.round(&right, 5)?;
    }
    Ok(())
}

/// On a stream: the verdict tells, or the next call, which happens all the same.
fn a_refusal_is_told_by_the_next_call(context: &Context) -> Verdict {
    let mut random = random(context, 10);
    let group = context.group()?;
    let Ok(stream) = context.device().stream(StreamMode::Worker) else { return Ok(()) };
    let all =
        Splits::new(Form::Flat, context.size(), 1, &mut random, |r, _, _| 1 + r.below(5) as i64);
    let scene = Scene::of(context, group.clone(), 12, &all)?;
    for asks in [true, false] {
        let views = scene.fill(&all, 6, scene.room - 1)?;
        // It may be over before the call returns, which then tells.
        let mut told = match views.call(&group, Form::Flat).on(&stream) {
            Ok(()) => None,
            found => Some(refused(found)?),
        };
        stream.synchronize(&PATIENT)?;
        if asks && told.is_none() {
            match group.verdict(group.lane()?) {
                Err(VerdictError::Refused(refusal)) => told = Some(refusal),
                other => return Err(TestError::failed(format!("{other:?} is no refusal"))),
            }
        }
        let views = scene.fill(&all, 7, scene.room)?;
        match told {
            Some(_) => views.call(&group, Form::Flat).on(&stream)?,
            None => told = Some(refused(views.call(&group, Form::Flat).on(&stream))?),
        }
        context.same(format_args!("refusal, asked for: {asks}"), format_args!("{told:?}"));
        stream.synchronize(&PATIENT)?;
        let expected = all.received(context.rank(), scene.room);
        scene.check(&all, 7, &views, &expected)?;
        group.verdict(group.lane()?)?;
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

/// Each rank says how many rows of the same memory it takes.
fn outputs_of_different_sizes(context: &Context) -> Verdict {
    let mut random = random(context, 12);
    let (group, me) = (context.group()?, context.rank());
    let all =
        Splits::new(Form::Flat, context.size(), 1, &mut random, |r, _, _| 1 + r.below(6) as i64);
    let scene = Scene::of(context, group.clone(), 12, &all)?;
    let taken = |rank: usize| all.received(rank, 1 << 10).splits.iter().sum::<i64>() as u64;
    let views = scene.fill(&all, 8, taken(me))?;
    views.call(&group, Form::Flat).run()?;
    scene.check(&all, 8, &views, &all.received(me, taken(me)))?;
    // One that is too small is told to all.
    let views = scene.fill(&all, 8, taken(me) - u64::from(me == 1))?;
    let refusal = check_refused(&scene, &all, &views, views.call(&group, Form::Flat).run())?;
    let reason = Reason::Overflow { needed: taken(1), capacity: taken(1) - 1 };
    check_eq!((refusal.rank.index(), refusal.reason), (1, reason));
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

fn bad_tensors_are_refused(context: &Context) -> Verdict {
    let (group, device, ranks) = (context.group()?, context.device(), context.size() as u64);
    let x = Tensor::<f32>::zeros(device, &[8, 4])?;
    let y = Tensor::<f32>::zeros(device, &[8, 4])?;
    let splits = Tensor::<i64>::zeros(device, &[ranks])?;
    let out = Tensor::<i64>::zeros(device, &[2, ranks])?;
    let private = Tensor::<f32>::zeros(device, &[8, 4])?;
    group.rendezvous(&y, &group.wait())?;
    let other = Tensor::<i32>::zeros(device, &[ranks])?;
    let bytes = Tensor::<u8>::zeros(device, &[8, 16])?;
    let wide = Tensor::<f32>::zeros(device, &[8, 5])?;
    let flat = |x: &View, s: &View, y: &View, o: &View| group.all_to_all_vdev(x, s, y, o).run();
    check_err!(flat(&x, &splits, &private, &out), Error::NotSymmetric);
    check_err!(
        flat(&x, &other, &y, &out),
        Error::SplitType { what: "input splits", found: DType::I32 }
    );
    check_err!(flat(&bytes, &splits, &y, &out), Error::Call(_));
    check_err!(flat(&wide, &splits, &y, &out), Error::Row { input: 5, output: 4 });
    check_err!(flat(&y, &splits, &y, &out), Error::Overlap { .. });
    check_err!(flat(&x, out.slice(0, ranks)?.view(), &y, &out), Error::Overlap { .. });
    check_err!(flat(&x, &splits, &y, &splits), Error::SplitCount { what: "output splits", .. });
    let found = group.all_to_all_vdev_2d_offset(&x, &splits, &y, &out).run();
    if ranks % 2 == 1 {
        check_err!(found, Error::SplitCount { what: "input splits", .. });
    } else {
        check_err!(found, Error::SplitCount { what: "output splits", .. });
    }
    let uneven = Tensor::<i64>::zeros(device, &[ranks + 1])?;
    let out_uneven = Tensor::<i64>::zeros(device, &[2, ranks + 1])?;
    if ranks > 1 {
        let found = group.all_to_all_vdev_2d(&x, &uneven, &y, &out_uneven).run();
        check_err!(found, Error::Splits { .. });
    }
    let scalar = Layout::contiguous(&[])?;
    let allocation = x.allocation().ok_or_else(|| TestError::failed("no allocation"))?;
    let scalar = View::new(allocation, Bytes::ZERO, DType::F32, scalar)?;
    check_err!(flat(&scalar, &splits, &y, &out), Error::NoRows { what: "input" });
    // None of them has had an effect.
    group.check()?;
    flat(&x, &splits, &y, &out)?;
    Ok(())
}

fn other_rows_are_a_mismatch(context: &Context) -> Verdict {
    let (device, ranks, me) = (context.device(), context.size() as u64, context.rank());
    let group = context.group()?;
    let splits = Tensor::<i64>::zeros(device, &[ranks])?;
    let out = Tensor::<i64>::zeros(device, &[2, ranks])?;
    let y = Tensor::<f32>::zeros(device, &[8, 6])?;
    group.rendezvous(&y, &group.wait())?;
    let shape: &[u64] = if me == 0 { &[8, 6] } else { &[16, 3] };
    let layout = Layout::contiguous(shape)?;
    let allocation = y.allocation().ok_or_else(|| TestError::failed("no allocation"))?;
    let output = View::new(allocation, y.offset(), DType::F32, layout)?;
    let x = Tensor::<f32>::zeros(device, shape)?;
    let found = group.all_to_all_vdev(&x, &splits, &output, &out).run();
    check_err!(found, Error::Failed(Failure::CallMismatch { .. }));
    Ok(())
}

fn a_missing_rank_is_named(context: &Context) -> Verdict {
    let (device, ranks, me) = (context.device(), context.size() as u64, context.rank());
    let group = context.group()?;
    let last = context.size() - 1;
    let splits = Tensor::<i64>::zeros(device, &[ranks])?;
    let out = Tensor::<i64>::zeros(device, &[2, ranks])?;
    let (x, y) = (Tensor::<f32>::zeros(device, &[8, 6])?, Tensor::<f32>::zeros(device, &[8, 6])?);
    group.rendezvous(&y, &group.wait())?;
    group.all_to_all_vdev(&x, &splits, &y, &out).run()?;
    context.meet()?;
    if me != last {
        let wait = Wait::timeout(context.brief());
        let call = group.all_to_all_vdev(&x, &splits, &y, &out).wait(&wait);
        let failure = super::failure(call, &group)?;
        check_eq!(failure.ranks(), RankSet::one(last));
        let Failure::TimedOut { operation, .. } = &failure else {
            return Err(TestError::failed(format!("{failure}")));
        };
        check_eq!(*operation, Some(Operation::AllToAllVdev));
        context.same("failure", &failure);
    }
    context.meet()
}
