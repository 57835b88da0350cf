//! Ranks that do not come to a meeting, or come twice.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process};
use symmem_hal::types::RankSet;
use symmem_hal::{CancelToken, Fault as _, Kind, Wait};
use symmem_mem::bootstrap::Bootstrap;
use symmem_mem::launch::StartError;
use symmem_mem::{ExchangeError, Group, RendezvousError, SubgroupError, Tensor, View};

use super::bytes_view;
use crate::runner::{Context, Mode, PATIENT, Test, TestError, Verdict, options};
use crate::support::eventually;
use crate::support::observe::is_asleep;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_rank_missing_from_a_rendezvous_is_named).at_least(2).isolated(),
    test!(a_rank_missing_from_a_new_group_is_named).at_least(2).isolated(),
    test!(ranks_meet_again_after_one_gave_up_alone).at_least(2),
    test!(the_first_deadline_is_everybodys).at_least(3).isolated(),
    test!(a_bound_is_for_all_that_a_call_waits_for).at_least(2).isolated(),
    test!(a_cancelled_meeting_is_cancelled_for_all).at_least(2).isolated(),
    test!(a_stopped_rank_holds_up_nobody_beyond_the_bound)
        .ranks(2, 4)
        .only_as(&[Mode::Processes])
        .isolated(),
    test!(the_first_rank_dies).ranks(2, 8).only_as(&[Mode::Processes]).isolated(),
    test!(the_last_rank_dies).ranks(2, 8).only_as(&[Mode::Processes]).isolated(),
    test!(a_host_that_others_cannot_reach_is_refused_at_once).local(),
    test!(two_processes_claim_one_rank).ranks(3, 8).only_as(&[Mode::Processes]).isolated(),
];

fn check_named(context: &Context, error: &RendezvousError, who: usize) -> Verdict {
    let RendezvousError::Exchange(ExchangeError::Missing { missing, allowed, .. }) = error else {
        return Err(TestError::failed(format!("expected a missing rank, found {error:?}")));
    };
    check_eq!(missing, &[who as u32]);
    // What was left of it when the rank that gave up first had found the others.
    let brief = context.brief();
    check!(*allowed <= brief && !allowed.is_zero(), "{allowed:?} allowed, not {brief:?}");
    check_eq!(error.kind(), Kind::TimedOut);
    check_eq!(error.ranks(), RankSet::one(who));
    context.found(error);
    Ok(())
}

fn a_rank_missing_from_a_rendezvous_is_named(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    context.meet()?;
    if context.rank() == last {
        return Ok(());
    }
    let found = group.rendezvous(bytes_view(context, 100)?, &Wait::timeout(context.brief()));
    check_named(context, &check_err!(found, RendezvousError::Exchange(_)), last)?;
    group.check()?;
    Ok(())
}

fn a_rank_missing_from_a_new_group_is_named(context: &Context) -> Verdict {
    let world = context.world()?;
    let last = context.size() - 1;
    context.meet()?;
    if context.rank() == last {
        return Ok(());
    }
    let made = world.subgroup(world.ranks()).create(&Wait::timeout(context.brief()));
    let SubgroupError::Rendezvous { cause: error, .. } =
        check_err!(made, SubgroupError::Rendezvous { .. })
    else {
        return Err(TestError::failed("not of the meeting"));
    };
    check_named(context, &error, last)
}

/// A rank that gave up before the others came is one call ahead of them. All learn that in the next
/// meeting, and the one after it succeeds.
fn ranks_meet_again_after_one_gave_up_alone(context: &Context) -> Verdict {
    let group = context.group()?;
    let views = [bytes_view(context, 100)?, bytes_view(context, 100)?, bytes_view(context, 100)?];
    for (round, view) in views.iter().enumerate() {
        context.step(format_args!("round {round}"));
        let hasty = round % context.size();
        if context.rank() == hasty {
            let found = group.rendezvous(view, &Wait::timeout(context.brief()));
            check_err!(found, RendezvousError::Exchange(ExchangeError::Missing { .. }));
        }
        context.meet()?;
        let found = group.rendezvous(view, &PATIENT);
        let error = check_err!(found, RendezvousError::Mismatch(_));
        check!(error.to_string().contains("the rendezvous ordinal"), "{error}");
        context.same(format_args!("round {round}"), error.to_string());
        group.rendezvous(view, &PATIENT)?;
    }
    group.check()?;
    Ok(())
}

/// For its turn among the threads of its rank, and then for the other ranks.
fn a_bound_is_for_all_that_a_call_waits_for(context: &Context) -> Verdict {
    const BOUND: Duration = Duration::from_secs(1);
    let group = context.group()?;
    let views = [bytes_view(context, 100)?, bytes_view(context, 100)?];
    if context.rank() == 0 {
        let attempt = |view: &View| -> Verdict {
            let since = Instant::now();
            let found = group.rendezvous(view, &Wait::timeout(BOUND));
            check_err!(found, RendezvousError::Exchange(_));
            check!(since.elapsed() < BOUND * 3 / 2, "{BOUND:?} became {:?}", since.elapsed());
            Ok(())
        };
        std::thread::scope(|threads| {
            let second = threads.spawn(|| attempt(&views[1]));
            let first = attempt(&views[0]);
            first.and(second.join().unwrap_or_else(|_| Err(TestError::failed("panicked"))))
        })?;
    }
    context.meet()
}

/// Ranks with more patience do not stay behind in a meeting that one has given up.
fn the_first_deadline_is_everybodys(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    context.meet()?;
    if context.rank() == last {
        return Ok(());
    }
    let wait = if context.rank() == 0 { Wait::timeout(context.brief()) } else { PATIENT };
    let since = Instant::now();
    let found = group.rendezvous(bytes_view(context, 100)?, &wait);
    let error = check_err!(found, RendezvousError::Exchange(_));
    if context.rank() == 0 {
        check_named(context, &error, last)?;
        check!(since.elapsed() >= context.brief(), "gave up after {:?}", since.elapsed());
    }
    check_eq!(error.ranks(), RankSet::one(last));
    context.same("error", &error);
    Ok(())
}

fn a_cancelled_meeting_is_cancelled_for_all(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    let token = CancelToken::new();
    let view = bytes_view(context, 100)?;
    context.meet()?;
    if context.rank() == last {
        return Ok(());
    }
    let error = std::thread::scope(|scope| {
        let wait = if context.rank() == 0 {
            let me = rustix::thread::gettid();
            let (token, cancelling) = (token.clone(), token);
            // Once this rank waits for the one who does not come.
            scope.spawn(move || eventually(|| is_asleep(me)).then(|| cancelling.cancel()));
            PATIENT.with_cancel(token)
        } else {
            Wait::seconds(2)
        };
        Ok::<_, TestError>(check_err!(group.rendezvous(&view, &wait), RendezvousError::Exchange(_)))
    })?;
    if context.rank() == 0 {
        check_eq!(error.kind(), Kind::Cancelled, "{error}");
    } else {
        // Who comes to it after its end waits for the others, in vain.
        let named = error.ranks().contains(0) && error.ranks().contains(last);
        check!(error.kind() == Kind::Cancelled || named, "{error}");
    }
    Ok(())
}

/// Each process in turn is stopped, the one that leads the meetings among them: it neither answers nor
/// closes anything, and the others' wait is over in time all the same. Awake again, it is a member like
/// any other.
fn a_stopped_rank_holds_up_nobody_beyond_the_bound(context: &Context) -> Verdict {
    let size = context.size();
    for who in 0..size {
        context.step(format_args!("rank {who} is stopped"));
        let group = context.group()?;
        let victim = i32::try_from(group.member_processes()[who].1)?;
        let victim = Pid::from_raw(victim).ok_or_else(|| TestError::failed("pid 0"))?;
        // Words in the memory of the one who stops it: stopped, and each rank done.
        let keeper = (who + 1) % size;
        let words = Tensor::<u32>::zeros(context.device(), &[size as u64 + 1])?;
        let handle = group.rendezvous(&words, &PATIENT)?;
        let word = |at: usize| -> Result<View, TestError> {
            Ok(handle.remote(group.rank_at(keeper)?)?.slice(at as u64, 1)?)
        };
        let is_set = |at: usize| {
            let mut found = [0u32];
            word(at).is_ok_and(|word| word.read(&mut found).is_ok()) && found[0] == 1
        };
        context.meet()?;
        if context.rank() == keeper {
            kill_process(victim, Signal::STOP)?;
            word(size)?.write(&[1u32])?;
        }
        if context.rank() != who {
            check!(eventually(|| is_set(size)), "it is not stopped");
            let found =
                group.rendezvous(bytes_view(context, 100)?, &Wait::timeout(context.brief()));
            word(context.rank())?.write(&[1u32])?;
            if context.rank() == keeper {
                let done = eventually(|| (0..size).all(|rank| rank == who || is_set(rank)));
                kill_process(victim, Signal::CONT)?;
                check!(done, "some ranks still wait");
            }
            let error = check_err!(found, RendezvousError::Exchange(_));
            check_eq!(error.kind(), Kind::TimedOut, "{error}");
            check!(error.ranks().contains(who), "{error}");
        }
        context.meet()?;
        let group = context.group()?;
        let tensor = Tensor::<u32>::zeros(context.device(), &[10])?;
        let handle = group.rendezvous(&tensor, &PATIENT)?;
        super::exchange_marks(context, &group, &handle, &tensor, 1)?;
    }
    Ok(())
}

/// A rank dies while the others wait for it: they learn at once, whoever led the meeting.
fn dies(context: &Context, who: usize) -> Verdict {
    let group = context.group()?;
    let view = bytes_view(context, 100)?;
    context.meet()?;
    if context.rank() == who {
        context.dying();
        kill_process(getpid(), Signal::KILL)?;
        return Err(TestError::failed("survived SIGKILL"));
    }
    let since = Instant::now();
    let error = check_err!(
        group.rendezvous(&view, &PATIENT),
        RendezvousError::Exchange(_) | RendezvousError::Failed(_)
    );
    check_eq!(error.kind(), Kind::PeerLost, "{error}");
    check_eq!(error.ranks(), RankSet::one(who), "{error}");
    check!(since.elapsed() < PATIENT.duration(), "told only by the deadline");
    Ok(())
}

fn the_first_rank_dies(context: &Context) -> Verdict {
    dies(context, 0)
}

fn the_last_rank_dies(context: &Context) -> Verdict {
    dies(context, context.size() - 1)
}

/// Ranks 1 and 2 of the test both join a run of two as its rank 1.
fn two_processes_claim_one_rank(context: &Context) -> Verdict {
    let mut bootstrap = Bootstrap::from_env()?;
    context.meet()?;
    if !(1..=2).contains(&context.rank()) {
        return Ok(());
    }
    bootstrap.run.launcher = bootstrap.run.launcher.map(|id| id + "-claims");
    (bootstrap.rank, bootstrap.world_size) = (1, 2);
    (bootstrap.local_rank, bootstrap.local_world_size) = (Some(1), Some(2));
    let joined = Group::join(&bootstrap, context.device(), &options(2), &PATIENT);
    let error = check_err!(joined, StartError::Exchange(_) | StartError::Rendezvous(_));
    check_eq!(error.kind(), Kind::Disagreement, "{error}");
    check_eq!(error.ranks(), RankSet::one(1), "{error}");
    check!(error.to_string().contains("two processes claim rank 1"), "{error}");
    Ok(())
}

/// Known from where the launcher says that the store is, before that is looked for: there is none.
fn a_host_that_others_cannot_reach_is_refused_at_once(context: &Context) -> Verdict {
    let variable = |name: &str| {
        let value = match name {
            "RANK" | "LOCAL_RANK" => "0",
            "WORLD_SIZE" => "4",
            "LOCAL_WORLD_SIZE" => "2",
            "MASTER_ADDR" => "127.0.0.1",
            "MASTER_PORT" => "1",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let bootstrap = Bootstrap::from_lookup(&variable)?;
    let joined = Group::join(&bootstrap, context.device(), &options(4), &Wait::millis(0));
    let error =
        check_err!(joined, StartError::NoAddress { world_size: 4, local_world_size: 2, .. });
    check_eq!(error.kind(), Kind::InvalidArgument);
    check!(error.to_string().contains("SYMMEM_ADDRESS"), "{error}");
    Ok(())
}
