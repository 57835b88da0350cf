//! Waits that hold nobody up: a thread that waits for a rank keeps no other thread of its rank from
//! anything, and every wait can be bounded and cancelled.

use symmem_hal::types::Bytes;
use symmem_hal::{CancelToken, Fault as _, Kind, StreamMode, Wait};
use symmem_mem::{ExchangeError, Options, RendezvousError, Tensor};
use symmem_sync::{Channel, Lanes as _, Signals as _};

use super::kernels::{Gather, Kernels, Word};
use super::synchronize;
use crate::runner::{Context, PATIENT, Test, TestError, Verdict, options};
use crate::suite::sync::stream_of;
use crate::support::eventually;
use crate::support::observe::is_asleep;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_thread_that_waits_holds_up_no_other).at_least(2),
    test!(a_thread_that_meets_holds_up_no_other_beyond_its_bound).at_least(2).isolated(),
    test!(allocating_and_meeting_wait_for_no_stream).ranks(1, 8),
    test!(allocating_and_meeting_are_in_no_graph),
];

/// Thread 1 of each rank but the last waits in an operation on lane 0 for the last rank, which comes
/// once every other rank has done all else.
fn a_thread_that_waits_holds_up_no_other(context: &Context) -> Verdict {
    let options = Options { max_lanes: 2, workspace: Bytes::kib(256), ..options(context.size()) };
    let group = context.group_with(&options)?;
    let lanes = group.lanes(2, &PATIENT)?;
    let gather = Gather::new(&group)?;
    gather.offer(7)?;
    let stream = stream_of(&group)?;
    let operate = &|| -> Verdict {
        gather.issue(lanes[0], &stream, &PATIENT, 0)?;
        Ok(stream.synchronize(&PATIENT)?)
    };
    std::thread::scope(|scope| -> Verdict {
        let last = context.rank() + 1 == context.size();
        let (sender, thread) = std::sync::mpsc::channel();
        let waiting = (!last).then(|| {
            scope.spawn(move || {
                let _ = sender.send(rustix::thread::gettid());
                operate()
            })
        });
        if let Some(thread) = &waiting {
            check!(!thread.is_finished(), "an operation without the last rank");
        }
        // Everything that has a lock somewhere.
        let own = context.device().stream(StreamMode::Worker)?;
        group.barrier(Channel(0)).on(&own)?;
        let other = Gather::new(&group)?;
        other.offer(1)?;
        other.issue(lanes[1], &own, &PATIENT, 0)?;
        own.synchronize(&PATIENT)?;
        other.check(1)?;
        let tensor = Tensor::<u32>::zeros(context.device(), &[100])?;
        group.rendezvous(&tensor, &PATIENT)?;
        group.subgroup(group.ranks()).create(&PATIENT)?.barrier(Channel(0)).run()?;
        group.check()?;
        // A turn on the lane that is taken is waited for within its bound.
        if !last && stream.is_inline() {
            let thread = thread.recv()?;
            check!(eventually(|| is_asleep(thread)), "the first thread does not wait");
            let found = other.issue(lanes[0], &stream, &Wait::millis(1), 0);
            check_eq!(check_err!(found, _).kind(), Kind::TimedOut);
            let token = CancelToken::new();
            token.cancel();
            let found = other.issue(lanes[0], &stream, &PATIENT.with_cancel(token), 0);
            check_eq!(check_err!(found, _).kind(), Kind::Cancelled);
        }
        context.meet()?;
        match waiting {
            None => operate()?,
            Some(thread) => {
                thread.join().map_err(|_| TestError::failed("a thread has panicked"))??;
            }
        }
        gather.check(7)
    })?;
    context.meet()
}

/// One thread meets the others for a rendezvous, to which the last rank does not come.
fn a_thread_that_meets_holds_up_no_other_beyond_its_bound(context: &Context) -> Verdict {
    let group = context.group()?;
    context.meet()?;
    if context.rank() + 1 == context.size() {
        return context.meet();
    }
    let tensors = [
        Tensor::<u32>::zeros(context.device(), &[100])?,
        Tensor::<u32>::zeros(context.device(), &[100])?,
    ];
    let token = CancelToken::new();
    let (sender, thread) = std::sync::mpsc::channel();
    std::thread::scope(|scope| -> Verdict {
        let meeting = scope.spawn(|| {
            let _ = sender.send(rustix::thread::gettid());
            group.rendezvous(&tensors[0], &PATIENT.with_cancel(token.clone())).map(drop)
        });
        let thread = thread.recv()?;
        check!(eventually(|| is_asleep(thread)), "the first thread does not wait");
        let found = group.rendezvous(&tensors[1], &Wait::timeout(context.brief()));
        let error = check_err!(found, RendezvousError::Exchange(ExchangeError::Busy { .. }));
        check_eq!(error.kind(), Kind::TimedOut);
        let cancelled = CancelToken::new();
        cancelled.cancel();
        let found = group.rendezvous(&tensors[1], &PATIENT.with_cancel(cancelled));
        check_err!(found, RendezvousError::Exchange(ExchangeError::Cancelled));
        group.check()?;
        token.cancel();
        let met = meeting.join().map_err(|_| TestError::failed("a thread has panicked"))?;
        check_err!(met, RendezvousError::Exchange(_));
        Ok(())
    })?;
    context.meet()
}

/// Every stream of every rank is held up; memory is made, shared, used and let go of meanwhile.
fn allocating_and_meeting_wait_for_no_stream(context: &Context) -> Verdict {
    let device = context.device();
    let kernels = Kernels::new(device)?;
    let gate = Word::new(device)?;
    let streams = [device.stream(StreamMode::Worker)?, device.stream(StreamMode::Worker)?];
    let held = [device.event(), device.event()];
    for (stream, held) in streams.iter().zip(&held) {
        kernels.hold(stream, &gate)?;
        stream.record(held)?;
    }
    let group = context.group()?;
    let word = Word::new(device)?;
    word.set(context.rank() as u64 + 1)?;
    let shared = word.share(&group)?;
    // A second time, too, and of another part of the ranks.
    group.rendezvous(shared.view(), &Wait::millis(0))?;
    group.subgroup([group.rank()]).create(&PATIENT)?;
    context.meet()?;
    for rank in group.ranks() {
        check_eq!(Word::of(&shared, rank)?.get()?, rank.index() as u64 + 1);
    }
    check!(held.iter().all(|held| !held.is_complete()), "a stream is not held up");
    context.meet()?;
    gate.set(1)?;
    synchronize(&streams)
}

/// During a capture they do what they always do, at once, and a launch does not do it again.
fn allocating_and_meeting_are_in_no_graph(context: &Context) -> Verdict {
    let device = context.device();
    let kernels = Kernels::new(device)?;
    let stream = device.stream(StreamMode::Worker)?;
    let group = context.group()?;
    stream.begin_capture()?;
    let word = Word::new(device)?;
    let shared = word.share(&group)?;
    let next = Word::of(&shared, context.neighbour(&group, 1)?)?;
    let seen = Word::new(device)?;
    word.set(context.rank() as u64 + 10)?;
    kernels.copy(&stream, &seen, &next)?;
    group.rendezvous(shared.view(), &Wait::millis(0))?;
    let graph = stream.end_capture()?;
    check_eq!(graph.nodes(), 1);
    check_eq!(seen.get()?, 0, "what was captured has run");
    context.meet()?;
    for add in 0..3 {
        word.set(context.rank() as u64 + 10 + add)?;
        context.meet()?;
        graph.launch(&stream, &PATIENT)?;
        stream.synchronize(&PATIENT)?;
        let index = (context.rank() + 1) % context.size();
        check_eq!(seen.get()?, index as u64 + 10 + add);
        context.meet()?;
    }
    Ok(())
}
