//! What every operation makes of a rank that issues another call, or none. The all-reduce has more
//! tests of it in [`mismatches`](super::mismatches) and [`failing`](super::failing).

use std::time::Instant;

use symmem_collectives::{Algorithm, ReduceOp};
use symmem_hal::types::{BackendKind, DType, RankSet};
use symmem_hal::{StreamMode, SyncError, Wait};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Options};
use symmem_sync::{Channel, SignalError, Signals as _};

use super::harness::{Bench, Case, Placement};
use crate::model::collective::{Dims, Shape};
use crate::runner::{Context, ON_MEMORY_OF_THE_SYSTEM, PATIENT, Test, TestError, Verdict, options};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(another_count).at_least(2),
    test!(another_type).at_least(2),
    test!(another_operator).at_least(2),
    test!(another_root).at_least(2),
    test!(a_barrier_compares_the_last_calls).at_least(2),
    test!(a_barrier_in_a_graph_compares_the_last_calls)
        .at_least(2)
        .only_on(ON_MEMORY_OF_THE_SYSTEM),
    test!(who_leaves_compares_the_last_calls).at_least(2),
    test!(a_report_that_does_not_end_hides_nothing).at_least(2).only_on(ON_MEMORY_OF_THE_SYSTEM),
    test!(another_algorithm).at_least(2),
    test!(another_shape).at_least(2),
    test!(another_memory).at_least(2),
    test!(another_operation).at_least(2),
    test!(a_missing_rank_is_named).ranks(2, 8).seconds(120),
];

const ALL: [Operation; 6] = [
    Operation::AllReduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::AllToAll,
];

fn case(operation: Operation) -> Case {
    Case::of(operation, DType::F32, ReduceOp::Sum, 40)
}

/// The last rank issues one call where all others issue another, and then all go on alike. Every
/// rank is told, those from whom nothing is taken at the latest two operations later.
fn check_told(context: &Context, odd: Case, others: Case) -> Verdict {
    context.step(format_args!("{odd:?} among {others:?}"));
    let bench = Bench::new(context, context.group()?, 16 * 1024 * context.size() as u64)?;
    let is_odd = context.rank() + 1 == context.size();
    let since = Instant::now();
    let mut found = bench.attempt(if is_odd { odd } else { others })?;
    for _ in 0..2 {
        if found.is_ok() {
            found = bench.attempt(case(Operation::AllReduce))?;
        }
    }
    let failure = check_err!(found, Failure::CallMismatch { .. });
    context.told(&failure, since);
    check_is_of_the_last(context, &failure)?;
    context.meet()
}

/// That a mismatch is one between the last rank and another.
fn check_is_of_the_last(context: &Context, failure: &Failure) -> Verdict {
    if let Failure::CallMismatch { mine, theirs, rank, reporter, .. } = failure {
        let last = context.size() - 1;
        check!(mine != theirs, "{failure}");
        check!(rank.index() == last || reporter.index() == last, "{failure}: not of rank {last}");
    }
    Ok(())
}

fn another_count(context: &Context) -> Verdict {
    for operation in ALL {
        let others = case(operation);
        for count in [0, 41, 3000] {
            check_told(context, Case { count, ..others }, others)?;
        }
        check_told(context, others, Case { count: 0, ..others })?;
    }
    Ok(())
}

fn another_type(context: &Context) -> Verdict {
    for operation in ALL {
        let others = case(operation);
        check_told(context, Case { dtype: DType::U32, ..others }, others)?;
    }
    Ok(())
}

fn another_operator(context: &Context) -> Verdict {
    for operation in [Operation::ReduceScatter, Operation::Reduce] {
        let others = case(operation);
        check_told(context, Case { op: ReduceOp::Min, ..others }, others)?;
    }
    Ok(())
}

fn another_root(context: &Context) -> Verdict {
    let last = context.size() - 1;
    for operation in [Operation::Broadcast, Operation::Reduce] {
        for count in [3, 3000] {
            let others = Case { count, ..case(operation) };
            check_told(context, Case { root: last, ..others }, others)?;
            check_told(context, others, Case { root: last, ..others })?;
        }
    }
    Ok(())
}

/// The last rank issues a call that differs, in such a way that no rank consumes data of one with
/// another call; no operation follows.
fn at_odds_unnoticed(context: &Context, odd: Case) -> Result<Bench<'_>, TestError> {
    let bench = Bench::new(context, context.group()?, 16 * 1024 * context.size() as u64)?;
    let is_odd = context.rank() + 1 == context.size();
    // Finds all equal; what comes after it is compared nevertheless.
    bench.group.barrier(Channel(0)).wait(&PATIENT).run()?;
    bench.attempt(if is_odd { odd } else { case(Operation::Broadcast) })??;
    context.meet()?;
    Ok(bench)
}

/// Calls of which nobody in a broadcast from rank 0 consumes anything, nor the other way round.
fn unnoticed(context: &Context) -> [Case; 2] {
    let root = context.size() - 1;
    [Case { root, ..case(Operation::Broadcast) }, case(Operation::Reduce)]
}

fn a_barrier_compares_the_last_calls(context: &Context) -> Verdict {
    for odd in unnoticed(context) {
        let bench = at_odds_unnoticed(context, odd)?;
        let found = bench.group.barrier(Channel(0)).wait(&PATIENT).run();
        check_err!(found, SignalError::Failed(Failure::CallMismatch { .. }));
        check_is_of_the_last(
            context,
            &check_err!(bench.group.check(), Failure::CallMismatch { .. }),
        )?;
        context.meet()?;
    }
    Ok(())
}

/// The launch of the graph tells, or the end of the stream where that is not inline.
fn a_barrier_in_a_graph_compares_the_last_calls(context: &Context) -> Verdict {
    let is_host = context.device().kind() == BackendKind::Host;
    for odd in unnoticed(context) {
        let bench = at_odds_unnoticed(context, odd)?;
        let mode = if is_host { StreamMode::Inline } else { StreamMode::Worker };
        let stream = context.device().stream(mode)?;
        stream.begin_capture()?;
        bench.group.barrier(Channel(0)).wait(&PATIENT).on(&stream)?;
        let graph = stream.end_capture()?;
        let launched = graph.launch(&stream, &PATIENT);
        let found = if is_host { launched } else { stream.synchronize(&PATIENT) };
        check_err!(found, SyncError::Unhealthy(_));
        check_err!(bench.group.check(), Failure::CallMismatch { .. });
        context.meet()?;
    }
    Ok(())
}

/// A rank has claimed the report of a failure and is stopped before it writes it. What the others find
/// meanwhile they tell nevertheless.
fn a_report_that_does_not_end_hides_nothing(context: &Context) -> Verdict {
    let claimed = |bench: &Bench<'_>| -> Verdict {
        // The first word of a workspace: one more than the rank that reports there.
        let start = bench.group.options().pad.round_up(4096).unwrap_or_default();
        let last = context.size() as u32;
        bench.group.regions()[context.rank()].write(start, &last.to_ne_bytes())?;
        context.meet()
    };
    let [odd, _] = unnoticed(context);
    let bench = at_odds_unnoticed(context, odd)?;
    claimed(&bench)?;
    let found = bench.group.barrier(Channel(0)).wait(&Wait::millis(500)).run();
    check_err!(found, SignalError::Failed(Failure::CallMismatch { .. }));
    context.meet()?;
    if context.device().kind() == BackendKind::Host {
        let bench = at_odds_unnoticed(context, odd)?;
        claimed(&bench)?;
        bench.group.leave();
        check_err!(bench.group.check(), Failure::CallMismatch { .. });
    }
    context.meet()
}

fn who_leaves_compares_the_last_calls(context: &Context) -> Verdict {
    for odd in unnoticed(context) {
        let bench = at_odds_unnoticed(context, odd)?;
        bench.group.leave();
        let found = bench.group.check();
        if context.device().kind() == BackendKind::Host {
            check_err!(found, Failure::CallMismatch { .. });
        } else {
            check_err!(found, Failure::Left);
        }
        context.meet()?;
    }
    Ok(())
}

fn another_algorithm(context: &Context) -> Verdict {
    for operation in ALL {
        let by = |algorithm| Case { count: 3, algorithm, ..case(operation) };
        for pair in Algorithm::of(operation).windows(2) {
            check_told(context, by(pair[0]), by(pair[1]))?;
            check_told(context, by(pair[1]), by(pair[0]))?;
        }
    }
    Ok(())
}

fn another_shape(context: &Context) -> Verdict {
    let scatter = case(Operation::ReduceScatter);
    let rows = |rows| Case { shape: Shape::LastDim(rows), ..scatter };
    check_told(context, rows(4), rows(5))?;
    check_told(context, rows(4), scatter)?;
    let dims = |scatter, rows| {
        let shape = Shape::Dims(Dims { scatter, rows, split: (false, false) });
        Case { shape, ..case(Operation::AllToAllNd) }
    };
    check_told(context, dims(0, 4), dims(1, 4))?;
    check_told(context, dims(1, 5), dims(1, 4))
}

fn another_memory(context: &Context) -> Verdict {
    for operation in ALL {
        for count in [40, 3000] {
            let at = |placement| Case { count, placement, ..case(operation) };
            check_told(context, at(Placement::Apart), at(Placement::Symmetric))?;
            check_told(context, at(Placement::SymmetricInPlace), at(Placement::Apart))?;
            let offsets = (1, 0);
            let others = at(Placement::Symmetric);
            check_told(context, Case { offsets, ..others }, others)?;
        }
    }
    Ok(())
}

/// Each in the place of each.
fn another_operation(context: &Context) -> Verdict {
    for odd in ALL {
        // Of many ranks, not all pairs.
        let step = if context.size() > 8 { 2 } else { 1 };
        for others in ALL.into_iter().filter(|o| *o != odd).step_by(step) {
            check_told(context, case(odd), case(others))?;
        }
    }
    Ok(())
}

/// The last rank does not come: all others name it, those that need nothing of it now at the next
/// operation.
fn a_missing_rank_is_named(context: &Context) -> Verdict {
    let last = context.size() - 1;
    for operation in ALL {
        for root in [0, last] {
            let rooted = matches!(operation, Operation::Broadcast | Operation::Reduce);
            if root != 0 && !rooted {
                continue;
            }
            let options = Options { deadline: context.brief(), ..options(context.size()) };
            let group = context.group_with(&options)?;
            let bench = Bench::new(context, group, 16 * 1024 * context.size() as u64)?;
            check_eq!(bench.attempt(case(operation))?, Ok(()));
            context.meet()?;
            if context.rank() != last {
                context.step(format_args!("{operation:?} without rank {last}"));
                let mut found = bench.attempt(Case { root, ..case(operation) })?;
                for _ in 0..2 {
                    if found.is_ok() {
                        found = bench.attempt(case(Operation::AllReduce))?;
                    }
                }
                let failure = check_err!(found, Failure::TimedOut { .. });
                let named = symmem_hal::Fault::ranks(&failure);
                check_eq!(named, RankSet::one(last), "{operation:?}");
                context.same(format_args!("{operation:?} {root}"), &failure);
            }
            context.meet()?;
        }
    }
    Ok(())
}
