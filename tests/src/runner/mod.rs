//! Runs tests that are many ranks.
//!
//! The program that calls [`main`] is the runner. For each [`Place`] it starts a pool of ranks:
//! re-executions of the same program, which find the socket that they inherited and serve it
//! instead. The runner sends the name of a test to all of them; each answers what it found.
//!
//! A pool ends when a test on it fails, hangs or dies, or wanted ranks to itself; the next test
//! gets a fresh one. A hang is reported with each rank's last step and what its threads sleep on.
//!
//! The last line is `N passed, N failed, N skipped`, after the skips by reason.

mod arguments;
mod children;
mod context;
mod error;
mod inherit;
mod link;
mod place;
mod pool;
mod post_mortem;
mod rank;
mod test;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser as _;
use libtest_mimic::{Completion, Failed, Trial};
use parking_lot::Mutex;
use serde::Serialize;

use arguments::Invocation;
use link::Soak;
use pool::{Ending, Pool, Request};

/// How many times longer a test may take in a long run: its own waits are bounded.
const LONG: u32 = 120;

pub use context::Context;
#[cfg(feature = "mem")]
pub use context::PATIENT;
#[cfg(feature = "mem")]
pub use context::options;
pub use error::{TestError, Verdict};
pub use place::{Mode, NoPlace, Place, backend_of};
pub use test::{ON_ASYNCHRONOUS_STREAMS, ON_MEMORY_OF_THE_SYSTEM, Test, Unfit};

/// Runs the tests that the program's arguments ask for, or serves as a rank if a runner started
/// this program as one.
#[must_use]
pub fn main(tests: &[Test]) -> ExitCode {
    match inherit::part() {
        Ok(Some(part)) => rank::main(part, tests),
        Ok(None) => run(&Invocation::parse(), tests),
        Err(e) => {
            eprintln!("not a rank: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Invocation, tests: &[Test]) -> ExitCode {
    let places = match arguments.places(place::devices) {
        Ok(places) => places,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    let seed = arguments.seed.unwrap_or_else(fresh_seed);
    let names: Vec<_> = places.iter().map(Place::to_string).collect();
    println!("seed {seed:#018x}; on {}", names.join(", "));
    let findings = arguments
        .findings
        .as_ref()
        .map(|path| std::fs::OpenOptions::new().create(true).append(true).open(path));
    let findings = match findings.transpose() {
        Ok(findings) => findings,
        Err(e) => {
            eprintln!("no file for findings: {e}");
            return ExitCode::from(2);
        }
    };
    let runner = Arc::new(Mutex::new(Runner {
        seed,
        soak: Soak {
            asked: arguments.soak || arguments.soak_seconds.is_some(),
            seconds: arguments.soak_seconds,
        },
        findings,
        pool: None,
        times: Vec::new(),
        skips: BTreeMap::new(),
    }));
    let mut trials = Vec::new();
    for place in &places {
        // Tests that share ranks first: a test that wants its own does not end the shared ones.
        let (isolated, shared): (Vec<&Test>, Vec<&Test>) =
            tests.iter().filter(|t| t.fits(place).is_ok()).partition(|t| t.is_isolated());
        if shared.is_empty() && isolated.is_empty() {
            continue;
        }
        for test in shared.into_iter().chain(isolated) {
            let (runner, place, test) = (runner.clone(), *place, *test);
            let name = format!("{place}::{}", test.name());
            trials.push(Trial::ignorable_test(name, move || runner.lock().run(place, &test)));
        }
        let (runner, place) = (runner.clone(), *place);
        let name = format!("{place}::runner::ranks_end");
        trials.push(Trial::ignorable_test(name, move || runner.lock().end(place)));
    }
    // What runs nowhere is accounted for, unless its kind of rank was not asked for.
    for test in tests.iter().filter(|t| places.iter().all(|p| t.fits(p).is_err())) {
        let mut unfit = places.iter().filter_map(|p| test.fits(p).err());
        let Some(reason) = unfit.rfind(|u| !matches!(u, Unfit::Mode(_))) else { continue };
        let (runner, name) = (runner.clone(), test.name());
        trials.push(Trial::ignorable_test(name.clone(), move || {
            Ok(runner.lock().skipped(&name, &reason.to_string()))
        }));
    }
    // One at a time: a test uses as many cores as it has ranks.
    let mut libtest = arguments.libtest.clone();
    libtest.test_threads = Some(1);
    let conclusion = libtest_mimic::run(&libtest, trials);
    let runner = Arc::into_inner(runner).map(Mutex::into_inner);
    if let Some(mut runner) = runner {
        runner.times.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        for (time, name) in runner.times.iter().take(arguments.slowest) {
            println!("{:8.1} s {name}", time.as_secs_f64());
        }
        for (reason, names) in &runner.skips {
            println!("skipped, {reason}: {}", names.join(", "));
        }
    }
    println!(
        "{} passed, {} failed, {} skipped",
        conclusion.num_passed, conclusion.num_failed, conclusion.num_ignored
    );
    conclusion.exit_code()
}

fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// A line of the file of findings.
#[derive(Serialize)]
struct Findings<'a> {
    place: String,
    backend: &'static str,
    test: String,
    passed: bool,
    /// By rank.
    ranks: &'a [Vec<String>],
}

/// What outlives one test.
struct Runner {
    seed: u64,
    soak: Soak,
    /// Where what tests found out is written.
    findings: Option<File>,
    pool: Option<Pool>,
    /// How long each test took.
    times: Vec<(Duration, String)>,
    /// Names of skipped tests by reason.
    skips: BTreeMap<String, Vec<String>>,
}

impl Runner {
    fn run(&mut self, place: Place, test: &Test) -> Result<Completion, Failed> {
        let request = Request {
            name: test.name(),
            seed: self.seed,
            soak: self.soak,
            timeout: place.patience() * test.timeout() * if self.soak.asked { LONG } else { 1 },
        };
        let since = Instant::now();
        let ending = if test.is_isolated() {
            let mut pool = Pool::start(place)?;
            let ending = pool.run(&request);
            self.write(place, test, &ending, pool.findings())?;
            ending
        } else {
            let pool = match self.pool.take().filter(|pool| pool.place() == place) {
                Some(pool) => self.pool.insert(pool),
                None => self.pool.insert(Pool::start(place)?),
            };
            let ending = pool.run(&request);
            let (findings, whole) = (pool.findings().to_vec(), pool.is_whole());
            if !whole {
                self.pool = None;
            }
            self.write(place, test, &ending, &findings)?;
            ending
        };
        self.times.push((since.elapsed(), format!("{place}::{}", test.name())));
        match ending {
            Ending::Passed => Ok(Completion::Completed),
            Ending::Skipped(reason) => {
                Ok(self.skipped(&format!("{place}::{}", test.name()), &reason))
            }
            Ending::Failed(report) => Err(format!("{report}seed {:#018x}", self.seed).into()),
        }
    }

    /// Writes down what ranks found, if they did and somebody wants it.
    fn write(
        &mut self,
        place: Place,
        test: &Test,
        ending: &Ending,
        ranks: &[Vec<String>],
    ) -> Result<(), String> {
        let Some(file) = &mut self.findings else { return Ok(()) };
        if ranks.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let line = Findings {
            place: place.to_string(),
            backend: place.backend.name(),
            test: test.name(),
            passed: *ending == Ending::Passed,
            ranks,
        };
        let line = serde_json::to_string(&line).map_err(|e| e.to_string())?;
        writeln!(file, "{line}").map_err(|e| format!("findings: {e}"))
    }

    /// Ends the ranks of a place: they end by themselves, well, and in time.
    fn end(&mut self, place: Place) -> Result<Completion, Failed> {
        match self.pool.take().filter(|pool| pool.place() == place) {
            Some(pool) => pool.end().map(|()| Completion::Completed).map_err(Failed::from),
            None => Ok(Completion::Completed),
        }
    }

    fn skipped(&mut self, name: &str, reason: &str) -> Completion {
        self.skips.entry(reason.to_owned()).or_default().push(name.to_owned());
        Completion::ignored_with(reason)
    }
}
