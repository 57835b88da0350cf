//! `cargo xtask test`.

use crate::command::{Cargo, target_dir};
use crate::summary::Summary;

/// Where to run the conformance suite; everything, everywhere, if nothing is said.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// How many ranks: one number, or several, each of which makes a run.
    #[arg(long, value_name = "R[,R..]", value_delimiter = ',')]
    ranks: Vec<usize>,

    /// Ranks are threads, not processes.
    #[arg(long)]
    threads: bool,

    /// The tests that make their own ranks.
    #[arg(long)]
    local: bool,

    /// The backend: host, stub or cuda. Without it the GPUs where there are any, else the host.
    #[arg(long)]
    backend: Option<String>,

    /// All ranks share the first device.
    #[arg(long)]
    one_device: bool,

    /// What random data is made from.
    #[arg(long)]
    seed: Option<String>,

    /// Long runs of the tests that have them.
    #[arg(long)]
    soak: bool,

    /// Tests whose names contain this.
    filter: Option<String>,

    /// Further arguments of the suite's own.
    #[arg(last = true)]
    more: Vec<String>,
}

impl Arguments {
    fn is_everything(&self) -> bool {
        let Arguments {
            ranks,
            threads,
            local,
            backend,
            one_device,
            seed: _,
            soak: _,
            filter,
            more,
        } = self;
        more.is_empty()
            && ranks.is_empty()
            && !threads
            && !local
            && backend.is_none()
            && !one_device
            && filter.is_none()
    }

    /// What is passed on to every run of the suite.
    fn common(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if let Some(seed) = &self.seed {
            arguments.extend(["--seed".to_owned(), seed.clone()]);
        }
        if self.soak {
            arguments.push("--soak".to_owned());
        }
        arguments
    }

    fn suite(&self) -> Vec<String> {
        let mut arguments = self.common();
        if !self.ranks.is_empty() {
            let ranks: Vec<_> = self.ranks.iter().map(usize::to_string).collect();
            arguments.extend(["--ranks".to_owned(), ranks.join(",")]);
        }
        let flags = [
            ("--threads", self.threads),
            ("--local", self.local),
            ("--one-device", self.one_device),
        ];
        for (flag, given) in flags {
            arguments.extend(given.then(|| flag.to_owned()));
        }
        if let Some(backend) = &self.backend {
            arguments.extend(["--backend".to_owned(), backend.clone()]);
        }
        arguments.extend(self.more.iter().cloned());
        arguments.extend(self.filter.clone());
        arguments
    }
}

/// Workspaces of their own.
const LOCKED: [&str; 6] = [
    "examples/expert-parallel/Cargo.toml",
    "examples/fused-rmsnorm/Cargo.toml",
    "examples/minilm/Cargo.toml",
    "examples/tensor-parallel/Cargo.toml",
    "mem/fuzz/Cargo.toml",
    "tools/bindgen/Cargo.toml",
];

/// Ranks delayed at each step, for the suite. The whole workspace is built so, once; without it the lower layers are
/// tested where they are taken out of the tree.
const STALLS: [&str; 3] =
    ["--workspace", "--features", "symmem-mem/stalls,symmem-sync/stalls,symmem-tests/stalls"];

/// Runs of the conformance suite, by name: with these, every test runs somewhere. The same on every
/// machine: those on GPUs are asked for.
const MATRIX: &[(&str, &[&[&str]])] = &[
    (
        "suite without ranks",
        &[&["--local", "--backend", "host"], &["--local", "--backend", "stub"]],
    ),
    ("suite, 1, 2, 4 processes", &[&["--ranks", "1,2,4", "--backend", "host"]]),
    ("suite, 3, 8 threads", &[&["--ranks", "3,8", "--threads", "--backend", "host"]]),
    // Where so many are another case: all the rest only waits for them to take turns.
    (
        "some of it, 40 threads",
        &[
            &["--ranks", "40", "--threads", "--backend", "host", "collectives::sizes"],
            &["--ranks", "40", "--threads", "--backend", "host", "moe::"],
            &["--ranks", "40", "--threads", "--backend", "host", "overlapping_groups"],
        ],
    ),
    (
        "suite on the stub",
        &[
            &["--ranks", "3", "--threads", "--backend", "stub"],
            // Between processes values come out as they do between threads.
            &[
                "--ranks",
                "2",
                "--backend",
                "stub",
                "--skip",
                "moe::",
                "--skip",
                "collectives::values",
            ],
        ],
    ),
];

/// The CUDA backend's own tests on the driver in software: a machine as they mostly are, and one with
/// everything that few have.
fn on_fake_cuda() -> Vec<Cargo> {
    let library = target_dir().join("debug/libsymmem_fake_cuda.so");
    let test = || {
        let test = Cargo::new("test").args(["--quiet", "--package", "symmem-hal"]);
        let test = test.args(["--features", "cuda", "--test", "cuda"]);
        test.env("SYMMEM_CUDA_LIBRARY", library.clone())
    };
    let more = ["SYMMEM_FAKE_CUDA_FABRIC", "SYMMEM_FAKE_CUDA_MULTICAST"];
    vec![
        Cargo::new("build").args(["--quiet", "--package", "symmem-fake-cuda"]),
        test(),
        more.iter().fold(test(), |test, variable| test.env(variable, "1")),
    ]
}

pub fn run(arguments: &Arguments, summary: &mut Summary) {
    if !arguments.is_everything() {
        // The suite says on what.
        let suite = Cargo::suite(arguments.suite()).options(["--features", "stalls"]);
        summary.tier("suite", &[suite]);
        return;
    }
    // Lock files of workspaces of their own know the crates of this one.
    let locked = |manifest: &str| {
        let update = Cargo::new("update").args(["--workspace", "--locked", "--quiet"]);
        update.args(["--manifest-path", manifest])
    };
    let format = Cargo::new("fmt").args(["--all", "--check"]);
    let locks = LOCKED.iter().map(|manifest| locked(manifest));
    summary.tier("format, lock files", &[format].into_iter().chain(locks).collect::<Vec<_>>());
    let clippy = Cargo::new("clippy").args(["--quiet", "--workspace", "--all-targets"]);
    summary.tier("lints", &[clippy.args(["--", "--deny", "warnings"])]);
    let docs = Cargo::new("doc").args(["--quiet", "--workspace", "--no-deps", "--lib"]);
    summary.tier("documentation", &[docs.env("RUSTDOCFLAGS", "--deny warnings")]);
    let test = || Cargo::new("test").args(["--quiet"]);
    // But the suite, and the kernels on a CPU, which run where they are named.
    summary.tier("unit and documentation tests", &[test().args(STALLS)]);
    summary.tier("CUDA on a driver in software", &on_fake_cuda());
    let kernels = test().args(STALLS).args(["--test", "kernels"]);
    summary.tier("kernels on a CPU", &[kernels]);
    for (name, runs) in MATRIX {
        let command = |run: &&[&str]| {
            let place = run.iter().map(|argument| (*argument).to_owned());
            let quiet = ["--quiet".to_owned()];
            Cargo::whole_suite(quiet.into_iter().chain(place).chain(arguments.common()))
                .options(["--quiet"])
                .options(STALLS)
        };
        let commands: Vec<_> = runs.iter().map(command).collect();
        summary.tier(name, &commands);
    }
}
