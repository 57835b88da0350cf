//! What this process holds, as the system sees it.

use std::fs;
use std::io;

use rustix::process::Pid;

use super::eventually;
use crate::runner::{Context, TestError};

/// What a process can leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Mappings of shared memory that the library made.
    pub mappings: usize,
    /// Its threads.
    pub threads: usize,
}

impl Holdings {
    pub(crate) fn now() -> io::Result<Self> {
        let count = |path| fs::read_dir(path).map(Iterator::count);
        let maps = fs::read_to_string("/proc/self/maps")?;
        Ok(Holdings {
            descriptors: count("/proc/self/fd")?,
            mappings: maps.lines().filter(|line| line.contains("/memfd:symmem")).count(),
            threads: count("/proc/self/task")?,
        })
    }

    /// What the process holds while every rank stands still. Ranks that are threads share it.
    #[track_caller]
    pub(crate) fn of_all_ranks(context: &Context) -> Result<Self, TestError> {
        context.meet()?;
        let now = Self::now()?;
        context.meet()?;
        Ok(now)
    }

    /// That the process comes to hold no more than this. What peers and watchers let go of takes
    /// them a moment.
    #[track_caller]
    pub(crate) fn check_no_more(self, context: &Context) -> Result<(), TestError> {
        context.meet()?;
        let within = |now: Holdings| {
            now.descriptors <= self.descriptors
                && now.mappings <= self.mappings
                && now.threads <= self.threads
        };
        let settled = eventually(|| Self::now().is_ok_and(within));
        let now = Self::now()?;
        context.meet()?;
        if settled {
            Ok(())
        } else {
            Err(TestError::failed(format!("held before: {self:?}; held after: {now:?}")))
        }
    }
}

/// Whether a thread of this process sleeps. See `proc(5)`: `S` is the state of one that does.
pub(crate) fn is_asleep(thread: Pid) -> bool {
    let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let stat = fs::read_to_string(stat).unwrap_or_default();
    // The name, in parentheses, may hold anything.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
}
