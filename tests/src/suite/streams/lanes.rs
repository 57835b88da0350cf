//! Lanes: independent of each other, each with one order.

use symmem_hal::types::Bytes;
use symmem_hal::{Fault as _, Kind, StreamMode, Wait};
use symmem_mem::{Failure, Group, Options, RendezvousError};
use symmem_sync::{Lanes as _, LanesError};

use super::graphs::capture;
use super::kernels::{Gather, Kernels, Word};
use super::{failure, issued_or_failed, synchronize};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict, options};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(as_many_lanes_as_agreed),
    test!(an_operation_passes_another_that_waits).at_least(2),
    test!(lanes_are_used_in_opposite_orders).at_least(2),
    test!(a_graph_beside_calls_on_another_lane).at_least(2),
    test!(two_graphs_at_once_on_one_lane_are_told).at_least(2),
    test!(a_scope_takes_part_in_the_order),
    test!(a_failure_closes_every_lane).at_least(2),
];

#[track_caller]
fn group(context: &Context, max_lanes: u32) -> Result<Group, TestError> {
    let options = options(context.size());
    let workspace = Bytes::new(options.workspace.get() / u64::from(max_lanes) + 65536);
    context.group_with(&Options { max_lanes, workspace, ..options })
}

fn as_many_lanes_as_agreed(context: &Context) -> Verdict {
    let group = group(context, 3)?;
    for count in [0, 1, 2, 3] {
        let lanes = group.lanes(count, &PATIENT)?;
        check_eq!(lanes.iter().map(|l| l.index()).collect::<Vec<_>>(), Vec::from_iter(0..count));
        check!(lanes.iter().all(|l| l.is_of(&group)), "lanes of another group");
    }
    let error = check_err!(group.lanes(4, &PATIENT), LanesError::TooMany { asked: 4, max: 3 });
    check_eq!(error.kind(), Kind::InvalidArgument);
    if context.size() > 1 {
        let asked = if context.rank() == 0 { 1 } else { 2 };
        let error = check_err!(
            group.lanes(asked, &PATIENT),
            LanesError::Agree(RendezvousError::Mismatch(_))
        );
        context.same("error", &error);
    }
    group.check()?;
    let other = context.group()?;
    check!(!other.lane()?.is_of(&group), "a lane of two groups");
    Ok(())
}

/// Lane 0 waits for a rank that comes later; meanwhile operations on lane 1 happen, that rank's too.
fn an_operation_passes_another_that_waits(context: &Context) -> Verdict {
    let group = group(context, 2)?;
    let lanes = group.lanes(2, &PATIENT)?;
    let gathers = [Gather::new(&group)?, Gather::new(&group)?];
    let mode = StreamMode::Worker;
    let streams = [context.device().stream(mode)?, context.device().stream(mode)?];
    let late = context.rank() + 1 == context.size();
    gathers[0].offer(100)?;
    if !late {
        gathers[0].issue(lanes[0], &streams[0], &PATIENT, 0)?;
    }
    let waiting = context.device().event();
    streams[0].record(&waiting)?;
    for round in 0..20 {
        gathers[1].offer(round)?;
        gathers[1].issue(lanes[1], &streams[1], &PATIENT, 0)?;
        streams[1].synchronize(&PATIENT)?;
        gathers[1].check(round)?;
    }
    check!(late || !waiting.is_complete(), "lane 0 has not waited");
    context.meet()?;
    if late {
        gathers[0].issue(lanes[0], &streams[0], &PATIENT, 0)?;
    }
    streams[0].synchronize(&PATIENT)?;
    gathers[0].check(100)?;
    group.check()?;
    Ok(())
}

/// Every rank issues on all lanes, odd ranks the other way round: serialised lanes would wait for
/// each other for ever.
fn lanes_are_used_in_opposite_orders(context: &Context) -> Verdict {
    const LANES: usize = 4;
    let group = group(context, LANES as u32)?;
    let lanes = group.lanes(LANES as u32, &PATIENT)?;
    let mut order: Vec<usize> = (0..LANES).collect();
    if context.rank() % 2 == 1 {
        order.reverse();
    }
    let work: Result<Vec<_>, TestError> = (0..LANES)
        .map(|_| Ok((Gather::new(&group)?, context.device().stream(StreamMode::Worker)?)))
        .collect();
    let work = work?;
    for round in 0..10 {
        for &i in &order {
            work[i].0.offer(round)?;
            work[i].0.issue(lanes[i], &work[i].1, &PATIENT, 0)?;
        }
        for (gather, stream) in &work {
            stream.synchronize(&PATIENT)?;
            gather.check(round)?;
        }
    }
    group.check()?;
    Ok(())
}

/// A graph on its own lane, launched again and again while calls go on: the ranks need not agree on
/// how they interleave.
fn a_graph_beside_calls_on_another_lane(context: &Context) -> Verdict {
    let group = group(context, 2)?;
    let lanes = group.lanes(2, &PATIENT)?;
    let gathers = [Gather::new(&group)?, Gather::new(&group)?];
    let mode = StreamMode::Worker;
    let streams = [context.device().stream(mode)?, context.device().stream(mode)?];
    let graph = capture(lanes[1], &gathers[1], &streams[1], &[1, 2, 3])?;
    context.ready()?;
    gathers.iter().try_for_each(|gather| gather.offer(0))?;
    for round in 0..60usize {
        // Each rank in an order of its own; as many of each in the end.
        if (round + context.rank()).is_multiple_of(2) {
            graph.launch(&streams[1], &PATIENT)?;
        } else {
            gathers[0].issue(lanes[0], &streams[0], &PATIENT, 0)?;
        }
    }
    synchronize(&streams)?;
    gathers.iter().try_for_each(|gather| gather.check(0))?;
    group.check()?;
    Ok(())
}

/// Two graphs of one lane on two streams, which nothing orders: the second finds the first at work.
fn two_graphs_at_once_on_one_lane_are_told(context: &Context) -> Verdict {
    let group = context.group()?;
    let lane = group.lane()?;
    let mode = StreamMode::Worker;
    let streams = [context.device().stream(mode)?, context.device().stream(mode)?];
    let gather = Gather::new(&group)?;
    let graphs =
        [capture(lane, &gather, &streams[0], &[1])?, capture(lane, &gather, &streams[0], &[1])?];
    context.meet()?;
    if context.rank() == 0 {
        // No other rank is there, so whichever comes first waits in its operation.
        graphs[0].launch(&streams[0], &PATIENT)?;
        graphs[1].launch(&streams[1], &PATIENT)?;
        for stream in &streams {
            let found = failure(stream.synchronize(&PATIENT))?;
            check!(matches!(found, Failure::LaneBusy { lane: 0 }), "{found}");
        }
    }
    context.meet()?;
    let told = check_err!(group.check(), Failure::LaneBusy { lane: 0 });
    check_eq!(told.kind(), Kind::InvalidArgument);
    context.found(&told);
    context.meet()
}

/// A user's kernel on a stream of its own, between two operations of the lane; also a graph's launch.
fn a_scope_takes_part_in_the_order(context: &Context) -> Verdict {
    let group = context.group()?;
    let lane = group.lane()?;
    let device = context.device();
    let kernels = Kernels::new(device)?;
    let mode = StreamMode::Worker;
    let [a, b, c] = [device.stream(mode)?, device.stream(mode)?, device.stream(mode)?];
    let gather = Gather::new(&group)?;
    let graph = capture(lane, &gather, &c, &[7])?;
    context.ready()?;
    let gate = Word::new(device)?;
    gather.input.set(0)?;
    kernels.hold(&a, &gate)?;
    gather.issue(lane, &a, &PATIENT, 0)?;
    // Changes the input of the operation before, and makes that of the one after.
    let scope = lane.scope(&b, &PATIENT)?;
    kernels.add(&b, &gather.input, 3)?;
    // The lane is taken.
    check_err!(lane.scope(&a, &Wait::millis(1)), symmem_sync::LaneError::Order(_));
    drop(scope);
    let scope = lane.scope(&c, &PATIENT)?;
    graph.launch(&c, &PATIENT)?;
    drop(scope);
    let scope = lane.scope(&b, &PATIENT)?;
    kernels.add(&b, &gather.input, 4)?;
    drop(scope);
    gather.issue(lane, &a, &PATIENT, 0)?;
    gate.set(1)?;
    synchronize([&a, &b, &c])?;
    check_eq!(gather.input.get()?, 34);
    check_eq!(gather.found()?, vec![34; context.size()]);
    group.check()?;
    context.meet()
}

fn a_failure_closes_every_lane(context: &Context) -> Verdict {
    let group = group(context, 2)?;
    let lanes = group.lanes(2, &PATIENT)?;
    let stream = context.device().stream(StreamMode::Worker)?;
    let gather = Gather::new(&group)?;
    gather.offer(0)?;
    for lane in &lanes {
        gather.issue(*lane, &stream, &PATIENT, 0)?;
    }
    stream.synchronize(&PATIENT)?;
    context.meet()?;
    issued_or_failed(gather.issue(lanes[1], &stream, &PATIENT, u64::from(context.rank() == 0)))?;
    let first = failure(stream.synchronize(&PATIENT))?;
    check!(matches!(first, Failure::CallMismatch { .. }), "{first}");
    context.meet()?;
    for lane in &lanes {
        let found = gather.issue(*lane, &stream, &PATIENT, 0);
        check_err!(found, symmem_sync::LaneError::Failed(Failure::CallMismatch { .. }));
    }
    context.meet()
}
