//! The CUDA backend beside its contract: on the driver that the loader finds, be it of a GPU or one
//! in software that `SYMMEM_CUDA_LIBRARY` names. No kernels: copies and fills are enough to see order,
//! captures and lifetimes. Without a driver each test says so and passes.
#![cfg(feature = "cuda")]
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests copy by addresses; a failed set-up fails the test"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use symmem_hal::types::{BackendKind, Bytes, DeviceUuid};
use symmem_hal::{
    AccessError, AllocError, Capture, CaptureError, Device, DeviceError, DevicePtr, ExportError,
    Fault as _, Graph, Grid, ImportError, KeepAlive, KernelSource, Kind, Launch, Launched,
    LoadError, Memory, PeerAccessError, RangeError, Stream, StreamMode, StreamOrder, SyncError,
    Unit, Wait, bytemuck,
};
use symmem_sys::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, Driver};

const LONG: Wait = Wait::seconds(30);

/// The first device, if there is a driver.
fn gpu() -> Option<Device> {
    match Device::cuda(0) {
        Ok(device) => Some(device),
        Err(DeviceError::NotFound(reason)) => {
            eprintln!("skipped: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn nothing() -> Vec<KeepAlive> {
    Vec::new()
}

fn words(memory: &Memory, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    memory.read(Bytes::ZERO, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect()
}

fn word(memory: &Memory, index: u64) -> DevicePtr {
    memory.base().checked_add(Bytes::new(index * 4)).unwrap()
}

fn fill(stream: &Stream, memory: &Memory, index: u64, value: u32, count: u64) -> Launched {
    // SAFETY: the tests wait for the stream, or launch the graph, while the memory lives.
    unsafe { stream.fill32(word(memory, index), value, count, &nothing) }.unwrap()
}

fn copy(stream: &Stream, memory: &Memory, to: u64, from: u64, count: u64) -> Launched {
    let bytes = Bytes::new(count * 4);
    // SAFETY: as in `fill`.
    unsafe { stream.copy(word(memory, to), word(memory, from), bytes, &nothing) }.unwrap()
}

#[test]
fn a_missing_driver_names_what_was_searched() {
    if let Err(error @ DeviceError::NotFound(_)) = Device::cuda(0) {
        assert!(error.to_string().contains("SYMMEM_CUDA_LIBRARY"), "{error}");
        assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        assert_eq!(error.kind(), Kind::Unsupported);
    }
}

#[test]
fn devices_are_found_by_ordinal_and_identity() {
    let Some(device) = gpu() else { return };
    let found = Device::cuda_count().unwrap();
    assert_eq!(Device::cuda_by_uuid(device.uuid()).unwrap().uuid(), device.uuid());
    assert_eq!(device.kind(), BackendKind::Cuda);
    assert!(device.capabilities().units > 0 && device.capabilities().arch.is_some());
    let Err(DeviceError::NoDevice { wanted, found: said, .. }) = Device::cuda(found) else {
        panic!("there is one more device than there are");
    };
    assert_eq!((wanted, said), (found, found));
    let other = DeviceUuid([0x5a; 16]);
    let error = Device::cuda_by_uuid(other).unwrap_err();
    assert!(matches!(error, DeviceError::NoUuid { .. }), "{error}");
    device.can_access_peer(device.uuid()).unwrap();
    let error = device.can_access_peer(other).unwrap_err();
    assert!(matches!(error, PeerAccessError::NotVisible { .. }), "{error}");
}

#[test]
fn calls_leave_the_current_context_as_it_was() {
    let Some(device) = gpu() else { return };
    let current = || {
        let mut context = core::ptr::null_mut();
        // SAFETY: writes one handle.
        let _ = unsafe { (Driver::get().unwrap().cuCtxGetCurrent().unwrap())(&raw mut context) };
        context
    };
    let before = current();
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let stream = device.stream(StreamMode::Worker).unwrap();
    fill(&stream, &memory, 0, 1, 1);
    stream.synchronize(&LONG).unwrap();
    drop((memory, stream));
    assert_eq!(current(), before);
}

#[test]
fn memory_is_zero_and_can_be_copied_to_its_ends() {
    let Some(device) = gpu() else { return };
    for size in [0, 1, 4096, 2 << 20, (2 << 20) + 1] {
        for private in [false, true] {
            let bytes = Bytes::new(size);
            let memory =
                if private { device.allocate_private(bytes) } else { device.allocate(bytes) };
            let memory = memory.unwrap();
            assert_eq!((memory.bytes(), memory.backend()), (bytes, BackendKind::Cuda));
            assert!(!memory.base().is_null() && memory.host_segment().is_none());
            let mut all = vec![1; size as usize];
            memory.read(Bytes::ZERO, &mut all).unwrap();
            assert!(all.iter().all(|b| *b == 0), "{size} bytes are not zero");
            memory.write(bytes, &[]).unwrap();
            let expected = AccessError::Range(RangeError {
                offset: bytes,
                length: Bytes::new(1),
                size: bytes,
            });
            assert_eq!(memory.write(bytes, &[1]).unwrap_err(), expected);
            assert_eq!(memory.read(bytes, &mut [0]).unwrap_err(), expected);
            if size > 0 {
                memory.write(Bytes::new(size - 1), &[7]).unwrap();
                memory.read(Bytes::ZERO, &mut all).unwrap();
                assert_eq!(all.iter().map(|b| u64::from(*b)).sum::<u64>(), 7);
                assert_eq!(all.last(), Some(&7));
            }
        }
    }
}

#[test]
fn words_are_filled_at_a_distance() {
    let Some(device) = gpu() else { return };
    for device in [device, Device::host(), Device::stub(0)] {
        let memory = device.allocate(Bytes::new(64)).unwrap();
        memory.fill32(Bytes::new(8), Bytes::new(16), 5, 4).unwrap();
        let expected = [0, 0, 5, 0].repeat(4);
        assert_eq!(words(&memory, 16), expected);
        memory.fill32(Bytes::new(4), Bytes::new(4), 6, 2).unwrap();
        assert_eq!(words(&memory, 4), [0, 6, 6, 0]);
        for (offset, pitch, count) in [(52, 16, 2), (2, 4, 1), (0, 6, 2), (64, 4, 1)] {
            let filled = memory.fill32(Bytes::new(offset), Bytes::new(pitch), 9, count);
            assert!(matches!(filled, Err(AccessError::Range(_))), "{offset} {pitch} {count}");
        }
        memory.fill32(Bytes::new(64), Bytes::new(4), 9, 0).unwrap();
        assert!(!words(&memory, 16).contains(&9));
    }
}

#[test]
fn too_much_says_how_much_there_is() {
    let Some(device) = gpu() else { return };
    for bytes in [Bytes::new(1 << 60), Bytes::new(u64::MAX)] {
        let error = device.allocate(bytes).unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted);
        let AllocError::Exhausted { needed, available, .. } = &error else { panic!("{error}") };
        assert_eq!(*needed, bytes);
        assert!(*available < bytes && *available > Bytes::ZERO, "{error}");
    }
}

#[test]
fn what_is_exported_is_the_same_memory() {
    let Some(device) = gpu() else { return };
    let bytes = Bytes::new(5000);
    let memory = device.allocate(bytes).unwrap();
    let peers = device.import(memory.export().unwrap(), bytes).unwrap();
    assert_ne!(peers.base(), memory.base());
    memory.write(Bytes::new(4996), &9u32.to_ne_bytes()).unwrap();
    let mut seen = [0; 4];
    peers.read(Bytes::new(4996), &mut seen).unwrap();
    assert_eq!(u32::from_ne_bytes(seen), 9);
    assert!(peers.survives_peer_loss());
    assert!(matches!(peers.export(), Err(ExportError::NotOwner)));
    let private = device.allocate_private(bytes).unwrap();
    assert!(matches!(private.export(), Err(ExportError::NotOwner)));
    // The owner's goes first: the importer's stays.
    drop(memory);
    peers.read(Bytes::new(4996), &mut seen).unwrap();
    assert_eq!(u32::from_ne_bytes(seen), 9);
    // A descriptor of something else.
    let other = Device::host().allocate(bytes).unwrap();
    let error = device.import(other.export().unwrap(), bytes).unwrap_err();
    assert!(matches!(error, ImportError::Device { .. }), "{error}");
    // Bytes that are not there.
    let small = device.allocate(Bytes::new(1)).unwrap();
    assert!(device.import(small.export().unwrap(), Bytes::mib(64)).is_err());
}

#[test]
fn a_fabric_handle_is_made_where_the_device_says_so() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let exported = memory.export_fabric();
    assert_eq!(exported.is_ok(), device.capabilities().fabric, "{exported:?}");
    if let Ok(shared) = exported {
        let peers = device.import(shared, memory.bytes()).unwrap();
        memory.write(Bytes::ZERO, &[3]).unwrap();
        assert_eq!(words(&peers, 1)[0].to_ne_bytes()[0], 3);
    }
}

#[test]
fn another_device_opens_the_same_mapping() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    assert_eq!(device.open(&memory).unwrap().base(), memory.base());
    let host = Device::host().allocate(Bytes::kib(4)).unwrap();
    assert!(matches!(device.open(&host), Err(ImportError::Unsupported { .. })));
    let Ok(other) = Device::cuda(1) else { return eprintln!("skipped: one device") };
    if other.can_access_peer(device.uuid()).is_err() {
        return eprintln!("skipped: no path between the two");
    }
    let opened = other.open(&memory).unwrap();
    assert_eq!(opened.base(), memory.base());
    let stream = other.stream(StreamMode::Worker).unwrap();
    fill(&stream, &opened, 3, 8, 1);
    stream.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 5), [0, 0, 0, 8, 0]);
    let private = device.allocate_private(Bytes::kib(4)).unwrap();
    assert!(matches!(other.open(&private), Err(ImportError::Unsupported { .. })));
}

#[test]
fn foreign_memory_tells_how_it_can_be_shared() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(8)).unwrap();
    let kept: KeepAlive = Arc::new(());
    let of = |address, bytes, keep| {
        // SAFETY: part of `memory`, which outlives it.
        unsafe { Memory::from_raw(&device, address, bytes, keep) }
    };
    let foreign = of(memory.base(), Bytes::kib(4), Some(kept.clone())).unwrap();
    memory.write(Bytes::ZERO, &4u32.to_ne_bytes()).unwrap();
    assert_eq!(words(&foreign, 1), [4]);
    let peers = device.import(foreign.export().unwrap(), Bytes::kib(4)).unwrap();
    assert_eq!(words(&peers, 1), [4]);
    let middle = of(word(&memory, 64), Bytes::kib(4), None).unwrap();
    assert!(matches!(middle.export(), Err(ExportError::NotShareable { .. })));
    assert_eq!(Arc::strong_count(&kept), 2);
    drop(foreign);
    assert_eq!(Arc::strong_count(&kept), 1);
    let local = 0u64;
    let here = DevicePtr::new(core::ptr::from_ref(&local).addr() as u64);
    assert!(matches!(of(here, Bytes::new(8), None), Err(ImportError::Unsupported { .. })));
}

#[test]
fn kernels_find_memory_of_the_cpu() {
    let Some(device) = gpu() else { return };
    let memory = Device::host().allocate(Bytes::new(100)).unwrap();
    let there = device.map_host(&memory).unwrap();
    assert_eq!(device.map_host(&memory).unwrap(), there);
    let stream = device.stream(StreamMode::Worker).unwrap();
    // SAFETY: the memory is mapped until after the stream was waited for.
    let _ = unsafe { stream.fill32(there, 6, 25, &nothing) }.unwrap();
    stream.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 25), [6; 25]);
    let own = device.allocate(Bytes::new(4)).unwrap();
    assert!(matches!(device.map_host(&own), Err(ImportError::Unsupported { .. })));
}

#[test]
fn streams_copy_and_fill_in_order() {
    let Some(gpu) = gpu() else { return };
    for device in [gpu, Device::host(), Device::stub(0)] {
        let memory = device.allocate(Bytes::new(400)).unwrap();
        for stream in [device.stream(StreamMode::Worker), device.urgent_stream()] {
            let stream = stream.unwrap();
            assert_eq!(fill(&stream, &memory, 0, 3, 10), Launched::Queued);
            copy(&stream, &memory, 50, 0, 10);
            fill(&stream, &memory, 0, 4, 5);
            // SAFETY: as in `fill`.
            let _ = unsafe { stream.write_value32(word(&memory, 99), 77, &nothing) }.unwrap();
            assert_eq!(fill(&stream, &memory, 0, 9, 0), Launched::Finished);
            assert_eq!(copy(&stream, &memory, 0, 9, 0), Launched::Finished);
            let part =
                |to, from, count| (word(&memory, to), word(&memory, from), Bytes::new(count));
            let parts = [part(20, 0, 8), part(30, 0, 0), part(40, 50, 4), part(41, 3, 16)];
            // SAFETY: as in `fill`; the destinations are apart.
            let _ = unsafe { stream.copy_batch(&parts, &nothing) }.unwrap();
            stream.synchronize(&LONG).unwrap();
            assert!(stream.is_idle());
            let found = words(&memory, 100);
            assert_eq!(found[..11], [4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 0]);
            assert_eq!(found[20..23], [4, 4, 0]);
            assert_eq!(found[40..46], [3, 4, 4, 3, 3, 0]);
            assert_eq!(found[50..61], [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0]);
            assert_eq!(found[99], 77);
            memory.write(Bytes::ZERO, &[0; 400]).unwrap();
        }
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

fn soon(mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < Duration::from_secs(30), "it does not happen");
        std::thread::yield_now();
    }
}

#[test]
fn events_order_streams_and_wake_who_waits() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let (first, second) =
        (device.stream(StreamMode::Worker).unwrap(), device.stream(StreamMode::Worker).unwrap());
    assert_ne!(first.id(), second.id());
    let event = device.event();
    assert!(event.is_complete());
    event.synchronize(&LONG).unwrap();
    for round in 1..200 {
        fill(&first, &memory, 0, round, 8);
        first.record(&event).unwrap();
        second.wait(&event, &LONG).unwrap();
        copy(&second, &memory, 16, 0, 8);
        second.record(&event).unwrap();
        first.wait(&event, &LONG).unwrap();
    }
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    event.on_complete(Waker::from(woken.clone()));
    event.synchronize(&LONG).unwrap();
    assert!(event.is_complete());
    assert_eq!(words(&memory, 24)[16..], [199; 8]);
    soon(|| woken.0.load(Ordering::Acquire));
    let other = Device::host().event();
    assert!(first.record(&other).is_err());
    first.wait(&other, &LONG).unwrap();
}

#[test]
fn an_order_joins_streams() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let streams: Vec<_> = (0..3).map(|_| device.stream(StreamMode::Worker).unwrap()).collect();
    let order = StreamOrder::new(&device);
    for round in 0..60u32 {
        let stream = &streams[round as usize % 3];
        let turn = order.enter(stream, &LONG).unwrap();
        fill(stream, &memory, 0, round, 1);
        drop(turn);
    }
    streams[59 % 3].synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 1), [59]);
}

#[test]
fn a_stream_keeps_what_its_work_uses() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let stream = device.stream(StreamMode::Worker).unwrap();
    let many: Vec<KeepAlive> = (0..1000).map(|i| Arc::new(i) as KeepAlive).collect();
    for object in &many {
        // SAFETY: the memory outlives the stream's work.
        let _ = unsafe { stream.fill32(memory.base(), 1, 1, &|| vec![object.clone()]) }.unwrap();
    }
    assert_eq!(Arc::strong_count(&many[999]), 2);
    stream.synchronize(&LONG).unwrap();
    assert!(many.iter().all(|object| Arc::strong_count(object) == 1));
    // Whoever allocates lets go of what is done, without a wait for the stream.
    // SAFETY: as above.
    let _ = unsafe { stream.fill32(memory.base(), 1, 1, &|| vec![many[0].clone()]) }.unwrap();
    soon(|| device.allocate(Bytes::new(1)).is_ok() && Arc::strong_count(&many[0]) == 1);
    // A stream that goes lets its work end first.
    // SAFETY: as above.
    let _ = unsafe { stream.fill32(memory.base(), 1, 1, &|| many.clone()) }.unwrap();
    drop(stream);
    soon(|| many.iter().all(|object| Arc::strong_count(object) == 1));
}

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

#[test]
fn foreign_streams_are_known_again() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let kept: KeepAlive = Arc::new(());
    // SAFETY: the default streams are never destroyed; the other is this test's own.
    let of = |raw, keep| unsafe { Stream::from_raw(&device, raw, keep) };
    let legacy = of(core::ptr::null_mut(), Some(kept.clone())).unwrap();
    assert_eq!(of(CU_STREAM_LEGACY.cast(), None).unwrap().id(), legacy.id());
    assert_eq!(legacy.begin_capture().unwrap_err(), CaptureError::DefaultStream);
    fill(&legacy, &memory, 0, 3, 1);
    legacy.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 1), [3]);
    let error = of(CU_STREAM_PER_THREAD.cast(), None).unwrap_err();
    assert!(matches!(error, DeviceError::Foreign { .. }), "{error}");
    let own = device.stream(StreamMode::Worker).unwrap();
    assert_eq!(of(own.as_raw().unwrap(), None).unwrap().id(), own.id());
    drop(legacy);
    assert_eq!(Arc::strong_count(&kept), 1);
    let other = of(own.as_raw().unwrap(), None).unwrap();
    drop(own);
    fill(&other, &memory, 0, 4, 1);
    other.synchronize(&LONG).unwrap();
    if let Ok(second) = Device::cuda(1) {
        // SAFETY: as above.
        let refused = unsafe { Stream::from_raw(&second, other.as_raw().unwrap(), None) };
        assert!(matches!(refused, Err(DeviceError::Foreign { .. })));
    }
}

static STEPS: KernelSource = KernelSource {
    name: "hal-tests-steps",
    file: (
        "steps.cu",
        r#"
struct Step { unsigned* word; unsigned factor; unsigned shared; };
extern "C" __global__ void step(const __grid_constant__ Step step) {
    extern __shared__ unsigned scratch[];
    WAIT;
    if (threadIdx.x == 0) scratch[step.shared / 4 - 1] = step.factor;
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == blockDim.x - 1)
        *step.word = *step.word * scratch[step.shared / 4 - 1] + gridDim.x;
}
"#,
    ),
    headers: &[],
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Step {
    word: DevicePtr,
    factor: u32,
    shared: u32,
}

/// A driver in software that runs no kernels.
fn runs_kernels() -> bool {
    !Driver::get().unwrap().path().to_string_lossy().contains("fake")
}

#[test]
fn kernels_are_compiled_once_and_launched_with_their_arguments() {
    let Some(device) = gpu() else { return };
    let wait = "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\")";
    let arch = device.capabilities().arch.unwrap();
    let wait = if arch >= (9, 0) { wait } else { "(void)0" };
    let defines = [("WAIT", wait)];
    let unit = Unit { source: &STEPS, defines: &defines };
    let module = match device.compile(&unit) {
        Ok(module) => module,
        Err(error @ LoadError::NoCode { .. }) => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let function = module.device_function("step", size_of::<Step>()).unwrap();
    assert_eq!((function.args(), function.backend()), (16, BackendKind::Cuda));
    if runs_kernels() {
        let missing = module.device_function("stride", 16).unwrap_err();
        assert!(matches!(missing, LoadError::NoKernel { .. }), "{missing}");
        let other = module.device_function("step", 24).unwrap_err();
        assert!(matches!(other, LoadError::Arguments { expected: 24, found: 16, .. }), "{other}");
        let units = device.capabilities().units;
        assert!(function.resident_blocks(32, 0) >= units);
        assert!(function.resident_blocks(1024, 100 << 10) < function.resident_blocks(32, 0));
    }
    let again = device.compile(&unit).unwrap().device_function("step", 16).unwrap();
    let (memory, stream) =
        (device.allocate(Bytes::new(64)).unwrap(), device.stream(StreamMode::Worker).unwrap());
    let launch = |factor, grid: Grid| {
        let args = Step { word: memory.base(), factor, shared: grid.shared };
        // SAFETY: `step` takes a `Step`; the memory outlives the stream's work and the graph.
        unsafe { stream.launch(Launch::new(again, &args, &LONG, &[]).grid(grid)) }
    };
    let grid = Grid { blocks: 3, threads: 64, shared: 64, ..Grid::default() };
    let large = Grid { shared: 100 << 10, ..grid };
    assert_eq!(launch(1, grid).unwrap(), Launched::Queued);
    launch(2, large).unwrap();
    launch(3, Grid { dependent: arch >= (9, 0), ..grid }).unwrap();
    launch(4, Grid { cooperative: true, blocks: 2, ..grid }).unwrap();
    stream.synchronize(&LONG).unwrap();
    let expected = ((3 * 2 + 3) * 3 + 3) * 4 + 2;
    if runs_kernels() {
        assert_eq!(words(&memory, 2), [expected, 0]);
    }
    stream.begin_capture().unwrap();
    assert_eq!(launch(5, grid).unwrap(), Launched::Recorded);
    launch(6, Grid { dependent: arch >= (9, 0), ..grid }).unwrap();
    let graph = stream.end_capture().unwrap();
    assert_eq!((graph.nodes(), graph.edges()), (2, vec![(0, 1)]));
    graph.launch(&stream, &LONG).unwrap();
    stream.synchronize(&LONG).unwrap();
    if runs_kernels() {
        assert_eq!(words(&memory, 1), [(expected * 5 + 3) * 6 + 3]);
        // More than the device has: refused, and the stream goes on.
        let refused = launch(1, Grid { threads: 4096, ..grid }).unwrap_err();
        assert!(matches!(refused, SyncError::Device(_)), "{refused}");
        let refused = launch(1, Grid { cooperative: true, blocks: 1 << 20, ..grid }).unwrap_err();
        assert!(matches!(refused, SyncError::Device(_)), "{refused}");
        launch(0, grid).unwrap();
        stream.synchronize(&LONG).unwrap();
        assert_eq!(words(&memory, 1), [3]);
    }
    let host = Device::host().stream(StreamMode::Inline).unwrap();
    let args = Step { word: memory.base(), factor: 1, shared: 64 };
    // SAFETY: refused.
    let refused = unsafe { host.launch(Launch::new(again, &args, &LONG, &[])) };
    assert!(matches!(refused, Err(SyncError::OtherBackend)));
}

/// cudarc opens the driver of the machine itself, so that this is a test for a GPU.
#[cfg(feature = "cudarc")]
#[test]
fn cudarc_and_this_library_share_contexts_streams_and_memory() {
    let Some(device) = gpu() else { return };
    if !runs_kernels() {
        return eprintln!("skipped: cudarc does not use the driver in software");
    }
    let context = device.to_cudarc().unwrap();
    assert_eq!(Device::from_cudarc(&context).unwrap().uuid(), device.uuid());
    let theirs = context.new_stream().unwrap();
    let stream = Stream::from_cudarc(&theirs).unwrap();
    assert_eq!(stream.as_raw().unwrap(), theirs.cu_stream().cast());
    // Their memory here.
    let slice = Arc::new(theirs.clone_htod(&[1u32, 2, 3, 4]).unwrap());
    let memory = Memory::from_cudarc(slice.clone()).unwrap();
    fill(&stream, &memory, 1, 9, 2);
    assert_eq!(theirs.clone_dtoh(&*slice).unwrap(), [1, 9, 9, 4]);
    assert!(memory.export().is_err());
    drop(slice);
    stream.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 4), [1, 9, 9, 4]);
    // This library's memory there, on a stream of this library's.
    let own = device.allocate(Bytes::new(64)).unwrap();
    let worker = device.stream(StreamMode::Worker).unwrap();
    // SAFETY: the stream outlives all that uses it.
    let lent = unsafe { worker.to_cudarc() }.unwrap();
    let mut view = own.to_cudarc::<u32>(&lent, Bytes::new(16), 4).unwrap();
    lent.memcpy_htod(&[5u32, 6, 7, 8], &mut view.view_mut()).unwrap();
    assert_eq!(lent.clone_dtoh(&view.view()).unwrap(), [5, 6, 7, 8]);
    drop(view);
    worker.synchronize(&LONG).unwrap();
    assert_eq!(words(&own, 9), [0, 0, 0, 0, 5, 6, 7, 8, 0]);
    assert!(own.to_cudarc::<u32>(&lent, Bytes::new(52), 4).is_err());
    assert!(own.to_cudarc::<u32>(&lent, Bytes::new(2), 4).is_err());
    assert!(Device::host().to_cudarc().is_err());
}
