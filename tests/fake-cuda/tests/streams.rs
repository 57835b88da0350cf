//! symmem's streams, events, captures and graphs on the library.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "test memory outlives what is done to it")]

mod rig;

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rig::isolated;
use symmem_hal::types::Bytes;
use symmem_hal::{
    CancelToken, Capture, Device, DevicePtr, Event, Graph, KeepAlive, Kind, Launched, Memory,
    Stream, SyncError, Wait,
};
use symmem_hal::{Fault, StreamMode};
use symmem_sys::cuda::Driver;
use symmem_sys::cuda::bindings::{CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};

const SIZE: Bytes = Bytes::kib(4);
const SOON: Wait = Wait::millis(10);
const LATE: Wait = Wait::seconds(60);

fn cuda() -> Device {
    Device::cuda(0).unwrap()
}

fn worker(device: &Device) -> Stream {
    device.stream(StreamMode::Worker).unwrap()
}

fn at(memory: &Memory, offset: u64) -> DevicePtr {
    memory.base().checked_add(Bytes::new(offset)).unwrap()
}

fn word(memory: &Memory, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    memory.read(Bytes::new(offset), &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

/// Something to be kept alive, and how to see whether it is.
fn object() -> (KeepAlive, Weak<dyn std::any::Any + Send + Sync>) {
    let object: KeepAlive = Arc::new(7_u32);
    let seen = Arc::downgrade(&object);
    (object, seen)
}

fn fill(stream: &Stream, to: DevicePtr, value: u32, keep: &KeepAlive) -> Launched {
    unsafe { stream.fill32(to, value, 1, &|| vec![keep.clone()]) }.unwrap()
}

fn copy(stream: &Stream, to: DevicePtr, from: DevicePtr, keep: &KeepAlive) -> Launched {
    unsafe { stream.copy(to, from, Bytes::new(4), &|| vec![keep.clone()]) }.unwrap()
}

#[test]
fn copies_fills_and_words_in_order() {
    isolated(&[], |_| {
        let device = cuda();
        let (memory, stream) = (device.allocate(SIZE).unwrap(), worker(&device));
        let (keep, _) = object();
        fill(&stream, at(&memory, 0), 3, &keep);
        copy(&stream, at(&memory, 4), at(&memory, 0), &keep);
        unsafe { stream.write_value32(at(&memory, 8), 5, &|| vec![keep.clone()]) }.unwrap();
        let pieces = [
            (at(&memory, 16), at(&memory, 0), Bytes::new(12)),
            (at(&memory, 32), at(&memory, 8), Bytes::new(4)),
        ];
        unsafe { stream.copy_batch(&pieces, &|| vec![keep.clone()]) }.unwrap();
        stream.synchronize(&LATE).unwrap();
        assert!(stream.is_idle());
        let found = [0, 4, 8, 12, 16, 20, 24, 32].map(|offset| word(&memory, offset));
        assert_eq!(found, [3, 3, 5, 0, 3, 3, 5, 5]);
        memory.fill32(Bytes::new(0), Bytes::new(16), 9, 3).unwrap();
        assert_eq!([0, 4, 16, 20, 32].map(|offset| word(&memory, offset)), [9, 3, 9, 3, 9]);
    });
}

#[test]
fn every_wait_is_bounded() {
    isolated(&[], |control| {
        let device = cuda();
        let (memory, stream) = (device.allocate(SIZE).unwrap(), worker(&device));
        let (other, event) = (worker(&device), device.event());
        let (keep, _) = object();
        assert!(event.is_complete());
        control.tell("hold");
        fill(&stream, at(&memory, 0), 3, &keep);
        stream.record(&event).unwrap();
        other.wait(&event, &SOON).unwrap();
        copy(&other, at(&memory, 4), at(&memory, 0), &keep);
        for waited in
            [stream.synchronize(&SOON), other.synchronize(&SOON), event.synchronize(&SOON)]
        {
            assert!(matches!(waited, Err(SyncError::TimedOut { .. })), "{waited:?}");
        }
        assert!(!event.is_complete() && !stream.is_idle());
        control.tell("go");
        event.synchronize(&LATE).unwrap();
        other.synchronize(&LATE).unwrap();
        assert_eq!(word(&memory, 4), 3);
    });
}

#[test]
fn kernels_of_a_graph_find_what_its_launch_is_bounded_by() {
    isolated(&[], |control| {
        let device = cuda();
        let (memory, stream) = (device.allocate(SIZE).unwrap(), worker(&device));
        let (keep, _) = object();
        assert_eq!(stream.launch_bounds().unwrap(), None);
        stream.begin_capture().unwrap();
        let bounds = stream.launch_bounds().unwrap().unwrap();
        assert_eq!(stream.launch_bounds().unwrap(), Some(bounds));
        // What a kernel of the graph would see.
        let size = Bytes::new(16);
        unsafe { stream.copy(at(&memory, 0), bounds, size, &|| vec![keep.clone()]) }.unwrap();
        let graph = stream.end_capture().unwrap();
        let told = |wait: &Wait| {
            control.tell("reset-counts");
            graph.launch(&stream, wait).unwrap();
            stream.synchronize(&LATE).unwrap();
            let words = [0, 4, 8, 12].map(|offset| u64::from(word(&memory, offset)));
            let [deadline, cancel] = [0, 2].map(|i| words[i] | words[i + 1] << 32);
            (deadline, cancel, control.count("cuMemsetD32Async"))
        };
        assert_eq!(told(&Wait::seconds(3)), (3_000_000_000, 0, 1));
        assert_eq!(told(&Wait::seconds(3)), (3_000_000_000, 0, 0), "what is there stays");
        assert_eq!(told(&Wait::seconds(5)), (5_000_000_000, 0, 2));
        assert_eq!(told(&Wait::timeout(Duration::MAX)).0, 1 << 52);
        assert_eq!(told(&Wait::timeout(Duration::ZERO)).0, 1);
        let token = CancelToken::new();
        let (deadline, cancel, _) = told(&Wait::seconds(5).with_cancel(token.clone()));
        assert_eq!(deadline, 5_000_000_000);
        // Memory of the CPU, which has the same address on the device here.
        let flag: *const AtomicU32 = ptr::with_exposed_provenance(cancel as usize);
        let flag = || unsafe { &*flag }.load(Ordering::Acquire);
        let wait = Wait::seconds(5).with_cancel(token.clone());
        control.tell("hold");
        graph.launch(&stream, &wait).unwrap();
        assert_eq!(flag(), 0);
        token.cancel();
        assert_eq!(flag(), 1);
        control.tell("go");
        assert_eq!(told(&Wait::seconds(5)).1, 0, "the next launch has no token");
    });
}

#[test]
fn memory_of_the_cpu_is_given_back_when_no_work_runs() {
    isolated(&[], |control| {
        let device = cuda();
        let (memory, stream) = (device.allocate(SIZE).unwrap(), worker(&device));
        let host = Device::host().allocate(SIZE).unwrap();
        device.map_host(&host).unwrap();
        let (keep, _) = object();
        control.tell("hold");
        fill(&stream, at(&memory, 0), 3, &keep);
        // The driver would wait for the work, which may wait for what this thread does next.
        drop(host);
        assert_eq!(control.live("registrations"), 1);
        control.tell("go");
        stream.synchronize(&LATE).unwrap();
        drop(stream);
        assert_eq!(control.live("registrations"), 0);
    });
}

#[test]
fn no_more_streams_are_made_than_are_held_at_once() {
    isolated(&[], |control| {
        let device = cuda();
        let memory = device.allocate(SIZE).unwrap();
        let (keep, seen) = object();
        let made = || control.count("cuStreamCreateWithPriority");
        let ids: Vec<_> = [worker(&device), worker(&device)].iter().map(Stream::id).collect();
        let before = made();
        for _ in 0..20 {
            let streams = [worker(&device), worker(&device)];
            assert_eq!(streams.iter().map(Stream::id).collect::<Vec<_>>(), ids, "the first made");
            fill(&streams[0], at(&memory, 0), 3, &keep);
            streams[0].synchronize(&LATE).unwrap();
        }
        assert_eq!(made(), before);
        // One that has work is nobody's, until it has none.
        control.tell("hold");
        let first = worker(&device);
        fill(&first, at(&memory, 0), 5, &keep);
        drop(first);
        let (second, third) = (worker(&device), worker(&device));
        assert_eq!(second.id(), ids[1]);
        assert_eq!(made(), before + 1);
        control.tell("go");
        drop(keep);
        while seen.upgrade().is_some() {
            std::thread::yield_now();
        }
        assert_eq!(worker(&device).id(), ids[0]);
        drop((second, third));
    });
}

#[test]
fn nothing_is_launched_while_memory_of_the_cpu_is_given_back() {
    isolated(&[], |control| {
        let device = cuda();
        let (memory, stream) = (device.allocate(SIZE).unwrap(), worker(&device));
        let (keep, _) = object();
        stream.begin_capture().unwrap();
        fill(&stream, at(&memory, 0), 3, &keep);
        let graph = stream.end_capture().unwrap();
        let over = AtomicU32::new(0);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while over.load(Ordering::Acquire) == 0 {
                    graph.launch(&stream, &LATE).unwrap();
                    stream.synchronize(&LATE).unwrap();
                }
            });
            for _ in 0..300 {
                let host = Device::host().allocate(SIZE).unwrap();
                device.map_host(&host).unwrap();
                drop(host);
                std::thread::sleep(Duration::from_micros(200));
            }
            over.store(1, Ordering::Release);
        });
        let ended = control.count("cuMemHostUnregister");
        assert!(ended > 10, "{ended} were given back between launches");
        assert_eq!(control.count("a launch during cuMemHostUnregister"), 0);
    });
}

#[test]
fn what_work_uses_lives_as_long_as_the_work() {
    isolated(&[], |control| {
        let device = cuda();
        let (memory, stream) = (device.allocate(SIZE).unwrap(), worker(&device));
        let (keep, seen) = object();
        control.tell("hold");
        for _ in 0..200 {
            assert!(matches!(fill(&stream, at(&memory, 0), 3, &keep), Launched::Queued));
        }
        drop(keep);
        assert!(seen.upgrade().is_some());
        stream.synchronize(&SOON).unwrap_err();
        assert!(seen.upgrade().is_some());
        control.tell("go");
        stream.synchronize(&LATE).unwrap();
        assert!(seen.upgrade().is_none());

        // The stream is dropped before its work.
        let (keep, seen) = object();
        control.tell("hold");
        fill(&stream, at(&memory, 0), 4, &keep);
        let end = device.event();
        stream.record(&end).unwrap();
        drop((keep, stream));
        assert!(seen.upgrade().is_some());
        control.tell("go");
        end.synchronize(&LATE).unwrap();
        wait_until(|| seen.upgrade().is_none());
    });
}

/// Waits for what another thread is about to do.
fn wait_until(done: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed().as_secs() < 60, "it never came");
        std::thread::yield_now();
    }
}

/// Lets the library hear of objects that ended.
fn settle(control: &rig::Control, device: &Device) {
    control.tell("settle");
    // What a callback queued is drained by a later call.
    drop(device.allocate(SIZE).unwrap());
    worker(device).synchronize(&LATE).unwrap();
}

#[test]
fn a_graph_keeps_what_it_uses() {
    isolated(&[], |control| {
        let device = cuda();
        let (memory, stream) = (device.allocate(SIZE).unwrap(), worker(&device));
        let (other, event, joined) = (worker(&device), device.event(), device.event());
        let (keep, seen) = object();
        stream.begin_capture().unwrap();
        assert!(matches!(stream.capture(), Capture::Active(_)));
        assert!(matches!(fill(&stream, at(&memory, 0), 3, &keep), Launched::Recorded));
        // Another stream joins, and comes back.
        stream.record(&event).unwrap();
        other.wait(&event, &SOON).unwrap();
        assert!(matches!(copy(&other, at(&memory, 4), at(&memory, 0), &keep), Launched::Recorded));
        other.record(&joined).unwrap();
        stream.wait(&joined, &SOON).unwrap();
        let graph: Graph = stream.end_capture().unwrap();
        assert!(matches!(stream.capture(), Capture::None));
        assert_eq!(graph.nodes(), 2);
        assert_eq!(word(&memory, 4), 0);
        drop(keep);
        assert!(seen.upgrade().is_some());
        graph.launch(&stream, &LATE).unwrap();
        stream.synchronize(&LATE).unwrap();
        assert_eq!(word(&memory, 4), 3);
        control.tell("hold");
        graph.launch(&stream, &LATE).unwrap();
        drop(graph);
        assert!(seen.upgrade().is_some(), "a launch that is under way uses it");
        control.tell("go");
        stream.synchronize(&LATE).unwrap();
        settle(control, &device);
        wait_until(|| seen.upgrade().is_none());
        assert_eq!((control.live("graphs"), control.live("objects")), (0, 0));
    });
}

#[test]
fn what_no_capture_survives_is_an_error_and_leaves_nothing() {
    isolated(&[], |control| {
        let device = cuda();
        let (memory, stream) = (device.allocate(SIZE).unwrap(), worker(&device));
        let (keep, seen) = object();
        stream.begin_capture().unwrap();
        fill(&stream, at(&memory, 0), 3, &keep);
        // Memory and other streams are nothing to the capture.
        memory.write(Bytes::ZERO, &[1]).unwrap();
        drop(device.allocate(SIZE).unwrap());
        drop(device.allocate_private(SIZE).unwrap());
        worker(&device).synchronize(&LATE).unwrap();
        let host = Device::host().allocate(SIZE).unwrap();
        device.map_host(&host).unwrap();
        drop(host);
        assert!(matches!(stream.capture(), Capture::Active(_)));
        let error = stream.synchronize(&LATE).unwrap_err();
        assert!(matches!(error, SyncError::Capture(_)), "{error}");
        assert!(matches!(stream.capture(), Capture::Invalidated), "{:?}", stream.capture());
        stream.end_capture().unwrap_err();
        drop(keep);
        settle(control, &device);
        wait_until(|| seen.upgrade().is_none());
        assert_eq!((control.live("graphs"), control.live("objects")), (0, 0));
        // And a stream that is dropped in a capture ends it.
        let dropped = worker(&device);
        dropped.begin_capture().unwrap();
        drop(dropped);
        assert_eq!(control.live("graphs"), 0);
    });
}

#[test]
fn a_foreign_capture_keeps_what_was_captured() {
    isolated(&[], |control| {
        let device = cuda();
        let driver = Driver::get().unwrap();
        let (memory, stream) = (device.allocate(SIZE).unwrap(), worker(&device));
        let raw: *mut c_void = stream.as_raw().unwrap();
        let foreign = unsafe { Stream::from_raw(&device, raw, None) }.unwrap();
        assert_eq!(foreign.id(), stream.id());
        let (keep, seen) = object();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let mut graph = ptr::null_mut();
        unsafe {
            let begin = driver.cuStreamBeginCapture_v2().unwrap();
            assert_eq!(begin(raw.cast(), mode), CUresult::CUDA_SUCCESS);
        }
        assert!(matches!(fill(&foreign, at(&memory, 0), 3, &keep), Launched::Recorded));
        // None of these may end somebody else's capture, whatever its mode.
        memory.write(Bytes::new(8), &[1]).unwrap();
        drop(device.allocate(SIZE).unwrap());
        drop(device.allocate_private(SIZE).unwrap());
        drop(worker(&device));
        let mut status = CUstreamCaptureStatus(9);
        unsafe {
            let ask = driver.cuStreamIsCapturing().unwrap();
            assert_eq!(ask(raw.cast(), &raw mut status), CUresult::CUDA_SUCCESS);
            assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
            let end = driver.cuStreamEndCapture().unwrap();
            assert_eq!(end(raw.cast(), &raw mut graph), CUresult::CUDA_SUCCESS);
        }
        drop(keep);
        settle(control, &device);
        assert!(seen.upgrade().is_some());
        let destroy = driver.cuGraphDestroy().unwrap();
        assert_eq!(unsafe { destroy(graph) }, CUresult::CUDA_SUCCESS);
        settle(control, &device);
        wait_until(|| seen.upgrade().is_none());
    });
}

#[test]
fn work_that_fails_on_the_device_is_reported_and_nothing_panics() {
    isolated(&[], |control| {
        let device = cuda();
        let (memory, stream) = (device.allocate(SIZE).unwrap(), worker(&device));
        let (keep, _) = object();
        let event: Event = device.event();
        control.tell("hold");
        fill(&stream, at(&memory, 0), 3, &keep);
        stream.record(&event).unwrap();
        control.tell("fail cuEventQuery=CUDA_ERROR_LAUNCH_FAILED,sticky");
        control.tell("go");
        let error = stream.synchronize(&LATE).unwrap_err();
        assert_eq!(error.kind(), Kind::Device, "{error}");
        assert!(error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
        assert!(event.synchronize(&LATE).is_err());
        drop((memory, stream, event));
    });
}
