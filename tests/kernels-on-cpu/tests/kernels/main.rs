//! Every kernel under random schedules, and faults that must be found.
//!
//! ```sh
//! cargo test -p symmem-kernels-on-cpu --test kernels                   # all
//! cargo test -p symmem-kernels-on-cpu --test kernels -- reduce         # what has that in its name
//! SYMMEM_SEED=4711 cargo test -p symmem-kernels-on-cpu --test kernels  # other seeds: from this one on
//! SYMMEM_RUNS=100 cargo test -p symmem-kernels-on-cpu --test kernels   # so many times as long
//! ```
//!
//! A failure says what differed, under what schedule, and the command that repeats it.

mod faults;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Failed, Trial};
use symmem_kernels_on_cpu::{Builder, Program, STALLED, has_compiler, simulate};

use faults::FAULTS;

/// Scenarios of each program, and with how many seeds each runs.
const SCENARIOS: &[(Program, &[(&str, u32)])] = &[
    (
        Program::Reduce,
        &[
            ("packets", 60),
            ("lines", 60),
            ("pushed", 60),
            ("two_shot", 60),
            ("blocks", 60),
            ("mixed", 60),
        ],
    ),
    (
        Program::Exchange,
        &[("packets", 60), ("staged", 60), ("direct", 60), ("copies", 40), ("mixed", 60)],
    ),
    (
        Program::Failures,
        &[
            ("mismatch", 60),
            ("time_out", 60),
            ("time_out_of_a_reader", 60),
            ("launch_bounds", 40),
            ("host_ends_wait", 60),
            ("busy", 60),
            ("stale", 40),
            ("adoption", 10),
            ("large", 10),
        ],
    ),
    (
        Program::Signals,
        &[
            ("barrier", 200),
            ("slots", 200),
            ("put_with_signal", 200),
            ("repair", 60),
            ("host_ends_wait", 60),
        ],
    ),
    (
        Program::Vdev,
        &[
            ("packets", 60),
            ("staged", 60),
            ("mixed", 60),
            ("large", 2),
            ("time_out", 30),
            ("mismatch", 30),
            ("another_kind", 60),
        ],
    ),
    (Program::Routing, &[("routed", 60), ("mixed", 60), ("time_out", 30), ("mismatch", 30)]),
    (Program::Landing, &[("halves", 100), ("time_out", 30), ("mismatch", 30)]),
];

/// The scenario in which each rank is delayed at each step, by kernels that are compiled for that; with how
/// many seeds.
const STALLS: (&str, u32) = ("stalls", 4);

/// Seeds among which a fault must be found.
const FAULT_SEEDS: u32 = 400;

/// How a program ends that has found something: anything else is no finding.
const FOUND: &str = "exit status: 1 ";

/// What is compiled once, by whoever comes first.
struct Programs {
    common: OnceLock<Result<Builder, String>>,
    whole: [OnceLock<Result<PathBuf, String>>; Program::ALL.len()],
    stalled: [OnceLock<Result<PathBuf, String>>; Program::ALL.len()],
}

impl Programs {
    fn builder(&self) -> Result<&Builder, String> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        self.common.get_or_init(|| Builder::new(folder)).as_ref().map_err(Clone::clone)
    }

    fn whole(&self, program: Program) -> Result<&Path, String> {
        let builder = self.builder()?;
        let place = &self.whole[program as usize];
        let built = place.get_or_init(|| builder.program(program, program.name(), &[]));
        built.as_deref().map_err(Clone::clone)
    }

    fn stalled(&self, program: Program) -> Result<&Path, String> {
        let builder = self.builder()?;
        let name = format!("{STALLED}{}", program.name());
        let place = &self.stalled[program as usize];
        let built = place.get_or_init(|| builder.program(program, &name, &[]));
        built.as_deref().map_err(Clone::clone)
    }
}

fn number<T: std::str::FromStr>(variable: &str, default: T) -> Result<T, Failed> {
    match std::env::var(variable) {
        Ok(text) => text.parse().map_err(|_| format!("{variable} is no number: {text}").into()),
        Err(_) => Ok(default),
    }
}

fn main() -> ExitCode {
    let (whole, stalled) = Default::default();
    let programs = Arc::new(Programs { common: OnceLock::new(), whole, stalled });
    let skipped = !has_compiler();
    if skipped {
        println!("skipped, for want of a C++ compiler (c++, or what CXX names): all");
    }
    let mut trials = Vec::new();
    for (program, scenarios) in SCENARIOS {
        for (scenario, runs) in *scenarios {
            let programs = programs.clone();
            let name = format!("{}::{scenario}", program.name());
            trials.push(Trial::test(name, move || {
                let (seed, times) = (number("SYMMEM_SEED", 0)?, number("SYMMEM_RUNS", 1)?);
                Ok(simulate(programs.whole(*program)?, scenario, seed, runs.saturating_mul(times))?)
            }));
        }
    }
    for program in Program::ALL {
        let programs = programs.clone();
        let (scenario, runs) = STALLS;
        trials.push(Trial::test(format!("{}::{scenario}", program.name()), move || {
            let (seed, times) = (number("SYMMEM_SEED", 0)?, number("SYMMEM_RUNS", 1)?);
            Ok(simulate(programs.stalled(program)?, scenario, seed, runs.saturating_mul(times))?)
        }));
    }
    for fault in FAULTS {
        let programs = programs.clone();
        trials.push(Trial::test(format!("fault::{}", fault.name), move || {
            let built =
                programs.builder()?.program(fault.program, fault.name, fault.replacements)?;
            match simulate(&built, fault.scenario, number("SYMMEM_SEED", 0)?, FAULT_SEEDS) {
                Ok(()) => Err(format!("not found in {FAULT_SEEDS} runs").into()),
                Err(said) if said.contains(FOUND) => Ok(()),
                Err(said) => Err(format!("not found, but: {said}").into()),
            }
        }));
    }
    let trials = trials.into_iter().map(|trial| trial.with_ignored_flag(skipped)).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
