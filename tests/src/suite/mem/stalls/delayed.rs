//! Ranks that are delayed while they make a group, or meet for a rendezvous.

use std::thread;
use std::time::Duration;

use symmem_hal::{CancelToken, Wait};
use symmem_mem::stalls::{Stall, Step};
use symmem_mem::{ExchangeError, Group, RendezvousError, SubgroupError, SymmetricMemory, Tensor};

use super::super::exchange_marks;
use crate::runner::{Context, Mode, PATIENT, TestError, Verdict, options};
use crate::support::eventually;
use crate::support::observe::Holdings;
use crate::{check, check_eq};

/// Until all others have done what they can without the rank.
const BRIEF: Duration = Duration::from_millis(3);

/// For how much longer than its own bound, where nobody misses it.
const BEYOND: Duration = Duration::from_millis(100);

/// A call in which ranks meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    NewGroup,
    Rendezvous,
}

/// Who is delayed where.
#[derive(Clone, Copy, Debug)]
struct Case {
    call: Call,
    rank: usize,
    step: Step,
    /// After it has come there so often.
    after: u64,
    /// Whether the others then have all that they wait for.
    has_given: bool,
}

/// A case about to happen.
struct Attempt {
    case: Case,
    /// The ranks, in the order of the group.
    order: Vec<usize>,
    /// The group; `None` where it is what is to be made.
    group: Option<Group>,
    tensor: Tensor<u32>,
}

/// Why a call gave nothing.
#[derive(Debug, thiserror::Error)]
enum MeetError {
    #[error(transparent)]
    Group(#[from] SubgroupError),
    #[error(transparent)]
    Memory(#[from] RendezvousError),
}

impl MeetError {
    /// Who did not come, by their places in the group.
    fn missing(&self) -> Option<&[u32]> {
        match self {
            MeetError::Group(SubgroupError::Rendezvous { cause, .. })
            | MeetError::Memory(cause) => match cause {
                RendezvousError::Exchange(ExchangeError::Missing { missing, .. }) => Some(missing),
                _ => None,
            },
            MeetError::Group(_) => None,
        }
    }
}

/// What a call gave: a group, and where it was known before, memory.
type Met = (Group, Option<SymmetricMemory>);

impl Attempt {
    fn new(context: &Context, case: Case, order: &[usize]) -> Result<Self, TestError> {
        let is_known = case.call == Call::Rendezvous;
        let group =
            if is_known { Some(new_group(context.world()?, order, &PATIENT)?) } else { None };
        let tensor = Tensor::zeros(context.device(), &[16])?;
        Ok(Attempt { case, order: order.to_vec(), group, tensor })
    }

    fn call(&self, world: &Group, wait: &Wait) -> Result<Met, MeetError> {
        match &self.group {
            Some(group) => Ok((group.clone(), Some(group.rendezvous(&self.tensor, wait)?))),
            None => Ok((new_group(world, &self.order, wait)?, None)),
        }
    }

    /// As the rank that is delayed, for some time or until the token ends it; whether it was.
    fn call_late(
        &self,
        world: &Group,
        wait: &Wait,
        time: Duration,
        end: &CancelToken,
    ) -> (Result<Met, MeetError>, bool) {
        let Case { step, after, .. } = self.case;
        let held = Stall { step, after, time, end: end.clone() }.begin();
        let met = self.call(world, wait);
        (met, held.was_held())
    }

    /// The group and the memory that they gave are what they are to be.
    fn check(&self, context: &Context, met: Met, round: usize) -> Verdict {
        let (group, memory) = met;
        let memory = memory.map_or_else(|| group.rendezvous(&self.tensor, &PATIENT), Ok)?;
        exchange_marks(context, &group, &memory, &self.tensor, round as u32)?;
        Ok(group.check()?)
    }
}

fn new_group(world: &Group, order: &[usize], wait: &Wait) -> Result<Group, SubgroupError> {
    let ranks = order.iter().map(|index| world.rank_at(*index)).collect::<Result<Vec<_>, _>>()?;
    world.subgroup(ranks).options(options(order.len())).create(wait)
}

/// All of them, as ranks of this place come to the steps.
fn cases(context: &Context) -> Result<Vec<Case>, TestError> {
    let order: Vec<usize> = (0..context.size()).collect();
    let mut cases = Vec::new();
    for call in [Call::NewGroup, Call::Rendezvous] {
        let nobody = Case { call, rank: 0, step: Step::Keep, after: u64::MAX, has_given: true };
        let attempt = Attempt::new(context, nobody, &order)?;
        let (time, end) = (Duration::ZERO, CancelToken::new());
        let held = Stall { step: Step::Keep, after: u64::MAX, time, end }.begin();
        drop(attempt.call(context.world()?, &PATIENT)?);
        for &step in Step::ALL {
            let times = held.passed(step);
            let is_elsewhere = match step {
                Step::Connect | Step::Prove | Step::Take => context.mode() == Mode::Threads,
                Step::Allocate => call == Call::Rendezvous,
                _ => false,
            };
            check_eq!(times == 0, is_elsewhere, "{step:?} of {call:?}: {times} times");
            for after in 0..times {
                let has_given = step == Step::Keep || (step == Step::Take && after + 1 == times);
                let of = |rank| Case { call, rank, step, after, has_given };
                cases.extend((0..context.size()).map(of));
            }
        }
    }
    context.same("cases", format_args!("{cases:?}"));
    Ok(cases)
}

pub(super) fn each_rank_at_each_step(context: &Context) -> Verdict {
    let (world, order): (_, Vec<usize>) = (context.world()?, (0..context.size()).collect());
    for (round, case) in cases(context)?.into_iter().enumerate() {
        context.step(format_args!("{case:?}"));
        let attempt = Attempt::new(context, case, &order)?;
        let met = if context.rank() == case.rank {
            let (met, was_held) = attempt.call_late(world, &PATIENT, BRIEF, &CancelToken::new());
            check!(was_held, "{case:?}");
            met
        } else {
            attempt.call(world, &PATIENT)
        };
        attempt.check(context, met?, round)?;
    }
    Ok(())
}

/// All orders of so few ranks: groups of different orders can be made at once, since ranks count those of
/// one order by themselves.
fn orders(ranks: usize) -> Vec<Vec<usize>> {
    let Some(last) = ranks.checked_sub(1) else { return vec![Vec::new()] };
    let place = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, last);
        order
    };
    orders(last).iter().flat_map(|order| (0..ranks).map(|at| place(order, at))).collect()
}

pub(super) fn each_rank_beyond_the_bound(context: &Context) -> Verdict {
    let orders = orders(context.size());
    let (given, missed): (Vec<Case>, Vec<Case>) =
        cases(context)?.into_iter().partition(|case| case.has_given);
    for cases in [missed, given] {
        let (new, known): (Vec<Case>, Vec<Case>) =
            cases.into_iter().partition(|case| case.call == Call::NewGroup);
        // Many at once, since each takes the others' bound.
        let new: Vec<_> = new.chunks(orders.len()).collect();
        let known: Vec<_> = known.chunks(known.len().div_ceil(new.len())).collect();
        for (n, new) in new.iter().enumerate() {
            let new = new.iter().zip(&orders);
            let known = known.get(n).copied().unwrap_or_default().iter().zip(orders.iter().cycle());
            let attempts: Result<Vec<_>, _> =
                new.chain(known).map(|(case, order)| Attempt::new(context, *case, order)).collect();
            beyond_the_bound(context, &attempts?)?;
        }
    }
    Ok(())
}

/// The others do not wait for the delayed rank: they name it, or have what they need of it.
fn beyond_the_bound(context: &Context, attempts: &[Attempt]) -> Verdict {
    let (world, rank) = (context.world()?, context.rank());
    context.step(format_args!("{:?}", attempts.iter().map(|a| a.case).collect::<Vec<_>>()));
    let (wait, beyond) = (Wait::timeout(context.brief()), context.brief() + BEYOND);
    let until_told = CancelToken::new();
    let before = Holdings::of_all_ranks(context)?;
    let outcomes = thread::scope(|threads| -> Result<Vec<_>, TestError> {
        let call = |a: &Attempt| match (rank == a.case.rank, a.case.has_given) {
            (false, _) => (a.call(world, &wait), true),
            (true, false) => a.call_late(world, &wait, PATIENT.duration(), &until_told),
            (true, true) => a.call_late(world, &wait, beyond, &CancelToken::new()),
        };
        let spawn = |a| (a, threads.spawn(move || call(a)));
        let (late, others): (Vec<_>, Vec<_>) =
            attempts.iter().map(spawn).partition(|(a, _)| a.case.rank == rank);
        let others: Vec<_> = others.into_iter().map(|(a, thread)| (a, thread.join())).collect();
        // All have been told who is missing.
        let met = context.meet();
        until_told.cancel();
        let late = late.into_iter().map(|(a, thread)| (a, thread.join()));
        let all = others.into_iter().chain(late).collect();
        met.map(|()| all)
    })?;
    let mut has_missed = false;
    for (attempt, outcome) in outcomes {
        let case = attempt.case;
        let (met, was_held) =
            outcome.map_err(|_| TestError::failed(format!("{case:?}: a panic")))?;
        check!(was_held, "{case:?}: no delay");
        match met {
            Ok(_) => check!(case.has_given, "{case:?}: nobody was missed"),
            Err(error) => {
                check!(!case.has_given, "{case:?}: {error}");
                has_missed = true;
                let is_missed = |place: &u32| attempt.order[*place as usize] == case.rank;
                // The rank itself finds nobody there any more.
                let as_expected = match error.missing() {
                    Some(missing) if rank == case.rank => !missing.iter().any(is_missed),
                    Some(missing) => missing.len() == 1 && missing.iter().all(is_missed),
                    None => false,
                };
                check!(as_expected, "{case:?}: {error:?}");
                if let Some(group) = &attempt.group {
                    check!(group.symmetric(&attempt.tensor).is_err(), "{case:?}: it is symmetric");
                    group.check()?;
                }
            }
        }
    }
    context.meet()?;
    // Whoever is told that ranks are missing keeps a connection to the store: descriptors do not count.
    let is_unmapped = || Holdings::now().is_ok_and(|now| now.mappings <= before.mappings);
    check!(!has_missed || eventually(is_unmapped), "memory of a call that failed is mapped");
    context.meet()?;
    for (round, attempt) in attempts.iter().enumerate() {
        attempt.check(context, attempt.call(world, &PATIENT)?, round)?;
    }
    Ok(())
}
