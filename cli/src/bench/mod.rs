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

use std::fs;
use std::io;
use std::path::PathBuf;
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
    #[error("cannot write {path:?}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("cannot write the table: {0}")]
    Output(#[from] io::Error),
}

/// Runs a benchmark, or this process's rank of one.
pub fn bench(args: &Args) -> Result<ExitCode, BenchError> {
    let common = args.operation.common();
    let operation = args.operation.operation()?;
    if common.as_rank {
        let well = drive::serve(&*operation, common.backend);
        return Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
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
    if let Some(path) = &common.json {
        write(&results, path).map_err(|source| BenchError::File { path: path.clone(), source })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(results: &Results, path: &std::path::Path) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(results)?;
    text.push('\n');
    fs::write(path, text)
}
