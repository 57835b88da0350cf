//! `symmem bench`: latency and bandwidth of an operation, every result checked.
//!
//! Starts the ranks (this executable again, or threads), lets each check and measure its part,
//! puts their times together, prints a table. A result that is not what it must be ends the
//! benchmark: no figure of a wrong operation is shown.

mod args;
mod check;
mod devices;
mod drive;
mod limit;
mod logical;
mod member;
mod operation;
mod plot;
mod report;
mod resident;
mod show;
mod timing;

pub use args::BenchArgs as Args;
pub use devices::{Backend, Devices};
pub use logical::bench_load;
pub use report::Line;
pub use resident::{Args as RankArgs, bench_rank};

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use args::{ArgsError, BenchArgs, Common, OperationArgs};
use clap::Parser as _;
use drive::{Collected, DriveError};
use logical::LogicalError;
use operation::Operation;
use plot::{Figure, PlotError};
use report::Results;
use show::Progress;
use symmem::hal::DeviceError;

/// Why a benchmark has no results.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Args(#[from] ArgsError),
    #[error("no device for the ranks: {0}")]
    Device(#[from] DeviceError),
    #[error("{0}")]
    Words(clap::Error),
    #[error(transparent)]
    Drive(#[from] DriveError),
    #[error("cannot write {path:?}: {cause}")]
    File { path: PathBuf, cause: io::Error },
    #[error(transparent)]
    Logical(#[from] LogicalError),
    #[error(transparent)]
    Plot(#[from] PlotError),
    #[error("cannot write the table: {0}")]
    Output(io::Error),
}

impl From<io::Error> for BenchError {
    fn from(error: io::Error) -> Self {
        BenchError::Output(error)
    }
}

/// Runs a benchmark, or this process's rank of one.
pub fn bench(args: &Args) -> Result<ExitCode, BenchError> {
    let common = args.operation.common();
    if let OperationArgs::Rendezvous(rendezvous) = &args.operation
        && let Some(logical) = rendezvous.logical()?
    {
        let json = common.json.as_deref().map(ResultFile::open).transpose()?;
        logical.bench(json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let operation = args.operation.operation()?;
    if common.as_rank {
        let well = drive::serve(&*operation, common.devices);
        return Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    // Before any rank is started for a device that is not there.
    let devices = common.devices.count()?;
    drive::check_room(common.devices, common.ranks)?;
    // Before anything is measured for a file that cannot be written.
    let json = common.json.as_deref().map(ResultFile::open).transpose()?;
    let svg = args.operation.plot().map(|path| ResultFile::open(path)).transpose()?;
    show::header(&mut io::stdout().lock(), &*operation, common, devices)?;
    show::warnings(common, devices);
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Collected { lines, limits, skipped } = measure(&*operation, common, &words)?;
    let results = Results {
        op: operation.name(),
        backend: common.devices.backend.name(),
        ranks: common.ranks,
        mode: if common.threads { "thread" } else { "process" },
        dtype: operation.dtype(),
        setting: operation.setting(),
        link_gbps: limits.link_gbps,
        rows: lines,
    };
    show::table(&mut io::stdout().lock(), &results.rows, &limits, &skipped)?;
    if let Some(file) = json {
        let text = serde_json::to_string_pretty(&results).map_err(io::Error::from);
        file.write(text.map(|text| text + "\n"))?;
    }
    if let Some(file) = svg {
        let figure = Figure {
            results: &results,
            limits: &limits,
            bus_factor: operation.bus_factor(common.ranks),
            description: operation.describe(),
            isolated: operation.isolated(),
        };
        file.write(Ok(figure.svg()?))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the ranks, as processes by these arguments of this program, and hears what they find.
fn measure(
    operation: &dyn Operation,
    common: &Common,
    words: &[OsString],
) -> Result<Collected, DriveError> {
    let progress = Progress::new(operation.sizes().len());
    let collected = if common.threads {
        drive::threads(operation, common.devices, common.ranks, &progress)
    } else {
        drive::processes(operation, words, common.ranks, &progress)
    };
    progress.clear();
    collected
}

/// What a command line of this program asks for, which begins with the subcommand's name.
fn parse<W: Into<OsString> + Clone>(
    words: impl IntoIterator<Item = W>,
) -> Result<OperationArgs, BenchError> {
    /// As the program's own command line has it, below the name of the subcommand.
    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        args: BenchArgs,
    }
    Ok(Words::try_parse_from(words).map_err(BenchError::Words)?.args.operation)
}

/// Measures what a command line of this program asks for, the program's own name left out.
pub fn lines(words: &[OsString]) -> Result<Vec<Line>, BenchError> {
    let operation_args = parse(words)?;
    let (operation, common) = (operation_args.operation()?, operation_args.common());
    drive::check_room(common.devices, common.ranks)?;
    Ok(measure(&*operation, common, words)?.lines)
}

/// A file for results; what is in it stays until there are some.
#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    file: File,
}

impl ResultFile {
    fn open(path: &Path) -> Result<Self, BenchError> {
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let path = path.to_owned();
        match file {
            Ok(file) => Ok(ResultFile { path, file }),
            Err(cause) => Err(BenchError::File { path, cause }),
        }
    }

    fn write(mut self, text: io::Result<String>) -> Result<(), BenchError> {
        let written = text.and_then(|text| {
            self.file.set_len(0)?;
            self.file.write_all(text.as_bytes())
        });
        written.map_err(|cause| BenchError::File { path: self.path, cause })
    }
}
