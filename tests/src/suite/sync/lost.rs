//! Signals and barriers with ranks that are gone.

use std::time::Instant;

use symmem_hal::types::{Bytes, RankSet};
use symmem_hal::{Fault as _, Kind, Wait};
use symmem_mem::Group;
use symmem_mem::launch::Threads;
use symmem_sync::{Channel, SignalError, Signals as _};

use super::{Bench, settle};
use crate::runner::{Context, Mode, PATIENT, Test, TestError, Verdict, options};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_wait_for_a_rank_that_left_ends).at_least(2),
    test!(a_wait_for_a_process_that_died_ends).ranks(2, 8).only_as(&[Mode::Processes]).isolated(),
    test!(a_wait_for_a_thread_that_panicked_ends).local(),
    test!(garbage_from_a_peer_leads_nobody_astray).at_least(2).isolated(),
];

/// A signal from a rank that is gone does not come; one that it sent before does.
fn check_ends(group: &Group, gone: usize, channel: u32) -> Verdict {
    let bench = Bench::new(group.clone())?;
    let sender = group.rank_at(gone)?;
    let since = Instant::now();
    // Sent before the end: found, however late it is looked for.
    bench.wait(sender, channel)?;
    for (channel, signal) in [
        (channel, group.wait_signal(sender, Channel(channel))),
        (channel + 1, group.barrier(Channel(channel + 1))),
    ] {
        let found = settle(signal.wait(&PATIENT), &bench.stream);
        let error = check_err!(found, SignalError::PeerLost { .. });
        check!(
            matches!(&error, SignalError::PeerLost { channel: c, rank, .. }
                if c.0 == channel && *rank == sender),
            "{error}"
        );
        check_eq!(error.kind(), Kind::PeerLost);
        check_eq!(error.ranks(), RankSet::one(gone));
    }
    check!(since.elapsed() < PATIENT.duration(), "ended by the deadline only");
    Ok(())
}

/// The rank that is about to go signals every other.
fn say_goodbye(group: &Group, channel: u32) -> Verdict {
    let bench = Bench::new(group.clone())?;
    for peer in group.ranks().filter(|r| *r != group.rank()) {
        bench.put(peer, channel)?;
    }
    Ok(())
}

fn a_wait_for_a_rank_that_left_ends(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    // Every rank has its lanes before one goes.
    Bench::new(group.clone())?.barrier(0)?;
    if context.rank() == last {
        say_goodbye(&group, 3)?;
        group.leave();
        let error = check_err!(group.barrier(Channel(0)).run(), SignalError::Failed(_));
        check_eq!(error.kind(), Kind::Stale);
    } else {
        check_ends(&group, last, 3)?;
    }
    context.meet()
}

fn a_wait_for_a_process_that_died_ends(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    Bench::new(group.clone())?.barrier(0)?;
    if context.rank() == last {
        say_goodbye(&group, 3)?;
        context.dying();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
        return Err(TestError::failed("survived SIGKILL"));
    }
    check_ends(&group, last, 3)
}

/// What a test throws to end a rank: not printed as a panic is.
struct Thrown;

fn a_wait_for_a_thread_that_panicked_ends(context: &Context) -> Verdict {
    const RANKS: usize = 3;
    let ends = std::sync::Mutex::new(Vec::new());
    let devices = (0..RANKS).map(|_| context.device().clone()).collect();
    let ranks = Threads::new(RANKS).options(options(RANKS)).devices(devices);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ranks.run(|group| {
            let end = || -> Verdict {
                Bench::new(group.clone())?.barrier(0)?;
                if group.rank().index() != 1 {
                    return check_ends(&group, 1, 3);
                }
                say_goodbye(&group, 3)
            };
            let ended = end();
            if let Ok(mut ends) = ends.lock() {
                ends.push(ended);
            }
            if group.rank().index() == 1 {
                std::panic::resume_unwind(Box::new(Thrown));
            }
        })
    }));
    check!(
        panic.is_err_and(|thrown| thrown.is::<Thrown>()),
        "the rank's panic was not resumed once the others had returned"
    );
    let ends = ends.into_inner().map_err(|_| TestError::failed("a rank panicked elsewhere"))?;
    check_eq!(ends.len(), RANKS);
    ends.into_iter().collect()
}

/// A peer has a rank's whole pad and workspace mapped. Whatever it writes there, calls of that rank end,
/// as well or badly as it may be; none follows an address from there.
fn garbage_from_a_peer_leads_nobody_astray(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let last = context.size() - 1;
    bench.barrier(0)?;
    for byte in [0x41, 0xff] {
        context.step(format_args!("bytes of {byte:#x}"));
        context.meet()?;
        if context.rank() == 0 {
            let region = &bench.group.regions()[last];
            let size = region.bytes().to_usize().unwrap_or(0);
            region.write(Bytes::ZERO, &vec![byte; size])?;
        }
        context.meet()?;
        let wait = Wait::timeout(context.brief());
        let me = bench.group.rank();
        for signal in [
            bench.group.barrier(Channel(0)),
            bench.group.put_signal(me, Channel(1)),
            bench.group.wait_signal(me, Channel(1)),
        ] {
            // Any answer will do.
            let _ = settle(signal.wait(&wait), &bench.stream);
        }
        let _ = bench.group.check();
    }
    context.meet()?;
    Ok(())
}
