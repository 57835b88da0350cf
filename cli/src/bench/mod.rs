//! `symmem bench`: latency and bandwidth of an operation, every result checked.
//!
//! Starts the ranks (this executable again, or threads), lets each check and measure its part,
//! puts their times together, prints a table. A result that is not what it must be ends the
//! benchmark: no figure of a wrong operation is shown.

mod args;
mod check;
mod drive;
mod member;
mod operation;
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
    let file = common.json.as_deref().map(open).transpose()?;
    show::header(&mut io::stdout().lock(), &*operation, common)?;
    show::warnings(common.ranks);
    let progress = Progress::new(operation.sizes().len());
    let collected = if common.threads {
        drive::threads(&*operation, common.backend, common.ranks, &progress)
    } else {
        drive::processes(&*operation, common.ranks, &progress)
    };
    progress.clear();
    let Collected { lines, skipped } = collected?;
    let results = Results {
        op: operation.name(),
        backend: common.backend.name(),
        ranks: common.ranks,
        mode: if common.threads { "thread" } else { "process" },
        dtype: operation.dtype(),
        rows: lines,
    };
    show::table(&mut io::stdout().lock(), &results.rows, &skipped)?;
    if let Some((path, file)) = file {
        write(&results, file).map_err(|cause| BenchError::File { path, cause })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a file for results; what is in it stays until there are some.
fn open(path: &Path) -> Result<(PathBuf, File), BenchError> {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    let path = path.to_owned();
    match file {
        Ok(file) => Ok((path, file)),
        Err(cause) => Err(BenchError::File { path, cause }),
    }
}

fn write(results: &Results, mut file: File) -> io::Result<()> {
    file.set_len(0)?;
    serde_json::to_writer_pretty(&mut file, results)?;
    file.write_all(b"\n")
}
