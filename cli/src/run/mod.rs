//! `symmem run`: a program as ranks of this host.
//!
//! Each rank gets torchrun's variables and its output, line by line, behind a prefix. The first
//! rank that fails decides how the job ends: the others get a moment to notice and to end by
//! themselves, since a lost peer is an error that a program may handle, then SIGTERM, then SIGKILL.
//! Nothing outlives the job but what left its rank's process group.
//!
//! Does not: start ranks on other hosts, restart any, or give them a terminal's input.

mod job;
mod output;
mod stop;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use symmem::launch::{JobError, SpawnError};

/// Arguments of `symmem run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of ranks
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// Seconds after which a job that still runs is ended, with exit code 124
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Seconds that ranks have to end by themselves after one failed, and again after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    grace: u64,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Why a job could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("cannot watch over the ranks: {0}")]
    Watch(io::Error),
}

impl From<io::Error> for RunError {
    fn from(error: io::Error) -> Self {
        RunError::Watch(error)
    }
}

impl RunError {
    /// Shells' codes for a program that is not there, or cannot be run.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Spawn(SpawnError::Spawn { cause, .. }) => match cause.kind() {
                io::ErrorKind::NotFound => 127,
                _ => 126,
            },
            _ => 1,
        }
    }
}

/// Runs a job to its end; the exit code is that of the first rank that failed.
pub fn run(args: &Args) -> Result<ExitCode, RunError> {
    let timeout = args.timeout.map(Duration::from_secs);
    let code =
        job::run(&args.command, args.ranks as usize, timeout, Duration::from_secs(args.grace))?;
    Ok(ExitCode::from(code))
}
