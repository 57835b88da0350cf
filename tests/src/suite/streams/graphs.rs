//! Graphs of operations, barriers and signals.

use std::time::Instant;

use symmem_hal::types::Bytes;
use symmem_hal::{Capture, CaptureError, Graph, Stream, StreamMode, SyncError};
use symmem_mem::{Failure, Group, Options};
use symmem_sync::{Channel, Lane, LaneError, Lanes as _, Signals as _};

use super::kernels::{Gather, Kernels, Word};
use super::{failure, issued_or_failed, launched_or_stale, synchronize};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict, options};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(launches_do_what_calls_do),
    test!(launches_and_calls_on_an_inline_stream),
    test!(launches_advance_the_epoch_over_every_turn),
    test!(launched_by_two_threads_at_once),
    test!(captured_and_never_launched_is_nothing),
    test!(a_graph_over_two_streams_leaves_the_pad_empty).at_least(2),
    test!(copies_from_a_peer_in_a_graph),
    test!(an_unprepared_lane_is_not_captured),
    test!(one_launch_too_many_is_told).at_least(2),
    test!(another_order_of_launches_and_calls_is_told).at_least(2),
    test!(another_graph_is_told).at_least(2),
    test!(an_operation_captured_at_another_place_is_told).at_least(2),
    test!(a_signal_that_does_not_come_is_told_of_the_launch).at_least(2),
];

/// A graph of `count` gathers on a lane.
#[track_caller]
pub(super) fn capture(
    lane: Lane<'_>,
    gather: &Gather,
    stream: &Stream,
    tags: &[u64],
) -> Result<Graph, TestError> {
    lane.prepare()?;
    stream.begin_capture()?;
    for tag in tags {
        gather.issue(lane, stream, &PATIENT, *tag)?;
    }
    let graph = stream.end_capture()?;
    check_eq!(graph.nodes(), tags.len());
    Ok(graph)
}

/// Graphs and calls in turn, in one order on every rank.
fn mixed(context: &Context, group: &Group, stream: &Stream, rounds: u64) -> Verdict {
    let lane = group.lane()?;
    let gather = Gather::new(group)?;
    let graphs = [
        capture(lane, &gather, stream, &[1])?,
        capture(lane, &gather, stream, &[1, 2])?,
        capture(lane, &gather, stream, &[1])?,
    ];
    context.ready()?;
    for round in 0..rounds {
        context.step(format_args!("round {round}"));
        gather.offer(round)?;
        match round * 7 % 5 {
            which @ 0..3 => graphs[which as usize].launch(stream, &PATIENT)?,
            _ => gather.issue(lane, stream, &PATIENT, 3)?,
        }
        stream.synchronize(&PATIENT)?;
        gather.check(round)?;
    }
    // Many in flight at once.
    if !stream.is_inline() {
        for round in 0..rounds {
            graphs[round as usize % 3].launch(stream, &PATIENT)?;
            gather.issue(lane, stream, &PATIENT, 4)?;
        }
        stream.synchronize(&PATIENT)?;
        gather.check(rounds - 1)?;
    }
    group.check()?;
    Ok(())
}

fn launches_do_what_calls_do(context: &Context) -> Verdict {
    let group = context.group()?;
    mixed(context, &group, &context.device().stream(StreamMode::Worker)?, 40)
}

fn launches_and_calls_on_an_inline_stream(context: &Context) -> Verdict {
    let Ok(stream) = context.device().stream(StreamMode::Inline) else {
        return Err(TestError::skipped("the backend has no inline streams"));
    };
    mixed(context, &context.group()?, &stream, 40)
}

fn launches_advance_the_epoch_over_every_turn(context: &Context) -> Verdict {
    for first_epoch in [(1 << 31) - 9, (1 << 30) - 9] {
        let group = context.group_with(&Options { first_epoch, ..options(context.size()) })?;
        mixed(context, &group, &context.device().stream(StreamMode::Worker)?, 30)?;
    }
    Ok(())
}

/// Each on a lane and a stream of its own, mixed with calls.
fn launched_by_two_threads_at_once(context: &Context) -> Verdict {
    let options = options(context.size());
    let workspace = Bytes::new(options.workspace.get() / 2 + 65536);
    let group = context.group_with(&Options { max_lanes: 2, workspace, ..options })?;
    let lanes = group.lanes(2, &PATIENT)?;
    let gathers = [Gather::new(&group)?, Gather::new(&group)?];
    let stream = || context.device().stream(StreamMode::Worker);
    let streams = [stream()?, stream()?];
    let graph = |i: usize| capture(lanes[i], &gathers[i], &streams[i], &[1, 2]);
    let graphs = [graph(0)?, graph(1)?];
    context.ready()?;
    std::thread::scope(|scope| {
        let (lanes, gathers, streams, graphs) = (&lanes, &gathers, &streams, &graphs);
        let both = [0, 1].map(|i| {
            scope.spawn(move || -> Verdict {
                for round in 0..40 {
                    gathers[i].offer(round)?;
                    graphs[i].launch(&streams[i], &PATIENT)?;
                    gathers[i].issue(lanes[i], &streams[i], &PATIENT, 3)?;
                    streams[i].synchronize(&PATIENT)?;
                    gathers[i].check(round)?;
                }
                Ok(())
            })
        });
        both.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(TestError::failed("a thread panicked")))
        })
    })?;
    group.check()?;
    Ok(())
}

fn captured_and_never_launched_is_nothing(context: &Context) -> Verdict {
    let group = context.group()?;
    let (lane, gather) = (group.lane()?, Gather::new(&group)?);
    let [a, b] = [
        context.device().stream(StreamMode::Worker)?,
        context.device().stream(StreamMode::Worker)?,
    ];
    let put = |stream| {
        group
            .put_signal(context.neighbour(&group, 1)?, Channel(0))
            .on(stream)
            .map_err(TestError::from)
    };
    for round in 0..5 {
        gather.offer(round)?;
        gather.issue(lane, &a, &PATIENT, 0)?;
        a.begin_capture()?;
        check!(matches!(a.capture(), Capture::Active(_)), "{:?}", a.capture());
        gather.issue(lane, &a, &PATIENT, 9)?;
        put(&a)?;
        group.barrier(Channel(0)).on(&a)?;
        let graph = a.end_capture()?;
        // Eager work on another stream follows the eager work on the first.
        gather.issue(lane, &b, &PATIENT, 0)?;
        drop(graph);
        synchronize([&a, &b])?;
        gather.check(round)?;
    }
    check_pad_is_empty(&group)?;
    context.meet()
}

/// That every slot of this rank's pad is 0.
#[track_caller]
fn check_pad_is_empty(group: &Group) -> Verdict {
    let mine =
        group.regions().get(group.rank().index()).ok_or_else(|| TestError::failed("no region"))?;
    let pad = group.options().pad;
    let mut bytes = vec![0; pad.to_usize().unwrap_or(0)];
    mine.read(symmem_hal::types::Bytes::ZERO, &mut bytes)?;
    let full = bytes.iter().position(|b| *b != 0);
    check_eq!(full, None, "the first byte of the pad that is not 0");
    Ok(())
}

/// One stream puts, the other waits, in one graph that forks and joins.
fn a_graph_over_two_streams_leaves_the_pad_empty(context: &Context) -> Verdict {
    let group = context.group()?;
    let device = context.device();
    let kernels = Kernels::new(device)?;
    let [a, b] = [device.stream(StreamMode::Worker)?, device.stream(StreamMode::Worker)?];
    let (word, seen) = (Word::new(device)?, Word::new(device)?);
    let shared = word.share(&group)?;
    let next = context.neighbour(&group, 1)?;
    let previous = context.neighbour(&group, context.size() - 1)?;
    let theirs = Word::of(&shared, previous)?;
    let (fork, join) = (device.event(), device.event());
    group.lane()?.prepare()?;
    a.begin_capture()?;
    a.record(&fork)?;
    b.wait(&fork, &PATIENT)?;
    // The receiver first: where work of two streams ran in one line, it would wait for ever.
    group.wait_signal(previous, Channel(5)).on(&b)?;
    kernels.copy(&b, &seen, &theirs)?;
    kernels.add(&a, &word, 1)?;
    group.put_signal(next, Channel(5)).on(&a)?;
    b.record(&join)?;
    a.wait(&join, &PATIENT)?;
    group.barrier(Channel(5)).on(&a)?;
    let graph = a.end_capture()?;
    context.ready()?;
    let mut expected = 0;
    for round in 0..4 {
        graph.launch(&a, &PATIENT)?;
        a.synchronize(&PATIENT)?;
        expected = expected * 10 + 1;
        check_eq!(seen.get()?, expected, "launch {round}");
        context.meet()?;
    }
    check_pad_is_empty(&group)?;
    context.meet()
}

/// Every rank counts, and gets what its neighbour has counted, in memory that only the graph holds.
fn copies_from_a_peer_in_a_graph(context: &Context) -> Verdict {
    let group = context.group()?;
    let device = context.device();
    let kernels = Kernels::new(device)?;
    let next = context.neighbour(&group, 1)?;
    for mode in [StreamMode::Inline, StreamMode::Worker] {
        let Ok(stream) = device.stream(mode) else { continue };
        let seen = Word::new(device)?;
        group.lane()?.prepare()?;
        stream.begin_capture()?;
        {
            let word = Word::new(device)?;
            let shared = word.share(&group)?;
            kernels.add(&stream, &word, 1)?;
            group.barrier(Channel(0)).on(&stream)?;
            shared.get(seen.view(), next).on(&stream)?;
            group.barrier(Channel(0)).on(&stream)?;
        }
        let graph = stream.end_capture()?;
        context.ready()?;
        let mut expected = 0;
        for launch in 0..4 {
            graph.launch(&stream, &PATIENT)?;
            stream.synchronize(&PATIENT)?;
            expected = expected * 10 + 1;
            check_eq!(seen.get()?, expected, "launch {launch}");
        }
    }
    group.check()?;
    Ok(())
}

fn an_unprepared_lane_is_not_captured(context: &Context) -> Verdict {
    let group = context.group()?;
    let (lane, gather) = (group.lane()?, Gather::new(&group)?);
    let stream = context.device().stream(StreamMode::Worker)?;
    stream.begin_capture()?;
    let found = gather.issue(lane, &stream, &PATIENT, 0);
    check_err!(found, LaneError::Failed(Failure::NotPrepared(_)));
    check_eq!(stream.end_capture()?.nodes(), 0);
    group.check()?;
    // An eager operation prepares as well.
    gather.offer(0)?;
    gather.issue(lane, &stream, &PATIENT, 0)?;
    stream.begin_capture()?;
    gather.issue(lane, &stream, &PATIENT, 0)?;
    // What cannot be captured breaks the capture, and nothing of it runs.
    let found = stream.synchronize(&PATIENT);
    check_err!(found, SyncError::Capture(CaptureError::NotCapturable { .. }));
    let found = gather.issue(lane, &stream, &PATIENT, 0);
    check_err!(found, LaneError::Order(_) | LaneError::Stream(_));
    check_err!(stream.end_capture(), CaptureError::Invalidated);
    stream.synchronize(&PATIENT)?;
    gather.check(0)?;
    context.meet()
}

/// A scene for ranks at odds: a group with two graphs of two operations each.
struct Scene {
    group: Group,
    stream: Stream,
    gather: Gather,
    graphs: [Graph; 2],
    is_odd: bool,
}

impl Scene {
    #[track_caller]
    fn new(context: &Context) -> Result<Self, TestError> {
        let group = context.group()?;
        let stream = context.device().stream(StreamMode::Worker)?;
        let gather = Gather::new(&group)?;
        let lane = group.lane()?;
        let graphs =
            [capture(lane, &gather, &stream, &[1])?, capture(lane, &gather, &stream, &[1])?];
        context.ready()?;
        graphs[0].launch(&stream, &PATIENT)?;
        stream.synchronize(&PATIENT)?;
        context.meet()?;
        Ok(Scene { gather, graphs, is_odd: context.rank() + 1 == context.size(), group, stream })
    }

    #[track_caller]
    fn launch(&self, which: usize) -> Verdict {
        launched_or_stale(self.graphs[which].launch(&self.stream, &PATIENT))
    }

    #[track_caller]
    fn call(&self) -> Verdict {
        issued_or_failed(self.gather.issue(self.group.lane()?, &self.stream, &PATIENT, 1))
    }

    /// Every rank is told of the mismatch, with the two sides told apart in the text.
    #[track_caller]
    fn check_told(&self, context: &Context, texts: &[&str]) -> Verdict {
        let since = Instant::now();
        let failure = failure(self.stream.synchronize(&PATIENT))?;
        context.told(&failure, since);
        let told = check_err!(self.group.check(), Failure::CallMismatch { .. });
        check_eq!(failure, told);
        let Failure::CallMismatch { mine, theirs, rank, .. } = &told else { return Ok(()) };
        check!(mine != theirs, "{told}: the same on both sides");
        check!(*rank != self.group.rank(), "{told}: this rank is told of itself");
        for text in texts {
            check!(told.to_string().contains(text), "{told}: does not say {text:?}");
        }
        context.meet()
    }
}

fn one_launch_too_many_is_told(context: &Context) -> Verdict {
    let scene = Scene::new(context)?;
    scene.launch(0)?;
    if scene.is_odd {
        scene.launch(0)?;
    }
    scene.call()?;
    scene.check_told(context, &["in its graph", "of its lane", "once too often"])
}

fn another_order_of_launches_and_calls_is_told(context: &Context) -> Verdict {
    let scene = Scene::new(context)?;
    if scene.is_odd {
        scene.call()?;
        scene.launch(0)?;
    } else {
        scene.launch(0)?;
        scene.call()?;
    }
    scene.check_told(context, &["in its graph", "of its lane", "another order"])
}

fn another_graph_is_told(context: &Context) -> Verdict {
    let scene = Scene::new(context)?;
    scene.launch(usize::from(scene.is_odd))?;
    scene.check_told(context, &["run 1 in its graph", "run 2 in its graph", "in another graph"])
}

/// The same calls, captured one more time on one rank.
fn an_operation_captured_at_another_place_is_told(context: &Context) -> Verdict {
    let scene = Scene::new(context)?;
    let lane = scene.group.lane()?;
    if scene.is_odd {
        capture(lane, &scene.gather, &scene.stream, &[1])?;
    }
    let graph = capture(lane, &scene.gather, &scene.stream, &[1])?;
    context.meet()?;
    launched_or_stale(graph.launch(&scene.stream, &PATIENT))?;
    scene.check_told(context, &["run 1 in its graph", "in another graph"])
}

/// The bound is that of the launch, not that of the capture.
fn a_signal_that_does_not_come_is_told_of_the_launch(context: &Context) -> Verdict {
    use symmem_hal::{Fault as _, Kind, Wait};

    let group = context.group()?;
    for mode in [StreamMode::Inline, StreamMode::Worker] {
        let Ok(stream) = context.device().stream(mode) else { continue };
        group.lane()?.prepare()?;
        stream.begin_capture()?;
        let previous = context.neighbour(&group, context.size() - 1)?;
        group.wait_signal(previous, Channel(0)).wait(&PATIENT).on(&stream)?;
        let graph = stream.end_capture()?;
        context.ready()?;
        let brief = Wait::timeout(context.brief());
        let found = graph.launch(&stream, &brief).and_then(|()| stream.synchronize(&PATIENT));
        let error = check_err!(found, SyncError::Unhealthy(_));
        check_eq!(error.kind(), Kind::TimedOut, "{error}");
        check_eq!(error.ranks(), symmem_hal::types::RankSet::one(previous.index()));
        group.reset_channel(Channel(0)).run()?;
        // The graph is as good as new.
        let next = context.neighbour(&group, 1)?;
        group.put_signal(next, Channel(0)).run()?;
        graph.launch(&stream, &PATIENT)?;
        stream.synchronize(&PATIENT)?;
        context.meet()?;
    }
    group.check()?;
    Ok(())
}
