//! Calls that share a group in turn: on several symmetric memories, from several graphs, by ranks that
//! have nothing to give.

use symmem_collectives::{Algorithm, AllReduceError, Collectives as _};
use symmem_hal::types::{DType, Rank, ReduceOp};
use symmem_hal::{Fault as _, Graph, Stream, StreamMode};
use symmem_mem::{Failure, Group, SymmetricMemory, Tensor, View};
use symmem_sync::{Channel, Lanes as _, Puts as _, Signals as _};

use super::harness::{run, synchronize};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::suite::sync::stream_of;
use crate::support::random::Random;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(two_symmetric_memories_in_turn),
    test!(two_graphs_of_different_sizes_in_turn),
    test!(opposite_orders_on_two_streams_are_told).at_least(2),
    test!(ranks_that_own_nothing_take_part),
    test!(nothing_between_something),
];

/// A tensor that every rank has, of which calls use as much as they like.
struct Shared {
    tensor: Tensor<u32>,
    handle: SymmetricMemory,
}

impl Shared {
    #[track_caller]
    fn new(context: &Context, group: &Group, count: u64) -> Result<Self, TestError> {
        let tensor = Tensor::<u32>::zeros(context.device(), &[count])?;
        let handle = group.rendezvous(&tensor, &group.wait())?;
        Ok(Shared { tensor, handle })
    }
}

/// What rank `rank` has at element 0 in a round.
fn value(rank: usize, round: u32) -> u32 {
    (round << 8) + rank as u32
}

fn sum(ranks: usize, round: u32) -> u32 {
    (0..ranks).map(|rank| value(rank, round)).sum()
}

/// Two handles of one group, of which sizes and operations differ from call to call, with signals
/// through either between them: no call finds what another has left.
fn two_symmetric_memories_in_turn(context: &Context) -> Verdict {
    let group = context.group()?;
    let (stream, ranks, me) = (stream_of(&group)?, context.size(), context.rank());
    let most = [8000, 300];
    let shared = [Shared::new(context, &group, most[0])?, Shared::new(context, &group, most[1])?];
    let next = context.neighbour(&group, 1)?;
    let previous = context.neighbour(&group, ranks - 1)?;
    let mut random = Random::new(context.seed(), &[]);
    for round in 0..if ranks > 8 { 30 } else { 150 } {
        // Mostly in turn, sometimes twice the same.
        let which = if random.below(5) == 0 { 0 } else { round as usize % 2 };
        let Shared { tensor, handle } = &shared[which];
        let count = 1 + random.below(most[which]);
        let part = tensor.slice(0, count)?;
        context.step(format_args!("round {round}: {count} of memory {which}"));
        if random.below(3) == 0 {
            let source = Tensor::<u32>::zeros(context.device(), &[count])?;
            source.write(&vec![value(me, round); count as usize])?;
            handle.put_with_signal(&source, next, Channel(0)).run()?;
            handle.wait_signal(previous, Channel(0)).run()?;
            check_eq!(part.to_vec()?, vec![value(previous.index(), round); count as usize]);
            handle.barrier(Channel(0)).run()?;
        } else {
            part.write(&vec![value(me, round); count as usize])?;
            let algorithm = [Algorithm::Auto, Algorithm::OneShot, Algorithm::TwoShot];
            let algorithm = algorithm[random.below(3) as usize];
            run(group.all_reduce(&part).algorithm(algorithm), &stream)?;
            check_eq!(part.to_vec()?, vec![sum(ranks, round); count as usize]);
            // Nobody puts into it before all have looked.
            group.barrier(Channel(1)).on(&stream)?;
            synchronize(&stream)?;
        }
    }
    Ok(())
}

/// In place, on the first elements of a tensor.
fn capture(group: &Group, stream: &Stream, tensor: &Tensor<u32>) -> Result<Graph, TestError> {
    group.lane()?.prepare()?;
    group.prepare(&[(DType::U32, ReduceOp::Sum), (DType::U32, ReduceOp::Max)])?;
    stream.begin_capture()?;
    group.all_reduce(tensor).algorithm(Algorithm::OneShot).on(stream)?;
    group.all_reduce(tensor).op(ReduceOp::Max).algorithm(Algorithm::TwoShot).on(stream)?;
    Ok(stream.end_capture()?)
}

/// One captured for 12 800 elements and one for 64, on one memory and on two.
fn two_graphs_of_different_sizes_in_turn(context: &Context) -> Verdict {
    let ranks = context.size();
    for one in [true, false] {
        let group = context.group()?;
        let stream = context.device().stream(StreamMode::Worker)?;
        let large = Shared::new(context, &group, 12_800)?;
        let small = if one {
            large.tensor.slice(0, 64)?
        } else {
            Shared::new(context, &group, 64)?.tensor.slice(0, 64)?
        };
        let tensors = [&large.tensor, &small];
        let graphs = [capture(&group, &stream, tensors[0])?, capture(&group, &stream, tensors[1])?];
        context.ready()?;
        for (round, which) in (0..).zip([0, 1, 0, 1, 1, 0, 0, 1]) {
            context.step(format_args!("round {round}, graph {which}"));
            let count = tensors[which].count() as usize;
            tensors[which].write(&vec![value(context.rank(), round); count])?;
            graphs[which].launch(&stream, &PATIENT)?;
            synchronize(&stream)?;
            check_eq!(tensors[which].to_vec()?, vec![sum(ranks, round); count], "round {round}");
            // Fewer elements than either was captured for.
            let few = Tensor::<u32>::zeros(context.device(), &[3])?;
            few.write(&[value(context.rank(), round); 3])?;
            run(group.all_reduce(&few), &stream)?;
            check_eq!(few.to_vec()?, [sum(ranks, round); 3]);
        }
        group.check()?;
    }
    Ok(())
}

/// The odd rank issues two calls in the other order than all others, each on a stream and a memory of
/// its own: an error on every rank, not a wait without end and not a wrong sum.
fn opposite_orders_on_two_streams_are_told(context: &Context) -> Verdict {
    let group = context.group()?;
    let shared = [Shared::new(context, &group, 500)?, Shared::new(context, &group, 500)?];
    let mode = StreamMode::Worker;
    let streams = [context.device().stream(mode)?, context.device().stream(mode)?];
    context.meet()?;
    let odd = context.rank() + 1 == context.size();
    let mut issued_on = Vec::new();
    for which in if odd { [1, 0] } else { [0, 1] } {
        match group.all_reduce(&shared[which].tensor).on(&streams[which]) {
            Ok(()) => issued_on.push(&streams[which]),
            // Another rank has told already.
            Err(AllReduceError::Failed(Failure::CallMismatch { .. })) => {}
            Err(other) => return Err(other.into()),
        }
    }
    for stream in issued_on {
        let found = stream.synchronize(&PATIENT);
        check!(found.is_err(), "two calls in opposite orders have succeeded");
    }
    let told = check_err!(group.check(), Failure::CallMismatch { .. });
    check!(told.ranks().len() == 1, "{told}: names no other rank");
    context.meet()
}

/// Blocks of a few rows: none for one rank, none for all, none for every other rank, and again, with
/// nothing between the calls.
fn ranks_that_own_nothing_take_part(context: &Context) -> Verdict {
    const COLUMNS: u64 = 5;
    let group = context.group()?;
    let (stream, ranks, me) = (stream_of(&group)?, context.size(), context.rank());
    let rows = |round: usize, rank: usize| match round % 5 {
        0 => u64::from(rank != round / 5 % ranks),
        1 => 0,
        2 => 3 * u64::from(rank % 2 == round / 5 % 2),
        3 => 40 * u64::from(rank == ranks - 1),
        _ => 1 + rank as u64 % 3,
    };
    for round in 0..if ranks > 8 { 10 } else { 40 } {
        context.step(format_args!("round {round}"));
        let sizes: Vec<u64> = (0..ranks).map(|rank| rows(round, rank)).collect();
        let offsets: Vec<u64> = (0..ranks).map(|rank| sizes[..=rank].iter().sum()).collect();
        let total = offsets[ranks - 1];
        let input = Tensor::<u32>::zeros(context.device(), &[total, COLUMNS])?;
        let element = |rank: usize, i: u64| value(rank, round as u32) * 1000 + i as u32;
        input.write(&(0..total * COLUMNS).map(|i| element(me, i)).collect::<Vec<_>>())?;
        let output = Tensor::<u32>::zeros(context.device(), &[sizes[me], COLUMNS])?;
        let outputs: [&View; 1] = [&output];
        let owners: Vec<Rank> = group.ranks().collect();
        let call = group.reduce_scatter_offset(&input, &outputs);
        run(call.offsets(&offsets).destinations(&owners), &stream)?;
        let first = (offsets[me] - sizes[me]) * COLUMNS;
        let expected: Vec<u32> = (first..offsets[me] * COLUMNS)
            .map(|i| (0..ranks).map(|rank| element(rank, i)).fold(0, u32::wrapping_add))
            .collect();
        check_eq!(output.to_vec()?, expected, "round {round}");
    }
    Ok(())
}

/// Every operation with no elements at all, again and again, between operations that have some.
fn nothing_between_something(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = stream_of(&group)?;
    let nothing = Tensor::<u32>::zeros(context.device(), &[0])?;
    let x = Tensor::<u32>::zeros(context.device(), &[200])?;
    for round in 0..20u32 {
        let root = group.rank_at(round as usize % context.size())?;
        for _ in 0..round % 4 {
            run(group.all_reduce(&nothing), &stream)?;
            run(group.broadcast(&nothing, root), &stream)?;
            run(group.reduce(&nothing, root), &stream)?;
            run(group.all_gather(&nothing).into(&nothing), &stream)?;
            run(group.reduce_scatter(&nothing).into(&nothing), &stream)?;
            run(group.all_to_all(&nothing).into(&nothing), &stream)?;
        }
        x.write(&[value(context.rank(), round); 200])?;
        run(group.all_reduce(&x), &stream)?;
        check_eq!(x.to_vec()?, vec![sum(context.size(), round); 200], "round {round}");
    }
    Ok(())
}
