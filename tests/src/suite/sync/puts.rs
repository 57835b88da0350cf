//! Data and its signal in one.

use std::collections::BTreeSet;

use symmem_hal::types::{BackendKind, RankSet};
use symmem_hal::{Fault as _, Kind, StreamMode, Wait};
use symmem_mem::{Group, MemoryPool, SymmetricMemory, Tensor, TransferError, View};
use symmem_sync::{Channel, PutError, Puts as _, SignalCall, SignalError, Signals as _};

use super::Bench;
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(data_arrives_with_its_signal),
    test!(no_bytes_still_signal),
    test!(each_producer_has_a_slot_of_its_own),
    test!(a_wait_for_one_producer_is_not_met_by_others).at_least(2),
    test!(a_signal_follows_every_put_before_it),
    test!(data_waits_until_the_signal_before_is_taken),
    test!(puts_with_and_without_data_have_one_order),
    test!(on_a_worker_everything_is_held_until_it_has_run),
    test!(a_pools_block_is_a_target),
    test!(bad_puts_signal_nobody),
];

struct Target {
    bench: Bench,
    tensor: Tensor<u32>,
    handle: SymmetricMemory,
}

fn target(context: &Context, count: u64) -> Result<Target, TestError> {
    let bench = Bench::new(context.group()?)?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[count])?;
    let handle = bench.group.rendezvous(&tensor, &bench.group.wait())?;
    Ok(Target { bench, tensor, handle })
}

fn ring(context: &Context, group: &Group) -> Result<[symmem_hal::types::Rank; 2], TestError> {
    Ok([context.neighbour(group, 1)?, context.neighbour(group, context.size() - 1)?])
}

/// Each rank sends to the next, on slots and places that are used again and again.
fn data_arrives_with_its_signal(context: &Context) -> Verdict {
    let Target { bench, tensor, handle } = target(context, 300)?;
    let [next, previous] = ring(context, &bench.group)?;
    let source = Tensor::<u32>::zeros(context.device(), &[250])?;
    for round in 0..100u32 {
        context.step(format_args!("round {round}"));
        source.write(&[round << 8 | context.rank() as u32; 250])?;
        handle.put_with_signal(&source, next, Channel(2)).offset(50).run()?;
        bench.wait(previous, 2)?;
        let expected = [round << 8 | previous.index() as u32; 250];
        check_eq!(tensor.slice(50, 250)?.to_vec()?, expected, "round {round}");
        check_eq!(tensor.slice(0, 50)?.to_vec()?, [0; 50], "round {round}");
        // The one before may send again.
        bench.put(previous, 3)?;
        bench.wait(next, 3)?;
    }
    Ok(())
}

fn no_bytes_still_signal(context: &Context) -> Verdict {
    let Target { bench, tensor, handle } = target(context, 10)?;
    let [next, previous] = ring(context, &bench.group)?;
    let nothing = Tensor::<u32>::zeros(context.device(), &[0])?;
    for offset in [0, 10] {
        handle.put_with_signal(&nothing, next, Channel(0)).offset(offset).run()?;
        bench.wait(previous, 0)?;
    }
    // Also into memory of no bytes.
    let empty = bench.group.rendezvous(&nothing, &bench.group.wait())?;
    empty.put_with_signal(&nothing, next, Channel(0)).run()?;
    bench.wait(previous, 0)?;
    check_eq!(tensor.to_vec()?, [0; 10]);
    Ok(())
}

/// All put to rank 0 at once, on one channel: whose signal rank 0 takes, that rank's data it sees.
fn each_producer_has_a_slot_of_its_own(context: &Context) -> Verdict {
    let size = context.size();
    let Target { bench, tensor, handle } = target(context, 64 * size as u64)?;
    let zero = bench.group.rank_at(0)?;
    let source = Tensor::<u32>::zeros(context.device(), &[64])?;
    source.write(&[context.rank() as u32 + 1; 64])?;
    let offset = 64 * context.rank() as u64;
    handle.put_with_signal(&source, zero, Channel(1)).offset(offset).run()?;
    if context.rank() == 0 {
        for rank in (0..size).rev() {
            bench.wait(bench.group.rank_at(rank)?, 1)?;
            let found = tensor.slice(64 * rank as u64, 64)?.to_vec()?;
            check_eq!(found, [rank as u32 + 1; 64], "rank {rank}");
        }
    }
    context.meet()
}

/// Every producer but one puts, in any number and order: whoever waits for that one waits on, and takes
/// the others' data afterwards, each from its producer.
fn a_wait_for_one_producer_is_not_met_by_others(context: &Context) -> Verdict {
    let (size, me) = (context.size(), context.rank());
    let Target { bench, tensor, handle } = target(context, size as u64)?;
    let zero = bench.group.rank_at(0)?;
    let source = Tensor::<u32>::zeros(context.device(), &[1])?;
    for (round, late) in (1..).zip(BTreeSet::from([0, 1, size / 2, size - 1])) {
        let channel = Channel(late as u32);
        let put = || -> Verdict {
            source.write(&[round << 8 | me as u32])?;
            let put = handle.put_with_signal(&source, zero, channel);
            Ok(put.offset(me as u64).run()?)
        };
        if me != late {
            put()?;
        }
        context.meet()?;
        if me == 0 {
            let brief = Wait::millis(100);
            let wait = bench.group.wait_signal(bench.group.rank_at(late)?, channel).wait(&brief);
            let error = check_err!(wait.run(), SignalError::TimedOut { .. });
            check_eq!(error.ranks(), RankSet::one(late));
        }
        context.meet()?;
        // The time-out has broken the channel for rank 0.
        bench.reset(late as u32)?;
        put()?;
        if me == 0 {
            for rank in (0..size).rev() {
                bench.wait(bench.group.rank_at(rank)?, late as u32)?;
                let found = tensor.slice(rank as u64, 1)?.to_vec()?;
                check_eq!(found, [round << 8 | rank as u32], "round {round}, rank {rank}");
            }
        }
        context.meet()?;
    }
    Ok(())
}

/// Puts without signals, then one signal on the same stream: whoever has it sees all of them.
fn a_signal_follows_every_put_before_it(context: &Context) -> Verdict {
    const PARTS: u64 = 5;
    const COUNT: u64 = 3000;
    let Target { bench, tensor, handle } = target(context, PARTS * COUNT)?;
    let [next, previous] = ring(context, &bench.group)?;
    let worker = context.device().stream(StreamMode::Worker)?;
    let source = Tensor::<u32>::zeros(context.device(), &[COUNT])?;
    for (round, stream) in (1..21u32).zip([&bench.stream, &worker].into_iter().cycle()) {
        source.write(&[round << 8 | context.rank() as u32; COUNT as usize])?;
        for part in 0..PARTS {
            handle.put(&source, next).offset(part * COUNT).on(stream)?;
        }
        bench.group.put_signal(next, Channel(2)).on(stream)?;
        bench.wait(previous, 2)?;
        let expected = round << 8 | previous.index() as u32;
        check!(tensor.to_vec()?.iter().all(|word| *word == expected), "round {round}");
        stream.synchronize(&PATIENT)?;
        bench.put(previous, 3)?;
        bench.wait(next, 3)?;
    }
    Ok(())
}

/// A second put finds the slot full: it gives up without having touched what the first announced.
fn data_waits_until_the_signal_before_is_taken(context: &Context) -> Verdict {
    let Target { bench, tensor, handle } = target(context, 8)?;
    let [next, previous] = ring(context, &bench.group)?;
    let source = Tensor::<u32>::zeros(context.device(), &[8])?;
    source.write(&[1; 8])?;
    handle.put_with_signal(&source, next, Channel(4)).run()?;
    source.write(&[2; 8])?;
    let brief = Wait::timeout(context.brief());
    let found = handle.put_with_signal(&source, next, Channel(4)).wait(&brief).run();
    let error = check_err!(found, PutError::Signal(SignalError::TimedOut { .. }));
    check!(
        matches!(&error, PutError::Signal(SignalError::TimedOut { call, channel, ranks })
            if *call == SignalCall::PutWithSignal && *channel == Channel(4)
                && *ranks == RankSet::one(next.index())),
        "{error}"
    );
    check_eq!((error.kind(), error.ranks()), (Kind::TimedOut, RankSet::one(next.index())));
    check!(error.to_string().contains("put_with_signal"), "{error}");
    context.meet()?;
    check_eq!(tensor.to_vec()?, [1; 8], "overwritten before it was taken");
    // Broken, until all reset it.
    let found = handle.put_with_signal(&source, next, Channel(4)).run();
    check_err!(found, PutError::Signal(SignalError::Broken { .. }));
    bench.reset(4)?;
    handle.put_with_signal(&source, next, Channel(4)).run()?;
    bench.wait(previous, 4)?;
    check_eq!(tensor.to_vec()?, [2; 8]);
    Ok(())
}

fn puts_with_and_without_data_have_one_order(context: &Context) -> Verdict {
    let Target { bench, tensor, handle } = target(context, 4)?;
    let [next, previous] = ring(context, &bench.group)?;
    let source = Tensor::<u32>::zeros(context.device(), &[4])?;
    for round in 1..20u32 {
        source.write(&[round; 4])?;
        if round % 2 == 0 {
            bench.put(next, 5)?;
        } else {
            handle.put_with_signal(&source, next, Channel(5)).run()?;
        }
        bench.wait(previous, 5)?;
        let last = if round % 2 == 0 { round - 1 } else { round };
        check_eq!(tensor.to_vec()?, [last; 4], "round {round}");
        bench.put(previous, 6)?;
        bench.wait(next, 6)?;
    }
    Ok(())
}

/// Enqueued behind a signal that has not come yet; then everything it was given is dropped.
fn on_a_worker_everything_is_held_until_it_has_run(context: &Context) -> Verdict {
    let Target { bench, tensor, handle } = target(context, 50_000)?;
    let group = bench.group.clone();
    let [next, previous] = ring(context, &group)?;
    let stream = context.device().stream(StreamMode::Worker)?;
    group.wait_signal(group.rank(), Channel(7)).on(&stream)?;
    {
        let source = Tensor::<u32>::zeros(context.device(), &[50_000])?;
        source.write(&vec![context.rank() as u32 + 1; 50_000])?;
        handle.put_with_signal(&source, next, Channel(8)).on(&stream)?;
    }
    drop(handle);
    symmem_mem::collect();
    check!(tensor.to_vec()?.iter().all(|word| *word == 0), "stored before its turn");
    context.meet()?;
    group.put_signal(group.rank(), Channel(7)).run()?;
    bench.wait(previous, 8)?;
    check_eq!(tensor.to_vec()?, vec![previous.index() as u32 + 1; 50_000]);
    stream.synchronize(&PATIENT)?;
    Ok(())
}

fn a_pools_block_is_a_target(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let [next, previous] = ring(context, &bench.group)?;
    let pool = MemoryPool::new(context.device());
    let blocks = [pool.empty::<u32>(&[20])?, pool.empty(&[20])?];
    for block in &blocks {
        block.write(&[0; 20])?;
    }
    let handle = bench.group.rendezvous(&blocks[1], &bench.group.wait())?;
    let source = pool.empty::<u32>(&[20])?;
    source.write(&[context.rank() as u32 + 1; 20])?;
    handle.put_with_signal(&source, next, Channel(0)).run()?;
    bench.wait(previous, 0)?;
    check_eq!(blocks[1].to_vec()?, [previous.index() as u32 + 1; 20]);
    check_eq!(blocks[0].to_vec()?, [0; 20]);
    Ok(())
}

fn bad_puts_signal_nobody(context: &Context) -> Verdict {
    let Target { bench, tensor, handle } = target(context, 8)?;
    let [next, previous] = ring(context, &bench.group)?;
    let source = Tensor::<u32>::zeros(context.device(), &[8])?;
    source.write(&[5; 8])?;
    let put = |source: &View, channel, offset| {
        handle.put_with_signal(source, next, Channel(channel)).offset(offset).run()
    };
    let channels = bench.group.channels();
    let found = put(&source, channels, 0);
    check_err!(found, PutError::Signal(SignalError::ChannelOutOfRange { .. }));
    for (channel, offset) in [(0, 1), (channels - 1, 9), (0, u64::MAX)] {
        let error = check_err!(put(&source, channel, offset), PutError::Transfer(_));
        check_eq!(error.kind(), Kind::InvalidArgument);
        check_eq!(error.ranks(), RankSet::one(next.index()));
    }
    let stranger = context.group()?.rank_at(0)?;
    let found = handle.put_with_signal(&source, stranger, Channel(0)).run();
    check_err!(found, PutError::Signal(SignalError::Rank(_)));
    let other = match context.backend() {
        BackendKind::Host => symmem_hal::Device::stub(77),
        _ => symmem_hal::Device::host(),
    };
    let found = handle.put_with_signal(&source, next, Channel(0)).on(&other.default_stream()?);
    let wrong =
        TransferError::Backend { what: "stream", group: context.backend(), found: other.kind() };
    let error = check_err!(found, PutError::Transfer(TransferError::Backend { .. }));
    check_eq!(error.to_string(), wrong.to_string());
    context.meet()?;
    check_eq!(tensor.to_vec()?, [0; 8], "a refused put has stored");
    // Nor has any filled a slot: a wait is in vain.
    let brief = Wait::timeout(context.brief());
    let found = bench.group.wait_signal(previous, Channel(0)).wait(&brief).run();
    check_err!(found, SignalError::TimedOut { .. });
    context.meet()
}
