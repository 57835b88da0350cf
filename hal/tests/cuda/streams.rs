//! Streams, events and what they keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use symmem_hal::types::Bytes;
use symmem_hal::{
    CaptureError, Device, DeviceError, KeepAlive, Launched, Stream, StreamMode, StreamOrder,
};
use symmem_sys::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

use super::{LONG, copy, fill, gpu, nothing, soon, word, words};

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
