//! What does not fit, is wrong, or does not come.

use half::bf16;
use symmem_hal::types::{BackendKind, DType, RankSet};
use symmem_hal::{Fault as _, Kind, Wait};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, RendezvousError, Tensor};
use symmem_moe::{
    Layout, Moe as _, Overflow, Reason, Refusal, Route, RoutedError as Error, RoutingError,
    RoutingOptions, RoutingOptionsError, TensorMismatch,
};
use symmem_sync::Lanes as _;

use super::super::routes::Routes;
use super::harness::{HIDDEN, POISON, Scene, any, random, setting, ways};
use crate::runner::{Context, Test, TestError, Verdict};
use crate::support::random::Random;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(too_many_rows_are_refused_everywhere),
    test!(what_does_not_fit_is_dropped_in_order),
    test!(experts_that_there_are_not),
    test!(choices_that_no_packets_hold),
    test!(other_options_are_refused_everywhere).at_least(2),
    test!(bad_options_and_tensors_are_refused),
    test!(a_missing_rank_is_named).at_least(2),
];

fn refused(context: &Context, found: Result<(), Error>) -> Result<Refusal, TestError> {
    let Err(Error::Refused(refusal)) = found else {
        return Err(TestError::failed(format!("{found:?} is no refusal")));
    };
    context.same("refusal", refusal);
    Ok(refusal)
}

fn too_many_rows_are_refused_everywhere(context: &Context) -> Verdict {
    let mut random = random(context, 9);
    let group = context.group()?;
    for layout in [Layout::Compact { align: 4 }, Layout::Padded { rows: 3 }] {
        let mut setting = setting(context, 4, 2, 6, layout);
        if let Layout::Compact { .. } = layout {
            setting.capacity = 5;
        }
        let scene = Scene::new(context, &group, setting, Overflow::Error)?;
        // All to the first expert, whose rank has no room for as many.
        let routes = Routes::new(setting, &mut random, |_, _| 6, |_, _| 0);
        context.step(format_args!("{layout:?}"));
        scene.poison()?;
        let (indices, _) = scene.choices(&routes)?;
        let x = scene.x(&routes, 1)?;
        let found = scene.routing.dispatch(&x, &indices, &scene.rows).run();
        let refusal = refused(context, found)?;
        let owner = setting.owner(0);
        let over = routes.arrived(owner).over;
        let Reason::Overflow { needed, capacity } = refusal.reason else {
            return Err(TestError::failed(format!("{refusal}")));
        };
        check_eq!((refusal.rank.index(), Some((needed, capacity))), (owner, over));
        check!(scene.rows.to_vec()?.iter().all(|v| v.to_f32() == POISON), "something has moved");
        check!(scene.routing.groups().to_vec()?.iter().all(|count| *count == 0), "groups");
        check!(scene.routing.origins()?.is_empty(), "origins");
        group.check()?;
        // One token each of the first two ranks fits.
        let first = |_: &mut Random, choice: usize| if choice == 0 { 0 } else { -1 };
        let few = Routes::new(setting, &mut random, |_, rank| u64::from(rank < 2), first);
        scene.round(&few, 2)?;
    }
    Ok(())
}

fn what_does_not_fit_is_dropped_in_order(context: &Context) -> Verdict {
    let mut random = random(context, 10);
    let group = context.group()?;
    for layout in
        [Layout::Compact { align: 0 }, Layout::Compact { align: 4 }, Layout::Padded { rows: 3 }]
    {
        let mut setting = setting(context, 4, 3, 6, layout);
        if let Layout::Compact { .. } = layout {
            setting.capacity = 11;
        }
        let scene = Scene::new(context, &group, setting, Overflow::Drop)?;
        for round in 0..3 {
            context.step(format_args!("{layout:?}, round {round}"));
            let routes = Routes::new(setting, &mut random, |r, _| 3 + r.below(4), any(4));
            scene.round(&routes, round)?;
            let expected = routes.arrived(context.rank()).dropped;
            check_eq!(group.take_dropped(group.lane()?)?, expected, "dropped");
            group.verdict(group.lane()?)?;
        }
    }
    Ok(())
}

fn experts_that_there_are_not(context: &Context) -> Verdict {
    let mut random = random(context, 11);
    let (group, ranks) = (context.group()?, context.size());
    for overflow in [Overflow::Error, Overflow::Drop] {
        let setting = setting(context, 5, 2, 4, Layout::Compact { align: 0 });
        let scene = Scene::new(context, &group, setting, overflow)?;
        let right = Routes::new(setting, &mut random, |_, _| 4, any(5));
        let values = [5, -2, i64::MAX, i64::MIN];
        for (value, route) in values.into_iter().zip(ways(context).repeat(2)) {
            let culprit = random.below(ranks as u64) as usize;
            let mut routes = right.clone();
            routes.indices[culprit][2][1] = value;
            scene.poison()?;
            let (indices, _) = scene.choices(&routes)?;
            let x = scene.x(&routes, 1)?;
            let refusal = refused(
                context,
                scene.routing.dispatch(&x, &indices, &scene.rows).route(route).run(),
            )?;
            let reason = Reason::NoExpert { index: 5, value, experts: 5 };
            check_eq!((refusal.rank.index(), refusal.reason), (culprit, reason));
            check!(
                scene.rows.to_vec()?.iter().all(|v| v.to_f32() == POISON),
                "something has moved"
            );
        }
        scene.round(&right, 2)?;
    }
    Ok(())
}

/// In the smallest workspace, counts go through staging, piece by piece.
fn choices_that_no_packets_hold(context: &Context) -> Verdict {
    let mut random = random(context, 15);
    let group = super::super::small_group(context, 8 * 1600)?;
    let setting = setting(context, 1500, 2, 4, Layout::Compact { align: 0 });
    let mut scene = Scene::new(context, &group, setting, Overflow::Error)?;
    scene.gathers = false;
    for _ in 0..2 {
        let routes = Routes::new(setting, &mut random, |r, _| r.below(5), any(1500));
        scene.round(&routes, random.next())?;
    }
    let (indices, x) = (Tensor::<i64>::zeros(context.device(), &[0, 2])?, scene.made.slice(0, 0)?);
    let x = super::super::reshaped(&x, &[0, HIDDEN as u64])?;
    let call = scene.routing.dispatch(&x, &indices, &scene.rows).route(Route::Gathered);
    match context.device().kind() {
        BackendKind::Cuda => check_err!(call.run(), Error::NotGathered),
        _ => check_err!(call.run(), Error::TooLargeToGather { .. }),
    };
    Ok(())
}

fn other_options_are_refused_everywhere(context: &Context) -> Verdict {
    let group = context.group()?;
    let tokens = 8 + u64::from(context.rank() == 1);
    let found = group.routing(&RoutingOptions::new(4, 2, tokens), &group.wait());
    let error = check_err!(found, RoutingError::Rendezvous(RendezvousError::Mismatch { .. }));
    context.same("error", &error);
    // The group goes on.
    let setting = setting(context, 4, 2, 3, Layout::RankMajor);
    let scene = Scene::new(context, &group, setting, Overflow::Error)?;
    let routes = Routes::new(setting, &mut random(context, 16), |_, _| 3, any(4));
    scene.round(&routes, 1)
}

fn bad_options_and_tensors_are_refused(context: &Context) -> Verdict {
    let (group, device) = (context.group()?, context.device());
    let of = |options: RoutingOptions| group.routing(&options, &group.wait());
    type Wrong = RoutingOptionsError;
    check_err!(
        of(RoutingOptions::new(0, 1, 1)),
        RoutingError::Options(Wrong::Experts { experts: 0 })
    );
    check_err!(of(RoutingOptions::new(1, 0, 1)), RoutingError::Options(Wrong::Choices { .. }));
    check_err!(of(RoutingOptions::new(1, 1, 1 << 32)), RoutingError::Options(Wrong::Tokens { .. }));
    let by_rank = RoutingOptions::new(1, 1, 1).layout(Layout::RankMajor);
    check_err!(of(by_rank.clone().capacity(3)), RoutingError::Options(Wrong::Capacity { .. }));
    let huge = RoutingOptions::new(1, 1, 1).capacity(1 << 48);
    check_err!(of(huge), RoutingError::Options(Wrong::Rows { .. }));

    let setting = setting(context, 4, 2, 4, Layout::RankMajor);
    let scene = Scene::new(context, &group, setting, Overflow::Error)?;
    let routing = &scene.routing;
    let x = Tensor::<bf16>::zeros(device, &[3, HIDDEN as u64])?;
    let indices = Tensor::<i64>::zeros(device, &[3, 2])?;
    let wrong = |found: Result<(), Error>| match found {
        Err(Error::Tensor(wrong)) => Ok(wrong),
        other => Err(TestError::failed(format!("{other:?}"))),
    };
    type T = TensorMismatch;
    let private = Tensor::<bf16>::zeros(device, &[setting.capacity, HIDDEN as u64])?;
    let found = wrong(routing.dispatch(&x, &indices, &private).run())?;
    check_eq!(found, T::NotSymmetric { what: "rows" });
    let many = Tensor::<bf16>::zeros(device, &[5, HIDDEN as u64])?;
    let found = wrong(routing.dispatch(&many, &indices, &scene.rows).run())?;
    check_eq!(found, T::TooManyRows { what: "x", most: 4, found: 5 });
    let few = indices.slice(0, 4)?;
    let found = wrong(routing.dispatch(&x, &few, &scene.rows).run())?;
    check_eq!(found, T::Count { what: "indices", expected: 6, found: 4 });
    let found =
        wrong(routing.dispatch(&x, &Tensor::<u8>::zeros(device, &[6])?, &scene.rows).run())?;
    check_eq!(found, T::DType { what: "indices", expected: "i32 or i64", found: DType::U8 });
    let short =
        super::super::reshaped(scene.rows.slice(0, HIDDEN as u64)?.view(), &[1, HIDDEN as u64])?;
    let found = wrong(routing.dispatch(&x, &indices, &short).run())?;
    check_eq!(found, T::Rows { what: "rows", expected: setting.capacity, found: 1 });
    let inside = super::super::reshaped(
        scene.rows.slice(0, 3 * HIDDEN as u64)?.view(),
        &[3, HIDDEN as u64],
    )?;
    let found = wrong(routing.dispatch(&inside, &indices, &scene.rows).run())?;
    check!(matches!(found, T::Overlap { .. }), "{found}");
    let call = routing.dispatch(&x, &indices, &scene.rows);
    let call = (0..4).fold(call, |call, _| call.payload(&x, &scene.made));
    check_err!(call.run(), Error::TooManyPayloads { .. });
    check_err!(routing.combine(&scene.made, &x).run(), Error::NotDispatched);
    // None of them has had an effect.
    routing.dispatch(&x, &indices, &scene.rows).run()?;
    let weights = Tensor::<f32>::zeros(device, &[3, 2])?;
    check_err!(routing.combine(&scene.made, &x).weights(&weights).run(), Error::WeightsByRank);
    let found = wrong(routing.combine(&private, &x).run())?;
    check_eq!(found, T::NotSymmetric { what: "rows" });
    let small = Tensor::<bf16>::zeros(device, &[2, HIDDEN as u64])?;
    let found = wrong(routing.combine(&scene.made, &small).run())?;
    check_eq!(found, T::TooFewRows { what: "output", least: 3, found: 2 });
    let error = Error::Tensor(found);
    check_eq!(error.kind(), Kind::InvalidArgument);
    group.check()?;
    Ok(routing.combine(&scene.made, &x).run()?)
}

fn a_missing_rank_is_named(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    let setting = setting(context, 4, 2, 3, Layout::Compact { align: 0 });
    let scene = Scene::new(context, &group, setting, Overflow::Error)?;
    let routes = Routes::new(setting, &mut random(context, 17), |_, _| 3, any(4));
    let weights = scene.dispatch(&routes, 1)?;
    context.meet()?;
    if context.rank() != last {
        let output = Tensor::<bf16>::zeros(context.device(), &[3, HIDDEN as u64])?;
        let wait = Wait::timeout(context.brief());
        let call = scene.routing.combine(&scene.made, &output).weights(&weights);
        let failure = super::super::failure(call.wait(&wait), &group)?;
        check_eq!(failure.ranks(), RankSet::one(last));
        let Failure::TimedOut { operation, .. } = &failure else {
            return Err(TestError::failed(format!("{failure}")));
        };
        check_eq!(*operation, Some(Operation::Combine));
        context.same("failure", &failure);
    }
    context.meet()
}
