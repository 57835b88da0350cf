//! Many calls of a compiler, on the cores there are.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs a program to its end; its output, if it failed.
pub fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.output().map_err(|e| format!("{shown}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("$ {shown}\n{}{}", String::from_utf8_lossy(&said), output.status))
}

/// Runs programs, as many at once as there are cores; how many, or what those said that failed.
pub fn run_all(commands: Vec<Command>) -> Result<usize, String> {
    let count = commands.len();
    let commands: Vec<_> = commands.into_iter().map(std::sync::Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failures = Vec::new();
        while let Some(command) = commands.get(next.fetch_add(1, Ordering::Relaxed)) {
            // Nobody else takes this one.
            if let Ok(mut command) = command.lock() {
                failures.extend(run(&mut command).err());
            }
        }
        failures
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let failures: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(|w| w.join());
        ended.flat_map(|w| w.unwrap_or_else(|_| vec!["a worker panicked".to_owned()])).collect()
    });
    match failures.len() {
        0 => Ok(count),
        failed => Err(format!("{}\n{failed} of {count} failed", failures.join("\n"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: u8) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo said; exit {code}")]);
        command
    }

    #[test]
    fn every_failure_is_told() {
        assert_eq!(run_all(vec![]), Ok(0));
        assert_eq!(run_all((0..5).map(|_| exit(0)).collect()), Ok(5));
        let failed = run_all([0, 3, 0, 4].map(exit).into()).err().unwrap_or_default();
        assert!(failed.contains("2 of 4 failed"), "{failed}");
        assert!(failed.contains("exit 3") && failed.contains("exit 4"), "{failed}");
        assert_eq!(failed.matches("said\n").count(), 2, "{failed}");
    }
}
