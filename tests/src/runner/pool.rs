//! The ranks of one place, and how a test runs on them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use symmem_hal::types::RankSet;

use super::children::Children;
use super::inherit;
use super::link::{Command, Link, Outcome, Report, Soak};
use super::place::Place;
use super::post_mortem;

/// How long ranks may take to start.
const STARTING: Duration = Duration::from_secs(60);

/// How long the others may go on after one rank has failed: their waits for it are bounded, but
/// what they will find is known.
const GRACE: Duration = Duration::from_secs(5);

/// How long ranks may take to end.
const ENDING: Duration = Duration::from_secs(20);

const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// A test to run.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub name: String,
    pub seed: u64,
    pub soak: Soak,
    pub timeout: Duration,
}

/// How a test ended, on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Passed,
    Skipped(String),
    /// A line or more for each rank that has something to say.
    Failed(String),
}

/// Running ranks. Dropping it kills them.
#[derive(Debug)]
pub(super) struct Pool {
    place: Place,
    children: Children,
    links: Vec<Link>,
    whole: bool,
    /// What each rank found in the last test.
    findings: Vec<Vec<String>>,
}

/// What is known of one rank during a test.
#[derive(Debug, Default)]
struct Progress {
    step: String,
    dying: bool,
    same: BTreeMap<String, String>,
    found: Vec<String>,
    outcome: Option<Outcome>,
    ready: bool,
    met: bool,
}

impl Pool {
    /// Starts the ranks of a place and waits until each can run tests.
    pub(super) fn start(place: Place) -> Result<Self, String> {
        let failed = |e: io::Error| format!("cannot start the ranks of {place}: {e}");
        let (links, far) = inherit::pairs(place.ranks).map_err(failed)?;
        let children = Children::start(place, &far).map_err(failed)?;
        drop(far);
        let mut pool = Pool { place, children, links, whole: true, findings: Vec::new() };
        let all = pool.watch(STARTING, |progress| progress.ready || progress.outcome.is_some());
        if all.iter().all(|progress| progress.ready) {
            return Ok(pool);
        }
        let report = pool.report(&all);
        Err(format!("the ranks of {place} did not start\n{report}"))
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// What each rank found in the last test, by rank.
    pub(super) fn findings(&self) -> &[Vec<String>] {
        &self.findings
    }

    /// Whether every rank can run another test.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Runs a test on all ranks.
    pub(super) fn run(&mut self, request: &Request) -> Ending {
        // Until it is known better: whatever ends this early spoils the pool.
        self.whole = false;
        let Request { name, seed, soak, timeout } = request.clone();
        let command = Command::Run { test: name, seed, soak };
        for link in &self.links {
            // One that is gone, by another's doing perhaps, is found by its end.
            let _ = link.send(&command);
        }
        let mut all = self.watch(timeout, |progress| progress.outcome.is_some());
        self.findings = all.iter_mut().map(|p| std::mem::take(&mut p.found)).collect();
        let differences = differences(&all);
        let reasons: Vec<_> = all
            .iter()
            .filter_map(|p| match &p.outcome {
                Some(Outcome::Skipped(reason)) => Some(reason),
                _ => None,
            })
            .collect();
        let passed = all.iter().filter(|p| p.outcome == Some(Outcome::Passed)).count();
        if passed == all.len() && differences.is_empty() {
            self.whole = !all.iter().any(|p| p.dying);
            Ending::Passed
        } else if reasons.len() == all.len() {
            self.whole = true;
            Ending::Skipped(reasons.first().map_or_else(String::new, |r| (*r).clone()))
        } else {
            Ending::Failed(self.report(&all) + &differences)
        }
    }

    /// Lets the ranks end.
    pub(super) fn end(mut self) -> Result<(), String> {
        for link in &self.links {
            // One that is gone is found below.
            let _ = link.send(&Command::End);
        }
        let deadline = Instant::now() + ENDING;
        loop {
            let statuses = self.children.poll().map_err(|e| e.to_string())?;
            let bad = |status: &ExitStatus| !status.success();
            if let Some(status) = statuses.iter().flatten().find(|s| bad(s)) {
                return Err(format!("a process ended with {status} after its tests"));
            }
            if statuses.iter().all(Option::is_some) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let all: Vec<_> = self.links.iter().map(|_| Progress::default()).collect();
                return Err(format!("not ended after {ENDING:?}\n{}", self.report(&all)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Listens to the ranks until each is done, or has had its time.
    fn watch(&mut self, timeout: Duration, done: impl Fn(&Progress) -> bool) -> Vec<Progress> {
        let mut all: Vec<Progress> = self.links.iter().map(|_| Progress::default()).collect();
        let mut deadline = Instant::now() + timeout;
        loop {
            // What a process said before its end is heard after the end is noticed.
            let ended = self.children.poll().unwrap_or_default();
            self.hear(&mut all);
            for (rank, progress) in all.iter_mut().enumerate().filter(|(_, p)| !done(p)) {
                let Some(status) = ended.get(self.children.holder(rank)).copied().flatten() else {
                    continue;
                };
                progress.outcome = Some(if progress.dying {
                    Outcome::Passed
                } else {
                    Outcome::Failed(format!("its process ended with {status}"))
                });
            }
            self.answer_meetings(&mut all);
            let now = Instant::now();
            if all.iter().any(|p| matches!(p.outcome, Some(Outcome::Failed(_)))) {
                deadline = deadline.min(now + GRACE);
            }
            if all.iter().all(&done) || now >= deadline {
                return all;
            }
            let mut sockets: Vec<_> =
                self.links.iter().map(|link| PollFd::new(link, PollFlags::IN)).collect();
            // Whatever it returns, the loop looks at everything.
            let _ = poll(&mut sockets, Some(&TICK));
        }
    }

    fn hear(&self, all: &mut [Progress]) {
        for (link, progress) in self.links.iter().zip(all) {
            while let Ok(report) = link.receive() {
                match report {
                    Report::Ready => progress.ready = true,
                    Report::Step(step) => progress.step = step,
                    Report::Same { key, value } => drop(progress.same.insert(key, value)),
                    Report::Met => progress.met = true,
                    Report::Dying => progress.dying = true,
                    Report::Found { what } => progress.found.push(what),
                    Report::Ended(outcome) => progress.outcome = Some(outcome),
                }
            }
        }
    }

    /// Lets ranks that have met go on once all have that still run.
    fn answer_meetings(&self, all: &mut [Progress]) {
        let failed = all.iter().any(|p| matches!(p.outcome, Some(Outcome::Failed(_))));
        let everybody = all.iter().all(|p| p.met || p.outcome.is_some());
        if !failed && !everybody {
            return;
        }
        let answer = if failed { Command::GiveUp } else { Command::Go };
        for (link, progress) in self.links.iter().zip(all) {
            if std::mem::take(&mut progress.met) {
                // One that is gone is found by its end.
                let _ = link.send(&answer);
            }
        }
    }

    /// What ranks that did not pass say, those that say the same in one line; and what those that
    /// hang are doing.
    fn report(&mut self, all: &[Progress]) -> String {
        let mut said: Vec<(String, RankSet)> = Vec::new();
        let mut hung = Vec::new();
        let ids = self.children.ids();
        for (rank, progress) in all.iter().enumerate() {
            let what = match &progress.outcome {
                // What another rank says is why.
                Some(Outcome::Passed | Outcome::GaveUp) => continue,
                Some(Outcome::Failed(message)) => message.clone(),
                Some(Outcome::Skipped(reason)) => {
                    format!("skipped, though others did not: {reason}")
                }
                None => {
                    hung.extend(ids.get(self.children.holder(rank)));
                    "did not end".to_owned()
                }
            };
            let what = match progress.step.as_str() {
                "" => what,
                step => format!("{what} (last step: {step})"),
            };
            match said.iter_mut().find(|(known, _)| *known == what) {
                Some((_, ranks)) => ranks.insert(rank),
                None => said.push((what, RankSet::one(rank))),
            }
        }
        let mut text = String::new();
        for (what, ranks) in said {
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            let _ = writeln!(text, "  {noun} {ranks}: {what}");
        }
        hung.dedup();
        for process in hung {
            let _ = write!(text, "  process {process}:\n{}", post_mortem::threads(process));
        }
        text
    }
}

/// What ranks were to find the same and did not.
fn differences(all: &[Progress]) -> String {
    let mut text = String::new();
    let mut found: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
    for (rank, progress) in all.iter().enumerate() {
        for (key, value) in &progress.same {
            found.entry(key).or_default().push((rank, value));
        }
    }
    for (key, values) in found {
        if values.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            let _ = writeln!(text, "  ranks found different: {key}");
            for (rank, value) in values {
                let _ = writeln!(text, "    rank {rank}: {value}");
            }
        }
    }
    text
}
