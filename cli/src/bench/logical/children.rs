//! The processes of a benchmark: this executable again, told what to do line by line.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::messages::{Order, Reply};

/// Why a process did not do its part.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("the path of this executable is unknown: {0}")]
    Executable(io::Error),
    #[error("{name} cannot be started: {cause}")]
    Spawn { name: String, cause: io::Error },
    #[error("{name}: {because}")]
    Failed { name: String, because: String },
    #[error("{name} has ended: {status}")]
    Ended { name: String, status: ExitStatus },
    #[error("{name} has not answered for {:.0} s", patience.as_secs_f64())]
    Silent { name: String, patience: Duration },
    #[error("{name} said {said:?}, which is no answer to what it was told")]
    Garbled { name: String, said: String },
    #[error("{name} cannot be spoken to: {cause}")]
    Pipe { name: String, cause: io::Error },
}

/// A process; it is killed where this is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    said: Receiver<String>,
}

impl Process {
    pub fn start(name: String) -> Result<Self, ChildError> {
        let program = std::env::current_exe().map_err(ChildError::Executable)?;
        let mut command = Command::new(program);
        command.arg("bench-load").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(cause) => return Err(ChildError::Spawn { name, cause }),
        };
        let (sender, said) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                let _ = lines.map(|line| sender.send(line)).all(|sent| sent.is_ok());
            });
        }
        Ok(Process { name, child, said })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Says what to do.
    pub fn tell(&mut self, order: &Order) -> Result<(), ChildError> {
        let line = serde_json::to_string(order).map_err(io::Error::from);
        let told = line.and_then(|line| match &mut self.child.stdin {
            Some(input) => writeln!(input, "{line}").and_then(|()| input.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        });
        match told {
            // It has ended: why, it may have said.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(|cause| ChildError::Pipe { name: self.name.clone(), cause }),
        }
    }

    /// What it has to say to that.
    pub fn hear(&mut self, patience: Duration) -> Result<Reply, ChildError> {
        let name = self.name.clone();
        let said = match self.said.recv_timeout(patience) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout) => return Err(ChildError::Silent { name, patience }),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(match self.child.wait() {
                    Ok(status) => ChildError::Ended { name, status },
                    Err(cause) => ChildError::Pipe { name, cause },
                });
            }
        };
        match serde_json::from_str(&said) {
            Ok(Reply::Failed { because }) => Err(ChildError::Failed { name, because }),
            Ok(reply) => Ok(reply),
            Err(_) => Err(ChildError::Garbled { name, said }),
        }
    }

    /// That it said something else than what was asked.
    pub fn garbled(&self, reply: &Reply) -> ChildError {
        ChildError::Garbled { name: self.name.clone(), said: format!("{reply:?}") }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process has used of processors, all its threads; `None` where the system does not say.
pub fn cpu_seconds(process: u32) -> Option<f64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut total = None;
    for thread in threads.flatten() {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let ns: u64 = text.split_whitespace().next()?.parse().ok()?;
        total = Some(total.unwrap_or(0.0) + ns as f64 / 1e9);
    }
    total
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_process_has_used_what_it_worked() {
        let own = std::process::id();
        let Some(before) = cpu_seconds(own) else {
            eprintln!("skipped: this system does not say what threads have used");
            return;
        };
        let until = std::time::Instant::now() + Duration::from_millis(50);
        let mut x = 0u64;
        while std::time::Instant::now() < until {
            x = std::hint::black_box(x + 1);
        }
        let used = cpu_seconds(own).unwrap() - before;
        assert!(used > 0.0 && used < 60.0, "{used}");
        assert_eq!(cpu_seconds(u32::MAX), None);
    }
}
