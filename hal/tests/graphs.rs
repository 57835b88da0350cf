//! Captures and graphs on every backend.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests launch kernels; a failed set-up fails the test"
)]

mod rig;

use std::sync::Arc;

use rig::{LONG, NEVER, Rig, devices};
use symmem_hal::{
    Capture, CaptureError, Device, Event, Graph, KeepAlive, Launch, Launched, OrderError, Stream,
    StreamMode, StreamOrder, SyncError, Wait,
};

/// Every kind of stream that can be captured.
fn streams() -> Vec<(Rig, Stream)> {
    let modes = [StreamMode::Inline, StreamMode::Worker];
    let of = |device: Device| {
        let streams = modes
            .iter()
            .filter_map(move |mode| device.stream(*mode).ok().map(|s| (device.clone(), s)));
        streams.map(|(device, stream)| (Rig::new(device), stream)).collect::<Vec<_>>()
    };
    devices().into_iter().flat_map(of).collect()
}

fn after(value: u32, factors: &[u32]) -> u32 {
    factors.iter().fold(value, |value, factor| value.wrapping_mul(*factor).wrapping_add(1))
}

fn captured(rig: &Rig, stream: &Stream, factors: &[u32]) -> Graph {
    stream.begin_capture().unwrap();
    for factor in factors {
        assert_eq!(rig.launch(stream, *factor, NEVER), Launched::Recorded);
    }
    stream.end_capture().unwrap()
}

fn is<T: core::fmt::Debug>(result: Result<T, SyncError>, expected: CaptureError) {
    match result {
        Err(SyncError::Capture(found)) => assert_eq!(found, expected),
        other => panic!("expected {expected:?}, found {other:?}"),
    }
}

#[test]
fn what_is_captured_runs_at_each_launch_and_only_then() {
    for (rig, stream) in streams() {
        rig.launch(&stream, 3, NEVER);
        stream.synchronize(&LONG).unwrap();
        let graph = captured(&rig, &stream, &[5, 7, 11]);
        assert_eq!((graph.nodes(), graph.edges()), (3, vec![(0, 1), (1, 2)]));
        let mut expected = 1;
        // Eager work between launches, and launches on another stream than it was captured on.
        let other = rig.device.stream(StreamMode::Worker).unwrap();
        for round in 0..20 {
            assert_eq!(rig.get(), expected, "round {round}");
            let stream = if round % 3 == 2 { &other } else { &stream };
            graph.launch(stream, &LONG).unwrap();
            rig.launch(stream, 2, NEVER);
            stream.synchronize(&LONG).unwrap();
            expected = after(expected, &[5, 7, 11, 2]);
        }
        drop(graph);
        // Captured, never launched.
        captured(&rig, &stream, &[13]);
        rig.launch(&stream, 17, NEVER);
        stream.synchronize(&LONG).unwrap();
        assert_eq!(rig.get(), after(expected, &[17]));
    }
}

#[test]
fn an_empty_graph_is_one() {
    for (rig, stream) in streams() {
        let graph = captured(&rig, &stream, &[]);
        graph.launch(&stream, &LONG).unwrap();
        stream.synchronize(&LONG).unwrap();
        assert_eq!((graph.nodes(), rig.get()), (0, 0));
    }
}

/// Lets `to` come after what is on `from`.
fn edge(device: &Device, from: &Stream, to: &Stream) -> Event {
    let event = device.event();
    from.record(&event).unwrap();
    to.wait(&event, &LONG).unwrap();
    event
}

#[test]
fn streams_fork_and_join_by_events() {
    for (rig, stream) in streams() {
        let device = &rig.device;
        let branch = device.stream(StreamMode::Worker).unwrap();
        let second = Rig::new(device.clone());
        stream.begin_capture().unwrap();
        rig.launch(&stream, 2, NEVER);
        edge(device, &stream, &branch);
        assert_eq!(branch.capture(), stream.capture());
        second.launch(&branch, 3, NEVER);
        rig.launch(&stream, 5, NEVER);
        edge(device, &branch, &stream);
        rig.launch(&stream, 7, NEVER);
        let graph = stream.end_capture().unwrap();
        assert_eq!(branch.capture(), Capture::None);
        assert_eq!(graph.edges(), vec![(0, 1), (0, 2), (1, 3), (2, 3)]);
        for _ in 0..10 {
            graph.launch(&stream, &LONG).unwrap();
        }
        stream.synchronize(&LONG).unwrap();
        assert_eq!(rig.get(), after(0, &[2, 5, 7].repeat(10)));
        assert_eq!(second.get(), after(0, &[3; 10]));
        // Both are streams like any other again.
        rig.launch(&branch, 1, NEVER);
        branch.synchronize(&LONG).unwrap();
    }
}

/// A branch waits for a word that only the other branch changes, whichever was captured first.
#[test]
fn branches_run_at_once_where_there_are_workers() {
    for device in devices() {
        let (stream, branch) = (
            device.stream(StreamMode::Worker).unwrap(),
            device.stream(StreamMode::Worker).unwrap(),
        );
        let rig = Rig::new(device.clone());
        for first_waits in [true, false] {
            rig.set(0);
            stream.begin_capture().unwrap();
            edge(&device, &stream, &branch);
            let (waits, changes) =
                if first_waits { (&stream, &branch) } else { (&branch, &stream) };
            rig.launch(waits, 5, 0);
            rig.launch(changes, 1, NEVER);
            edge(&device, &branch, &stream);
            let graph = stream.end_capture().unwrap();
            graph.launch(&stream, &LONG).unwrap();
            stream.synchronize(&LONG).unwrap();
            assert_eq!(rig.get(), 6, "{device:?}");
        }
    }
}

#[test]
fn launches_of_one_graph_follow_each_other_on_any_streams() {
    for device in devices() {
        let rig = Rig::new(device.clone());
        let streams: Vec<_> = (0..3).map(|_| device.stream(StreamMode::Worker).unwrap()).collect();
        let graph = captured(&rig, &streams[0], &[3, 5]);
        for round in 0..30 {
            graph.launch(&streams[round % 3], &LONG).unwrap();
        }
        streams.iter().for_each(|s| s.synchronize(&LONG).unwrap());
        assert_eq!(rig.get(), after(0, &[3, 5].repeat(30)));
    }
}

#[test]
fn what_cannot_be_captured_breaks_the_capture() {
    type Misuse = (CaptureError, fn(&Rig, &Stream) -> Result<(), SyncError>);
    let misuses: [Misuse; 5] = [
        (CaptureError::NotCapturable { call: "Stream::synchronize" }, |_, s| s.synchronize(&LONG)),
        (CaptureError::NotCapturable { call: "Event::synchronize" }, |rig, s| {
            let event = rig.device.event();
            s.record(&event).unwrap();
            assert!(!event.is_complete());
            event.synchronize(&LONG)
        }),
        (CaptureError::NotCapturable { call: "Graph::launch" }, |rig, s| {
            let other = rig.device.stream(StreamMode::Worker).unwrap();
            captured(rig, &other, &[3]).launch(s, &LONG)
        }),
        (CaptureError::Isolation, |rig, s| {
            let (event, eager) =
                (rig.device.event(), rig.device.stream(StreamMode::Worker).unwrap());
            eager.record(&event).unwrap();
            s.wait(&event, &LONG)
        }),
        (CaptureError::Isolation, |rig, s| {
            let (event, other) =
                (rig.device.event(), rig.device.stream(StreamMode::Worker).unwrap());
            other.begin_capture().unwrap();
            other.record(&event).unwrap();
            s.wait(&event, &LONG)
        }),
    ];
    for (rig, stream) in streams() {
        for (expected, misuse) in &misuses {
            stream.begin_capture().unwrap();
            rig.launch(&stream, 3, NEVER);
            is(misuse(&rig, &stream), expected.clone());
            assert_eq!(stream.capture(), Capture::Invalidated);
            is(rig.try_launch(&stream, 3, NEVER), CaptureError::Invalidated);
            assert_eq!(stream.end_capture().unwrap_err(), CaptureError::Invalidated);
            assert_eq!(stream.capture(), Capture::None);
        }
        // Nothing of it has run, and the stream is as it was.
        rig.launch(&stream, 1, NEVER);
        stream.synchronize(&LONG).unwrap();
        assert_eq!(rig.get(), 1);
    }
}

#[test]
fn captures_begin_and_end_on_their_stream() {
    for (rig, stream) in streams() {
        let device = &rig.device;
        let branch = device.stream(StreamMode::Worker).unwrap();
        assert_eq!(stream.end_capture().unwrap_err(), CaptureError::NotActive);
        stream.begin_capture().unwrap();
        assert_eq!(stream.begin_capture().unwrap_err(), CaptureError::Active);
        let event = edge(device, &stream, &branch);
        assert_eq!(branch.begin_capture().unwrap_err(), CaptureError::Active);
        assert_eq!(branch.end_capture().unwrap_err(), CaptureError::NotOrigin);
        rig.launch(&branch, 3, NEVER);
        // Its work would follow nothing that the graph's end follows.
        assert_eq!(stream.end_capture().unwrap_err(), CaptureError::Unjoined { streams: 1 });
        assert_eq!((stream.capture(), branch.capture()), (Capture::None, Capture::None));
        // The event is of a capture that is over.
        is(branch.wait(&event, &LONG), CaptureError::Ended);
        let default = device.default_stream().unwrap();
        assert_eq!(default.begin_capture().unwrap_err(), CaptureError::DefaultStream);
        stream.begin_capture().unwrap();
        stream.record(&event).unwrap();
        is(default.wait(&event, &LONG), CaptureError::DefaultStream);
        assert_eq!(stream.end_capture().unwrap_err(), CaptureError::Invalidated);
    }
}

#[test]
fn a_graph_holds_what_its_work_needs_and_no_longer() {
    for (rig, stream) in streams() {
        let kept: KeepAlive = Arc::new(());
        let args = rig::Args { word: rig.memory.base(), factor: 2, hold: NEVER };
        let keep = [kept.clone()];
        stream.begin_capture().unwrap();
        // SAFETY: `step` takes an `Args`; the rig outlives the graph.
        let launched = unsafe { stream.launch(Launch::new(rig.function, &args, &LONG, &keep)) };
        assert_eq!(launched.unwrap(), Launched::Recorded);
        let graph = stream.end_capture().unwrap();
        drop(keep);
        assert_eq!(Arc::strong_count(&kept), 2);
        graph.launch(&stream, &LONG).unwrap();
        drop(graph);
        stream.synchronize(&LONG).unwrap();
        while Arc::strong_count(&kept) > 1 {
            std::thread::yield_now();
        }
        // A capture that nobody ends goes with its stream.
        let lost = rig.device.stream(StreamMode::Worker).unwrap();
        lost.begin_capture().unwrap();
        let keep = [kept.clone()];
        // SAFETY: as above.
        let _ = unsafe { lost.launch(Launch::new(rig.function, &args, &LONG, &keep)) }.unwrap();
        drop((lost, keep));
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}

/// One order: a step on each of the streams, in turn.
fn in_order(rig: &Rig, order: &StreamOrder, on: &[&Stream], factors: &[u32]) {
    for (stream, factor) in on.iter().zip(factors) {
        let turn = order.enter(stream, &LONG).unwrap();
        rig.launch(stream, *factor, NEVER);
        drop(turn);
    }
}

#[test]
fn an_order_makes_edges_inside_a_capture() {
    for (rig, stream) in streams() {
        let device = &rig.device;
        let branch = device.stream(StreamMode::Worker).unwrap();
        let (order, other) = (StreamOrder::new(device), StreamOrder::new(device));
        let capture = |second: &StreamOrder| {
            stream.begin_capture().unwrap();
            edge(device, &stream, &branch);
            in_order(&rig, &order, &[&stream], &[3]);
            in_order(&rig, second, &[&branch], &[5]);
            edge(device, &branch, &stream);
            stream.end_capture().unwrap()
        };
        // Two steps of one order are ordered, of two orders are not.
        assert_eq!(capture(&order).edges(), vec![(0, 1)]);
        assert_eq!(capture(&other).edges(), vec![]);
        let graph = capture(&order);
        for _ in 0..5 {
            graph.launch(&stream, &LONG).unwrap();
        }
        stream.synchronize(&LONG).unwrap();
        assert_eq!(rig.get(), after(0, &[3, 5].repeat(5)));
    }
}

/// An eager step, one captured on the same stream, one eager on another: nothing of the capture is
/// waited for, and the eager ones keep their order.
#[test]
fn an_order_inserts_no_wait_across_captures() {
    for (rig, stream) in streams() {
        let device = &rig.device;
        let other = device.stream(StreamMode::Worker).unwrap();
        let order = StreamOrder::new(device);
        rig.set(NEVER - 1);
        let turn = order.enter(&stream, &LONG).unwrap();
        let held = !stream.is_inline();
        if held {
            // Still running while the rest is issued.
            rig.launch(&stream, 2, NEVER - 1);
        }
        drop(turn);
        stream.begin_capture().unwrap();
        // Captured while the eager turn of another thread lasts: nothing to wait for.
        let eager = order.enter(&other, &LONG).unwrap();
        in_order(&rig, &order, &[&stream], &[1000]);
        drop(eager);
        in_order(&rig, &order, &[&other], &[3]);
        let graph = stream.end_capture().unwrap();
        if held {
            rig.set(10);
        }
        other.synchronize(&LONG).unwrap();
        let found = rig.get();
        let start = if held { after(10, &[2]) } else { NEVER - 1 };
        assert_eq!(found, after(start, &[3]));
        assert_eq!((graph.nodes(), graph.edges()), (1, vec![]));
        stream.begin_capture().unwrap();
        stream.synchronize(&LONG).unwrap_err();
        let refused = order.enter(&stream, &Wait::millis(1));
        assert!(matches!(
            refused.unwrap_err(),
            OrderError::Stream(SyncError::Capture(CaptureError::Invalidated))
        ));
        stream.end_capture().unwrap_err();
    }
}
