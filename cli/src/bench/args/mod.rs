//! The command line of `symmem bench`.

mod moe;
mod rendezvous;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use symmem::hal::types::{Bytes, UnsupportedOp};
use symmem::prelude::*;

pub use moe::MoeArgs;
pub use rendezvous::RendezvousArgs;

use super::check::Seed;
use super::devices::{Backend, Devices};
use super::operation::{
    AllGather, AllReduce, AllToAll, AllToAllNd, Barrier, Bounds, Broadcast, Collective, Compared,
    Enqueue, OneSided, Operation, Placement, Reduce, ReduceScatter, ReduceScatterOffset,
    RoutesError, Sweep, TwoLanes,
};
use super::timing::{Batch, Isolated, Pace};
use crate::parse::{at_least_one, ranks, seconds, size};

/// Makes this process one of the ranks, which a launcher has started.
pub const RANK_FLAG: &str = "--as-rank";

/// The smallest message, unless told otherwise.
const DEFAULT_MIN: Bytes = Bytes(64);

/// Arguments of `symmem bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub operation: OperationArgs,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum OperationArgs {
    /// Every rank gets the element-wise reduction of all ranks' inputs
    AllReduce(Reducing),
    /// Every rank gets the blocks of all ranks
    AllGather(Moving),
    /// Every rank gets its block of the reduction of all ranks' inputs
    ReduceScatter(Reducing),
    /// Every rank gets what the root has
    Broadcast(Rooted<Moving>),
    /// The root gets the reduction of all ranks' inputs
    Reduce(Rooted<Reducing>),
    /// Every rank gets a block of each rank
    AllToAll(Moving),
    /// Every rank gets a part of each rank's tensor, cut along one dimension, joined along another
    AllToAllNd(AllToAllNdArgs),
    /// Every rank gets its block of the reduction, and blocks are of different lengths
    ReduceScatterOffset(ReduceScatterOffsetArgs),
    /// Every rank writes to the next one
    Put(Data),
    /// Every rank reads from the next one
    Get(Data),
    /// What the bounds on kernels' waits cost: an all-reduce beside one that was compiled without them
    #[command(hide = true)]
    Bounds(Reducing),
    /// Two all-reduces at once, on a lane and a stream each, beside the same one after the other
    Lanes(Reducing),
    /// What it takes a host to enqueue an all-reduce, beside a bare launch of the driver's
    #[command(hide = true)]
    Enqueue(Reducing),
    /// Tokens go to the ranks of the experts that they have chosen, and what those made of them comes back
    Moe(MoeArgs),
    /// No rank goes on before all have come
    Barrier(BarrierArgs),
    /// Fresh memory of every rank is mapped into all others
    Rendezvous(RendezvousArgs),
}

/// What all operations have in common.
#[derive(Debug, Args)]
pub struct Common {
    #[command(flatten)]
    pub devices: Devices,
    /// Number of ranks
    #[arg(long, default_value_t = 2, value_parser = ranks)]
    pub ranks: usize,
    /// Ranks are threads of one process instead of processes
    #[arg(long)]
    pub threads: bool,
    /// Also write the results to a file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Seconds of isolated iterations for each size, of which there are 3 to 1000
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = seconds)]
    budget: Duration,
    /// Exactly so many isolated iterations, whatever time they take
    #[arg(long, value_name = "N", conflicts_with = "budget", value_parser = at_least_one)]
    iterations: Option<usize>,
    /// What is back to back: so many operations (in a graph, with --graph), issued so many times;
    /// without it a quarter of the isolated iterations, once
    #[arg(long, value_name = "N[xTIMES]", value_parser = batch)]
    batch: Option<Batch>,
    /// This process is one of the ranks, started by a launcher
    #[arg(long, hide = true)]
    pub as_rank: bool,
}

/// What operations have in common that move something whose size can be chosen.
#[derive(Debug, Args)]
pub struct Sizeable {
    #[command(flatten)]
    common: Common,
    /// Also draw latency and bandwidth against message size, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Do not measure the machine's limit
    #[arg(long, conflicts_with = "plot")]
    no_limit: bool,
    #[command(flatten)]
    capture: Capture,
    /// Do not check results: for many runs of what one run has checked
    #[arg(long)]
    no_check: bool,
    /// Other inputs for another number
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// What operations on data have in common.
#[derive(Debug, Args)]
pub struct Data {
    #[command(flatten)]
    all: Sizeable,
    /// Element type
    #[arg(long, default_value = "f32", value_parser = named(DType::ALL, DType::name))]
    dtype: DType,
    /// Smallest message: bytes, or with K, M, G for their binary multiples; 64, or what it takes
    /// for every rank to have something
    #[arg(long, value_name = "SIZE", value_parser = size)]
    min: Option<Bytes>,
    /// Largest message
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    max: Bytes,
    /// What each size is multiplied with to get the next
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// What is added to each size to get the next, instead
    #[arg(long, value_name = "SIZE", conflicts_with = "factor", value_parser = size)]
    step: Option<Bytes>,
}

/// Where buffers lie.
#[derive(Debug, Args)]
struct Buffers {
    /// The smaller of input and output lies in the larger one
    #[arg(long)]
    in_place: bool,
    #[command(flatten)]
    memory: Memory,
}

/// What memory buffers are.
#[derive(Debug, Args)]
struct Memory {
    /// Buffers are symmetric memory, which peers read where it lies (the default)
    #[arg(long, overrides_with = "plain")]
    symmetric: bool,
    /// Buffers are memory that peers do not know
    #[arg(long, overrides_with = "symmetric")]
    plain: bool,
}

/// What to reduce with.
#[derive(Clone, Copy, Debug, Args)]
struct Operator {
    /// Operator
    #[arg(long, default_value = "sum", value_parser = named(ReduceOp::ALL, ReduceOp::name))]
    op: ReduceOp,
}

/// Those that every group can have: the switch would need one of another sort.
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::Auto,
    Algorithm::Packet,
    Algorithm::OneShot,
    Algorithm::TwoShot,
    Algorithm::LowContention,
];

/// How to do it.
#[derive(Clone, Copy, Debug, Args)]
struct How {
    /// How the data moves; all give the same bits
    #[arg(long, default_value = "auto", value_parser = named(ALGORITHMS, Algorithm::name))]
    algorithm: Algorithm,
}

/// Arguments of a collective that moves data as it is.
#[derive(Debug, Args)]
pub struct Moving {
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    buffers: Buffers,
    #[command(flatten)]
    how: How,
}

/// Arguments of a collective that reduces.
#[derive(Debug, Args)]
pub struct Reducing {
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    buffers: Buffers,
    #[command(flatten)]
    operator: Operator,
    #[command(flatten)]
    how: How,
}

/// Arguments of a collective that has a root.
#[derive(Debug, Args)]
pub struct Rooted<T: Args> {
    #[command(flatten)]
    all: T,
    /// The root's rank
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: usize,
}

/// Arguments of `symmem bench all-to-all-nd`.
#[derive(Debug, Args)]
pub struct AllToAllNdArgs {
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    how: How,
    /// The dimension that is cut, 0 or 1; the other one is joined
    #[arg(long, value_name = "DIM", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..2))]
    scatter: u8,
}

/// Arguments of `symmem bench reduce-scatter-offset`.
#[derive(Debug, Args)]
pub struct ReduceScatterOffsetArgs {
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    operator: Operator,
    #[command(flatten)]
    how: How,
}

/// Arguments of `symmem bench barrier`.
#[derive(Debug, Args)]
pub struct BarrierArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    capture: Capture,
}

/// Whether operations are captured.
#[derive(Clone, Copy, Debug, Args)]
struct Capture {
    /// Operations are captured in a graph and measured as it runs: the period is a graph of many
    #[arg(long)]
    graph: bool,
}

/// What the command line asks for cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    #[error(transparent)]
    Op(#[from] UnsupportedOp),
    #[error(
        "--min {min} is less than {granule}: one element of {dtype} for each part of a message"
    )]
    LessThanGranule { min: Bytes, granule: Bytes, dtype: DType },
    #[error("--min {min} is more than --max {max}")]
    Order { min: Bytes, max: Bytes },
    #[error("--plot shows bandwidth between ranks: at least 2 are needed")]
    NothingToPlot,
    #[error("--root {root}: there are ranks 0 to {}", ranks - 1)]
    Root { root: usize, ranks: usize },
    #[error("only a GPU's driver launches kernels: --backend cuda")]
    NoKernels,
    #[error("--step 0 leads nowhere")]
    NoStep,
    #[error("--bytes {0} is less than one word of 8 bytes")]
    LessThanWord(Bytes),
    #[error(transparent)]
    Routes(#[from] RoutesError),
    #[error("logical ranks are no group's: `symmem bench rendezvous` alone has them")]
    Logical,
    #[error("--per-host {per_host} is more than --group {group}: a host's ranks are of one group")]
    PerHost { per_host: u32, group: u32 },
    #[error("--missing {rank}: there are ranks 0 to {}", ranks - 1)]
    Missing { rank: u32, ranks: u32 },
    #[error("--missing leaves nobody in a group of 1: --group 2 or more")]
    NobodyLeft,
    #[error("--record {record}: from 1 to {most} bytes, so that a group's fit in one answer")]
    Record { record: usize, most: usize },
}

impl OperationArgs {
    pub fn common(&self) -> &Common {
        self.parts().0
    }

    /// Where to draw the results.
    pub fn plot(&self) -> Option<&PathBuf> {
        self.parts().1
    }

    fn parts(&self) -> (&Common, Option<&PathBuf>) {
        match self {
            OperationArgs::Barrier(args) => (&args.common, None),
            OperationArgs::Rendezvous(args) => (&args.common, None),
            OperationArgs::AllReduce(Reducing { data, .. })
            | OperationArgs::Bounds(Reducing { data, .. })
            | OperationArgs::Enqueue(Reducing { data, .. })
            | OperationArgs::Lanes(Reducing { data, .. })
            | OperationArgs::ReduceScatter(Reducing { data, .. })
            | OperationArgs::Reduce(Rooted { all: Reducing { data, .. }, .. })
            | OperationArgs::ReduceScatterOffset(ReduceScatterOffsetArgs { data, .. })
            | OperationArgs::AllGather(Moving { data, .. })
            | OperationArgs::AllToAll(Moving { data, .. })
            | OperationArgs::Broadcast(Rooted { all: Moving { data, .. }, .. })
            | OperationArgs::AllToAllNd(AllToAllNdArgs { data, .. })
            | OperationArgs::Put(data)
            | OperationArgs::Get(data) => data.all.parts(),
            OperationArgs::Moe(args) => args.all().parts(),
        }
    }

    /// The operation, if it makes sense.
    pub fn operation(&self) -> Result<Box<dyn Operation>, ArgsError> {
        match self {
            OperationArgs::AllReduce(reducing) => Ok(Box::new(reducing.all_reduces()?)),
            OperationArgs::Lanes(reducing) => {
                Ok(Box::new(Compared { with: TwoLanes, sweep: reducing.all_reduces()? }))
            }
            OperationArgs::Bounds(reducing) => {
                Ok(Box::new(Compared { with: Bounds, sweep: reducing.of_kernels()? }))
            }
            OperationArgs::Enqueue(reducing) => {
                Ok(Box::new(Compared { with: Enqueue, sweep: reducing.of_kernels()? }))
            }
            OperationArgs::AllGather(Moving { data, buffers, how }) => {
                data.sweep(AllGather { algorithm: how.algorithm }, buffers.placement())
            }
            OperationArgs::ReduceScatter(Reducing { data, buffers, operator, how }) => {
                let reduce_scatter = ReduceScatter { op: operator.op, algorithm: how.algorithm };
                data.sweep(reduce_scatter, buffers.placement())
            }
            OperationArgs::Broadcast(Rooted { all: Moving { data, buffers, how }, root }) => {
                let root = data.all.common.rank(*root)?;
                data.sweep(Broadcast { root, algorithm: how.algorithm }, buffers.placement())
            }
            OperationArgs::Reduce(Rooted { all, root }) => {
                let Reducing { data, buffers, operator, how } = all;
                let root = data.all.common.rank(*root)?;
                let reduce = Reduce { op: operator.op, root, algorithm: how.algorithm };
                data.sweep(reduce, buffers.placement())
            }
            OperationArgs::AllToAll(Moving { data, buffers, how }) => {
                data.sweep(AllToAll { algorithm: how.algorithm }, buffers.placement())
            }
            OperationArgs::AllToAllNd(AllToAllNdArgs { data, memory, how, scatter }) => {
                let scatter = usize::from(*scatter);
                let all_to_all = AllToAllNd { scatter, algorithm: how.algorithm };
                data.sweep(all_to_all, memory.placement())
            }
            OperationArgs::ReduceScatterOffset(args) => {
                let ReduceScatterOffsetArgs { data, memory, operator, how } = args;
                let reduce_scatter =
                    ReduceScatterOffset { op: operator.op, algorithm: how.algorithm };
                data.sweep(reduce_scatter, memory.placement())
            }
            OperationArgs::Moe(args) => Ok(Box::new(args.moe()?)),
            OperationArgs::Put(data) => data.sweep(OneSided::Put, Placement::default()),
            OperationArgs::Get(data) => data.sweep(OneSided::Get, Placement::default()),
            OperationArgs::Barrier(BarrierArgs { common, capture }) => {
                Ok(Box::new(Barrier { graph: capture.graph, pace: common.pace() }))
            }
            OperationArgs::Rendezvous(args) => Ok(Box::new(args.operation()?)),
        }
    }
}

impl Reducing {
    /// All-reduces, where kernels do them.
    fn of_kernels(&self) -> Result<Sweep<AllReduce>, ArgsError> {
        match self.data.all.common.devices.backend {
            Backend::Cuda => self.all_reduces(),
            _ => Err(ArgsError::NoKernels),
        }
    }

    fn all_reduces(&self) -> Result<Sweep<AllReduce>, ArgsError> {
        let Reducing { data, buffers, operator, how } = self;
        let all_reduce = AllReduce { op: operator.op, algorithm: how.algorithm };
        data.sweep_of(all_reduce, buffers.placement())
    }
}

impl Buffers {
    fn placement(&self) -> Placement {
        Placement { in_place: self.in_place, ..self.memory.placement() }
    }
}

impl Memory {
    fn placement(&self) -> Placement {
        Placement { in_place: false, symmetric: self.symmetric || !self.plain }
    }
}

impl Common {
    fn pace(&self) -> Pace {
        let budget = Isolated::Budget(self.budget);
        let isolated = self.iterations.map_or(budget, Isolated::Iterations);
        Pace { isolated, batch: self.batch }
    }

    fn rank(&self, rank: usize) -> Result<usize, ArgsError> {
        match rank < self.ranks {
            true => Ok(rank),
            false => Err(ArgsError::Root { root: rank, ranks: self.ranks }),
        }
    }
}

impl Sizeable {
    fn parts(&self) -> (&Common, Option<&PathBuf>) {
        (&self.common, self.plot.as_ref())
    }

    fn check_plot(&self) -> Result<(), ArgsError> {
        match self.plot.is_some() && self.common.ranks < 2 {
            true => Err(ArgsError::NothingToPlot),
            false => Ok(()),
        }
    }
}

impl Data {
    fn sweep<C: Collective + 'static>(
        &self,
        collective: C,
        placement: Placement,
    ) -> Result<Box<dyn Operation>, ArgsError> {
        Ok(Box::new(self.sweep_of(collective, placement)?))
    }

    fn sweep_of<C: Collective>(
        &self,
        collective: C,
        placement: Placement,
    ) -> Result<Sweep<C>, ArgsError> {
        if let Some(op) = collective.reduces() {
            op.check(self.dtype)?;
        }
        let all = &self.all;
        all.check_plot()?;
        let growth = self.step.map_or(Growth::Factor(self.factor), Growth::Step);
        let granule = collective.granule(all.common.ranks);
        let least = Bytes(granule.saturating_mul(self.dtype.size() as u64));
        let min = self.min.unwrap_or(DEFAULT_MIN.max(least));
        Ok(Sweep {
            sizes: sizes(min, self.max, growth, self.dtype, granule)?,
            collective,
            dtype: self.dtype,
            placement,
            graph: all.capture.graph,
            limit: !all.no_limit,
            check: !all.no_check,
            pace: all.common.pace(),
            seed: Seed::new(all.seed),
        })
    }
}

/// How a size follows from the one before.
#[derive(Clone, Copy, Debug)]
enum Growth {
    Factor(u64),
    Step(Bytes),
}

/// From `min` up to `max`, rounded down to whole granules of so many elements; each once.
fn sizes(
    min: Bytes,
    max: Bytes,
    growth: Growth,
    dtype: DType,
    granule: u64,
) -> Result<Vec<Bytes>, ArgsError> {
    let unit = granule.saturating_mul(dtype.size() as u64);
    if min.get() < unit {
        return Err(ArgsError::LessThanGranule { min, granule: Bytes(unit), dtype });
    }
    if min > max {
        return Err(ArgsError::Order { min, max });
    }
    if matches!(growth, Growth::Step(Bytes::ZERO)) {
        return Err(ArgsError::NoStep);
    }
    let next = |size: &u64| match growth {
        Growth::Factor(factor) => size.checked_mul(factor),
        Growth::Step(step) => size.checked_add(step.get()),
    };
    let all = std::iter::successors(Some(min.get()), next);
    let all = all.take_while(|size| *size <= max.get());
    let mut all: Vec<Bytes> = all.map(|size| Bytes(size - size % unit)).collect();
    all.dedup();
    Ok(all)
}

/// A batch: operations, and how often they are issued.
fn batch(text: &str) -> Result<Batch, String> {
    let (calls, launches) = text.split_once('x').unwrap_or((text, "1"));
    Ok(Batch { calls: at_least_one(calls)?, launches: at_least_one(launches)? })
}

/// Takes one of a type's values by its name.
fn named<T, const N: usize>(
    all: [T; N],
    name: impl Fn(T) -> &'static str + Copy + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.map(name)).try_map(move |given| {
        all.into_iter().find(|value| name(*value) == given).ok_or("there is no such name")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_batch_is_operations_and_how_often() {
        assert_eq!(batch("20x15"), Ok(Batch { calls: 20, launches: 15 }));
        assert_eq!(batch("7"), Ok(Batch { calls: 7, launches: 1 }));
        for text in ["", "x", "0", "0x1", "1x0", "1x", "x1", "1x2x3", "-1"] {
            assert!(batch(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_ascend_in_whole_granules() {
        let of = |min, max, growth, dtype, granule| {
            sizes(Bytes(min), Bytes(max), growth, dtype, granule)
        };
        let bytes = |all: &[u64]| all.iter().copied().map(Bytes).collect::<Vec<_>>();
        let four = Growth::Factor(4);
        assert_eq!(of(64, 1024, four, DType::F32, 1).unwrap(), bytes(&[64, 256, 1024]));
        assert_eq!(of(65, 1024, four, DType::F64, 1).unwrap(), bytes(&[64, 256]));
        assert_eq!(of(8, 8, four, DType::F64, 1).unwrap(), bytes(&[8]));
        assert_eq!(of(64, 256, four, DType::F32, 3).unwrap(), bytes(&[60, 252]));
        let step = |bytes| Growth::Step(Bytes(bytes));
        assert_eq!(of(8, 40, step(16), DType::F32, 1).unwrap(), bytes(&[8, 24, 40]));
        assert_eq!(of(12, 24, step(4), DType::F32, 3).unwrap(), bytes(&[12, 24]));
        let error = of(7, 64, four, DType::F64, 1).unwrap_err();
        assert!(matches!(error, ArgsError::LessThanGranule { .. }));
        let error = of(8, 64, four, DType::F32, 3).unwrap_err();
        assert!(matches!(error, ArgsError::LessThanGranule { granule: Bytes(12), .. }));
        let error = of(64, 63, four, DType::F32, 1).unwrap_err();
        assert!(matches!(error, ArgsError::Order { .. }));
        let error = of(64, 64, step(0), DType::F32, 1).unwrap_err();
        assert!(matches!(error, ArgsError::NoStep));
        assert_eq!(of(u64::MAX, u64::MAX, four, DType::U8, 1).unwrap().len(), 1);
    }
}
