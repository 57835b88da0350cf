//! Running commands and telling of it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Why a task ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// A command could not be started.
    #[error("{command}: {source}")]
    Start {
        /// The command.
        command: String,
        /// Why.
        source: std::io::Error,
    },
    /// A command ended badly.
    #[error("{name} failed: {command}: {status}")]
    Status {
        /// The tier.
        name: String,
        /// The command.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// The machine cannot do it.
    #[error("{0}")]
    Unable(String),
}

/// What tests counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The cargo that runs this task.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

fn shown(command: &Command) -> String {
    let mut words: Vec<String> = command
        .get_envs()
        .filter_map(|(name, value)| {
            Some(format!("{}={:?}", name.display(), value?.display().to_string()))
        })
        .collect();
    let program = std::path::Path::new(command.get_program());
    words.push(program.file_name().unwrap_or(command.get_program()).display().to_string());
    words.extend(command.get_args().map(|a| a.display().to_string()));
    words.join(" ")
}

/// Runs one step: prints the command, its output and its time; counts the tests in the output.
pub fn step(name: &str, command: &mut Command) -> Result<(Counts, Duration), Failed> {
    let text = shown(command);
    println!("\n== {name}\n$ {text}");
    let _ = std::io::stdout().flush();
    let begun = Instant::now();
    let start = |source| Failed::Start { command: text.clone(), source };
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(start)?;
    let mut counts = Counts::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line.map_err(start)?;
            if let Some(found) = count(&line) {
                counts += found;
            }
            println!("{line}");
        }
    }
    let status = child.wait().map_err(start)?;
    let took = begun.elapsed();
    println!("== {name}: {:.1} s", took.as_secs_f64());
    if status.success() {
        Ok((counts, took))
    } else {
        Err(Failed::Status { name: name.to_owned(), command: text, status })
    }
}

/// The counts in a closing line of cargo's test harness or of the conformance suite.
fn count(line: &str) -> Option<Counts> {
    let line = line.trim();
    let mut counts = Counts::default();
    let rest = match line.strip_prefix("test result: ") {
        Some(rest) => rest.split_once(". ")?.1,
        None if line.ends_with(" skipped") && line.contains(" passed, ") => line,
        None => return None,
    };
    for part in rest.split([',', ';']) {
        let mut words = part.split_whitespace();
        let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
        let Ok(number) = number.parse() else { continue };
        match what {
            "passed" => counts.passed = number,
            "failed" => counts.failed = number,
            "ignored" | "skipped" => counts.skipped = number,
            _ => {}
        }
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted_and_others_are_not() {
        let counts = |line| count(line).map(|c| (c.passed, c.failed, c.skipped));
        let cargo = "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.1s";
        assert_eq!(counts(cargo), Some((12, 0, 3)));
        assert_eq!(counts("test result: FAILED. 1 passed; 2 failed; 0 ignored"), Some((1, 2, 0)));
        assert_eq!(counts("40 passed, 1 failed, 7 skipped"), Some((40, 1, 7)));
        assert_eq!(counts("test it_passed ... ok"), None);
        assert_eq!(counts("skipped"), None);
    }
}
