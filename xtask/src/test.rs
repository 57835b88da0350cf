//! `cargo xtask test`.

use std::time::Duration;

use crate::run::{Counts, Failed, cargo, step};

#[derive(clap::Args)]
pub struct Arguments {
    /// Numbers of ranks, each of which makes a run.
    #[arg(long, value_name = "R[,R..]")]
    ranks: Option<String>,
    /// Ranks are threads, not processes.
    #[arg(long)]
    threads: bool,
    /// host or stub; without it GPUs where there are any, else the host.
    #[arg(long)]
    backend: Option<String>,
    /// Only tests whose name has this in it.
    filter: Option<String>,
    /// Further arguments of the suite.
    #[arg(last = true)]
    more: Vec<String>,
}

/// The conformance runs of a full test: where, with what arguments.
const MATRIX: &[&[&str]] = &[
    &["--local"],
    &["--local", "--backend", "stub"],
    &["--ranks", "1,2,3,8"],
    &["--ranks", "2,8,40", "--threads"],
    &["--ranks", "2,3", "--threads", "--backend", "stub"],
];

pub fn run(arguments: Arguments) -> Result<(), Failed> {
    let Arguments { ranks, threads, backend, filter, more } = arguments;
    if ranks.is_none() && !threads && backend.is_none() && filter.is_none() && more.is_empty() {
        return everything();
    }
    let backend = backend.unwrap_or_else(|| {
        println!("backend: host (there is no other that runs ranks as processes in this release)");
        "host".to_owned()
    });
    let mut suite = conformance();
    suite.args(["--backend", &backend]).args(["--ranks", ranks.as_deref().unwrap_or("2")]);
    if threads {
        suite.arg("--threads");
    }
    suite.args(more).args(filter);
    step("conformance", &mut suite).map(drop)
}

fn conformance() -> std::process::Command {
    cargo(&["test", "-p", "symmem-tests", "--test", "conformance", "--"])
}

fn everything() -> Result<(), Failed> {
    let mut total = Counts::default();
    let mut times: Vec<(String, Duration)> = Vec::new();
    let mut tier = |name: &str, command: &mut std::process::Command| -> Result<(), Failed> {
        let (counts, took) = step(name, command)?;
        total += counts;
        times.push((name.to_owned(), took));
        Ok(())
    };
    tier("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    tier(
        "lints",
        &mut cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]),
    )?;
    let mut docs = cargo(&["doc", "--workspace", "--no-deps", "--lib", "--quiet"]);
    tier("documentation", docs.env("RUSTDOCFLAGS", "--deny warnings"))?;
    tier(
        "unit tests",
        &mut cargo(&[
            "test",
            "--workspace",
            "--exclude",
            "symmem-tests",
            "--lib",
            "--bins",
            "--tests",
        ]),
    )?;
    tier("documentation tests", &mut cargo(&["test", "--workspace", "--doc"]))?;
    tier("the suite's own tests", &mut cargo(&["test", "-p", "symmem-tests", "--lib"]))?;
    for place in MATRIX {
        let mut suite = conformance();
        suite.args(*place);
        tier(&format!("conformance {}", place.join(" ")), &mut suite)?;
    }
    println!("\n== tiers");
    for (name, took) in &times {
        println!("{:8.1} s  {name}", took.as_secs_f64());
    }
    let all: Duration = times.iter().map(|(_, took)| *took).sum();
    println!("{:8.1} s  in all\n", all.as_secs_f64());
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    Ok(())
}
