//! Processes that die inside an operation: all others are told within a second, and nothing is left
//! behind.

use std::time::Duration;

use symmem_collectives::{Algorithm, AllReduceError, Collectives as _};
use symmem_hal::types::{BackendKind, DType, ReduceOp};
use symmem_hal::{Fault as _, Kind};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, Tensor};

use super::failing::reduce_ones;
use super::harness::{Bench, Case, Placement, run};
use crate::runner::{Context, Mode, Test, TestError, Verdict};
use crate::suite::sync::stream_of;
use crate::support::eventually;
use crate::support::observe::{Holdings, is_asleep};
use crate::support::random::Random;
use crate::support::tombstone::Tombstone;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(while_it_waits_for_another).ranks(2, 8).only_as(&[Mode::Processes]).isolated(),
    test!(the_first_rank).ranks(2, 8).only_as(&[Mode::Processes]).isolated(),
    test!(before_an_operation_and_after_one).ranks(2, 8).only_as(&[Mode::Processes]).isolated(),
    test!(at_any_moment).ranks(2, 8).only_as(&[Mode::Processes]).isolated(),
    test!(other_groups_go_on_without_it).ranks(3, 8).only_as(&[Mode::Processes]).isolated(),
];

/// What the contract allows between a death and its report.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// What the survivors find.
fn check_lost(
    context: &Context,
    group: &Group,
    found: Result<(), AllReduceError>,
    tombstone: &Tombstone,
    victim: usize,
) -> Verdict {
    let after = tombstone.since()?;
    let error = check_err!(found, AllReduceError::Failed(Failure::PeerLost { .. }));
    check_eq!(error.kind(), Kind::PeerLost);
    check!(
        matches!(&error, AllReduceError::Failed(Failure::PeerLost { rank, left: false })
            if rank.index() == victim),
        "{error:?}"
    );
    check!(after < TOLD_WITHIN, "told {after:?} after the death");
    // Sticky, and the same on every rank.
    let again = check_err!(group.check(), Failure::PeerLost { .. });
    check_eq!(again.to_string(), error.to_string());
    context.same("failure", &error);
    Ok(())
}

/// The victim waits inside an all-reduce for a rank that has not come; then it dies, and that rank
/// comes.
fn dies_waiting(context: &Context, victim: usize) -> Verdict {
    let before = Holdings::of_all_ranks(context)?;
    {
        let group = context.group()?;
        reduce_ones(context, &group)?;
        let tombstone = Tombstone::new(context, &group, victim)?;
        let late = usize::from(victim == 0);
        let x = Tensor::<u32>::zeros(context.device(), &[1000])?;
        let stream = stream_of(&group)?;
        // One in which every rank needs the victim once more after its first word.
        let operation = group.all_reduce(&x).algorithm(Algorithm::TwoShot);
        context.meet()?;
        if context.rank() == victim {
            context.dying();
            let me = rustix::thread::gettid();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    eventually(|| is_asleep(me));
                    tombstone.die();
                });
                let found = run(operation, &stream);
                Err::<(), _>(TestError::failed(format!("survived SIGKILL: {found:?}")))
            })?;
        }
        if context.rank() == late {
            // Comes once the victim has died in there.
            let died = eventually(|| tombstone.since().is_ok());
            check!(died, "the victim does not die");
        }
        let mut found = run(operation, &stream);
        if found.is_ok() && context.device().kind() == BackendKind::Cuda {
            // What a GPU was given goes on for a while without its process: the victim may have done its
            // part after its death.
            found = run(group.all_reduce(&x), &stream);
        }
        check_lost(context, &group, found, &tombstone, victim)?;
    }
    // The links to the victim, and what the first group made, are gone too.
    before.check_nothing_left()
}

fn while_it_waits_for_another(context: &Context) -> Verdict {
    dies_waiting(context, context.size() - 1)
}

fn the_first_rank(context: &Context) -> Verdict {
    dies_waiting(context, 0)
}

/// The victim dies between two operations: what all have of the first is whole, and the survivors are
/// told in the second, which it never comes to.
fn before_an_operation_and_after_one(context: &Context) -> Verdict {
    let group = context.group()?;
    let victim = context.size() - 1;
    let tombstone = Tombstone::new(context, &group, victim)?;
    let stream = stream_of(&group)?;
    let first = Tensor::<u32>::zeros(context.device(), &[70_000])?;
    first.write(&vec![context.rank() as u32 + 1; 70_000])?;
    if context.rank() == victim {
        run(group.all_reduce(&first), &stream)?;
        context.dying();
        tombstone.die();
        return Err(TestError::failed("survived SIGKILL"));
    }
    // Comes to it while the victim is alive, or dead already: it has done its part in either case.
    run(group.all_reduce(&first), &stream)?;
    let ranks = context.size() as u32;
    check_eq!(first.to_vec()?, vec![ranks * (ranks + 1) / 2; 70_000]);
    check!(eventually(|| tombstone.since().is_ok()), "the victim does not die");
    // Whoever is told of the second ends the first where it is not over.
    context.meet()?;
    let second = Tensor::<u32>::zeros(context.device(), &[1000])?;
    let found = run(group.all_reduce(&second), &stream);
    check_lost(context, &group, found, &tombstone, victim)?;
    // Nor does what is over change.
    check_eq!(first.to_vec()?, vec![ranks * (ranks + 1) / 2; 70_000]);
    Ok(())
}

const OPERATIONS: [Operation; 6] = [
    Operation::AllReduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::AllToAll,
];

/// The victim dies somewhere in a run of all operations, of all sizes.
fn at_any_moment(context: &Context) -> Verdict {
    let group = context.group()?;
    let victim = context.size() - 1;
    let tombstone = Tombstone::new(context, &group, victim)?;
    let mut random = Random::new(context.seed(), &[]);
    let pause = Duration::from_micros(random.below(30_000));
    let bench = Bench::new(context, group.clone(), 4 * 60_000)?;
    context.meet()?;
    std::thread::scope(|scope| {
        if context.rank() == victim {
            context.dying();
            let tombstone = &tombstone;
            scope.spawn(move || {
                std::thread::sleep(pause);
                tombstone.die();
            });
        }
        // Far more than fit into the time that the victim lives.
        for round in 0..1_000_000u32 {
            let count = [1, 50, 3000, 60_000 / context.size() as u64][random.below(4) as usize];
            let operation = OPERATIONS[random.below(6) as usize];
            let case = Case {
                root: random.below(context.size() as u64) as usize,
                placement: Placement::number(random.below(5) as usize),
                ..Case::of(operation, DType::U32, ReduceOp::Sum, count)
            };
            let algorithms = bench.algorithms(&case)?;
            let algorithm = algorithms[random.below(algorithms.len() as u64) as usize];
            let found = bench.attempt(Case { algorithm, ..case })?.map_err(AllReduceError::Failed);
            if found.is_err() {
                context.step(format_args!("round {round} has failed"));
                return check_lost(context, &group, found, &tombstone, victim);
            }
        }
        Err(TestError::failed("the victim has not died"))
    })
}

/// Groups that the victim is not in are as they were, and new ones can be made.
fn other_groups_go_on_without_it(context: &Context) -> Verdict {
    let all = context.group()?;
    let world = context.world()?;
    let victim = context.size() - 1;
    let tombstone = Tombstone::new(context, &all, victim)?;
    let living = || world.ranks().filter(|r| r.index() != victim);
    let sound = match context.rank() == victim {
        false => Some(world.subgroup(living()).create(&world.wait())?),
        true => None,
    };
    reduce_ones(context, &all)?;
    context.meet()?;
    let Some(sound) = sound else {
        context.dying();
        tombstone.die();
        return Err(TestError::failed("survived SIGKILL"));
    };
    let x = Tensor::<u32>::zeros(context.device(), &[1000])?;
    let found = run(all.all_reduce(&x), &stream_of(&all)?);
    check_lost(context, &all, found, &tombstone, victim)?;
    for _ in 0..20 {
        reduce_ones(context, &sound)?;
    }
    sound.check()?;
    // Its own group has not been used since, and has nothing to report.
    let fresh = sound.subgroup(sound.ranks()).create(&sound.wait())?;
    reduce_ones(context, &fresh)?;
    fresh.check()?;
    Ok(())
}
