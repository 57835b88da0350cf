//! Channels: how many there are, and that they do not mix.

use symmem_hal::types::{Bytes, Rank, RankSet};
use symmem_hal::{Fault as _, Kind, Wait};
use symmem_mem::{Group, Options, OptionsError, RankError, RendezvousError, SubgroupError, Tensor};
use symmem_sync::{Channel, SignalError, Signals as _};

use super::{Bench, settle};
use crate::runner::{Context, Test, TestError, Verdict, options};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_pad_has_as_many_channels_as_it_has_words_for),
    test!(the_first_illegal_channel_is_refused_before_any_store),
    test!(a_rank_of_another_group_is_refused_before_any_store),
    test!(signals_of_overlapping_groups_do_not_mix).at_least(3),
    test!(signals_through_one_memory_in_two_groups_do_not_mix).at_least(3),
    test!(barriers_and_signals_of_a_channel_do_not_meet).at_least(2),
    test!(channels_of_a_group_do_not_mix).at_least(2),
];

fn a_pad_has_as_many_channels_as_it_has_words_for(context: &Context) -> Verdict {
    let size = context.size() as u64;
    check_eq!(u64::from(context.group()?.channels()), 9216 / 4 / size);
    for words in [size, size + 1, 3 * size - 1, 3 * size] {
        let channels = (words / size) as u32;
        context.step(format_args!("a pad of {words} words"));
        let pad = Bytes::new(4 * words);
        let bench = Bench::new(context.group_with(&Options { pad, ..options(context.size()) })?)?;
        check_eq!(bench.group.channels(), channels, "a pad of {pad}");
        for channel in 0..channels {
            let next = context.neighbour(&bench.group, 1)?;
            bench.put(next, channel)?;
            bench.wait(context.neighbour(&bench.group, context.size() - 1)?, channel)?;
            bench.barrier(channel)?;
        }
        check_refused(&bench, channels)?;
    }
    // Too small for even one: no group, and nobody is spoken to.
    let (pad, world) = (Bytes::new(4 * (size - 1)), context.world()?);
    let options = Options { pad, ..options(context.size()) };
    let made = world.subgroup(world.ranks()).options(options).create(&Wait::millis(0));
    let error = check_err!(
        made,
        SubgroupError::Rendezvous { cause: RendezvousError::Options(OptionsError::Pad { .. }), .. }
    );
    check_eq!(error.kind(), Kind::InvalidArgument);
    Ok(())
}

/// Every byte of every rank's pad and workspace.
fn all_bytes(group: &Group) -> Result<Vec<Vec<u8>>, TestError> {
    let read = |region: &symmem_hal::Memory| {
        let mut bytes = vec![0; region.bytes().to_usize().unwrap_or(0)];
        region.read(Bytes::ZERO, &mut bytes).map(|()| bytes)
    };
    Ok(group.regions().iter().map(read).collect::<Result<_, _>>()?)
}

/// Every call on this channel is refused, with the number of channels.
fn check_refused(bench: &Bench, channel: u32) -> Verdict {
    let (group, channel) = (&bench.group, Channel(channel));
    let channels = group.channels();
    for peer in group.ranks() {
        for (name, signal) in [
            ("put", group.put_signal(peer, channel)),
            ("wait", group.wait_signal(peer, channel)),
            ("barrier", group.barrier(channel)),
            ("reset", group.reset_channel(channel)),
        ] {
            let found = signal.wait(&Wait::millis(0)).on(&bench.stream);
            let error = check_err!(found, SignalError::ChannelOutOfRange { .. });
            check!(
                matches!(&error, SignalError::ChannelOutOfRange { channel: c, channels: n }
                    if (*c, *n) == (channel, channels)),
                "{name}: {error}"
            );
            check_eq!(error.kind(), Kind::InvalidArgument);
        }
    }
    Ok(())
}

fn the_first_illegal_channel_is_refused_before_any_store(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    bench.barrier(0)?;
    context.meet()?;
    let before = all_bytes(&bench.group)?;
    context.meet()?;
    let channels = bench.group.channels();
    let words = bench.group.options().pad.get() / 4;
    for channel in [channels, channels + 1, words as u32, words as u32 * 2, u32::MAX / 4, u32::MAX]
    {
        check_refused(&bench, channel)?;
    }
    context.meet()?;
    check!(all_bytes(&bench.group)? == before, "a refused call has stored something");
    context.meet()?;
    bench.barrier(channels - 1)?;
    Ok(())
}

fn a_rank_of_another_group_is_refused_before_any_store(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let group = &bench.group;
    bench.barrier(0)?;
    context.meet()?;
    let before = all_bytes(group)?;
    context.meet()?;
    let size = context.size();
    let made_up = |index| Rank::in_scope(index, group.scope());
    let strangers = [
        context.world()?.rank(),
        made_up(size as u32),
        made_up(size as u32 + 1),
        made_up(u32::MAX),
    ];
    for stranger in strangers {
        for signal in
            [group.put_signal(stranger, Channel(0)), group.wait_signal(stranger, Channel(0))]
        {
            let found = signal.wait(&Wait::millis(0)).on(&bench.stream);
            let error = check_err!(
                found,
                SignalError::Rank(RankError::OtherGroup { .. } | RankError::OutOfRange { .. })
            );
            check_eq!(error.kind(), Kind::InvalidArgument);
        }
    }
    context.meet()?;
    check!(all_bytes(group)? == before, "a refused call has stored something");
    context.meet()?;
    bench.barrier(0)?;
    Ok(())
}

/// Rank 1 of {0, 2} is rank 2 of all: a signal to it in one group is none in the other.
fn signals_of_overlapping_groups_do_not_mix(context: &Context) -> Verdict {
    let all = Bench::new(context.group()?)?;
    let world = context.world()?;
    let pair = match context.rank() {
        0 | 2 => {
            let ranks = [world.rank_at(0)?, world.rank_at(2)?];
            Some(Bench::new(world.subgroup(ranks).create(&world.wait())?)?)
        }
        _ => None,
    };
    match (context.rank(), &pair) {
        (0, Some(pair)) => {
            all.put(all.group.rank_at(2)?, 0)?;
            context.meet()?;
            context.meet()?;
            pair.reset(0)?;
            pair.put(pair.group.rank_at(1)?, 0)?;
        }
        (2, Some(pair)) => {
            context.meet()?;
            let sender = pair.group.rank_at(0)?;
            let brief = Wait::timeout(context.brief());
            let signal = pair.group.wait_signal(sender, Channel(0)).wait(&brief);
            let error = check_err!(settle(signal, &pair.stream), SignalError::TimedOut { .. });
            check_eq!(error.ranks(), RankSet::one(0));
            all.wait(all.group.rank_at(0)?, 0)?;
            context.meet()?;
            pair.reset(0)?;
            pair.wait(sender, 0)?;
        }
        _ => {
            context.meet()?;
            context.meet()?;
        }
    }
    all.barrier(0)?;
    Ok(())
}

/// One allocation has a handle in each group: a signal through one is none for a wait through the
/// other, whichever of the two groups is the larger. Ranks 0 and 2 have the indices 0 and 1 in theirs.
fn signals_through_one_memory_in_two_groups_do_not_mix(context: &Context) -> Verdict {
    let (all, world) = (context.group()?, context.world()?);
    let tensor = Tensor::<u32>::zeros(context.device(), &[10])?;
    let in_all = all.rendezvous(&tensor, &all.wait())?;
    if !matches!(context.rank(), 0 | 2) {
        return (0..4).try_for_each(|_| context.meet());
    }
    let pair = world.subgroup([world.rank_at(0)?, world.rank_at(2)?]).create(&world.wait())?;
    let in_pair = pair.rendezvous(&tensor, &pair.wait())?;
    let peer = context.rank() ^ 2;
    let (of_all, of_pair) = ((&in_all, all.rank_at(peer)?), (&in_pair, pair.rank_at(peer / 2)?));
    let brief = Wait::millis(150);
    for (channel, (sent, other)) in [(0, (of_all, of_pair)), (1, (of_pair, of_all))] {
        let channel = Channel(channel);
        let stream = super::stream_of(sent.0.group())?;
        settle(sent.0.put_signal(sent.1, channel), &stream)?;
        context.meet()?;
        let wait = other.0.wait_signal(other.1, channel).wait(&brief);
        let error = check_err!(
            settle(wait, &super::stream_of(other.0.group())?),
            SignalError::TimedOut { .. }
        );
        check_eq!(error.ranks(), RankSet::one(other.1.index()));
        // It is still there for whom it was meant.
        settle(sent.0.wait_signal(sent.1, channel), &stream)?;
        context.meet()?;
    }
    Ok(())
}

fn barriers_and_signals_of_a_channel_do_not_meet(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let next = context.neighbour(&bench.group, 1)?;
    let previous = context.neighbour(&bench.group, context.size() - 1)?;
    for _ in 0..20 {
        bench.put(next, 7)?;
        bench.barrier(7)?;
        bench.barrier(7)?;
        bench.wait(previous, 7)?;
    }
    Ok(())
}

/// Signals taken in the reverse order of their channels; barriers of two channels, interleaved.
fn channels_of_a_group_do_not_mix(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let next = context.neighbour(&bench.group, 1)?;
    let previous = context.neighbour(&bench.group, context.size() - 1)?;
    let channels = bench.group.channels().min(20);
    for round in 0..5 {
        context.step(format_args!("round {round}"));
        for channel in 0..channels {
            bench.put(next, channel)?;
        }
        for channel in (0..channels).rev() {
            bench.wait(previous, channel)?;
        }
        for channel in [0, 1, 0, 0, 1] {
            bench.barrier(channel)?;
        }
    }
    Ok(())
}
