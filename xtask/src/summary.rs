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
        if self.total().failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
