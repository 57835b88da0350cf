//! Delays that end: nothing but time is lost.

use symmem_collectives::Algorithm;
use symmem_hal::types::{DType, Rank, ReduceOp};
use symmem_mem::call::Operation;
use symmem_mem::{Options, SymmetricMemory, Tensor};
use symmem_sync::protocol::Epoch;
use symmem_sync::stalls::{Stall, Step};
use symmem_sync::{Channel, Puts as _, Signals as _};

use super::delayed::{BRIEF, Delay, every, kernels};
use crate::check_eq;
use crate::model::collective::{Dims, Shape};
use crate::runner::{Context, TestError, Verdict, options};
use crate::suite::collectives::harness::{Bench, Case, Placement, synchronize};

/// Elements of a part: in packets, staged in one piece and in several.
const COUNTS: [u64; 3] = [3, 700, 20_000];

const ELEMENTS: u64 = 120;

/// What a ring of signals needs.
struct Ring {
    source: Tensor<u32>,
    target: Tensor<u32>,
    handle: SymmetricMemory,
    next: Rank,
    previous: Rank,
}

impl Ring {
    fn new(bench: &Bench<'_>) -> Result<Self, TestError> {
        let Bench { context, group, .. } = bench;
        let tensor = || Tensor::<u32>::zeros(context.device(), &[ELEMENTS]);
        let (source, target) = (tensor()?, tensor()?);
        let handle = group.rendezvous(&target, &group.wait())?;
        let next = context.neighbour(group, 1)?;
        let previous = context.neighbour(group, context.size() - 1)?;
        Ok(Ring { source, target, handle, next, previous })
    }

    /// Signals, data with them, barriers and a repair, each rank with its neighbours.
    fn go_round(&self, bench: &Bench<'_>, round: u32) -> Verdict {
        let Ring { source, target, handle, next, previous } = self;
        let Bench { context, group, stream, .. } = bench;
        let data = |rank: usize| vec![round << 8 | rank as u32; ELEMENTS as usize];
        source.write(&data(context.rank()))?;
        group.put_signal(*next, Channel(1)).on(stream)?;
        group.wait_signal(*previous, Channel(1)).on(stream)?;
        handle.put_with_signal(source, *next, Channel(1)).on(stream)?;
        group.wait_signal(*previous, Channel(1)).on(stream)?;
        synchronize(stream)?;
        check_eq!(target.to_vec()?, data(previous.index()), "round {round}");
        // The one before may send again.
        group.barrier(Channel(0)).on(stream)?;
        // Whoever has left the one may come to the next before a delayed rank looks.
        group.barrier(Channel(0)).on(stream)?;
        group.reset_channel(Channel(1)).on(stream)?;
        synchronize(stream)
    }
}

/// Every collective by every algorithm, with signals between.
fn mixed_operations(bench: &Bench<'_>, ring: &Ring) -> Verdict {
    const OPERATIONS: [Operation; 7] = [
        Operation::AllReduce,
        Operation::AllGather,
        Operation::Broadcast,
        Operation::ReduceScatter,
        Operation::Reduce,
        Operation::AllToAll,
        Operation::AllToAllNd,
    ];
    for (n, operation) in OPERATIONS.into_iter().enumerate() {
        for (m, count) in COUNTS.into_iter().enumerate() {
            let ranks = bench.context.size();
            let nd = operation == Operation::AllToAllNd;
            let dims = Dims { scatter: n % 2, rows: 1, split: (false, false) };
            let case = Case {
                root: (n + m) % ranks,
                shape: if nd { Shape::Dims(dims) } else { Shape::Flat },
                placement: if nd { Placement::Apart } else { Placement::number(n + m) },
                ..Case::of(operation, DType::U32, ReduceOp::Sum, count / ranks as u64 + 1)
            };
            bench.check_all(case)?;
        }
        ring.go_round(bench, n as u32)?;
    }
    // What is staged is staged in private memory alone.
    for root in 0..bench.context.size() {
        for operation in [Operation::AllReduce, Operation::Broadcast, Operation::Reduce] {
            let case = Case::of(operation, DType::U32, ReduceOp::Sum, COUNTS[2]);
            bench.check(Case { root, algorithm: Algorithm::OneShot, ..case })?;
        }
    }
    Ok(())
}

pub(super) fn each_rank_at_each_step(context: &Context) -> Verdict {
    let _kernels = kernels();
    // Of a failure, another test tells.
    for &step in Step::ALL.iter().filter(|step| **step != Step::Report) {
        for rank in 0..context.size() {
            context.step(format_args!("rank {rank} at {step:?}"));
            let first_epoch = Epoch::MIDDLE.get() - 5;
            let group = context.group_with(&Options { first_epoch, ..options(context.size()) })?;
            let bench = Bench::new(context, group, 4 * (COUNTS[2] + 8))?;
            let ring = Ring::new(&bench)?;
            let stall = Stall { rank, step, time: BRIEF, every: every(step) };
            let delay = Delay::begin(context, &bench.group, stall)?;
            mixed_operations(&bench, &ring).map_err(|error| match error {
                TestError::Failed { message, at } => {
                    let message = format!("{message} (rank {rank} delayed at {step:?})");
                    TestError::Failed { message, at }
                }
                other => other,
            })?;
            delay.end()?;
            // Who is done first takes no other's delay away.
            context.meet()?;
        }
    }
    Ok(())
}
