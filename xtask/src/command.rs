//! Runs cargo, shows what it runs and what it says, and counts the tests in that.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// The numbers in a line of libtest's or of the suite's, if it is one of those.
    fn of(line: &str) -> Option<Self> {
        // The suite prints libtest's line as well as its own, which is the one that counts.
        let result = line.strip_prefix("test result: ");
        let words: Vec<&str> = match result {
            Some(result) => result.split(['.', ';']).map(str::trim).collect(),
            None => line.split(',').map(str::trim).collect(),
        };
        let count = |name: &str| {
            words.iter().find_map(|w| w.strip_suffix(name)?.trim_end().parse::<u64>().ok())
        };
        Some(Counts {
            passed: count("passed")?,
            failed: count("failed")?,
            skipped: count(if result.is_some() { "ignored" } else { "skipped" })?,
        })
    }
}

/// One call of cargo.
#[derive(Debug)]
pub struct Cargo {
    args: Vec<OsString>,
    env: Vec<(&'static str, OsString)>,
    suite: bool,
    /// Where it runs.
    folder: PathBuf,
    /// What its standard error must say, and its status must be a failure.
    planted: Option<&'static str>,
}

impl Cargo {
    pub fn new(command: &str) -> Self {
        let args = vec![command.into()];
        Cargo { args, env: Vec::new(), suite: false, folder: workspace(), planted: None }
    }

    /// The conformance suite, with these arguments.
    pub fn suite<S: Into<OsString>>(arguments: impl IntoIterator<Item = S>) -> Self {
        let suite = Self::whole_suite(arguments);
        suite.options(["--package", "symmem-tests"])
    }

    /// The same, of a build of several packages, which those are that options name.
    pub fn whole_suite<S: Into<OsString>>(arguments: impl IntoIterator<Item = S>) -> Self {
        let suite = Self::new("test").args(["--test", "conformance", "--"]);
        Cargo { suite: true, ..suite.args(arguments) }
    }

    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Arguments for cargo itself, before those of what it runs.
    pub fn options<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        let at = self.args.iter().position(|a| a == "--").unwrap_or(self.args.len());
        let rest = self.args.split_off(at);
        self.args(args).args(rest)
    }

    pub fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Runs in another workspace than this one, and builds into this one's target folder.
    pub fn folder(self, folder: &Path) -> Self {
        let target = target_dir();
        Cargo { folder: folder.to_owned(), ..self }.env("CARGO_TARGET_DIR", target)
    }

    /// Passes if it fails and its standard error says this: the control of a check.
    pub fn must_report(self, text: &'static str) -> Self {
        Cargo { planted: Some(text), ..self }
    }

    /// Builds into a folder of its own below the target folder.
    pub fn target(self, folder: &str) -> Self {
        let target = target_dir().join(folder);
        self.env("CARGO_TARGET_DIR", target)
    }

    /// Runs it; counts the tests. A call without tests counts as one.
    pub fn run(&self) -> Counts {
        let shown = |text: &OsString| {
            let text = text.to_string_lossy().into_owned();
            if text.contains(' ') { format!("'{text}'") } else { text }
        };
        let env = self.env.iter().map(|(name, value)| format!("{name}={}", shown(value)));
        let words: Vec<_> =
            env.chain(["cargo".to_owned()]).chain(self.args.iter().map(shown)).collect();
        println!("$ {}", words.join(" "));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.folder).stdout(Stdio::piped());
        let passed = Counts { passed: 1, ..Counts::default() };
        let failed = Counts { failed: 1, ..Counts::default() };
        if let Some(text) = self.planted {
            let Ok(output) = command.stderr(Stdio::piped()).output() else { return failed };
            let stderr = String::from_utf8_lossy(&output.stderr);
            if !output.status.success() && stderr.contains(text) {
                println!("reported, as it must be: {text}");
                return passed;
            }
            println!("{stderr}\nNOT reported: {text} ({})", output.status);
            return failed;
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => {
                eprintln!("cannot start cargo: {e}");
                return failed;
            }
        };
        let mut counts = Counts::default();
        if let Some(out) = child.stdout.take() {
            for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                println!("{line}");
                let of_libtest = line.starts_with("test result: ");
                if let Some(found) = Counts::of(&line).filter(|_| of_libtest != self.suite) {
                    counts.add(found);
                }
            }
        }
        match child.wait() {
            Ok(status) if status.success() && counts == Counts::default() => passed,
            Ok(status) if status.success() || counts.failed > 0 => counts,
            // Nothing says that it failed but its status: a build, or a crash.
            _ => {
                counts.add(failed);
                counts
            }
        }
    }
}

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or(own.clone(), PathBuf::from)
}

/// Where cargo builds.
pub fn target_dir() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    workspace().join(set.unwrap_or_else(|| "target".into()))
}

/// Where cargo keeps what it downloads.
pub fn cargo_home() -> Result<PathBuf, String> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let default = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    set.or_else(default).ok_or_else(|| "neither CARGO_HOME nor HOME is set".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_count() {
        let libtest = "test result: ok. 12 passed; 1 failed; 3 ignored; 0 measured; 4 filtered out";
        assert_eq!(Counts::of(libtest), Some(Counts { passed: 12, failed: 1, skipped: 3 }));
        let suite = "166 passed, 2 failed, 40 skipped";
        assert_eq!(Counts::of(suite), Some(Counts { passed: 166, failed: 2, skipped: 40 }));
        for line in ["", "running 3 tests", "test a ... ok", "5 passed, 2 failed", "passed, failed"]
        {
            assert_eq!(Counts::of(line), None, "{line}");
        }
    }

    #[test]
    fn options_come_before_what_is_run() {
        let cargo = Cargo::suite(["--threads"]).options(["--target", "t"]);
        let args: Vec<_> = cargo.args.iter().map(|a| a.to_string_lossy()).collect();
        assert_eq!(args[args.len() - 4..], ["--target", "t", "--", "--threads"]);
    }
}
