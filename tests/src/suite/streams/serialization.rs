//! Calls on one channel or lane from several streams and threads keep the order in which they were
//! issued.

use std::time::Duration;

use symmem_hal::types::Rank;
use symmem_hal::{Stream, StreamMode};
use symmem_mem::Group;
use symmem_sync::{Channel, Lanes as _, Signals as _};

use super::kernels::{Gather, Kernels, Word};
use super::synchronize;
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(barriers_on_two_streams_keep_their_order).at_least(2),
    test!(signals_on_two_streams_keep_their_order).at_least(2),
    test!(only_calls_on_the_channel_are_waited_for).at_least(2),
    test!(operations_on_two_streams_keep_their_order),
    test!(two_threads_on_two_streams_share_a_channel).at_least(2),
    test!(calls_of_one_channel_alone_depend_on_each_other_in_a_graph),
];

/// Time for what must not happen.
const MEANWHILE: Duration = Duration::from_millis(20);

#[track_caller]
fn streams<const N: usize>(context: &Context) -> Result<[Stream; N], TestError> {
    let all: Result<Vec<_>, _> =
        (0..N).map(|_| context.device().stream(StreamMode::Worker)).collect();
    all?.try_into().map_err(|_| TestError::failed("another number of streams"))
}

/// Lets what is held up go on, after a while.
#[track_caller]
fn open(gate: &Word) -> Verdict {
    std::thread::sleep(MEANWHILE);
    gate.set(1)
}

/// Loads what signals need on every rank's device: a driver waits for a kernel that holds a stream up
/// before it loads another, and so would whoever is to end that.
#[track_caller]
fn ready(context: &Context, group: &Group) -> Verdict {
    group.barrier(Channel(0)).run()?;
    context.meet()
}

/// The first rank is held up before its first barrier; its second, on another stream, must not be
/// taken for it.
fn barriers_on_two_streams_keep_their_order(context: &Context) -> Verdict {
    let group = context.group()?;
    let kernels = Kernels::new(context.device())?;
    let (gate, word, seen) =
        (Word::new(context.device())?, Word::new(context.device())?, Word::new(context.device())?);
    let first = Word::of(&word.share(&group)?, group.rank_at(0)?)?;
    ready(context, &group)?;
    for channel in [0, group.channels() - 1].map(Channel) {
        let [a, b] = streams(context)?;
        gate.set(0)?;
        word.set(0)?;
        context.meet()?;
        if context.rank() == 0 {
            kernels.hold(&a, &gate)?;
            kernels.add(&a, &word, 7)?;
        }
        group.barrier(channel).on(&a)?;
        kernels.copy(&a, &seen, &first)?;
        group.barrier(channel).on(&b)?;
        if context.rank() == 0 {
            open(&gate)?;
        }
        synchronize([&a, &b])?;
        check_eq!(seen.get()?, 7, "what rank 0 wrote before the first barrier of {channel}");
        context.meet()?;
    }
    Ok(())
}

/// Around the ring: two values in one word, each with a signal; the first sender is held up.
fn signals_on_two_streams_keep_their_order(context: &Context) -> Verdict {
    let group = context.group()?;
    let kernels = Kernels::new(context.device())?;
    let (gate, word) = (Word::new(context.device())?, Word::new(context.device())?);
    let seen = [Word::new(context.device())?, Word::new(context.device())?];
    let shared = word.share(&group)?;
    let next = context.neighbour(&group, 1)?;
    let previous = context.neighbour(&group, context.size() - 1)?;
    let theirs = Word::of(&shared, previous)?;
    let [a, b, c, d] = streams(context)?;
    ready(context, &group)?;
    if context.rank() == 0 {
        kernels.hold(&a, &gate)?;
    }
    // Sends 1, then 2 once the receiver has acknowledged.
    let (data, done) = (Channel(1), Channel(2));
    kernels.add(&a, &word, 1)?;
    group.put_signal(next, data).on(&a)?;
    let receive = |stream: &Stream, seen: &Word| -> Verdict {
        group.wait_signal(previous, data).on(stream)?;
        kernels.copy(stream, seen, &theirs)?;
        group.put_signal(previous, done).on(stream)?;
        Ok(())
    };
    receive(&c, &seen[0])?;
    receive(&d, &seen[1])?;
    group.wait_signal(next, done).on(&b)?;
    kernels.add(&b, &word, 2)?;
    group.put_signal(next, data).on(&b)?;
    group.wait_signal(next, done).on(&a)?;
    if context.rank() == 0 {
        open(&gate)?;
    }
    synchronize([&a, &b, &c, &d])?;
    check_eq!([seen[0].get()?, seen[1].get()?], [1, 12]);
    context.meet()
}

/// What was enqueued on the first stream after the call does not hold up the second.
fn only_calls_on_the_channel_are_waited_for(context: &Context) -> Verdict {
    let group = context.group()?;
    let kernels = Kernels::new(context.device())?;
    let gate = Word::new(context.device())?;
    let [a, b] = streams(context)?;
    let barrier = |stream: &Stream| group.barrier(Channel(0)).on(stream);
    // From the second stream on, each call is marked on its own.
    barrier(&a)?;
    barrier(&b)?;
    barrier(&a)?;
    context.meet()?;
    kernels.hold(&a, &gate)?;
    let held = context.device().event();
    a.record(&held)?;
    barrier(&b)?;
    b.synchronize(&PATIENT)?;
    check!(!held.is_complete(), "the first stream is not held up");
    gate.set(1)?;
    synchronize([&a])?;
    context.meet()
}

fn operations_on_two_streams_keep_their_order(context: &Context) -> Verdict {
    let group = context.group()?;
    let lane = group.lane()?;
    let kernels = Kernels::new(context.device())?;
    let gate = Word::new(context.device())?;
    let gathers = [Gather::new(&group)?, Gather::new(&group)?, Gather::new(&group)?];
    let [a, b] = streams(context)?;
    for (round, gather) in gathers.iter().enumerate() {
        gather.offer(round as u64)?;
    }
    ready(context, &group)?;
    if context.rank() == 0 {
        kernels.hold(&a, &gate)?;
    }
    for (round, (gather, stream)) in gathers.iter().zip([&a, &b, &a]).enumerate() {
        gather.issue(lane, stream, &PATIENT, round as u64)?;
    }
    if context.rank() == 0 {
        open(&gate)?;
    }
    synchronize([&a, &b])?;
    for (round, gather) in gathers.iter().enumerate() {
        gather.check(round as u64)?;
    }
    group.check()?;
    context.meet()
}

/// Each thread of a rank on a stream of its own; which goes first is open, and nobody waits for ever.
fn two_threads_on_two_streams_share_a_channel(context: &Context) -> Verdict {
    const ROUNDS: usize = 100;
    let group = context.group()?;
    let streams: [Stream; 2] = streams(context)?;
    let peers: Vec<Rank> = group.ranks().filter(|r| *r != group.rank()).collect();
    let barriers = |stream: &Stream| -> Verdict {
        for _ in 0..ROUNDS {
            group.barrier(Channel(3)).on(stream)?;
        }
        Ok(stream.synchronize(&PATIENT)?)
    };
    std::thread::scope(|scope| -> Verdict {
        let threads: Vec<_> =
            streams.iter().map(|stream| scope.spawn(move || barriers(stream))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| TestError::failed("a thread has panicked"))?
        })
    })?;
    check_eq!(peers.len() + 1, context.size());
    context.meet()
}

/// Two barriers on two streams of one capture: an edge where they are of one channel of one group.
fn calls_of_one_channel_alone_depend_on_each_other_in_a_graph(context: &Context) -> Verdict {
    let groups = [context.group()?, context.group()?];
    let [a, b] = streams(context)?;
    for group in &groups {
        group.lane()?.prepare()?;
    }
    let device = context.device();
    let edges = |first: (&Group, u32), second: (&Group, u32)| -> Result<usize, TestError> {
        let (fork, join) = (device.event(), device.event());
        a.begin_capture()?;
        a.record(&fork)?;
        b.wait(&fork, &PATIENT)?;
        first.0.wait_signal(first.0.rank(), Channel(first.1)).on(&a)?;
        second.0.wait_signal(second.0.rank(), Channel(second.1)).on(&b)?;
        b.record(&join)?;
        a.wait(&join, &PATIENT)?;
        let graph = a.end_capture()?;
        check_eq!(graph.nodes(), 2);
        Ok(graph.edges().len())
    };
    let [one, other] = [&groups[0], &groups[1]];
    check_eq!(edges((one, 0), (one, 0))?, 1, "one channel of one group");
    check_eq!(edges((one, 0), (one, 1))?, 0, "two channels of one group");
    check_eq!(edges((one, 0), (other, 0))?, 0, "one channel of two groups");
    // None of it has run: the waits above would not have ended.
    one.put_signal(one.rank(), Channel(0)).run()?;
    one.wait_signal(one.rank(), Channel(0)).run()?;
    Ok(())
}
