//! Streams, events and the order of work between streams, as far as they show without kernels.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use symmem_hal::{CancelToken, Device, Kind, OrderError, StreamMode, StreamOrder, SyncError, Wait};
use symmem_hal::{Capture, Fault as _};

use crate::runner::{Context, Test, TestError, Verdict};
use crate::support::eventually;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(streams_have_identities).local(),
    test!(events_mark_what_was_enqueued).local(),
    test!(events_wake_whoever_asked).local(),
    test!(turns_are_given_in_order).local(),
    test!(a_wait_for_a_turn_is_bounded).local(),
];

fn streams_have_identities(context: &Context) -> Verdict {
    let device = context.device();
    let (a, b) = (device.default_stream()?, device.stream(StreamMode::Worker)?);
    check!(a.id() != b.id() && a.id() == a.clone().id(), "{:?}, {:?}", a.id(), b.id());
    check_eq!(a.backend(), device.kind());
    check!(!b.is_inline(), "a worker stream runs inline");
    check_eq!(a.capture(), Capture::None);
    for stream in [&a, &b] {
        stream.synchronize(&Wait::seconds(10))?;
        check!(stream.is_idle(), "idle after it was synchronised");
    }
    if !matches!(device, Device::Host(_)) {
        let error = check_err!(
            device.stream(StreamMode::Inline),
            symmem_hal::DeviceError::StreamMode { .. }
        );
        check_eq!(error.kind(), Kind::Unsupported);
    }
    Ok(())
}

fn events_mark_what_was_enqueued(context: &Context) -> Verdict {
    let device = context.device();
    let (a, b) = (device.stream(StreamMode::Worker)?, device.stream(StreamMode::Worker)?);
    let event = device.event();
    check!(event.is_complete(), "one that was never recorded");
    event.synchronize(&Wait::millis(0))?;
    for _ in 0..100 {
        a.record(&event)?;
        b.wait(&event, &Wait::seconds(10))?;
        b.record(&event)?;
        a.wait(&event, &Wait::seconds(10))?;
    }
    event.synchronize(&Wait::seconds(10))?;
    check!(event.is_complete(), "complete after it was synchronised");
    let elsewhere = match device {
        Device::Host(_) => Device::stub(9).event(),
        _ => Device::host().event(),
    };
    check_err!(a.record(&elsewhere), SyncError::WorkerGone);
    Ok(())
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

fn events_wake_whoever_asked(context: &Context) -> Verdict {
    let stream = context.device().stream(StreamMode::Worker)?;
    let event = context.device().event();
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    event.on_complete(Waker::from(woken.clone()));
    check_eq!(woken.0.load(Ordering::Acquire), 1, "of an event that is complete");
    for round in 2..50 {
        stream.record(&event)?;
        event.on_complete(Waker::from(woken.clone()));
        stream.synchronize(&Wait::seconds(10))?;
        event.synchronize(&Wait::seconds(10))?;
        // By another thread, in its own time.
        check!(eventually(|| woken.0.load(Ordering::Acquire) >= round), "not woken");
        check_eq!(woken.0.load(Ordering::Acquire), round, "woken once for each question");
    }
    Ok(())
}

/// Threads that want the turn at once get it one at a time.
fn turns_are_given_in_order(context: &Context) -> Verdict {
    let order = StreamOrder::new(context.device());
    let inside = AtomicUsize::new(0);
    let turns = || -> Verdict {
        let stream = context.device().stream(StreamMode::Worker)?;
        for _ in 0..200 {
            let turn = order.enter(&stream, &Wait::seconds(20))?;
            check_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "others who have the turn");
            inside.fetch_sub(1, Ordering::AcqRel);
            drop(turn);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(turns)).collect();
        let ended = threads.into_iter().map(|t| {
            t.join().map_err(|_| TestError::failed("a thread has panicked")).and_then(|ended| ended)
        });
        ended.collect()
    })
}

fn a_wait_for_a_turn_is_bounded(context: &Context) -> Verdict {
    let order = StreamOrder::new(context.device());
    let stream = context.device().stream(StreamMode::Worker)?;
    let turn = order.enter(&stream, &Wait::millis(0))?;
    let error = check_err!(order.enter(&stream, &Wait::millis(20)), OrderError::TimedOut { .. });
    check!(matches!(error, OrderError::TimedOut { ahead: 1, .. }), "{error:?}");
    let token = CancelToken::new();
    let wait = Wait::seconds(20).with_cancel(token.clone());
    std::thread::scope(|scope| -> Verdict {
        scope.spawn(|| token.cancel());
        let error = check_err!(order.enter(&stream, &wait), OrderError::Cancelled { .. });
        check_eq!(error.kind(), Kind::Cancelled);
        Ok(())
    })?;
    drop(turn);
    // Those who gave up are not waited for.
    drop(order.enter(&stream, &Wait::millis(0))?);
    Ok(())
}
