//! Captures and graphs.

use std::sync::Arc;

use symmem_hal::types::Bytes;
use symmem_hal::{
    Capture, CaptureError, Device, Graph, KeepAlive, Launched, Memory, Stream, StreamMode,
    SyncError,
};

use super::{LONG, copy, fill, gpu, nothing, soon, word, words};

fn captured(stream: &Stream, memory: &Memory) -> Graph {
    stream.begin_capture().unwrap();
    assert!(matches!(stream.capture(), Capture::Active(_)));
    assert_eq!(fill(stream, memory, 0, 5, 4), Launched::Recorded);
    copy(stream, memory, 8, 0, 4);
    // SAFETY: the memory outlives the graph.
    let _ = unsafe { stream.write_value32(word(memory, 0), 6, &nothing) }.unwrap();
    stream.end_capture().unwrap()
}

#[test]
fn a_graph_runs_at_each_launch_and_only_then() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let (stream, other) =
        (device.stream(StreamMode::Worker).unwrap(), device.stream(StreamMode::Worker).unwrap());
    let graph = captured(&stream, &memory);
    assert_eq!((graph.nodes(), graph.edges()), (3, vec![(0, 1), (1, 2)]));
    stream.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 12), [0; 12]);
    for stream in [&stream, &other, &stream] {
        memory.write(Bytes::ZERO, &[0; 64]).unwrap();
        graph.launch(stream, &LONG).unwrap();
        stream.synchronize(&LONG).unwrap();
        assert_eq!(words(&memory, 12), [6, 5, 5, 5, 0, 0, 0, 0, 5, 5, 5, 5]);
    }
    stream.begin_capture().unwrap();
    let empty = stream.end_capture().unwrap();
    assert_eq!((empty.nodes(), empty.edges()), (0, vec![]));
    empty.launch(&stream, &LONG).unwrap();
    let host = Device::host().stream(StreamMode::Worker).unwrap();
    assert!(matches!(graph.launch(&host, &LONG), Err(SyncError::OtherBackend)));
}

#[test]
fn streams_fork_and_join_in_a_capture() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let (stream, branch) =
        (device.stream(StreamMode::Worker).unwrap(), device.stream(StreamMode::Worker).unwrap());
    let event = device.event();
    stream.begin_capture().unwrap();
    fill(&stream, &memory, 0, 2, 1);
    stream.record(&event).unwrap();
    assert!(!event.is_complete());
    branch.wait(&event, &LONG).unwrap();
    assert_eq!(branch.capture(), stream.capture());
    fill(&branch, &memory, 1, 3, 1);
    fill(&stream, &memory, 2, 5, 1);
    branch.record(&event).unwrap();
    stream.wait(&event, &LONG).unwrap();
    fill(&stream, &memory, 3, 7, 1);
    let graph = stream.end_capture().unwrap();
    assert_eq!(branch.capture(), Capture::None);
    let mut edges = graph.edges();
    edges.sort_unstable();
    assert_eq!(edges, [(0, 1), (0, 2), (1, 3), (2, 3)]);
    graph.launch(&branch, &LONG).unwrap();
    branch.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 4), [2, 3, 5, 7]);
}

fn is<T: core::fmt::Debug>(result: Result<T, SyncError>, expected: &CaptureError) {
    match result {
        Err(SyncError::Capture(found)) => assert_eq!(&found, expected),
        other => panic!("expected {expected:?}, found {other:?}"),
    }
}

#[test]
fn what_cannot_be_captured_breaks_the_capture() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let (stream, other) =
        (device.stream(StreamMode::Worker).unwrap(), device.stream(StreamMode::Worker).unwrap());
    let graph = captured(&other, &memory);
    type Misuse<'a> = Box<dyn Fn() -> Result<(), SyncError> + 'a>;
    let misuses: [(CaptureError, Misuse<'_>); 5] = [
        (
            CaptureError::NotCapturable { call: "Stream::synchronize" },
            Box::new(|| stream.synchronize(&LONG)),
        ),
        (
            CaptureError::NotCapturable { call: "Event::synchronize" },
            Box::new(|| {
                let event = device.event();
                stream.record(&event)?;
                event.synchronize(&LONG)
            }),
        ),
        (
            CaptureError::NotCapturable { call: "Graph::launch" },
            Box::new(|| graph.launch(&stream, &LONG)),
        ),
        (
            CaptureError::Isolation,
            Box::new(|| {
                let event = device.event();
                other.record(&event)?;
                stream.wait(&event, &LONG)
            }),
        ),
        (
            CaptureError::Isolation,
            Box::new(|| {
                let (event, third) = (device.event(), device.stream(StreamMode::Worker).unwrap());
                third.begin_capture()?;
                third.record(&event)?;
                stream.wait(&event, &LONG)
            }),
        ),
    ];
    for (expected, misuse) in &misuses {
        stream.begin_capture().unwrap();
        fill(&stream, &memory, 0, 1, 1);
        is(misuse(), expected);
        assert_eq!(stream.capture(), Capture::Invalidated, "{expected}");
        // SAFETY: refused.
        is(unsafe { stream.fill32(memory.base(), 1, 1, &nothing) }, &CaptureError::Invalidated);
        assert_eq!(stream.end_capture().unwrap_err(), CaptureError::Invalidated);
        assert_eq!(stream.capture(), Capture::None);
    }
    stream.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 1), [0]);
}

#[test]
fn captures_begin_and_end_on_their_stream() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let (stream, branch) =
        (device.stream(StreamMode::Worker).unwrap(), device.stream(StreamMode::Worker).unwrap());
    let event = device.event();
    assert_eq!(stream.end_capture().unwrap_err(), CaptureError::NotActive);
    stream.begin_capture().unwrap();
    assert_eq!(stream.begin_capture().unwrap_err(), CaptureError::Active);
    stream.record(&event).unwrap();
    branch.wait(&event, &LONG).unwrap();
    assert_eq!(branch.begin_capture().unwrap_err(), CaptureError::Active);
    assert_eq!(branch.end_capture().unwrap_err(), CaptureError::NotOrigin);
    fill(&branch, &memory, 0, 1, 1);
    assert_eq!(stream.end_capture().unwrap_err(), CaptureError::Unjoined { streams: 1 });
    assert_eq!((stream.capture(), branch.capture()), (Capture::None, Capture::None));
    is(branch.wait(&event, &LONG), &CaptureError::Ended);
    let default = device.default_stream().unwrap();
    assert_eq!(default.begin_capture().unwrap_err(), CaptureError::DefaultStream);
    stream.begin_capture().unwrap();
    stream.record(&event).unwrap();
    is(default.wait(&event, &LONG), &CaptureError::DefaultStream);
    assert_eq!(stream.end_capture().unwrap_err(), CaptureError::Invalidated);
    // Another thread may end what one began.
    stream.begin_capture().unwrap();
    std::thread::scope(|s| s.spawn(|| stream.end_capture().unwrap()).join().unwrap());
}

#[test]
fn an_eager_mark_of_a_stream_that_captures_is_of_its_work_before() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let stream = device.stream(StreamMode::Worker).unwrap();
    fill(&stream, &memory, 0, 4, 1);
    stream.begin_capture().unwrap();
    fill(&stream, &memory, 0, 9, 1);
    let event = device.event();
    stream.mark(&event);
    event.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 1), [4]);
    assert!(stream.is_idle());
    assert!(matches!(stream.capture(), Capture::Active(_)));
    drop(stream.end_capture().unwrap());
}

#[test]
fn a_graph_holds_what_its_work_needs_and_no_longer() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let stream = device.stream(StreamMode::Worker).unwrap();
    let kept: KeepAlive = Arc::new(());
    let record = |stream: &Stream| {
        stream.begin_capture().unwrap();
        for _ in 0..3 {
            // SAFETY: the memory outlives the graph.
            let _ = unsafe { stream.fill32(memory.base(), 1, 1, &|| vec![kept.clone()]) }.unwrap();
        }
    };
    // What queues the release is the driver; what does it is any later call.
    let gone = || {
        soon(|| stream.synchronize(&LONG).is_ok() && Arc::strong_count(&kept) == 1);
    };
    record(&stream);
    assert_eq!(Arc::strong_count(&kept), 2);
    let graph = stream.end_capture().unwrap();
    assert_eq!(Arc::strong_count(&kept), 2);
    graph.launch(&stream, &LONG).unwrap();
    drop(graph);
    gone();
    // A capture that nobody ends goes with its stream.
    let lost = device.stream(StreamMode::Worker).unwrap();
    record(&lost);
    drop(lost);
    gone();
}
