//! `symmem bench`: latency and bandwidth of an operation, every result checked.
//!
//! Starts the ranks (this executable again, or threads), lets each check and measure its part,
//! puts their times together, prints a table. A result that is not what it must be ends the
//! benchmark: no figure of a wrong operation is shown.

mod args;
mod check;
mod drive;
mod limit;
mod member;
mod operation;
mod plot;
mod report;
mod show;
mod timing;

pub use args::BenchArgs as Args;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use args::ArgsError;
use drive::{Collected, DriveError};
use plot::{Figure, PlotError};
use report::Results;
use show::Progress;

/// Why a benchmark has no results.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Args(#[from] ArgsError),
    #[error(transparent)]
    Drive(#[from] DriveError),
    #[error("cannot write {path:?}: {cause}")]
    File { path: PathBuf, cause: io::Error },
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
    let operation = args.operation.operation()?;
    if common.as_rank {
        let well = drive::serve(&*operation, common.backend);
        return Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    // Before anything is measured for a file that cannot be written.
    let json = common.json.as_deref().map(ResultFile::open).transpose()?;
    let svg = args.operation.plot().map(|path| ResultFile::open(path)).transpose()?;
    show::header(&mut io::stdout().lock(), &*operation, common)?;
    show::warnings(common.ranks);
    let progress = Progress::new(operation.sizes().len());
    let collected = if common.threads {
        drive::threads(&*operation, common.backend, common.ranks, &progress)
    } else {
        drive::processes(&*operation, common.ranks, &progress)
    };
    progress.clear();
    let Collected { lines, limits, skipped } = collected?;
    let results = Results {
        op: operation.name(),
        backend: common.backend.name(),
        ranks: common.ranks,
        mode: if common.threads { "thread" } else { "process" },
        dtype: operation.dtype(),
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

/// A file for results; what is in it stays until there are some.
struct ResultFile {
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
