//! Delays beyond the bound of the others' waits: all say who is missing, and nobody hangs.

use std::time::Duration;

use symmem_collectives::{Algorithm, AllReduceError, Collectives as _};
use symmem_hal::types::RankSet;
use symmem_hal::{Fault as _, Wait};
use symmem_mem::{Completion, Failure, Group, Options, Tensor};
use symmem_sync::protocol::Epoch;
use symmem_sync::stalls::{Stall, Step};
use symmem_sync::{Channel, Puts as _, Signal, SignalError, Signals as _};

use super::delayed::{BRIEF, Delay, kernels};
use crate::runner::{Context, PATIENT, TestError, Verdict, options};
use crate::suite::collectives::failing::reduce_ones;
use crate::suite::collectives::harness::run;
use crate::suite::sync::{behind, stream_of};
use crate::{check_eq, check_err};

/// Ranks to be delayed at a step: all in long runs, else one.
fn ranks(context: &Context, step: Step) -> Vec<usize> {
    match context.soak() {
        true => (0..context.size()).collect(),
        false => vec![step as usize % context.size()],
    }
}

/// All-reduces of every kind, until one fails.
fn until_failure(context: &Context, group: &Group, wait: &Wait) -> Result<Failure, TestError> {
    const COUNT: u64 = 2000;
    let stream = stream_of(group)?;
    let x = Tensor::<u32>::zeros(context.device(), &[COUNT])?;
    for round in 0..12 {
        let (count, algorithm) = match round % 3 {
            0 => (6, Algorithm::Packet),
            1 => (COUNT, Algorithm::OneShot),
            _ => (COUNT, Algorithm::TwoShot),
        };
        let call = x.slice(0, count)?;
        match run(group.all_reduce(&call).algorithm(algorithm).wait(wait), &stream) {
            Ok(()) => {}
            Err(AllReduceError::Failed(failure)) => return Ok(failure),
            Err(other) => return Err(other.into()),
        }
    }
    Err(TestError::failed("no operation has failed"))
}

pub(super) fn beyond_the_bound_of_operations(context: &Context) -> Verdict {
    let _kernels = kernels();
    let of_lanes = Step::ALL.iter().copied().take_while(|step| *step != Step::Report);
    for step in of_lanes {
        for rank in ranks(context, step) {
            context.step(format_args!("rank {rank} at {step:?}"));
            let first_epoch = Epoch::MIDDLE.get() - 2;
            // Where lines and packets carry everything, flags are for that alone.
            let completion = match step {
                Step::RaiseFlag | Step::AwaitFlag => Completion::Group,
                _ => Completion::Local,
            };
            let options = Options { first_epoch, completion, ..options(context.size()) };
            let group = context.group_with(&options)?;
            // Until the others have failed, which is what ends it.
            let stall = Stall { rank, step, time: PATIENT.duration(), every: 1 };
            let delay = Delay::begin(context, &group, stall)?;
            context.meet()?;
            let failure = until_failure(context, &group, &Wait::timeout(context.brief()))?;
            delay.end()?;
            check_err!(Err::<(), _>(failure.clone()), Failure::TimedOut { .. });
            check_eq!(failure.ranks(), RankSet::one(rank), "{step:?}: {failure}");
            context.same(format_args!("rank {rank} at {step:?}"), &failure);
            context.meet()?;
        }
    }
    reduce_ones(context, &context.group()?)
}

/// One rank does not come; another is slow to say so, who finds it first or with all others.
pub(super) fn a_rank_that_reports(context: &Context) -> Verdict {
    let _kernels = kernels();
    let brief = context.brief();
    for (rank, is_first) in (0..context.size()).flat_map(|rank| [(rank, true), (rank, false)]) {
        let absent = (rank + 1) % context.size();
        let group = context.group()?;
        let stall = Stall { rank, step: Step::Report, time: BRIEF, every: 1 };
        let delay = Delay::begin(context, &group, stall)?;
        context.meet()?;
        if context.rank() != absent {
            let bound = if is_first && context.rank() != rank { brief * 4 } else { brief };
            let failure = until_failure(context, &group, &Wait::timeout(bound))?;
            // Where another has told it meanwhile, it has nothing to report.
            if is_first {
                delay.end()?;
            }
            check_eq!(failure.ranks(), RankSet::one(absent), "{failure}");
            context.same(format_args!("rank {absent} is absent, {is_first}"), &failure);
        }
        context.meet()?;
    }
    Ok(())
}

/// Issues a signal or barrier with a bound; how it ended.
fn settle(
    group: &Group,
    signal: Signal<'_>,
    wait: &Wait,
) -> Result<Result<(), SignalError>, TestError> {
    let stream = stream_of(group)?;
    let issued = signal.wait(wait).on(&stream);
    if issued.is_err() {
        return Ok(issued);
    }
    match stream.synchronize(&PATIENT) {
        Ok(()) => Ok(Ok(())),
        Err(symmem_hal::SyncError::Unhealthy(fault)) => match behind::<SignalError>(&*fault) {
            Some(error) => Ok(Err(error)),
            None => Err(TestError::failed(fault.to_string())),
        },
        Err(other) => Err(other.into()),
    }
}

pub(super) fn beyond_the_bound_of_signals(context: &Context) -> Verdict {
    let _kernels = kernels();
    let of_signals = Step::ALL.iter().copied().skip_while(|step| *step != Step::Report).skip(1);
    for step in of_signals {
        for rank in ranks(context, step) {
            context.step(format_args!("rank {rank} at {step:?}"));
            missed_at(context, step, rank)?;
            context.meet()?;
        }
    }
    Ok(())
}

/// The rank is delayed at a step on a channel; whoever waits for it there says so, and after a repair all
/// can use the channel.
fn missed_at(context: &Context, step: Step, rank: usize) -> Verdict {
    const CHANNEL: Channel = Channel(2);
    let group = context.group()?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[9])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    let brief = Wait::timeout(context.brief());
    let time = context.brief() * 2 + Duration::from_millis(150);
    let delay = Delay::begin(context, &group, Stall { rank, step, time, every: 1_000_000 })?;
    context.meet()?;
    let late = context.rank() == rank;
    let wait = if late { &PATIENT } else { &brief };
    let partner = (rank + 1) % context.size();
    let other = group.rank_at(if late { partner } else { rank })?;
    let is_concerned = late || context.rank() == partner;
    let found = match step {
        Step::Arrive => settle(&group, group.barrier(CHANNEL), wait)?,
        Step::AwaitArrivals => {
            // It has come to this one.
            settle(&group, group.barrier(CHANNEL), wait)??;
            settle(&group, group.barrier(CHANNEL), wait)?
        }
        Step::Reset | Step::AwaitReset => {
            let found = settle(&group, group.reset_channel(CHANNEL), wait)?;
            if !late {
                // What ended early is resumed: the late rank waits for that, in its only call.
                settle(&group, group.reset_channel(CHANNEL), &PATIENT)??;
            }
            found
        }
        _ if !is_concerned => Ok(()),
        Step::PutData if late => {
            handle.put_with_signal(&tensor, other, CHANNEL).wait(wait).run()?;
            Ok(())
        }
        Step::AwaitEmpty | Step::FillSlot if late => {
            settle(&group, group.put_signal(other, CHANNEL), wait)?
        }
        Step::AwaitEmpty | Step::FillSlot | Step::PutData | Step::AwaitFull | Step::EmptySlot
            if late || !matches!(step, Step::AwaitFull | Step::EmptySlot) =>
        {
            settle(&group, group.wait_signal(other, CHANNEL), wait)?
        }
        Step::AwaitFull | Step::EmptySlot => {
            settle(&group, group.put_signal(other, CHANNEL), wait)??;
            settle(&group, group.put_signal(other, CHANNEL), wait)?
        }
        other => return Err(TestError::failed(format!("{other:?} is no step of signals"))),
    };
    delay.end()?;
    let concerns_all =
        matches!(step, Step::Arrive | Step::AwaitArrivals | Step::Reset | Step::AwaitReset);
    if !late && (concerns_all || is_concerned) {
        let error = check_err!(found, SignalError::TimedOut { .. });
        check_eq!(error.ranks(), RankSet::one(rank), "{step:?}: {error}");
        if concerns_all {
            context.same(format_args!("rank {rank} at {step:?}"), &error);
        }
    } else {
        found?;
    }
    context.meet()?;
    if !matches!(step, Step::Reset | Step::AwaitReset) {
        settle(&group, group.reset_channel(CHANNEL), &PATIENT)??;
    }
    settle(&group, group.barrier(CHANNEL), &PATIENT)??;
    Ok(())
}
