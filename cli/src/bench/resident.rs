//! `symmem bench-rank`: a rank that stays, and measures what it is asked for.
//!
//! For programs that compare: they start the ranks, with the variables of a launcher, and take turns
//! between these and others' that are resident too. Each rank joins its group and writes a
//! [`Greeting`]. Then for each line of its standard input, which is a command line of `symmem bench`
//! without those two words and the same for all ranks, it does its part and writes its [`Report`]s,
//! the last of which is that of the last size. Where the input ends, it leaves.

use std::io;
use std::process::ExitCode;

use serde::Serialize;
use symmem::KERNEL_UNITS;
use symmem::hal::kernels::source_hash;

use super::devices::Devices;
use super::drive;
use super::member::{Member, RankError};
use super::report::{Failed, Report};
use super::{BenchError, parse};

/// Arguments of `symmem bench-rank`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    devices: Devices,
}

/// What a rank says first.
#[derive(Debug, Serialize)]
struct Greeting {
    symmem: &'static str,
    backend: &'static str,
    device: String,
    /// Figures of a debug build mean nothing.
    debug: bool,
    /// Of all kernels' sources.
    kernels: String,
}

/// Why a rank cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error(transparent)]
    Rank(#[from] RankError),
    #[error("{line:?}: {cause}")]
    Words { line: String, cause: Box<BenchError> },
    #[error("standard input: {0}")]
    Input(#[from] io::Error),
}

impl From<RequestError> for Report {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Rank(error) => error.into(),
            other => Report::Failed(Failed { because: other.to_string(), about_others: false }),
        }
    }
}

/// Does one rank's part of everything that is asked for.
pub fn bench_rank(args: &Args) -> ExitCode {
    let group = match drive::join(args.devices) {
        Ok(group) => group,
        Err(error) => {
            drive::say(&Report::Failed(Failed::new(&error)));
            return ExitCode::FAILURE;
        }
    };
    let serve = || -> Result<(), RequestError> {
        let member = Member::new(&group)?;
        drive::say(&Greeting {
            symmem: env!("CARGO_PKG_VERSION"),
            backend: args.devices.backend.name(),
            device: group.device().name(),
            debug: cfg!(debug_assertions),
            kernels: kernels(),
        });
        io::stdin().lines().try_for_each(|line| answer(&member, &line?))
    };
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        // The ranks do not agree any more on what comes next.
        Err(error) => {
            drive::say(&Report::from(error));
            ExitCode::FAILURE
        }
    }
}

fn answer(member: &Member<'_>, line: &str) -> Result<(), RequestError> {
    let words = ["bench"].into_iter().chain(line.split_whitespace());
    let refused =
        |cause: BenchError| RequestError::Words { line: line.to_owned(), cause: cause.into() };
    let arguments = parse(words).map_err(refused)?;
    let operation = arguments.operation().map_err(|error| refused(error.into()))?;
    Ok(operation.measure(member, &mut |report| drive::say(&report))?)
}

fn kernels() -> String {
    let mut sources = Vec::new();
    for set in KERNEL_UNITS {
        (set.each)(&mut |unit| sources.push(unit.source));
    }
    sources.dedup();
    source_hash(&sources)
}
