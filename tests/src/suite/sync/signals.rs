//! Signals between pairs of ranks, and what they order.

use symmem_hal::types::{BackendKind, Bytes, DType, Layout};
use symmem_hal::{StreamMode, Wait};
use symmem_mem::{Group, MemoryPool, SymmetricMemory, Tensor, View};
use symmem_sync::{Channel, SignalError, Signals as _};

use super::Bench;
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_ring_carries_data),
    test!(every_pair_on_the_first_and_the_last_channel),
    test!(slots_are_where_pytorch_has_them),
    test!(a_signal_to_oneself),
    test!(a_thousand_there_and_back).at_least(2),
    test!(on_a_worker_stream).only_on(&[BackendKind::Host]),
    test!(a_handle_signals_in_its_group),
    test!(what_lies_in_memory_is_no_signal),
];

/// One word of a rank's symmetric memory.
fn word(handle: &SymmetricMemory, rank: usize, index: u64) -> Result<View, TestError> {
    let rank = handle.group().rank_at(rank)?;
    Ok(handle.peer(rank, Bytes::new(4 * index), DType::U32, Layout::flat(1))?)
}

/// Each rank stores into the memory of the next, signals, and finds what the one before stored.
fn a_ring_carries_data(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let group = &bench.group;
    let tensor = Tensor::<u32>::zeros(context.device(), &[256])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    let (me, size) = (context.rank(), context.size());
    let next = context.neighbour(group, 1)?;
    let previous = context.neighbour(group, size - 1)?;
    for round in 0..100u32 {
        context.step(format_args!("round {round}"));
        let data = vec![round << 8 | me as u32; 256];
        handle.remote(next)?.write(&data)?;
        bench.put(next, 3)?;
        bench.wait(previous, 3)?;
        let expected = vec![round << 8 | previous.index() as u32; 256];
        check_eq!(tensor.to_vec()?, expected, "round {round}");
        // The one before may store again.
        bench.put(previous, 4)?;
        bench.wait(next, 4)?;
    }
    Ok(())
}

fn every_pair_on_the_first_and_the_last_channel(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let group = &bench.group;
    for channel in [0, 1, group.channels() - 1] {
        context.step(format_args!("channel {channel}"));
        for peer in group.ranks() {
            bench.put(peer, channel)?;
        }
        for peer in group.ranks() {
            bench.wait(peer, channel)?;
        }
    }
    Ok(())
}

fn pad(group: &Group, rank: usize) -> Result<Vec<u32>, TestError> {
    let mut bytes = vec![0; group.options().pad.to_usize().unwrap_or(0)];
    group.regions()[rank].read(Bytes::ZERO, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Word `world_size * channel + sender` of the receiver's pad, 1 where full: kernels written for
/// that layout work on ours.
fn slots_are_where_pytorch_has_them(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let group = &bench.group;
    let (me, size) = (context.rank(), context.size());
    let next = context.neighbour(group, 1)?;
    let previous = context.neighbour(group, size - 1)?;
    context.meet()?;
    for channel in [0, 5, group.channels() - 1] {
        bench.put(next, channel)?;
        context.meet()?;
        let mut expected = vec![0; (group.options().pad.get() / 4) as usize];
        expected[size * channel as usize + previous.index()] = 1;
        check!(pad(group, me)? == expected, "channel {channel}: the pad of this rank is wrong");
        check_eq!(pad(group, next.index())?[size * channel as usize + me], 1);
        context.meet()?;
        bench.wait(previous, channel)?;
        context.meet()?;
        check!(pad(group, me)?.iter().all(|w| *w == 0), "channel {channel}: a slot stays full");
        context.meet()?;
    }
    Ok(())
}

fn a_signal_to_oneself(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let me = bench.group.rank();
    for _ in 0..10 {
        bench.put(me, 2)?;
        bench.wait(me, 2)?;
    }
    Ok(())
}

/// Ranks 0 and 1 count a word up in turn; nothing but the signals orders them.
fn a_thousand_there_and_back(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let group = &bench.group;
    let tensor = Tensor::<u32>::zeros(context.device(), &[4])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    let me = context.rank();
    if me > 1 {
        return Ok(());
    }
    let counter = word(&handle, 0, 3)?;
    let other = group.rank_at(1 - me)?;
    for round in 0..2000u32 {
        if round as usize % 2 == me {
            let mut found = [0u32];
            counter.read(&mut found)?;
            check_eq!(found[0], round);
            counter.write(&[round + 1])?;
            bench.put(other, 0)?;
        } else {
            bench.wait(other, 0)?;
        }
    }
    Ok(())
}

/// Puts and waits that are enqueued in one order happen in that order, after the caller has gone on.
fn on_a_worker_stream(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = context.device().stream(StreamMode::Worker)?;
    check!(!stream.is_inline(), "a worker stream runs inline");
    let size = context.size();
    let next = context.neighbour(&group, 1)?;
    let previous = context.neighbour(&group, size - 1)?;
    for _ in 0..100 {
        group.put_signal(next, Channel(1)).on(&stream)?;
        group.wait_signal(previous, Channel(1)).on(&stream)?;
    }
    stream.synchronize(&PATIENT)?;
    check!(stream.is_idle(), "synchronised, but not idle");
    Ok(())
}

fn a_handle_signals_in_its_group(context: &Context) -> Verdict {
    let group = context.group()?;
    let tensor = Tensor::<u8>::zeros(context.device(), &[1])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    check_eq!(handle.channels(), group.channels());
    let size = context.size();
    let next = context.neighbour(&group, 1)?;
    let previous = context.neighbour(&group, size - 1)?;
    let stream = super::stream_of(&group)?;
    // Put through the handle, taken through the group.
    super::settle(handle.put_signal(next, Channel(9)), &stream)?;
    super::settle(group.wait_signal(previous, Channel(9)), &stream)?;
    super::settle(handle.barrier(Channel(9)), &stream)?;
    Ok(())
}

/// Blocks of a pool that are full of ones, large or used before: a signal through them is one that was
/// sent, and none is there before.
fn what_lies_in_memory_is_no_signal(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = MemoryPool::new(context.device());
    let stream = super::stream_of(&group)?;
    let (next, previous) =
        (context.neighbour(&group, 1)?, context.neighbour(&group, context.size() - 1)?);
    let brief = Wait::millis(1);
    let large = if context.size() > 4 { 1 << 20 } else { 17 << 20 };
    for (round, bytes) in (0..).zip([4096, large, 4096, 0, 4096]) {
        let block = pool.empty::<u8>(&[bytes])?;
        let handle = group.rendezvous(&block, &group.wait())?;
        block.write(&vec![1; bytes as usize])?;
        let channel = Channel(round);
        let early = handle.wait_signal(previous, channel).wait(&brief);
        check_err!(super::settle(early, &stream), SignalError::TimedOut { .. });
        super::settle(handle.reset_channel(channel), &stream)?;
        super::settle(handle.put_signal(next, channel), &stream)?;
        super::settle(handle.wait_signal(previous, channel), &stream)?;
        super::settle(handle.barrier(channel), &stream)?;
        let untouched = block.to_vec()?.iter().all(|byte| *byte == 1);
        check!(untouched, "a signal has changed the block of {bytes}");
        drop((block, handle));
        group.reclaim(&group.wait())?;
    }
    Ok(())
}
