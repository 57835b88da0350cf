//! What ran, how long it took, and how it ended.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::command::{Cargo, Counts};

/// Tiers that have run.
#[derive(Debug, Default)]
pub struct Summary {
    tiers: Vec<Tier>,
}

#[derive(Debug)]
struct Tier {
    name: String,
    counts: Counts,
    time: Duration,
}

impl Summary {
    /// Runs a tier: all its commands, whatever becomes of each.
    pub fn tier(&mut self, name: &str, commands: &[Cargo]) {
        println!("\n== {name}");
        let since = Instant::now();
        let mut counts = Counts::default();
        for command in commands {
            counts.add(command.run());
        }
        self.ended(name, counts, since);
    }

    /// Runs a tier that is one check of our own; its value, if it passed.
    pub fn step<T>(&mut self, name: &str, check: impl FnOnce() -> Result<T, String>) -> Option<T> {
        println!("\n== {name}");
        let since = Instant::now();
        let outcome = check();
        if let Err(why) = &outcome {
            println!("{why}");
        }
        let (passed, failed) = (outcome.is_ok().into(), outcome.is_err().into());
        self.ended(name, Counts { passed, failed, skipped: 0 }, since);
        outcome.ok()
    }

    fn ended(&mut self, name: &str, counts: Counts, since: Instant) {
        let tier = Tier { name: name.to_owned(), counts, time: since.elapsed() };
        println!("== {}", tier.line());
        self.tiers.push(tier);
    }

    /// Prints a line a tier and, last, the sum.
    pub fn print(&self) {
        println!();
        for tier in &self.tiers {
            println!("{}", tier.line());
        }
        let total = self.total();
        let time: Duration = self.tiers.iter().map(|t| t.time).sum();
        println!("in {:.0} s:", time.as_secs_f64());
        println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    }

    pub fn exit_code(&self) -> ExitCode {
        if self.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Whether nothing has failed.
    pub fn is_well(&self) -> bool {
        self.total().failed == 0
    }

    fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.tiers.iter().for_each(|tier| total.add(tier.counts));
        total
    }
}

impl Tier {
    fn line(&self) -> String {
        let Counts { passed, failed, skipped } = self.counts;
        let time = self.time.as_secs_f64();
        let name = &self.name;
        format!("{name:<36} {time:6.1} s  {passed:5} passed {failed:3} failed {skipped:4} skipped")
    }
}
