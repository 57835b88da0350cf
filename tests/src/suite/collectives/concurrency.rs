//! Several streams and threads of a rank.

use symmem_collectives::{Algorithm, Collectives as _};
use symmem_hal::StreamMode;
use symmem_hal::types::ReduceOp;
use symmem_mem::{Group, Tensor};

use super::harness::{run, synchronize};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::suite::sync::stream_of;
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(operations_of_a_lane_are_ordered_across_streams),
    test!(many_in_flight_on_a_worker_stream),
    test!(two_threads_queue_up_on_a_lane),
    test!(two_groups_in_opposite_orders_from_two_threads),
    test!(two_groups_in_opposite_orders_on_two_streams),
    test!(operations_and_signals_together),
];

/// In place on one tensor, from three streams in turn: each operation sees the one before.
fn operations_of_a_lane_are_ordered_across_streams(context: &Context) -> Verdict {
    let group = context.group()?;
    let mut streams = vec![stream_of(&group)?];
    for _ in 0..2 {
        streams.push(context.device().stream(StreamMode::Worker)?);
    }
    let x = Tensor::<u64>::zeros(context.device(), &[3000])?;
    x.write(&vec![1u64; 3000])?;
    let mut expected = 1u64;
    for round in 0..60 {
        group.all_reduce(&x).on(&streams[round * 7 % 3])?;
        expected = expected.wrapping_mul(context.size() as u64);
    }
    for stream in &streams {
        synchronize(stream)?;
    }
    check!(x.to_vec()?.iter().all(|v| *v == expected), "not {expected} everywhere");
    Ok(())
}

fn many_in_flight_on_a_worker_stream(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = context.device().stream(StreamMode::Worker)?;
    let mut outputs = Vec::new();
    for round in 0..50u32 {
        let count = u64::from(round) * 61;
        let x = Tensor::<u32>::zeros(context.device(), &[count])?;
        let y = Tensor::<u32>::zeros(context.device(), &[count])?;
        x.write(&vec![round + context.rank() as u32; count as usize])?;
        group.all_reduce(&x).op(ReduceOp::Max).into(&y).on(&stream)?;
        outputs.push((round, y));
    }
    synchronize(&stream)?;
    for (round, y) in outputs {
        let expected = round + context.size() as u32 - 1;
        check!(y.to_vec()?.iter().all(|v| *v == expected), "round {round}");
    }
    Ok(())
}

/// A number of equal all-reduces by one thread, on tensors of its own.
fn many(context: &Context, group: &Group, rounds: u32, count: u64) -> Verdict {
    let stream = stream_of(group)?;
    let x = Tensor::<u32>::zeros(context.device(), &[count])?;
    let y = Tensor::<u32>::zeros(context.device(), &[count])?;
    x.write(&vec![context.rank() as u32 + 1; count as usize])?;
    let expected = (context.size() * (context.size() + 1) / 2) as u32;
    for round in 0..rounds {
        let algorithm = [Algorithm::OneShot, Algorithm::TwoShot][round as usize % 2];
        // The two threads may be at different rounds, so what they issue must not depend on them.
        let algorithm = if count == 2000 { Algorithm::TwoShot } else { algorithm };
        group.all_reduce(&x).into(&y).algorithm(algorithm).on(&stream)?;
        stream.synchronize(&PATIENT)?;
        check!(y.to_vec()?.iter().all(|v| *v == expected), "round {round}");
    }
    Ok(())
}

/// Runs two bodies at once, on this thread and another.
fn both(one: impl FnOnce() -> Verdict, other: impl FnOnce() -> Verdict + Send) -> Verdict {
    std::thread::scope(|scope| {
        let other = scope.spawn(other);
        let mine = one();
        let theirs =
            other.join().map_err(|_| TestError::failed("the other thread has panicked"))?;
        mine.and(theirs)
    })
}

fn two_threads_queue_up_on_a_lane(context: &Context) -> Verdict {
    let group = context.group()?;
    both(|| many(context, &group, 50, 2000), || many(context, &group, 50, 2000))?;
    group.check()?;
    Ok(())
}

fn two_groups_in_opposite_orders_from_two_threads(context: &Context) -> Verdict {
    let (a, b) = (context.group()?, context.group()?);
    let (first, second) = if context.rank().is_multiple_of(2) { (&a, &b) } else { (&b, &a) };
    both(|| many(context, first, 30, 500), || many(context, second, 30, 500))
}

/// Even ranks enqueue group A's before group B's, odd ranks the other way round: on streams of
/// their own neither waits for the other.
fn two_groups_in_opposite_orders_on_two_streams(context: &Context) -> Verdict {
    let groups = [context.group()?, context.group()?];
    let mode = StreamMode::Worker;
    let streams = [context.device().stream(mode)?, context.device().stream(mode)?];
    let tensors = [
        Tensor::<u32>::zeros(context.device(), &[700])?,
        Tensor::<u32>::zeros(context.device(), &[700])?,
    ];
    for tensor in &tensors {
        tensor.write(&[1u32; 700])?;
    }
    let order = if context.rank().is_multiple_of(2) { [0, 1] } else { [1, 0] };
    for _ in 0..10 {
        for i in order {
            groups[i].all_reduce(&tensors[i]).op(ReduceOp::Max).on(&streams[i])?;
        }
    }
    for i in [0, 1] {
        groups[i].all_reduce(&tensors[i]).on(&streams[i])?;
    }
    for (stream, tensor) in streams.iter().zip(&tensors) {
        synchronize(stream)?;
        check_eq!(tensor.to_vec()?, vec![context.size() as u32; 700]);
    }
    Ok(())
}

/// Signals and barriers are on no lane: they come between operations and disturb none.
fn operations_and_signals_together(context: &Context) -> Verdict {
    use symmem_sync::{Channel, Signals as _};

    let group = context.group()?;
    let stream = stream_of(&group)?;
    let x = Tensor::<u32>::zeros(context.device(), &[1000])?;
    let (next, previous) =
        (context.neighbour(&group, 1)?, context.neighbour(&group, context.size() - 1)?);
    for round in 0..30u32 {
        x.write(&vec![round; 1000])?;
        group.put_signal(next, Channel(0)).on(&stream)?;
        run(group.all_reduce(&x), &stream)?;
        group.wait_signal(previous, Channel(0)).on(&stream)?;
        group.barrier(Channel(0)).on(&stream)?;
        check_eq!(x.to_vec()?, vec![round * context.size() as u32; 1000]);
    }
    stream.synchronize(&PATIENT)?;
    Ok(())
}
