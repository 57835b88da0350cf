//! Processes of the Python that has torch.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that names the Python.
pub const VARIABLE: &str = "SYMMEM_TEST_PYTHON";

pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch_store/side.py");

/// Far beyond what torch needs to come up on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Clone)]
pub struct Python(pub OsString);

impl Python {
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        // A proxy for names on the internet is nothing for ranks of this host.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).env("OMP_NUM_THREADS", "1");
        command
    }

    pub fn script(&self, arguments: [&str; 2]) -> Running {
        let mut command = self.command();
        command.arg(SCRIPT).args(arguments);
        Running::start(command)
    }
}

/// Ends with the test, whatever its outcome.
pub struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Running { child, output }
    }

    /// Asks for a line.
    pub fn ask(&mut self) -> String {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends its input and waits for its end; gives whether it was a good one, and what it still wrote.
    pub fn end(mut self) -> (bool, String) {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "process {} does not end", self.child.id());
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (status.success(), rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ended first, so that it can end what it has started.
        if let Ok(None) = self.child.try_wait() {
            let id = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(10);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
