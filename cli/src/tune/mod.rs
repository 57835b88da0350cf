//! `symmem tune`: which algorithm is the fastest on this machine, as a table.
//!
//! Measures every algorithm of an operation over message sizes, some times in turn, by the same
//! benchmark as `symmem bench`, with every result checked. A size costs what its isolated and its
//! back-to-back times are together, the best of the repeats. The table has the sizes at which to go
//! from one algorithm to the next, in the order in which they are for ever larger messages, such that
//! the product of all sizes' costs is the least.

mod steps;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use symmem::collectives::{ChoiceRow, ChoiceTable};
use symmem::hal::DeviceError;
use symmem::hal::types::Bytes;
use symmem::mem::call::Operation;
use symmem::prelude::*;
use time::OffsetDateTime;

use crate::bench::{self, Backend, BenchError, Devices};
use crate::parse::{at_least_one, ranks, seconds, size};
use steps::{Cost, steps};

/// Operations that have more than one algorithm, by their names in `symmem bench`.
const OPERATIONS: [(&str, Operation); 7] = [
    ("all-reduce", Operation::AllReduce),
    ("all-gather", Operation::AllGather),
    ("reduce-scatter", Operation::ReduceScatter),
    ("broadcast", Operation::Broadcast),
    ("reduce", Operation::Reduce),
    ("all-to-all", Operation::AllToAll),
    ("all-to-all-nd", Operation::AllToAllNd),
];

/// An operation's algorithms of which one is to be found the fastest.
fn algorithms(operation: Operation) -> Vec<Algorithm> {
    let all = Algorithm::of(operation).iter().copied();
    // Taken for what it leaves to others, not for its speed.
    all.filter(|algorithm| *algorithm != Algorithm::LowContention).collect()
}

/// Arguments of `symmem tune`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to write the table
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Operations; without it all that have more than one algorithm
    #[arg(long, value_name = "OP[,OP..]", value_delimiter = ',', value_parser = OPERATIONS.map(|(name, _)| name))]
    operations: Vec<String>,
    /// Numbers of ranks; without it 2, 4, 8 and so on, up to this machine's cores or GPUs
    #[arg(long, value_name = "N[,N..]", value_delimiter = ',', value_parser = ranks)]
    ranks: Vec<usize>,
    #[command(flatten)]
    devices: Devices,
    /// Ranks are threads of one process instead of processes
    #[arg(long)]
    threads: bool,
    /// Measure operations in graphs
    #[arg(long)]
    graph: bool,
    /// Smallest message; without it as in `symmem bench`
    #[arg(long, value_name = "SIZE", value_parser = size)]
    min: Option<Bytes>,
    /// Largest message
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = size)]
    max: Bytes,
    /// What each size is multiplied with to get the next
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// How often to measure each algorithm
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    repeats: usize,
    /// Seconds for each algorithm and size of a repeat
    #[arg(long, value_name = "SECONDS", default_value = "0.05", value_parser = seconds)]
    budget: Duration,
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error("{operation} of {ranks} ranks by {algorithm}: {cause}")]
    Bench { operation: &'static str, ranks: usize, algorithm: Algorithm, cause: Box<BenchError> },
    #[error("no device for the ranks: {0}")]
    Device(#[from] DeviceError),
    #[error("cannot write {path:?}: {cause}")]
    File { path: PathBuf, cause: io::Error },
    #[error("cannot write: {0}")]
    Output(io::Error),
}

impl From<io::Error> for TuneError {
    fn from(error: io::Error) -> Self {
        TuneError::Output(error)
    }
}

/// The best cost of each size, for each algorithm.
type Costs = Vec<BTreeMap<u64, f64>>;

/// Measures, and writes the table.
pub fn tune(args: &Args) -> Result<ExitCode, TuneError> {
    let (machine, most) = machine(args.devices)?;
    let mut ranks = args.ranks.clone();
    if ranks.is_empty() {
        let powers = (1..).map(|power| 1 << power);
        ranks = powers.take_while(|n| *n <= most.max(2)).collect();
    }
    ranks.sort_unstable();
    ranks.dedup();
    let mut rows = Vec::new();
    let mut out = io::stdout().lock();
    let asked =
        |name: &str| args.operations.is_empty() || args.operations.iter().any(|o| o == name);
    for (name, operation) in OPERATIONS.into_iter().filter(|(name, _)| asked(name)) {
        for ranks in &ranks {
            let costs = measure(args, name, operation, *ranks)?;
            let row = row(args.devices.backend, operation, *ranks, &costs);
            show(&mut out, name, operation, &row, &costs)?;
            rows.push(row);
        }
    }
    let date = OffsetDateTime::now_utc().date().to_string();
    let table = ChoiceTable::new(env!("CARGO_PKG_VERSION"), &machine, &date, rows);
    let path = args.output.clone();
    fs::write(&path, table.to_string()).map_err(|cause| TuneError::File { path, cause })?;
    writeln!(out, "used by every group that is made with SYMMEM_TUNE={}", args.output.display())?;
    Ok(ExitCode::SUCCESS)
}

/// What is measured, for people, and how many ranks there are places for.
fn machine(devices: Devices) -> Result<(String, usize), TuneError> {
    let host = Device::host();
    let cores = host.capabilities().units;
    let machine = format!("{}, {cores} cores", host.name());
    Ok(match devices.backend {
        Backend::Host | Backend::Stub => (machine, cores as usize),
        Backend::Cuda => {
            let gpus = devices.count()?;
            let name = devices.device(0)?.name();
            (format!("{gpus} x {name}; {machine}"), gpus as usize)
        }
    })
}

fn measure(
    args: &Args,
    name: &'static str,
    operation: Operation,
    ranks: usize,
) -> Result<Costs, TuneError> {
    let algorithms = algorithms(operation);
    let mut costs = vec![BTreeMap::new(); algorithms.len()];
    // In turn, so that what else the machine does meets all of them.
    for _ in 0..args.repeats {
        for (algorithm, costs) in algorithms.iter().zip(&mut costs) {
            let lines = bench::lines(&words(args, name, ranks, *algorithm)).map_err(|cause| {
                TuneError::Bench {
                    operation: name,
                    ranks,
                    algorithm: *algorithm,
                    cause: cause.into(),
                }
            })?;
            for line in lines {
                let cost = line.median_us + line.period_us;
                let best: &mut f64 = costs.entry(line.bytes).or_insert(cost);
                *best = best.min(cost);
            }
        }
    }
    Ok(costs)
}

/// The benchmark of one algorithm, as a command line.
fn words(args: &Args, name: &str, ranks: usize, algorithm: Algorithm) -> Vec<OsString> {
    let mut words: Vec<String> = ["bench", name, "--no-limit"].map(str::to_owned).into();
    let flags = [
        ("--threads", args.threads),
        ("--graph", args.graph),
        ("--one-device", args.devices.one_device),
    ];
    words.extend(flags.iter().filter(|(_, given)| *given).map(|(flag, _)| (*flag).to_owned()));
    for (option, value) in [
        ("--backend", args.devices.backend.name().to_owned()),
        ("--ranks", ranks.to_string()),
        ("--algorithm", algorithm.name().to_owned()),
        ("--max", args.max.get().to_string()),
        ("--factor", args.factor.to_string()),
        ("--budget", args.budget.as_secs_f64().to_string()),
    ] {
        words.extend([option.to_owned(), value]);
    }
    words.extend(args.min.into_iter().flat_map(|min| ["--min".to_owned(), min.get().to_string()]));
    words.into_iter().map(OsString::from).collect()
}

fn row(backend: Backend, operation: Operation, ranks: usize, costs: &Costs) -> ChoiceRow {
    let names: Vec<&str> = algorithms(operation).iter().map(|a| a.name()).collect();
    ChoiceRow {
        operation: operation.name().to_owned(),
        backend: backend.name().to_owned(),
        ranks,
        steps: steps(&names, &by_size(costs)),
    }
}

/// For each size that any algorithm took: its costs by algorithm.
fn by_size(costs: &Costs) -> Vec<(u64, Vec<Cost>)> {
    let mut sizes: Vec<u64> = costs.iter().flat_map(BTreeMap::keys).copied().collect();
    sizes.sort_unstable();
    sizes.dedup();
    let of = |size: u64| costs.iter().map(|costs| costs.get(&size).copied()).collect();
    sizes.into_iter().map(|size| (size, of(size))).collect()
}

fn show(
    out: &mut dyn Write,
    name: &str,
    operation: Operation,
    row: &ChoiceRow,
    costs: &Costs,
) -> io::Result<()> {
    writeln!(out, "{name}, {} ranks: microseconds, isolated and back to back together", row.ranks)?;
    let names: Vec<&str> = algorithms(operation).iter().map(|a| a.name()).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["bytes"].into_iter().chain(names).chain(["chosen"]));
    for (size, costs) in by_size(costs) {
        let chosen = row.steps.iter().find(|step| step.up_to.is_none_or(|most| size <= most));
        let costs = costs.iter().map(|cost| cost.map_or("-".into(), |cost| format!("{cost:.2}")));
        let size = Bytes(size).to_string();
        let chosen = chosen.map_or("-".to_owned(), |step| step.algorithm.clone());
        table.add_row([size].into_iter().chain(costs).chain([chosen]));
    }
    let last = table.column_count() - 1;
    for (index, column) in table.column_iter_mut().enumerate() {
        let side = if index == last { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(side);
    }
    writeln!(out, "{}\n", table.trim_fmt())
}
