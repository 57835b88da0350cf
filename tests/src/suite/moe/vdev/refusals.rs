//! What does not fit, is wrong, or does not come.

use symmem_hal::types::{Bytes, DType, Layout, RankSet};
use symmem_hal::{Fault as _, Kind, StreamMode, Wait};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Tensor, View};
use symmem_moe::{
    AllToAllVdevError as Error, Moe as _, Overflow, Reason, Refusal, TensorMismatch, VerdictError,
};
use symmem_sync::Lanes as _;

use super::super::model::{Form, Splits};
use super::harness::{FORMS, POISON, Scene, Views, random};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(too_small_an_output_is_refused_everywhere),
    test!(what_does_not_fit_is_dropped_in_order),
    test!(wrong_splits_are_refused_everywhere),
    test!(a_refusal_is_told_by_the_next_call),
    test!(outputs_of_different_sizes).at_least(2),
    test!(bad_tensors_are_refused),
    test!(other_rows_are_a_mismatch).at_least(2),
    test!(a_missing_rank_is_named).at_least(2),
];

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
    check_err!(
        flat(&x, &splits, &private, &out),
        Error::Tensor(TensorMismatch::NotSymmetric { what: "output" })
    );
    check_err!(
        flat(&x, &other, &y, &out),
        Error::Tensor(TensorMismatch::DType {
            what: "input splits",
            expected: "i64",
            found: DType::I32
        })
    );
    check_err!(flat(&bytes, &splits, &y, &out), Error::Call(_));
    check_err!(
        flat(&wide, &splits, &y, &out),
        Error::Tensor(TensorMismatch::Row { what: "output", expected: 5, found: 4 })
    );
    check_err!(flat(&y, &splits, &y, &out), Error::Tensor(TensorMismatch::Overlap { .. }));
    check_err!(
        flat(&x, out.slice(0, ranks)?.view(), &y, &out),
        Error::Tensor(TensorMismatch::Overlap { .. })
    );
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
    check_err!(
        flat(&scalar, &splits, &y, &out),
        Error::Tensor(TensorMismatch::NoRows { what: "input" })
    );
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
        let failure = super::super::failure(call, &group)?;
        check_eq!(failure.ranks(), RankSet::one(last));
        let Failure::TimedOut { operation, .. } = &failure else {
            return Err(TestError::failed(format!("{failure}")));
        };
        check_eq!(*operation, Some(Operation::AllToAllVdev));
        context.same("failure", &failure);
    }
    context.meet()
}
