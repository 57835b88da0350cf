//! The operating system: what it is, what it allows this process, and where this process stands.

use std::fs;
use std::path::Path;

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use rustix::system::uname;
use serde::Serialize;

/// The machine and its system.
#[derive(Debug, Serialize)]
pub struct System {
    pub host: String,
    pub kernel: String,
    pub architecture: &'static str,
    pub page_bytes: usize,
    /// Of the whole machine, whatever a control group allows.
    pub memory_bytes: Option<u64>,
}

/// Something of which a process has only so much, beside memory that is shared.
#[derive(Debug, Serialize)]
pub struct Limit {
    pub name: &'static str,
    /// What sets it, and what it can be raised by.
    pub source: &'static str,
    /// What counts now; `null` for no limit.
    pub limit: Option<u64>,
    /// Up to what this process can raise it; `null` for no limit.
    pub hard_limit: Option<u64>,
    pub used: Option<u64>,
    /// What symmem takes of it.
    pub because: &'static str,
}

/// A namespace, which ranks must share or need not.
#[derive(Debug, Serialize)]
pub struct Namespace {
    pub name: &'static str,
    /// As the kernel names it: equal where two processes share it.
    pub id: Option<String>,
    /// Whether ranks of one host must share it.
    pub must_be_shared: bool,
    pub because: &'static str,
}

impl System {
    pub fn new() -> Self {
        let uname = uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        System {
            host: text(uname.nodename()),
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            architecture: std::env::consts::ARCH,
            page_bytes: page_size(),
            memory_bytes: field("/proc/meminfo", "MemTotal:").map(|kib| kib << 10),
        }
    }
}

/// What bounds a group beside memory.
pub fn limits() -> Vec<Limit> {
    let of = |resource| {
        let limit = getrlimit(resource);
        (limit.current, limit.maximum)
    };
    let limit = |name, source, (limit, hard_limit), used, because| Limit {
        name,
        source,
        limit,
        hard_limit,
        used,
        because,
    };
    let open = fs::read_dir("/proc/self/fd").map(|all| all.count() as u64).ok();
    let group = pids_group();
    let mut limits = vec![
        limit(
            "open files",
            "RLIMIT_NOFILE (ulimit -n)",
            of(Resource::Nofile),
            // The one that counts them.
            open.map(|n| n.saturating_sub(1)),
            "a rank holds one for each peer and each allocation, more for a moment while memory is exchanged; a store one for each client",
        ),
        limit(
            "locked memory in bytes",
            "RLIMIT_MEMLOCK (ulimit -l)",
            of(Resource::Memlock),
            field("/proc/self/status", "VmLck:").map(|kib| kib << 10),
            "none is locked; pinned memory of GPU and network libraries counts here",
        ),
        limit(
            "processes and threads of the user",
            "RLIMIT_NPROC (ulimit -u)",
            of(Resource::Nproc),
            None,
            "a rank runs one thread beside its program's, and one for each worker stream",
        ),
    ];
    if let Some((most, now)) = group {
        limits.push(limit(
            "processes and threads of the control group",
            "the pids control group (raise the container's)",
            (most, most),
            now,
            "as above, for all ranks of a container together",
        ));
    }
    limits
}

/// The namespaces of this process.
pub fn namespaces() -> Vec<Namespace> {
    let namespace =
        |name, must_be_shared, because| Namespace { name, id: id(name), must_be_shared, because };
    vec![
        namespace("net", true, "ranks of a host meet at a socket's name in it"),
        namespace("pid", false, "ranks are known by their sockets, not by process numbers"),
        namespace("mnt", false, "memory is passed on as descriptors, not by paths"),
        namespace("ipc", false, "neither System V nor POSIX shared memory is used"),
        namespace("user", false, "descriptors are passed on without a look at who their owner is"),
    ]
}

fn id(name: &str) -> Option<String> {
    let link = fs::read_link(Path::new("/proc/self/ns").join(name)).ok()?;
    Some(link.to_string_lossy().into_owned())
}

/// The most processes that the control group allows, and how many it has: of version 2, where the
/// file is in sight.
fn pids_group() -> Option<(Option<u64>, Option<u64>)> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = membership.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = Path::new("/sys/fs/cgroup").join(path);
    let read = |file| Some(fs::read_to_string(folder.join(file)).ok()?.trim().to_owned());
    // "max" is no number, and no limit.
    Some((read("pids.max")?.parse().ok(), read("pids.current")?.parse().ok()))
}

/// The number after a key at the start of a line.
fn field(file: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}
