//! `symmem`: what this machine offers, how fast it is, and ranks on one host.
//!
//! Does: [`info`] (what is supported here, and why not), [`mod@bench`] (latency and bandwidth of the
//! operations, every result checked), [`run`] (starts a program as ranks of this host), [`mod@store`]
//! (where ranks meet), [`mod@tune`] (which algorithm is the fastest here), [`mod@kernels`] (compiled ahead of
//! time). Standard output carries results only; progress, warnings and logs go to standard error.
//!
//! Does not: anything that the library cannot be asked for. The command uses its public interface
//! alone.

mod bench;
mod descriptors;
mod info;
mod kernels;
mod parse;
mod run;
mod store;
mod tune;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Symmetric memory: what this machine offers, how fast it is, and ranks on one host.
#[derive(Debug, Parser)]
#[command(name = "symmem", version, max_term_width = 100)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show devices, libraries and limits, and for every feature whether it is supported and why
    Info(info::Args),
    /// Measure an operation and check every result
    Bench(bench::Args),
    /// Be a rank that measures what its standard input asks for
    #[command(hide = true)]
    BenchRank(bench::RankArgs),
    /// Be a process of a benchmark of logical ranks, as its standard input says
    #[command(hide = true)]
    BenchLoad,
    /// Start a program as ranks of this host
    Run(run::Args),
    /// Serve the store where ranks meet, until SIGINT or SIGTERM
    Store(store::Args),
    /// Measure which algorithm is the fastest here, and write the table for SYMMEM_TUNE
    Tune(tune::Args),
    /// Compile every kernel ahead of time: to see that it does, or for machines without a compiler
    Kernels(kernels::Args),
}

fn main() -> ExitCode {
    let command = Command::parse();
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let (action, outcome) = match command.action {
        Action::Info(args) => ("info", info::info(&args).map_err(Failure::from)),
        Action::Bench(args) => ("bench", bench::bench(&args).map_err(Failure::from)),
        Action::BenchRank(args) => ("bench-rank", Ok(bench::bench_rank(&args))),
        Action::BenchLoad => ("bench-load", Ok(bench::bench_load())),
        Action::Run(args) => ("run", run::run(&args).map_err(Failure::from)),
        Action::Tune(args) => ("tune", tune::tune(&args).map_err(Failure::from)),
        Action::Kernels(args) => ("kernels", kernels::kernels(&args).map_err(Failure::from)),
        Action::Store(args) => ("store", store::store(&args).map_err(Failure::from)),
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("symmem {action}: {failure}");
        failure.exit_code()
    })
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Info(#[from] info::InfoError),
    #[error(transparent)]
    Bench(#[from] bench::BenchError),
    #[error(transparent)]
    Run(#[from] run::RunError),
    #[error(transparent)]
    Store(#[from] store::StoreError),
    #[error(transparent)]
    Tune(#[from] tune::TuneError),
    #[error(transparent)]
    Kernels(#[from] kernels::KernelsError),
}

impl Failure {
    fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Run(error) => error.exit_code().into(),
            // As where the parser of the command line finds it.
            Failure::Bench(bench::BenchError::Args(_)) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}
