//! Tasks of the workspace. Each spawns cargo and prints what it runs.

mod bundle;
mod command;
mod compare;
mod cross;
mod failures;
mod features;
mod fuzz;
mod kernels;
mod package;
mod sanitize;
mod summary;
mod test;
mod vendor;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use command::Cargo;
use summary::Summary;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Tasks of the symmem workspace")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Format, lints, unit and documentation tests, and the conformance suite, in tiers with their
    /// times. With arguments: the conformance suite there alone.
    Test(test::Arguments),
    /// The protocols' loom models: every interleaving, within stated bounds.
    Loom {
        /// Models whose names contain this.
        #[arg(default_value = "loom")]
        filter: String,
    },
    /// Unit tests and the suite on thread ranks, under AddressSanitizer and ThreadSanitizer.
    Sanitize {
        /// Which; both if none is named.
        #[arg(value_enum)]
        sanitizer: Option<sanitize::Sanitizer>,
    },
    /// Every decoder of bytes that others send, under cargo-fuzz: fails on a finding.
    Fuzz(fuzz::Arguments),
    /// Every feature by itself, and of the hardware layer every combination, without a warning.
    Features,
    /// Every kernel of every crate compiles, for NVIDIA and AMD GPUs; bundles of them.
    Kernels(kernels::Arguments),
    /// Every crate as it would be published, built from its package.
    Package,
    /// Stripped binaries for a machine with GPUs and no toolchain, in a folder of at most 64 MiB.
    Bundle(bundle::Arguments),
    /// Every fault that the suite knows, and what each rank reported: the tables of docs/failure.md.
    Failures(failures::Arguments),
    /// Symmem and its peers in turns, in one run, with ratios.
    Compare(compare::Arguments),
    /// AArch64, by Debian's compiler, on a processor in software: builds, unit tests, and the suite on threads.
    Cross,
    /// The lower layers and their part of the suite, taken out of the tree: built, documented,
    /// tested, and nothing outside read.
    VendorCheck(vendor::Arguments),
}

fn main() -> ExitCode {
    let mut summary = Summary::default();
    match Arguments::parse().task {
        Task::Test(arguments) => test::run(&arguments, &mut summary),
        Task::Loom { filter } => loom(&filter, &mut summary),
        Task::Sanitize { sanitizer: Some(one) } => sanitize::run(one, &mut summary),
        Task::Sanitize { sanitizer: None } => {
            sanitize::run(sanitize::Sanitizer::Address, &mut summary);
            sanitize::run(sanitize::Sanitizer::Thread, &mut summary);
        }
        Task::Fuzz(arguments) => fuzz::run(&arguments, &mut summary),
        Task::Features => features::run(&mut summary),
        Task::Kernels(arguments) => kernels::run(&arguments, &mut summary),
        Task::Package => package::run(&mut summary),
        Task::Bundle(arguments) => bundle::run(&arguments, &mut summary),
        Task::Failures(arguments) => failures::run(&arguments, &mut summary),
        Task::Compare(arguments) => compare::run(&arguments, &mut summary),
        Task::Cross => cross::run(&mut summary),
        Task::VendorCheck(arguments) => vendor::run(&arguments, &mut summary),
    }
    summary.print();
    summary.exit_code()
}

fn loom(filter: &str, summary: &mut Summary) {
    // Models are far too slow unoptimised. A folder of their own: another cfg is another build of
    // everything.
    let models = Cargo::new("test")
        .args(["--release", "--package", "symmem-sync", "--lib", filter])
        .args(["--", "--nocapture", "--test-threads", "2"])
        .env("RUSTFLAGS", "--cfg symmem_loom")
        .target("loom");
    summary.tier("loom models", &[models]);
}
