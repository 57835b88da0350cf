//! The ways in which a process ends, or stops.
#![allow(unsafe_code, reason = "forks, and leaves namespaces")]

use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::runner::TestError;
use crate::support::tombstone::Tombstone;

/// For how long a process is stopped.
pub(super) const STOPPED: Duration = Duration::from_secs(2);

/// How a rank's process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strike {
    /// SIGKILL.
    Kill,
    /// `exit`, with nothing dropped.
    Exit,
    /// The rank's thread unwinds, and the process ends.
    Panic,
    /// The rank forgets what it holds, and the process ends.
    Leak,
    /// SIGKILL, while a child that it forked lives.
    KillWithChild,
    /// SIGKILL, of a rank whose thread has mount and network namespaces of its own.
    KillInNamespaces,
    /// SIGSTOP, and SIGCONT after [`STOPPED`].
    Stop,
}

impl Strike {
    /// Whether the process is there afterwards.
    pub(super) fn is_survived(self) -> bool {
        self == Strike::Stop
    }

    /// What it needs and this process may not do.
    pub(super) fn lacks(self) -> Option<&'static str> {
        let may = || {
            // Of that thread alone.
            let tried = std::thread::spawn(|| leave_namespaces().is_ok());
            tried.join().unwrap_or(false)
        };
        (self == Strike::KillInNamespaces && !may()).then_some("needs the right to make namespaces")
    }

    /// What the rank's thread does before it works.
    pub(super) fn prepare(self) -> Result<(), TestError> {
        if self == Strike::KillInNamespaces {
            leave_namespaces()?;
        }
        Ok(())
    }

    /// Ends this process now, or stops it for a while. A panic and a leak are the rank's own thread's:
    /// what is left of them is the end of the process.
    pub(super) fn strike(self, tombstone: &Tombstone) -> Result<(), TestError> {
        match self {
            Strike::Kill | Strike::KillInNamespaces => tombstone.die(),
            Strike::KillWithChild => {
                fork_a_sleeper()?;
                tombstone.die();
            }
            Strike::Exit | Strike::Leak => {
                tombstone.engrave();
                std::process::exit(0);
            }
            Strike::Panic => std::process::exit(101),
            Strike::Stop => return stop(tombstone),
        }
        Err(TestError::failed("survived SIGKILL"))
    }
}

fn leave_namespaces() -> rustix::io::Result<()> {
    // SAFETY: no other thread shares this one's file system information or depends on its namespaces.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWNET) }
}

/// A child that holds copies of all that this process has open, for longer than anybody may wait.
fn fork_a_sleeper() -> Result<(), TestError> {
    // SAFETY: the child calls what `signal-safety(7)` allows, and never returns.
    unsafe {
        match libc::fork() {
            -1 => return Err(TestError::failed("no child")),
            0 => {
                libc::sleep(4);
                libc::_exit(0);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Stops this process; a helper lets it go on.
fn stop(tombstone: &Tombstone) -> Result<(), TestError> {
    let me = getpid();
    let script = format!("sleep {}; kill -CONT {}", STOPPED.as_secs(), me.as_raw_nonzero());
    let mut helper = Command::new("sh").args(["-c", &script]).spawn()?;
    tombstone.engrave();
    kill_process(me, Signal::STOP)?;
    helper.wait()?;
    Ok(())
}
