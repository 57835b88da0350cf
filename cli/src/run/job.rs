//! A running job: its ranks, its signals, its end.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, waitpgid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;
use symmem::hal::types::RankSet;
use symmem::launch::{Job, Processes};

use super::RunError;
use super::output::{Output, Stream};
use super::stop::{Cause, Stop};

/// How often to look for signals and ends.
const TICK: Duration = Duration::from_millis(5);

/// How long output may still come after all ranks have ended.
const DRAIN: Duration = Duration::from_secs(1);

/// The exit code of a job whose time was over, as timeout(1) has it.
const TIMED_OUT: u8 = 124;

/// Runs `command` as ranks; returns the exit code of the job.
pub fn run(
    command: &[OsString],
    ranks: usize,
    timeout: Option<Duration>,
    grace: Duration,
) -> Result<u8, RunError> {
    let [program, args @ ..] = command else { return Ok(0) };
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    // What a rank leaves behind becomes this process's child, to be reaped in the end.
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    let started = Instant::now();
    let mut job = Processes::new(program, ranks).args(args).piped().process_groups().spawn()?;
    let output = Output::new(ranks);
    for rank in 0..ranks {
        let Some(child) = job.child(rank) else { continue };
        if let Some(stream) = child.stdout.take() {
            output.copy(rank, Stream::Output, stream);
        }
        if let Some(stream) = child.stderr.take() {
            output.copy(rank, Stream::Errors, stream);
        }
    }
    let mut watch = Watch::new(grace);
    while !watch.ended(&mut job)? {
        let now = Instant::now();
        for signal in signals.pending() {
            watch.signal(&mut job, signal, now);
        }
        if let Some(limit) = timeout.filter(|limit| now - started >= *limit) {
            watch.overdue(&mut job, limit, now);
        }
        if let Some(signal) = watch.stop.due(now) {
            watch.send(&mut job, signal);
        }
        std::thread::sleep(TICK);
    }
    if !watch.stopped.is_empty() {
        eprintln!("symmem run: ended by the launcher: ranks {}", watch.stopped);
    }
    output.drain(DRAIN);
    for rank in 0..ranks {
        signal_group(&mut job, rank, Signal::KILL);
        reap_group(&mut job, rank);
    }
    Ok(watch.code)
}

/// What has happened to a job so far.
struct Watch {
    stop: Stop,
    /// The job's exit code: that of the first cause to end it.
    code: u8,
    seen: RankSet,
    /// Ranks that a signal of this launcher ended.
    stopped: RankSet,
}

impl Watch {
    fn new(grace: Duration) -> Self {
        Watch { stop: Stop::new(grace), code: 0, seen: RankSet::new(), stopped: RankSet::new() }
    }

    /// Tells of ranks that have failed since the last look; whether all have ended.
    fn ended(&mut self, job: &mut Job) -> Result<bool, RunError> {
        let all = job.poll()?;
        for (rank, status) in all.iter().enumerate() {
            let Some(status) = status.filter(|_| !self.seen.contains(rank)) else { continue };
            self.seen.insert(rank);
            if status.success() {
                continue;
            }
            if self.stop.sent(status.signal()) {
                self.stopped.insert(rank);
                continue;
            }
            eprintln!("symmem run: rank {rank} failed: {}", spell(status));
            self.fail(code_of(status));
            let _ = self.stop.cause(Cause::Failure, Instant::now());
        }
        Ok(all.iter().all(Option::is_some))
    }

    fn signal(&mut self, job: &mut Job, signal: i32, now: Instant) {
        let Some(known) = Signal::from_named_raw(signal) else { return };
        self.fail(shell_code(signal));
        if let Some(send) = self.stop.cause(Cause::Signal(known), now) {
            self.send(job, send);
        }
    }

    fn overdue(&mut self, job: &mut Job, limit: Duration, now: Instant) {
        if let Some(send) = self.stop.cause(Cause::Timeout, now) {
            let running: RankSet = (0..job.ranks()).filter(|r| !self.seen.contains(*r)).collect();
            eprintln!("symmem run: still running after {limit:?}: ranks {running}");
            self.fail(TIMED_OUT);
            self.send(job, send);
        }
    }

    fn fail(&mut self, code: u8) {
        if self.code == 0 {
            self.code = code;
        }
    }

    /// Sends a signal to all ranks that run.
    fn send(&self, job: &mut Job, signal: Signal) {
        for rank in (0..job.ranks()).filter(|rank| !self.seen.contains(*rank)) {
            signal_group(job, rank, signal);
        }
    }
}

/// A rank's process group, which what it started is in, too.
fn group(job: &mut Job, rank: usize) -> Option<Pid> {
    Pid::from_raw(i32::try_from(job.child(rank)?.id()).ok()?)
}

/// Sends a signal to a rank and what it started. A group that is gone needs none.
fn signal_group(job: &mut Job, rank: usize, signal: Signal) {
    if let Some(group) = group(job, rank) {
        let _ = kill_process_group(group, signal);
    }
}

/// Collects what is left of a killed group, until there is nothing.
fn reap_group(job: &mut Job, rank: usize) {
    if let Some(group) = group(job, rank) {
        while waitpgid(group, WaitOptions::empty()).is_ok() {}
    }
}

fn spell(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => {
            format!("killed by {}", signal_name(signal).unwrap_or("an unnamed signal"))
        }
        (None, None) => status.to_string(),
    }
}

fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, signal) => shell_code(signal.unwrap_or(0)),
    }
}

/// How shells tell that a signal ended a program.
fn shell_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
