//! Streams, events, order and memory on every backend.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests launch kernels; a failed set-up fails the test"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use symmem_hal::types::{BackendKind, Bytes};
use symmem_hal::{
    CancelToken, Device, Fault, Health, KeepAlive, Kind, Launch, Launched, OrderError, Stream,
    StreamMode, StreamOrder, SyncError, Wait,
};

mod rig;

use rig::{Args, LONG, NEVER, Rig, devices};

#[test]
fn work_runs_in_order_on_every_kind_of_stream() {
    for device in devices() {
        for mode in [StreamMode::Inline, StreamMode::Worker] {
            let Ok(stream) = device.stream(mode) else {
                assert_eq!((device.kind(), mode), (BackendKind::Stub, StreamMode::Inline));
                continue;
            };
            let rig = Rig::new(device.clone());
            let mut expected = 0u32;
            for factor in 2..50 {
                let launched = rig.launch(&stream, factor, NEVER);
                assert_eq!(launched == Launched::Finished, mode == StreamMode::Inline);
                expected = expected.wrapping_mul(factor).wrapping_add(1);
            }
            stream.synchronize(&LONG).unwrap();
            assert!(stream.is_idle());
            assert_eq!(rig.get(), expected);
        }
    }
}

#[test]
fn a_stub_is_asynchronous_and_its_addresses_mean_nothing_here() {
    let rig = Rig::new(Device::stub(3));
    let stream = rig.device.default_stream().unwrap();
    assert_eq!(rig.launch(&stream, 1, 0), Launched::Queued);
    let event = rig.device.event();
    stream.record(&event).unwrap();
    assert!(!event.is_complete() && !stream.is_idle());
    assert!(matches!(event.synchronize(&Wait::millis(1)), Err(SyncError::TimedOut { .. })));
    let token = CancelToken::new();
    token.cancel();
    assert!(matches!(
        stream.synchronize(&Wait::seconds(9).with_cancel(token)),
        Err(SyncError::Cancelled)
    ));
    assert!(rig.memory.host_segment().is_none());
    // Bits 47 up are neither all 0 nor all 1: no x86-64 or AArch64 process can map it.
    assert!(!matches!(rig.memory.base().get() >> 47, 0 | 0x1ffff));
    rig.set(5);
    event.synchronize(&LONG).unwrap();
    assert_eq!(rig.get(), 6);
}

#[test]
fn what_a_launch_keeps_lives_until_it_has_run() {
    let rig = Rig::new(Device::stub(0));
    let stream = rig.device.default_stream().unwrap();
    let kept: Arc<u32> = Arc::new(7);
    let args = Args { word: rig.memory.base(), factor: 1, hold: 0 };
    let keep: [KeepAlive; 2] = [kept.clone(), Arc::new(rig.memory.clone())];
    // SAFETY: as in `Rig::launch`.
    let _ = unsafe { stream.launch(Launch::new(rig.function, &args, &LONG, &keep)) }.unwrap();
    drop(keep);
    assert_eq!(Arc::strong_count(&kept), 2);
    rig.set(1);
    stream.synchronize(&LONG).unwrap();
    // The marker is passed before the closure is dropped, so give that its moment.
    while Arc::strong_count(&kept) != 1 {
        std::thread::yield_now();
    }
}

#[test]
fn a_dropped_stream_still_does_its_work() {
    let rig = Rig::new(Device::stub(0));
    let stream = rig.device.default_stream().unwrap();
    rig.launch(&stream, 1, 0);
    let event = rig.device.event();
    stream.record(&event).unwrap();
    drop(stream);
    rig.set(1);
    event.synchronize(&LONG).unwrap();
    assert_eq!(rig.get(), 2);
}

#[test]
fn events_order_streams_and_wake_executors() {
    let rig = Rig::new(Device::stub(0));
    let (a, b) = (rig.device.default_stream().unwrap(), rig.device.default_stream().unwrap());
    let event = rig.device.event();
    assert!(event.is_complete(), "never recorded");
    rig.launch(&a, 3, 0);
    a.record(&event).unwrap();
    b.wait(&event, &LONG).unwrap();
    rig.launch(&b, 5, NEVER);
    struct Flag(AtomicU32);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(1, Ordering::Release);
        }
    }
    let flag = Arc::new(Flag(AtomicU32::new(0)));
    event.on_complete(flag.clone().into());
    assert_eq!(flag.0.load(Ordering::Acquire), 0);
    rig.set(2);
    b.synchronize(&LONG).unwrap();
    assert_eq!(rig.get(), (2 * 3 + 1) * 5 + 1);
    while flag.0.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn an_order_holds_across_streams_and_records_only_from_the_second_on() {
    let rig = Rig::new(Device::stub(0));
    let (a, b) = (rig.device.default_stream().unwrap(), rig.device.default_stream().unwrap());
    let order = StreamOrder::new(&rig.device);
    let mut expected = 9u32;
    {
        let _turn = order.enter(&a, &LONG).unwrap();
        rig.launch(&a, 2, 0);
    }
    for (i, factor) in (3..40).enumerate() {
        let stream = if i % 3 == 0 { &a } else { &b };
        let _turn = order.enter(stream, &LONG).unwrap();
        rig.launch(stream, factor, NEVER);
        assert!(!stream.is_idle());
    }
    rig.set(9);
    a.synchronize(&LONG).unwrap();
    b.synchronize(&LONG).unwrap();
    expected = expected * 2 + 1;
    for factor in 3..40u32 {
        expected = expected.wrapping_mul(factor).wrapping_add(1);
    }
    assert_eq!(rig.get(), expected);
}

#[test]
fn turns_are_first_come_first_served_and_bounded() {
    let device = Device::host();
    let order = StreamOrder::new(&device);
    let stream = device.default_stream().unwrap();
    let turn = order.enter(&stream, &LONG).unwrap();
    match order.enter(&stream, &Wait::millis(1)) {
        Err(e @ OrderError::TimedOut { ahead: 1, .. }) => assert_eq!(e.kind(), Kind::TimedOut),
        other => panic!("{other:?}"),
    }
    let log = parking_lot::Mutex::new(Vec::new());
    let token = CancelToken::new();
    std::thread::scope(|s| {
        let cancelled = s.spawn(|| {
            order.enter(&stream, &Wait::seconds(20).with_cancel(token.clone())).map(drop)
        });
        for i in 0..4 {
            let (order, stream, log) = (&order, &stream, &log);
            s.spawn(move || {
                let _turn = order.enter(stream, &LONG).unwrap();
                log.lock().push(i);
            });
            // The next comes only once this one stands in line.
            while !format!("{order:?}").contains(&format!("next: {}", i + 3)) {
                std::thread::yield_now();
            }
        }
        token.cancel();
        assert!(matches!(cancelled.join().unwrap(), Err(OrderError::Cancelled { .. })));
        drop(turn);
    });
    assert_eq!(*log.lock(), [0, 1, 2, 3]);
}

#[test]
fn a_turn_that_fails_leaves_the_operation_before_in_force() {
    let rig = Rig::new(Device::host());
    let worker = rig.device.stream(StreamMode::Worker).unwrap();
    let (x, y) = (rig.device.default_stream().unwrap(), rig.device.default_stream().unwrap());
    let order = StreamOrder::new(&rig.device);
    {
        let _turn = order.enter(&worker, &LONG).unwrap();
        rig.launch(&worker, 1, 0);
    }
    for stream in [&x, &y] {
        assert!(matches!(
            order.enter(stream, &Wait::millis(1)),
            Err(OrderError::Stream(SyncError::TimedOut { .. }))
        ));
        assert_eq!(order.last(), Some(worker.id()));
    }
    rig.set(1);
    drop(order.enter(&x, &LONG).unwrap());
    assert_eq!(rig.get(), 2);
}

#[test]
fn synchronize_reports_what_watches() {
    #[derive(Debug)]
    struct Bad;
    impl std::fmt::Display for Bad {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("bad")
        }
    }
    impl std::error::Error for Bad {}
    impl Fault for Bad {
        fn kind(&self) -> Kind {
            Kind::PeerLost
        }
    }
    struct Sick(AtomicU32);
    impl Health for Sick {
        fn failure(&self) -> Option<Arc<dyn Fault>> {
            (self.0.load(Ordering::Acquire) == 1).then(|| Arc::new(Bad) as Arc<dyn Fault>)
        }
    }
    for device in devices() {
        let stream = device.default_stream().unwrap();
        let sick = Arc::new(Sick(AtomicU32::new(0)));
        let weak: std::sync::Weak<dyn Health> = Arc::downgrade(&(sick.clone() as Arc<dyn Health>));
        stream.watch(weak.clone());
        stream.watch(weak);
        stream.synchronize(&LONG).unwrap();
        sick.0.store(1, Ordering::Release);
        match stream.synchronize(&LONG) {
            Err(e @ SyncError::Unhealthy(_)) => assert_eq!(e.kind(), Kind::PeerLost),
            other => panic!("{other:?}"),
        }
        drop(sick);
        stream.synchronize(&LONG).unwrap();
    }
}

#[test]
fn identities_hold_across_instances() {
    assert_eq!(Device::host().uuid(), Device::host().uuid());
    assert_ne!(Device::stub(0).uuid(), Device::stub(1).uuid());
    assert_ne!(Device::host().uuid(), Device::stub(0).uuid());
}

#[test]
fn ranges_and_ownership_of_memory() {
    for device in devices() {
        let memory = device.allocate(Bytes::new(100)).unwrap();
        let error = memory.write(Bytes::new(97), &[0; 4]).unwrap_err();
        assert_eq!(error.to_string(), "4 B at offset 97 B do not lie in memory of 100 B");
        let peer = device.import(memory.export().unwrap(), Bytes::new(100)).unwrap();
        assert_eq!(peer.export().unwrap_err().kind(), Kind::InvalidArgument);
        memory.write(Bytes::new(96), &[1, 2, 3, 4]).unwrap();
        let mut seen = [0; 4];
        peer.read(Bytes::new(96), &mut seen).unwrap();
        assert_eq!(seen, [1, 2, 3, 4]);
    }
    let e = Device::host().allocate(Bytes::new(1 << 60)).unwrap_err();
    assert_eq!(e.kind(), Kind::Exhausted);
}

/// A waker may ask for the next event of the same stream: nothing is locked while it runs.
#[test]
fn a_waker_may_ask_again() {
    struct Again {
        stream: Stream,
        device: Device,
        left: AtomicU32,
        done: AtomicU32,
    }
    impl std::task::Wake for Again {
        fn wake(self: Arc<Self>) {
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.done.store(1, Ordering::Release);
                return;
            }
            let event = self.device.event();
            self.stream.record(&event).unwrap();
            event.on_complete(self.clone().into());
        }
    }
    let rig = Rig::new(Device::stub(0));
    let stream = rig.device.default_stream().unwrap();
    rig.launch(&stream, 1, 0);
    let event = rig.device.event();
    stream.record(&event).unwrap();
    let again = Arc::new(Again {
        stream: stream.clone(),
        device: rig.device.clone(),
        left: AtomicU32::new(3),
        done: AtomicU32::new(0),
    });
    event.on_complete(again.clone().into());
    rig.set(1);
    stream.synchronize(&LONG).unwrap();
    while again.done.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
}
