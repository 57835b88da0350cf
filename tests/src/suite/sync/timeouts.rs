//! Waits that end early: who is named, what breaks, what mends it.

use std::time::Instant;

use symmem_hal::types::RankSet;
use symmem_hal::{CancelToken, Fault as _, Kind, SyncError, Wait};
use symmem_sync::{Channel, SignalError, Signals as _};

use super::{Bench, behind, settle};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_wait_for_no_signal_names_the_sender).at_least(2),
    test!(a_put_on_a_full_slot_names_the_receiver).at_least(2),
    test!(a_barrier_names_all_who_did_not_come).at_least(2),
    test!(a_reset_needs_every_rank).at_least(2),
    test!(no_time_is_a_bound_too).at_least(2),
    test!(a_cancelled_wait_ends).at_least(2),
    test!(each_channel_reports_its_own_time_out).at_least(2),
];

/// A channel that a wait has broken refuses, on this rank; the others are as they were.
fn check_broken(bench: &Bench, channel: u32) -> Verdict {
    let (group, me) = (&bench.group, bench.group.rank());
    for signal in [
        group.barrier(Channel(channel)),
        group.put_signal(me, Channel(channel)),
        group.wait_signal(me, Channel(channel)),
    ] {
        let error = check_err!(settle(signal, &bench.stream), SignalError::Broken { .. });
        check!(
            matches!(&error, SignalError::Broken { channel: c } if c.0 == channel),
            "{error}: not of channel {channel}"
        );
    }
    group.check()?;
    bench.put(me, channel + 1)?;
    bench.wait(me, channel + 1)?;
    Ok(())
}

/// After a reset by all, slots are empty and barriers meet.
fn check_mended(context: &Context, bench: &Bench, channel: u32) -> Verdict {
    bench.reset(channel)?;
    let next = context.neighbour(&bench.group, 1)?;
    let previous = context.neighbour(&bench.group, context.size() - 1)?;
    for _ in 0..3 {
        bench.put(next, channel)?;
        bench.wait(previous, channel)?;
        bench.barrier(channel)?;
    }
    Ok(())
}

fn check_timed_out(found: Result<(), SignalError>, channel: u32, missing: &RankSet) -> Verdict {
    let error = check_err!(found, SignalError::TimedOut { .. });
    check!(
        matches!(&error, SignalError::TimedOut { channel: c, ranks, .. }
            if c.0 == channel && ranks == missing),
        "{error}; expected channel {channel}, ranks {missing}"
    );
    check_eq!(error.kind(), Kind::TimedOut);
    check_eq!(error.ranks(), *missing);
    Ok(())
}

fn a_wait_for_no_signal_names_the_sender(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let wait = Wait::timeout(context.brief());
    for round in 0..2 {
        context.step(format_args!("round {round}"));
        if context.rank() == 0 {
            let sender = bench.group.rank_at(context.size() - 1)?;
            let since = Instant::now();
            let signal = bench.group.wait_signal(sender, Channel(3)).wait(&wait);
            let found = settle(signal, &bench.stream);
            check!(since.elapsed() >= context.brief(), "gave up after {:?}", since.elapsed());
            check_timed_out(found, 3, &RankSet::one(sender.index()))?;
            check_broken(&bench, 3)?;
        }
        context.meet()?;
        check_mended(context, &bench, 3)?;
    }
    Ok(())
}

fn a_put_on_a_full_slot_names_the_receiver(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let wait = Wait::timeout(context.brief());
    let last = bench.group.rank_at(context.size() - 1)?;
    if context.rank() == 0 {
        bench.put(last, 1)?;
        let signal = bench.group.put_signal(last, Channel(1)).wait(&wait);
        check_timed_out(settle(signal, &bench.stream), 1, &RankSet::one(last.index()))?;
        check_broken(&bench, 1)?;
    }
    context.meet()?;
    // The signal that nobody took is gone with the reset.
    check_mended(context, &bench, 1)?;
    if context.rank() == last.index() {
        let signal = bench.group.wait_signal(bench.group.rank_at(0)?, Channel(1)).wait(&wait);
        check_timed_out(settle(signal, &bench.stream), 1, &RankSet::one(0))?;
    }
    context.meet()?;
    check_mended(context, &bench, 1)
}

fn a_barrier_names_all_who_did_not_come(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let wait = Wait::timeout(context.brief());
    let size = context.size();
    // All but one, all but two, ... stay away.
    for coming in [1, size / 2, size - 1] {
        context.step(format_args!("{coming} come"));
        context.meet()?;
        if context.rank() < coming {
            let since = Instant::now();
            let found = settle(bench.group.barrier(Channel(2)).wait(&wait), &bench.stream);
            if let Err(error) = &found {
                context.told(error, since);
            }
            check_timed_out(found, 2, &(coming..size).collect())?;
            check_broken(&bench, 2)?;
        }
        context.meet()?;
        check_mended(context, &bench, 2)?;
    }
    Ok(())
}

fn a_reset_needs_every_rank(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let last = context.size() - 1;
    context.meet()?;
    if context.rank() != last {
        let wait = Wait::timeout(context.brief());
        let found = settle(bench.group.reset_channel(Channel(5)).wait(&wait), &bench.stream);
        check_timed_out(found, 5, &RankSet::one(last))?;
    }
    context.meet()?;
    check_mended(context, &bench, 5)
}

/// A wait of no time looks once: what is there is found, what is not is not waited for.
fn no_time_is_a_bound_too(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let group = &bench.group;
    let wait = Wait::millis(0);
    let next = context.neighbour(group, 1)?;
    let previous = context.neighbour(group, context.size() - 1)?;
    settle(group.put_signal(next, Channel(0)).wait(&wait), &bench.stream)?;
    context.meet()?;
    settle(group.wait_signal(previous, Channel(0)).wait(&wait), &bench.stream)?;
    context.meet()?;
    let found = settle(group.wait_signal(previous, Channel(0)).wait(&wait), &bench.stream);
    check_timed_out(found, 0, &RankSet::one(previous.index()))?;
    context.meet()?;
    check_mended(context, &bench, 0)
}

fn a_cancelled_wait_ends(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let previous = context.neighbour(&bench.group, context.size() - 1)?;
    for signal in [bench.group.wait_signal(previous, Channel(4)), bench.group.barrier(Channel(4))] {
        context.step(format_args!("{signal:?}"));
        // Of a barrier one rank stays away, so that it cannot happen.
        if context.rank() > 0 {
            let token = CancelToken::new();
            let wait = PATIENT.with_cancel(token.clone());
            let found = std::thread::scope(|scope| {
                scope.spawn(|| token.cancel());
                settle(signal.wait(&wait), &bench.stream)
            });
            let error = check_err!(found, SignalError::Cancelled { .. } | SignalError::Order(_));
            check_eq!(error.kind(), Kind::Cancelled);
            if matches!(error, SignalError::Cancelled { .. }) {
                check_broken(&bench, 4)?;
            }
        }
        context.meet()?;
        check_mended(context, &bench, 4)?;
        context.meet()?;
    }
    bench.group.check().map_err(TestError::from)
}

/// Two waits of one stream end early before anybody asks: each is told, and as itself.
fn each_channel_reports_its_own_time_out(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let previous = context.neighbour(&bench.group, context.size() - 1)?;
    let wait = Wait::timeout(context.brief());
    let told = [6, 7].map(|channel| {
        let signal = bench.group.wait_signal(previous, Channel(channel)).wait(&wait);
        // Inline it is told at once; else when the stream is asked, below.
        signal.on(&bench.stream)
    });
    for (channel, told) in [6, 7].into_iter().zip(told) {
        let found = told.and_then(|()| match bench.stream.synchronize(&PATIENT) {
            Err(SyncError::Unhealthy(fault)) => {
                Err(behind(&*fault).unwrap_or(SignalError::Stream(SyncError::Unhealthy(fault))))
            }
            other => Ok(other?),
        });
        check_timed_out(found, channel, &RankSet::one(previous.index()))?;
    }
    bench.stream.synchronize(&PATIENT)?;
    context.meet()?;
    check_mended(context, &bench, 6)?;
    check_mended(context, &bench, 7)
}
