//! Operations to which a rank does not come, or does not come in time.

use std::time::{Duration, Instant};

use symmem_collectives::{AllReduceError, Collectives as _, ReduceOp};
use symmem_hal::types::RankSet;
use symmem_hal::{CancelToken, Fault as _, Kind, Wait};
use symmem_mem::call::Operation;
use symmem_mem::launch::Threads;
use symmem_mem::{Failure, Group, Tensor};

use super::harness::run;
use crate::runner::{Context, Mode, PATIENT, Test, TestError, Verdict, options};
use crate::suite::sync::stream_of;
use crate::support::eventually;
use crate::support::observe::is_asleep;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_missing_rank_is_named_by_all).at_least(2),
    test!(all_missing_ranks_are_named).at_least(3),
    test!(a_cancelled_operation_ends_on_every_rank).at_least(2),
    test!(a_rank_that_left_is_said_to_have_left).at_least(2),
    test!(a_rank_that_stops_for_a_while_is_waited_for).ranks(2, 8).only_as(&[Mode::Processes]),
    test!(a_thread_that_panics_is_lost).local(),
];

/// One all-reduce of ones.
pub(super) fn reduce_ones(context: &Context, group: &Group) -> Result<(), TestError> {
    let x = Tensor::<u32>::zeros(context.device(), &[1000])?;
    x.write(&[1u32; 1000])?;
    run(group.all_reduce(&x), &stream_of(group)?)?;
    check!(x.to_vec()?.iter().all(|v| *v == group.size() as u32), "a wrong sum");
    Ok(())
}

/// As [`reduce_ones`], with its error.
fn try_reduce(
    context: &Context,
    group: &Group,
    wait: &Wait,
) -> Result<Result<(), AllReduceError>, TestError> {
    let x = Tensor::<u32>::zeros(context.device(), &[1000])?;
    Ok(run(group.all_reduce(&x).wait(wait), &stream_of(group)?))
}

/// Only the first ranks come. All of those name the others; and the others, when they come at last,
/// hear the same.
fn only_come(context: &Context, coming: usize) -> Verdict {
    context.step(format_args!("{coming} come"));
    let group = context.group()?;
    reduce_ones(context, &group)?;
    context.meet()?;
    let missing: RankSet = (coming..context.size()).collect();
    let since = Instant::now();
    let told = context.rank() < coming;
    let wait = Wait::timeout(context.brief());
    let found = if told { Some(try_reduce(context, &group, &wait)?) } else { None };
    if let Some(found) = found {
        let error = check_err!(found, AllReduceError::Failed(Failure::TimedOut { .. }));
        check_eq!(error.kind(), Kind::TimedOut);
        check_eq!(error.ranks(), missing);
        context.told(&error, since);
        let AllReduceError::Failed(failure) = error else { return Ok(()) };
        check!(
            matches!(&failure, Failure::TimedOut { operation: Some(Operation::AllReduce), .. }),
            "{failure:?}"
        );
        if coming == 1 {
            check!(since.elapsed() >= wait.duration(), "gave up after {:?}", since.elapsed());
        }
        context.same(format_args!("{coming} came"), &failure);
    }
    context.meet()?;
    if !told {
        let error = check_err!(try_reduce(context, &group, &PATIENT)?, AllReduceError::Failed(_));
        context.same(format_args!("{coming} came"), &error);
    }
    let failure = check_err!(group.check(), Failure::TimedOut { .. });
    context.same(format_args!("{coming} came"), &failure);
    context.meet()?;
    // Another group of the same ranks has nothing to do with it.
    reduce_ones(context, &context.group()?)
}

fn a_missing_rank_is_named_by_all(context: &Context) -> Verdict {
    only_come(context, context.size() - 1)
}

fn all_missing_ranks_are_named(context: &Context) -> Verdict {
    only_come(context, 1)?;
    only_come(context, context.size() / 2 + 1)
}

/// The last rank does not come, and the first one's caller loses patience.
fn a_cancelled_operation_ends_on_every_rank(context: &Context) -> Verdict {
    let group = context.group()?;
    reduce_ones(context, &group)?;
    context.meet()?;
    let last = context.size() - 1;
    let stream = stream_of(&group)?;
    let x = Tensor::<u32>::zeros(context.device(), &[1000])?;
    if context.rank() != last {
        let token = CancelToken::new();
        let wait = PATIENT.with_cancel(token.clone());
        let found = std::thread::scope(|scope| {
            if context.rank() == 0 {
                let me = rustix::thread::gettid();
                // Once this rank waits: inside the operation, or for the stream that runs it.
                scope.spawn(move || eventually(|| is_asleep(me)).then(|| token.cancel()));
            }
            run(group.all_reduce(&x).wait(&wait), &stream)
        });
        let error = check_err!(found, AllReduceError::Failed(Failure::Cancelled { .. }));
        check_eq!(error.kind(), Kind::Cancelled);
        context.found(&error);
        context.same("failure", &error);
    }
    context.meet()?;
    if context.rank() == last {
        let error = check_err!(try_reduce(context, &group, &PATIENT)?, AllReduceError::Failed(_));
        context.same("failure", &error);
    }
    reduce_ones(context, &context.group()?)
}

fn a_rank_that_left_is_said_to_have_left(context: &Context) -> Verdict {
    let group = context.group()?;
    reduce_ones(context, &group)?;
    // An abort by one that is ahead would end this operation too.
    context.meet()?;
    let last = context.size() - 1;
    if context.rank() == last {
        group.leave();
        check_err!(try_reduce(context, &group, &PATIENT)?, AllReduceError::Failed(Failure::Left));
    } else {
        check!(eventually(|| group.status().gone(last).is_some()), "not told that it has left");
        let since = Instant::now();
        let error = check_err!(
            try_reduce(context, &group, &PATIENT)?,
            AllReduceError::Failed(Failure::PeerLost { .. })
        );
        check!(since.elapsed() < PATIENT.duration(), "ended by the deadline only");
        context.told(&error, since);
        check_eq!(error.ranks(), RankSet::one(last));
        check!(
            matches!(&error, AllReduceError::Failed(Failure::PeerLost { left: true, .. })),
            "{error:?}: it left"
        );
    }
    context.meet()
}

/// Slow is not dead: a process that is stopped for two seconds in the middle of operations is
/// waited for.
fn a_rank_that_stops_for_a_while_is_waited_for(context: &Context) -> Verdict {
    use rustix::process::{Pid, Signal, kill_process};

    let group = context.group()?;
    reduce_ones(context, &group)?;
    let victim = group.member_processes()[context.size() - 1].1;
    let victim = Pid::from_raw(i32::try_from(victim)?).ok_or_else(|| TestError::failed("pid 0"))?;
    let running = std::sync::atomic::AtomicBool::new(context.rank() == 0);
    std::thread::scope(|scope| {
        let stopping = (context.rank() == 0).then(|| {
            scope.spawn(|| -> Verdict {
                kill_process(victim, Signal::STOP)?;
                std::thread::sleep(Duration::from_secs(2));
                kill_process(victim, Signal::CONT)?;
                running.store(false, std::sync::atomic::Ordering::Release);
                Ok(())
            })
        });
        // The first rank says when to stop: through the operation itself.
        let go_on = Tensor::<u32>::zeros(context.device(), &[1])?;
        let stream = stream_of(&group)?;
        for round in 0.. {
            context.step(format_args!("round {round}"));
            reduce_ones(context, &group)?;
            go_on.write(&[u32::from(running.load(std::sync::atomic::Ordering::Acquire))])?;
            run(group.all_reduce(&go_on).op(ReduceOp::Max), &stream)?;
            if go_on.to_vec()? == [0] {
                break;
            }
        }
        match stopping.map(std::thread::ScopedJoinHandle::join) {
            Some(Ok(stopped)) => stopped,
            Some(Err(_)) => Err(TestError::failed("the stopping thread has panicked")),
            None => Ok(()),
        }
    })?;
    group.check()?;
    Ok(())
}

/// What a test throws to end a rank: not printed as a panic is.
struct Thrown;

/// A thread rank unwinds between two operations, while the others are in the second.
fn a_thread_that_panics_is_lost(context: &Context) -> Verdict {
    const RANKS: usize = 4;
    let ended = std::sync::Mutex::new(Vec::new());
    let thrown_at = std::sync::Mutex::new(None);
    // All have seen the first operation end before one fails: a stream's synchronize reports the
    // group's failure, also one of a later operation.
    let reduced = std::sync::Barrier::new(RANKS);
    let devices = (0..RANKS).map(|_| context.device().clone()).collect();
    let ranks = Threads::new(RANKS).options(options(RANKS)).devices(devices);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ranks.run(|group| {
            let rank = group.rank().index();
            let first = reduce_ones(context, &group);
            reduced.wait();
            let end = first.and_then(|()| {
                if rank == 2 {
                    *thrown_at.lock().map_err(|_| TestError::failed("poisoned"))? =
                        Some(Instant::now());
                    return Ok(None);
                }
                let found = try_reduce(context, &group, &PATIENT)?;
                Ok(Some((found, Instant::now(), group.check())))
            });
            if let Ok(mut ended) = ended.lock() {
                ended.push((rank, end));
            }
            if rank == 2 {
                std::panic::resume_unwind(Box::new(Thrown));
            }
        })
    }));
    check!(panic.is_err_and(|thrown| thrown.is::<Thrown>()), "the panic was not resumed");
    let thrown_at = thrown_at.into_inner().map_err(|_| TestError::failed("poisoned"))?;
    let thrown_at = thrown_at.ok_or_else(|| TestError::failed("rank 2 did not come so far"))?;
    for (rank, end) in ended.into_inner().map_err(|_| TestError::failed("poisoned"))? {
        let Some((found, at, checked)) = end? else { continue };
        let error = check_err!(found, AllReduceError::Failed(Failure::PeerLost { .. }));
        check!(
            matches!(&error, AllReduceError::Failed(Failure::PeerLost { rank, left: false })
                if rank.index() == 2),
            "rank {rank}: {error:?}"
        );
        check_eq!(checked.err().map(|e| e.to_string()), Some(error.to_string()));
        let after = at.saturating_duration_since(thrown_at);
        check!(after < Duration::from_secs(1), "rank {rank} was told after {after:?}");
    }
    Ok(())
}
