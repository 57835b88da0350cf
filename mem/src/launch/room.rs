//! Whether a machine has room for as many ranks as are asked for.
//!
//! Each rank looks at the limits before it takes memory, and all look at once: so who starts them
//! looks first, for all of them together. What others take meanwhile is not foreseen.
//!
//! # References
//! - `RLIMIT_NPROC`: `getrlimit(2)`; `threads-max`, `pid_max`: `proc_sys_kernel(5)`; `/proc/loadavg`:
//!   `proc_loadavg(5)`
//! - `pids.max`, `pids.current`: Linux `Documentation/admin-guide/cgroup-v2.rst`

use core::fmt;
use std::fs;
use std::path::Path;

use rustix::process::{Resource, geteuid, getrlimit};
use symmem_hal::shm::{Limit, LimitSource, limits};
use symmem_hal::types::Bytes;
use symmem_hal::{Fault, Kind};

/// Ranks together need more memory than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ranks} ranks of {each} of shared memory need {total}: {} available under {}: start fewer ranks, give each less (Options::workspace), or raise that limit", limit.available, limit.source)]
pub struct NoRoom {
    /// How many were asked for.
    pub ranks: usize,
    /// Bytes that each takes.
    pub each: Bytes,
    /// Bytes that the limit would have to leave.
    pub total: Bytes,
    /// The limit that is too tight.
    pub limit: Limit,
}

impl Fault for NoRoom {
    fn kind(&self) -> Kind {
        Kind::Exhausted
    }
}

/// That so many ranks of this machine can take `each` bytes of shared memory, such as
/// [`Options::region`](crate::Options::region), and map all of it: for who starts them.
/// [`threads`](super::threads) asks this itself.
///
/// # Errors
///
/// [`NoRoom`] where a limit leaves too little for all of them by now.
pub fn check_room(ranks: usize, each: Bytes) -> Result<(), NoRoom> {
    // One rank finds out by itself.
    if ranks < 2 || each == Bytes::ZERO { Ok(()) } else { check_under(ranks, each, &limits()) }
}

fn check_under(ranks: usize, each: Bytes, limits: &[Limit]) -> Result<(), NoRoom> {
    let all = Bytes(each.get().saturating_mul(ranks as u64));
    let short = limits.iter().filter_map(|limit| {
        // Each rank's region is a file of its own.
        let total = if limit.source == LimitSource::FileSize { each } else { all };
        (limit.available < total).then_some(NoRoom { ranks, each, total, limit: *limit })
    });
    short.min_by_key(|short| short.limit.available).map_or(Ok(()), Err)
}

/// What bounds the number of processes and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskLimitSource {
    /// `RLIMIT_NPROC`: processes and threads of this user; the superuser has none.
    User,
    /// Process ids that there are.
    Ids,
    /// Threads of the whole machine.
    Threads,
    /// A control group of this process.
    Cgroup,
}

impl fmt::Display for TaskLimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TaskLimitSource::User => "RLIMIT_NPROC (ulimit -u)",
            TaskLimitSource::Ids => "the process ids there are (kernel.pid_max)",
            TaskLimitSource::Threads => "the machine's threads (kernel.threads-max)",
            TaskLimitSource::Cgroup => "the control group (raise the container's limit of pids)",
        })
    }
}

/// One bound on processes and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLimit {
    /// What sets the bound.
    pub source: TaskLimitSource,
    /// How many more there can be under it; those of the user are counted by the system alone, and
    /// not taken off here.
    pub available: u64,
}

/// Ids that Linux has on 64-bit machines, whatever `pid_max` says (`PID_MAX_LIMIT`).
const IDS: u64 = 1 << 22;

/// The tightest bound on more processes.
pub(super) fn tightest_of_tasks() -> Option<TaskLimit> {
    let user = if geteuid().is_root() { None } else { getrlimit(Resource::Nproc).current };
    task_limits(Path::new("/"), user).into_iter().min_by_key(|limit| limit.available)
}

fn task_limits(root: &Path, user: Option<u64>) -> Vec<TaskLimit> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    // The fourth field: those that run now, a slash, all.
    let running =
        || read("proc/loadavg")?.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok();
    let running: u64 = running().unwrap_or(0);
    let ids = number("proc/sys/kernel/pid_max").unwrap_or(IDS).saturating_sub(running);
    let threads = number("proc/sys/kernel/threads-max").map(|n| n.saturating_sub(running));
    let cgroup = read("proc/self/cgroup").and_then(|membership| {
        let path = membership.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let dirs = Path::new("sys/fs/cgroup").join(path);
        let free = |dir: &Path| {
            let of = |name| number(dir.join(name).to_str()?);
            Some(of("pids.max")?.saturating_sub(of("pids.current")?))
        };
        dirs.ancestors().take_while(|dir| dir.starts_with("sys/fs/cgroup")).filter_map(free).min()
    });
    let limit = |source, available: Option<u64>| Some(TaskLimit { source, available: available? });
    [
        limit(TaskLimitSource::User, user),
        limit(TaskLimitSource::Ids, Some(ids)),
        limit(TaskLimitSource::Threads, threads),
        limit(TaskLimitSource::Cgroup, cgroup),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn all_ranks_together_are_held_against_each_limit() {
        let limit = |source, available| Limit { source, available: Bytes(available) };
        let limits = [limit(LimitSource::System, 1000), limit(LimitSource::FileSize, 300)];
        assert_eq!(check_under(4, Bytes(250), &limits), Ok(()));
        let short = check_under(4, Bytes(251), &limits).unwrap_err();
        assert_eq!((short.ranks, short.total, short.limit), (4, Bytes(1004), limits[0]));
        // A file is one rank's.
        let short = check_under(2, Bytes(301), &limits).unwrap_err();
        assert_eq!((short.total, short.limit), (Bytes(301), limits[1]));
        let short = check_under(usize::MAX, Bytes(1 << 40), &limits[..1]).unwrap_err();
        assert_eq!(short.total, Bytes(u64::MAX));
        assert_eq!(short.kind(), Kind::Exhausted);
        assert_eq!(check_under(usize::MAX, Bytes(u64::MAX), &[]), Ok(()));
    }

    #[test]
    fn tasks_are_bounded_by_what_there_is() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let limit = |source, available| TaskLimit { source, available };
        let ids = |available| limit(TaskLimitSource::Ids, available);
        assert_eq!(task_limits(root.path(), None), [ids(IDS)]);
        file("proc/loadavg", "0.1 0.2 0.3 2/100 4711\n");
        file("proc/sys/kernel/pid_max", "32768\n");
        file("proc/sys/kernel/threads-max", "5000\n");
        file("proc/self/cgroup", "0::/outer/inner\n");
        file("sys/fs/cgroup/outer/inner/pids.max", "max\n");
        file("sys/fs/cgroup/outer/inner/pids.current", "7\n");
        file("sys/fs/cgroup/outer/pids.max", "60\n");
        file("sys/fs/cgroup/outer/pids.current", "20\n");
        let expected = [
            limit(TaskLimitSource::User, 9),
            ids(32668),
            limit(TaskLimitSource::Threads, 4900),
            limit(TaskLimitSource::Cgroup, 40),
        ];
        assert_eq!(task_limits(root.path(), Some(9)), expected);
    }
}
