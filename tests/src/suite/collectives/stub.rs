//! Streams that run later: what was given to an operation may be gone when it runs.

use std::any::Any;
use std::mem::forget;

use symmem_collectives::{Algorithm, AllReduceError, Collectives as _};
use symmem_hal::{CancelToken, Fault as _, Kind, StreamMode, SyncError};
use symmem_mem::{Failure, Tensor, collect};

use crate::runner::{Context, ON_ASYNCHRONOUS_STREAMS, PATIENT, Test, TestError, Verdict};
use crate::suite::sync::behind;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(dropped_right_after_it_was_enqueued),
    test!(forgotten_right_after_it_was_enqueued).isolated(),
    test!(a_group_is_left_once_its_work_is_done),
    test!(a_failure_is_told_by_synchronize_and_by_the_group)
        .ranks(2, 2)
        .only_on(ON_ASYNCHRONOUS_STREAMS),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Argument {
    Input,
    Output,
    Handle,
    Wait,
    Stream,
    Group,
}

/// Enqueues an all-reduce, gives one of its arguments to `end`, takes the memory that may have come
/// free and fills it, and looks at what came of the operation.
fn ended_by(context: &Context, end: impl Fn(Box<dyn Any>)) -> Verdict {
    use Argument::{Group, Handle, Input, Output, Stream, Wait};

    const COUNT: u64 = 20_000;
    for argument in [Input, Output, Handle, Wait, Stream, Group] {
        for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
            context.step(format_args!("{argument:?}, {algorithm}"));
            let group = context.group()?;
            let stream = context.device().stream(StreamMode::Worker)?;
            let x = Tensor::<u32>::zeros(context.device(), &[COUNT])?;
            let y = Tensor::<u32>::zeros(context.device(), &[COUNT])?;
            let handle = group.rendezvous(&x, &group.wait())?;
            x.write(&vec![context.rank() as u32 + 1; COUNT as usize])?;
            let wait = PATIENT.with_cancel(CancelToken::new());
            group.all_reduce(&x).into(&y).algorithm(algorithm).wait(&wait).on(&stream)?;
            let done = context.device().event();
            stream.record(&done)?;
            let mut rest: Vec<(Argument, Box<dyn Any>)> = vec![
                (Input, Box::new(x)),
                (Handle, Box::new(handle)),
                (Wait, Box::new(wait)),
                (Stream, Box::new(stream)),
                (Group, Box::new(group)),
            ];
            // The output is looked at, unless it is what goes.
            let output = (argument != Output).then(|| y.clone());
            rest.push((Output, Box::new(y)));
            // A handle holds its group.
            let goes = |a: &Argument| *a == argument || argument == Group && *a == Handle;
            let (gone, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(a, _)| goes(a));
            gone.into_iter().for_each(|(_, value)| end(value));
            collect();
            let filler = Tensor::<u32>::zeros(context.device(), &[COUNT])?;
            filler.write(&vec![u32::MAX; COUNT as usize])?;
            done.synchronize(&PATIENT)?;
            if let Some(output) = output {
                let expected = (context.size() * (context.size() + 1) / 2) as u32;
                let found = output.to_vec()?;
                check!(found.iter().all(|v| *v == expected), "{argument:?}, {algorithm}");
            }
            let kept = filler.to_vec()?.iter().all(|v| *v == u32::MAX);
            check!(kept, "{argument:?}, {algorithm}: memory in use was given out again");
            drop(rest);
            context.meet()?;
        }
    }
    Ok(())
}

fn dropped_right_after_it_was_enqueued(context: &Context) -> Verdict {
    ended_by(context, drop)
}

fn forgotten_right_after_it_was_enqueued(context: &Context) -> Verdict {
    // Each forgotten stream keeps one of the 32 queues of a device, and what shares a queue waits.
    if context.waits_for_kernels() && context.size() > 4 {
        return Err(TestError::skipped(
            "forgotten streams would use up the queues of the one device",
        ));
    }
    ended_by(context, forget)
}

/// The last holder of a group goes while its operation is still ahead: the others get its data.
fn a_group_is_left_once_its_work_is_done(context: &Context) -> Verdict {
    for round in 0..10 {
        context.step(format_args!("round {round}"));
        let group = context.group()?;
        let stream = context.device().stream(StreamMode::Worker)?;
        let x = Tensor::<u32>::zeros(context.device(), &[5000])?;
        x.write(&[1u32; 5000])?;
        for _ in 0..5 {
            group.all_reduce(&x).op(symmem_collectives::ReduceOp::Max).on(&stream)?;
        }
        group.all_reduce(&x).on(&stream)?;
        if round % context.size() == context.rank() {
            drop(group);
            stream.synchronize(&PATIENT)?;
        } else {
            stream.synchronize(&PATIENT)?;
            group.check()?;
        }
        check_eq!(x.to_vec()?, vec![context.size() as u32; 5000]);
        context.meet()?;
    }
    Ok(())
}

fn a_failure_is_told_by_synchronize_and_by_the_group(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = crate::suite::sync::stream_of(&group)?;
    let count = if context.rank() + 1 == context.size() { 101 } else { 100 };
    let x = Tensor::<f32>::zeros(context.device(), &[count])?;
    group.all_reduce(&x).on(&stream)?;
    let told = check_err!(stream.synchronize(&PATIENT), SyncError::Unhealthy(_));
    check_eq!(told.kind(), Kind::Disagreement);
    let SyncError::Unhealthy(fault) = &told else { return Ok(()) };
    let failure = behind::<Failure>(&**fault);
    let checked = check_err!(group.check(), Failure::CallMismatch { .. });
    check_eq!(failure, Some(checked.clone()));
    // Told again, and nothing is enqueued any more.
    check_err!(stream.synchronize(&PATIENT), SyncError::Unhealthy(_));
    let again = check_err!(group.all_reduce(&x).on(&stream), AllReduceError::Failed(_));
    check_eq!(again.to_string(), checked.to_string());
    Ok(())
}
