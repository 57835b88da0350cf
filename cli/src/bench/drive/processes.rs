//! Ranks as processes: this executable again, with a benchmark's arguments and [`RANK_FLAG`].
//!
//! A rank reports on its standard output, a line of JSON for each report. What it writes to its
//! standard error is passed on.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::ExitStatus;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use symmem::launch::Processes;
use symmem::mem::bootstrap::Bootstrap;
use symmem::prelude::*;

use super::collector::{Collected, Collector, RankFault};
use super::{DriveError, JoinError, StartError, measure, options};
use crate::bench::args::RANK_FLAG;
use crate::bench::devices::Devices;
use crate::bench::operation::Operation;
use crate::bench::report::{Failed, Report};
use crate::bench::show::Progress;

/// How often to look whether a rank has ended.
const TICK: Duration = Duration::from_millis(10);

enum Said {
    Report(Report),
    Garbled(String),
    Aside(String),
}

/// Measures an operation on processes.
///
/// `words` are the arguments of this program that make it a rank of this benchmark, but for the flag.
pub fn processes(
    operation: &dyn Operation,
    words: &[OsString],
    ranks: usize,
    progress: &Progress,
) -> Result<Collected, DriveError> {
    let mut collector = Collector::new(operation, ranks, progress);
    let program = std::env::current_exe().map_err(DriveError::Executable)?;
    let mut job = Processes::new(program, ranks).args(words).arg(RANK_FLAG).piped().spawn()?;
    let (sender, said) = mpsc::channel();
    for rank in 0..ranks {
        let Some(child) = job.child(rank) else { continue };
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let (on_output, on_error) = (sender.clone(), sender.clone());
        thread::spawn(move || {
            each_line(output, |line| on_output.send((rank, report(line))).is_ok());
        });
        thread::spawn(move || {
            each_line(errors, |line| on_error.send((rank, Said::Aside(line))).is_ok());
        });
    }
    drop(sender);
    let mut open = true;
    loop {
        match said.recv_timeout(TICK) {
            Ok((rank, Said::Report(report))) => collector.report(rank, report),
            Ok((rank, Said::Garbled(line))) => collector.fault(rank, RankFault::Garbled(line)),
            Ok((rank, Said::Aside(line))) => progress.say(&format!("[{rank}] {line}")),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                open = false;
                thread::sleep(TICK);
            }
        }
        let ended: Vec<Option<ExitStatus>> = job.poll()?;
        if ended.iter().flatten().any(|status| !status.success()) {
            collector.fail();
        }
        if collector.overdue() || (!open && ended.iter().all(Option::is_some)) {
            for (rank, status) in ended.iter().enumerate() {
                status.map(|status| collector.ended(rank, status));
            }
            // Ranks that still run are killed with the job.
            return collector.finish();
        }
    }
}

fn report(line: String) -> Said {
    serde_json::from_str(&line).map_or(Said::Garbled(line), Said::Report)
}

/// Calls `say` for each line until it returns false or the stream ends.
fn each_line(stream: Option<impl io::Read>, say: impl FnMut(String) -> bool) {
    let Some(stream) = stream else { return };
    let lines = BufReader::new(stream).split(b'\n').map_while(Result::ok);
    let _ = lines.map(|line| String::from_utf8_lossy(&line).into_owned()).all(say);
}

/// Does one rank's part, where this process is a rank. Returns whether all went well.
pub fn serve(operation: &dyn Operation, devices: Devices) -> bool {
    match join(devices) {
        Ok(group) => measure(&group, operation, &mut |report| say(&report)),
        Err(e) => {
            say(&Report::Failed(Failed::new(&e)));
            false
        }
    }
}

/// Tells whoever started this process, in a line of JSON.
pub fn say(what: &impl Serialize) {
    // Who would hear of an error here is gone.
    let line = serde_json::to_string(what).unwrap_or_default();
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

/// Joins the group that this process's environment names.
pub fn join(devices: Devices) -> Result<Group, JoinError> {
    let bootstrap = Bootstrap::from_env().map_err(StartError::from)?;
    let options = options();
    let wait = Wait::timeout(options.deadline);
    Ok(Group::join(&bootstrap, &devices.device(bootstrap.rank)?, &options, &wait)?)
}
