//! Barriers.

use symmem_hal::types::{Bytes, DType, Layout};
use symmem_mem::Tensor;
use symmem_sync::{Channel, Signals as _};

use super::{Bench, settle};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(nobody_goes_on_before_the_last_has_come),
    test!(a_counter_is_passed_around).seconds(600),
    test!(a_barrier_alone_is_none).ranks(1, 1),
    test!(barriers_of_groups_do_not_mix).at_least(2),
    test!(two_streams_of_a_rank_share_a_channel).at_least(2),
    test!(two_threads_of_a_rank_share_a_channel).at_least(2),
];

/// Each rank writes the round into its memory before a barrier, and finds that round, or the next,
/// in everybody's after it.
fn nobody_goes_on_before_the_last_has_come(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let group = &bench.group;
    let tensor = Tensor::<u32>::zeros(context.device(), &[1])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    for round in 1..=200u32 {
        tensor.write(&[round])?;
        bench.barrier(round % 3)?;
        for rank in group.ranks() {
            let mut found = [0u32];
            handle.remote(rank)?.read(&mut found)?;
            check!(
                found[0] == round || found[0] == round + 1,
                "round {round}: rank {rank} is in round {}",
                found[0]
            );
        }
    }
    Ok(())
}

/// In each round one rank adds one to a counter by a plain read and write; the barrier alone keeps
/// it from another's.
fn a_counter_is_passed_around(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let group = &bench.group;
    let tensor = Tensor::<u64>::zeros(context.device(), &[1])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    let home = group.rank_at(context.size() - 1)?;
    let counter = handle.peer(home, Bytes::ZERO, DType::U64, Layout::flat(1))?;
    let (me, size) = (context.rank() as u64, context.size() as u64);
    let rounds = match (context.soak(), size) {
        (true, _) => 1_000_000,
        (false, 1..=2) => 100_000,
        // Ranks that share cores need a turn of the scheduler each for every round.
        (false, 3..=8) => 10_000,
        (false, _) => 1000,
    };
    let mut found = [0u64];
    for round in 0..rounds {
        if round % 10_000 == 0 {
            context.step(format_args!("round {round} of {rounds}"));
        }
        if round % size == me {
            counter.read(&mut found)?;
            check_eq!(found[0], round, "the counter before rank {me} adds to it");
            counter.write(&[round + 1])?;
        }
        bench.barrier(0)?;
    }
    counter.read(&mut found)?;
    check_eq!(found[0], rounds);
    bench.barrier(0)?;
    Ok(())
}

fn a_barrier_alone_is_none(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let nothing = symmem_hal::Wait::millis(0);
    for channel in [0, bench.group.channels() - 1] {
        settle(bench.group.barrier(Channel(channel)).wait(&nothing), &bench.stream)?;
    }
    Ok(())
}

/// In one group two barriers, in another of the same ranks one, on one channel.
fn barriers_of_groups_do_not_mix(context: &Context) -> Verdict {
    let (a, b) = (Bench::new(context.group()?)?, Bench::new(context.group()?)?);
    for round in 0..50 {
        context.step(format_args!("round {round}"));
        a.barrier(0)?;
        b.barrier(0)?;
        a.barrier(0)?;
    }
    Ok(())
}

/// Barriers of one channel on two streams happen in the order in which they were issued.
fn two_streams_of_a_rank_share_a_channel(context: &Context) -> Verdict {
    let group = context.group()?;
    let mode = symmem_hal::StreamMode::Worker;
    let streams = [context.device().stream(mode)?, context.device().stream(mode)?];
    for round in 0..50 {
        group.barrier(Channel(0)).on(&streams[round % 2])?;
        if round % 7 == context.rank() % 7 {
            group.barrier(Channel(1)).on(&streams[0])?;
        } else {
            group.barrier(Channel(1)).on(&streams[1])?;
        }
    }
    for stream in &streams {
        stream.synchronize(&PATIENT)?;
    }
    group.check()?;
    Ok(())
}

/// Two threads of a rank come to barriers of one channel: the calls queue up, and no two of them
/// are in flight at once.
fn two_threads_of_a_rank_share_a_channel(context: &Context) -> Verdict {
    const ROUNDS: usize = 100;
    let bench = Bench::new(context.group()?)?;
    let many = || -> Verdict {
        for _ in 0..ROUNDS {
            bench.barrier(0)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(many);
        many()?;
        other.join().map_err(|_| TestError::failed("the other thread has panicked"))?
    })
}
