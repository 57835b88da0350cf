//! Project tasks. Each prints the commands it runs.

mod run;
mod sanitize;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use run::{Failed, step};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Project tasks of symmem")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that a change must pass, in tiers; with arguments, the conformance suite alone.
    Test(test::Arguments),
    /// The unit tests and the conformance suite of thread ranks under a sanitizer.
    Sanitize(sanitize::Arguments),
    /// The exhaustive models of the protocols.
    Loom {
        /// Only models whose name has this in it.
        filter: Option<String>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Test(arguments) => test::run(arguments),
        Task::Sanitize(arguments) => sanitize::run(&arguments),
        Task::Loom { filter } => loom(filter),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn loom(filter: Option<String>) -> Result<(), Failed> {
    let mut command = run::cargo(&["test", "--release", "-p", "symmem-sync", "--lib"]);
    command.arg("--").arg(filter.unwrap_or_else(|| "loom".to_owned()));
    command.args(["--nocapture", "--test-threads", "2"]);
    // A cfg of its own, so a target folder of its own.
    command.env("RUSTFLAGS", "--cfg symmem_loom").env("CARGO_TARGET_DIR", "target/loom");
    step("loom", &mut command).map(drop)
}
