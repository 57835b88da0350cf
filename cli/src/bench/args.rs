//! The command line of `symmem bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use symmem::hal::types::{Bytes, UnsupportedOp};
use symmem::prelude::*;

use super::check::Seed;
use super::operation::{AllReduce, Barrier, Operation};
use super::timing::Pace;
use crate::parse::{at_least_one, seconds, size};

/// Makes this process one of the ranks, which a launcher has started.
pub const RANK_FLAG: &str = "--as-rank";

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
    AllReduce(AllReduceArgs),
    /// No rank goes on before all have come
    Barrier(Common),
}

/// What all operations have in common.
#[derive(Debug, Args)]
pub struct Common {
    /// Where the ranks' memory is
    #[arg(long, value_enum, default_value_t = Backend::Host)]
    pub backend: Backend,
    /// Number of ranks
    #[arg(long, default_value_t = 2, value_parser = at_least_one)]
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
    /// This process is one of the ranks, started by a launcher
    #[arg(long, hide = true)]
    pub as_rank: bool,
}

/// Arguments of `symmem bench all-reduce`.
#[derive(Debug, Args)]
pub struct AllReduceArgs {
    #[command(flatten)]
    pub common: Common,
    /// Element type
    #[arg(long, default_value = "f32", value_parser = named(DType::ALL, DType::name))]
    dtype: DType,
    /// Operator
    #[arg(long, default_value = "sum", value_parser = named(ReduceOp::ALL, ReduceOp::name))]
    op: ReduceOp,
    /// How the data moves; all give the same bits
    #[arg(long, default_value = "auto", value_parser = named(Algorithm::ALL, Algorithm::name))]
    algorithm: Algorithm,
    /// Smallest message: bytes, or with K, M, G for their binary multiples
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = size)]
    min: Bytes,
    /// Largest message
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    max: Bytes,
    /// What each size is multiplied with to get the next
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// The output replaces the input
    #[arg(long)]
    in_place: bool,
    /// Buffers are symmetric memory, which peers read where it lies (the default)
    #[arg(long, overrides_with = "plain")]
    symmetric: bool,
    /// Buffers are memory that peers do not know
    #[arg(long, overrides_with = "symmetric")]
    plain: bool,
    /// Other inputs for another number
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Where ranks' memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The CPU
    Host,
    /// An asynchronous device in software, one for each rank
    Stub,
}

impl Backend {
    /// A rank's device.
    pub fn device(self, rank: usize) -> Device {
        match self {
            Backend::Host => Device::host(),
            Backend::Stub => Device::stub(u32::try_from(rank).unwrap_or(u32::MAX)),
        }
    }

    /// Its name in files and tables.
    pub fn name(self) -> &'static str {
        self.device(0).kind().name()
    }
}

/// What the command line asks for cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    #[error(transparent)]
    Op(#[from] UnsupportedOp),
    #[error("--min {min} is less than one element of {dtype}")]
    LessThanElement { min: Bytes, dtype: DType },
    #[error("--min {min} is more than --max {max}")]
    Order { min: Bytes, max: Bytes },
}

impl OperationArgs {
    pub fn common(&self) -> &Common {
        match self {
            OperationArgs::AllReduce(args) => &args.common,
            OperationArgs::Barrier(common) => common,
        }
    }

    /// The operation, if it makes sense.
    pub fn operation(&self) -> Result<Box<dyn Operation>, ArgsError> {
        Ok(match self {
            OperationArgs::AllReduce(args) => Box::new(args.operation()?),
            OperationArgs::Barrier(common) => Box::new(Barrier { pace: common.pace() }),
        })
    }
}

impl Common {
    fn pace(&self) -> Pace {
        self.iterations.map_or(Pace::Budget(self.budget), Pace::Iterations)
    }
}

impl AllReduceArgs {
    fn operation(&self) -> Result<AllReduce, ArgsError> {
        self.op.check(self.dtype)?;
        Ok(AllReduce {
            dtype: self.dtype,
            op: self.op,
            algorithm: self.algorithm,
            sizes: sizes(self.min, self.max, self.factor, self.dtype)?,
            in_place: self.in_place,
            symmetric: self.symmetric || !self.plain,
            pace: self.common.pace(),
            seed: Seed::new(self.seed),
        })
    }
}

/// From `min`, each `factor` times the one before, up to `max`; rounded down to whole elements.
fn sizes(min: Bytes, max: Bytes, factor: u64, dtype: DType) -> Result<Vec<Bytes>, ArgsError> {
    let element = dtype.size() as u64;
    if min.get() < element {
        return Err(ArgsError::LessThanElement { min, dtype });
    }
    if min > max {
        return Err(ArgsError::Order { min, max });
    }
    let powers = std::iter::successors(Some(min.get()), |size| size.checked_mul(factor));
    let whole = |size: u64| Bytes(size - size % element);
    Ok(powers.take_while(|size| *size <= max.get()).map(whole).collect())
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
    fn sizes_ascend_in_whole_elements() {
        let of = |min, max, dtype| sizes(Bytes(min), Bytes(max), 4, dtype);
        let bytes = |all: &[u64]| all.iter().copied().map(Bytes).collect::<Vec<_>>();
        assert_eq!(of(64, 1024, DType::F32).unwrap(), bytes(&[64, 256, 1024]));
        assert_eq!(of(65, 1024, DType::F64).unwrap(), bytes(&[64, 256]));
        assert_eq!(of(8, 8, DType::F64).unwrap(), bytes(&[8]));
        assert!(matches!(of(7, 64, DType::F64), Err(ArgsError::LessThanElement { .. })));
        assert!(matches!(of(64, 63, DType::F32), Err(ArgsError::Order { .. })));
        assert_eq!(of(u64::MAX, u64::MAX, DType::U8).unwrap().len(), 1);
    }
}
