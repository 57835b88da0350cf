//! Graphs whose group takes no more operations.

use std::time::{Duration, Instant};

use symmem_hal::{CancelToken, Fault as _, Graph, Kind, Stream, StreamMode, Wait};
use symmem_mem::{Failure, Group};
use symmem_sync::Lanes as _;

use super::failure;
use super::graphs::capture;
use super::kernels::{Gather, Kernels, Word};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::support::eventually;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(after_a_failure_a_launch_is_stale).at_least(2),
    test!(a_cancelled_launch_ends_on_every_rank).at_least(2),
    test!(after_a_rank_has_left_its_launches_are_stale),
    test!(a_graph_outlives_its_group_and_is_stale),
    test!(what_was_enqueued_before_the_end_still_runs).at_least(2),
];

/// A graph of one operation that has run once.
#[track_caller]
fn used(context: &Context, group: &Group, stream: &Stream) -> Result<(Gather, Graph), TestError> {
    let gather = Gather::new(group)?;
    let graph = capture(group.lane()?, &gather, stream, &[1])?;
    context.ready()?;
    gather.offer(0)?;
    graph.launch(stream, &PATIENT)?;
    stream.synchronize(&PATIENT)?;
    gather.check(0)?;
    context.meet()?;
    Ok((gather, graph))
}

#[track_caller]
fn check_stale(graph: &Graph, stream: &Stream) -> Verdict {
    let found = graph.launch(stream, &PATIENT).and_then(|()| stream.synchronize(&PATIENT));
    let stale = failure(found)?;
    check_eq!(stale, Failure::StaleGraph);
    check_eq!(stale.kind(), Kind::Stale);
    Ok(())
}

fn modes(context: &Context) -> Vec<Stream> {
    let modes = [StreamMode::Inline, StreamMode::Worker];
    modes.iter().filter_map(|mode| context.device().stream(*mode).ok()).collect()
}

/// The last rank does not launch; the group fails of it, and keeps that failure.
fn after_a_failure_a_launch_is_stale(context: &Context) -> Verdict {
    for stream in modes(context) {
        let group = context.group()?;
        let (_gather, graph) = used(context, &group, &stream)?;
        let last = context.size() - 1;
        if context.rank() != last {
            let brief = Wait::timeout(context.brief());
            let found = graph.launch(&stream, &brief).and_then(|()| stream.synchronize(&PATIENT));
            let first = failure(found)?;
            check!(matches!(&first, Failure::TimedOut { .. }), "{first}");
            check!(first.ranks().contains(last), "{first}");
        }
        context.meet()?;
        let since = Instant::now();
        check_stale(&graph, &stream)?;
        context.told(Failure::StaleGraph, since);
        check_stale(&graph, &stream)?;
        let first = check_err!(group.check(), Failure::TimedOut { .. });
        context.same(format_args!("failure on {:?}", stream.is_inline()), first);
        context.meet()?;
    }
    Ok(())
}

fn a_cancelled_launch_ends_on_every_rank(context: &Context) -> Verdict {
    for stream in modes(context) {
        let group = context.group()?;
        let (_gather, graph) = used(context, &group, &stream)?;
        if context.rank() + 1 != context.size() {
            let token = CancelToken::new();
            let wait = PATIENT.with_cancel(token.clone());
            let found = std::thread::scope(|scope| {
                if context.rank() == 0 {
                    scope.spawn(move || {
                        std::thread::sleep(Duration::from_millis(20));
                        token.cancel();
                    });
                }
                graph.launch(&stream, &wait).and_then(|()| stream.synchronize(&PATIENT))
            });
            let first = failure(found)?;
            check!(
                matches!(&first, Failure::Cancelled { rank, .. } if rank.index() == 0),
                "{first}"
            );
        }
        context.meet()?;
        check_err!(group.check(), Failure::Cancelled { .. });
        check_stale(&graph, &stream)?;
        context.meet()?;
    }
    Ok(())
}

fn after_a_rank_has_left_its_launches_are_stale(context: &Context) -> Verdict {
    for stream in modes(context) {
        let group = context.group()?;
        let (gather, graph) = used(context, &group, &stream)?;
        group.leave();
        gather.offer(1)?;
        check_stale(&graph, &stream)?;
        gather.check(0)?;
        check_err!(group.check(), Failure::Left);
        context.meet()?;
    }
    Ok(())
}

fn a_graph_outlives_its_group_and_is_stale(context: &Context) -> Verdict {
    for stream in modes(context) {
        let group = context.group()?;
        let (gather, graph) = used(context, &group, &stream)?;
        drop(group);
        gather.offer(1)?;
        check_stale(&graph, &stream)?;
        gather.check(0)?;
        context.meet()?;
    }
    Ok(())
}

/// A launch that waits behind other work when its group is dropped is done nevertheless; the others
/// hear of the end after it.
fn what_was_enqueued_before_the_end_still_runs(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = context.device().stream(StreamMode::Worker)?;
    let (gather, graph) = used(context, &group, &stream)?;
    let gate = Word::new(context.device())?;
    gather.offer(1)?;
    Kernels::new(context.device())?.hold(&stream, &gate)?;
    graph.launch(&stream, &PATIENT)?;
    drop(group);
    context.meet()?;
    gate.set(1)?;
    // How the group fares is not asked: it is gone.
    check!(eventually(|| stream.is_idle()), "the stream does not end");
    gather.check(1)?;
    check_stale(&graph, &stream)?;
    context.meet()
}
