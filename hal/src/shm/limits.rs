//! How much shared memory this process may still take, and what sets the limit.
//!
//! # References
//! - `memory.max`, `memory.current`, `memory.stat`: Linux `Documentation/admin-guide/cgroup-v2.rst`
//! - `memory.limit_in_bytes`, `memory.usage_in_bytes`: `cgroup-v1/memory.rst`
//! - `MemAvailable`: `proc_meminfo(5)`; `RLIMIT_AS`, `RLIMIT_FSIZE`: `getrlimit(2)`

use std::fs;
use std::path::{Path, PathBuf};

use core::fmt;

use rustix::process::{Resource, getrlimit};

use crate::types::Bytes;

/// The thing that bounds an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitSource {
    /// Memory that the kernel says is available on this machine (`MemAvailable`).
    System,
    /// A memory control group of this process (a container's limit, most often).
    Cgroup,
    /// `RLIMIT_AS`: address space of this process.
    AddressSpace,
    /// `RLIMIT_FSIZE`: the largest file, which bounds a memfd too.
    FileSize,
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitSource::System => "the machine's available memory (MemAvailable)",
            LimitSource::Cgroup => "the memory control group (raise the container's memory limit)",
            LimitSource::AddressSpace => "RLIMIT_AS (ulimit -v)",
            LimitSource::FileSize => "RLIMIT_FSIZE (ulimit -f)",
        })
    }
}

/// One bound: what sets it, and how many bytes it still allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What sets the bound.
    pub source: LimitSource,
    /// Bytes that can still be taken under it.
    pub available: Bytes,
}

/// The bounds that apply to this process now, in no order; those that do not exist are left out.
#[must_use]
pub fn limits() -> Vec<Limit> {
    limits_under(Path::new("/"))
}

/// The tightest of [`limits`], if there is any.
#[must_use]
pub fn tightest() -> Option<Limit> {
    limits().into_iter().min_by_key(|l| l.available)
}

fn limits_under(root: &Path) -> Vec<Limit> {
    let mut found = Vec::new();
    if let Some(available) = mem_available(root) {
        found.push(Limit { source: LimitSource::System, available });
    }
    if let Some(available) = cgroup_available(root) {
        found.push(Limit { source: LimitSource::Cgroup, available });
    }
    if let Some(limit) = getrlimit(Resource::As).current {
        let used = status_kib(root, "VmSize:").unwrap_or(0) * 1024;
        found.push(Limit {
            source: LimitSource::AddressSpace,
            available: Bytes(limit.saturating_sub(used)),
        });
    }
    if let Some(limit) = getrlimit(Resource::Fsize).current {
        found.push(Limit { source: LimitSource::FileSize, available: Bytes(limit) });
    }
    found
}

fn mem_available(root: &Path) -> Option<Bytes> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    Some(Bytes(field_kib(&text, "MemAvailable:")? * 1024))
}

fn status_kib(root: &Path, key: &str) -> Option<u64> {
    field_kib(&fs::read_to_string(root.join("proc/self/status")).ok()?, key)
}

/// The number after `key` at the start of a line.
fn field_kib(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

/// What the control groups of this process and all their parents leave.
fn cgroup_available(root: &Path) -> Option<Bytes> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut least: Option<u64> = None;
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let v1 = controllers.split(',').any(|c| c == "memory");
        if !v1 && !controllers.is_empty() {
            continue;
        }
        let mounts: &[&str] = if v1 {
            &["sys/fs/cgroup/memory"]
        } else {
            &["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        };
        for mount in mounts {
            for dir in with_parents(&root.join(mount), path) {
                let free = if v1 { free_v1(&dir) } else { free_v2(&dir) };
                least = match (least, free) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
    }
    least.map(Bytes)
}

/// The group's own folder and each above it up to the mount. Inside a container the path may name
/// folders that only the host sees; those simply hold no files here.
fn with_parents(mount: &Path, path: &str) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    let mut dir = mount.join(path.trim_start_matches('/'));
    while dir.starts_with(mount) {
        dirs.push(dir.clone());
        if !dir.pop() {
            break;
        }
    }
    dirs
}

fn number(path: &Path) -> Option<u64> {
    // "max" (v2) does not parse, which is right: no limit.
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Page cache that the kernel would drop before it refuses memory.
fn reclaimable(dir: &Path, key: &str) -> u64 {
    fs::read_to_string(dir.join("memory.stat"))
        .ok()
        .and_then(|text| {
            text.lines().find_map(|l| {
                let (name, value) = l.split_once(' ')?;
                (name == key).then(|| value.trim().parse::<u64>().ok())?
            })
        })
        .unwrap_or(0)
}

fn free_v2(dir: &Path) -> Option<u64> {
    let max = number(&dir.join("memory.max"))?;
    let current = number(&dir.join("memory.current"))?;
    Some(max.saturating_sub(current.saturating_sub(reclaimable(dir, "inactive_file"))))
}

fn free_v1(dir: &Path) -> Option<u64> {
    // Without a limit the file holds the largest page-aligned number.
    let max = number(&dir.join("memory.limit_in_bytes")).filter(|max| *max < 1 << 62)?;
    let current = number(&dir.join("memory.usage_in_bytes"))?;
    Some(max.saturating_sub(current.saturating_sub(reclaimable(dir, "total_inactive_file"))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("symmem-limits-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Tree(dir)
        }
        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fn of(&self, source: LimitSource) -> Option<u64> {
            limits_under(&self.0).iter().find(|l| l.source == source).map(|l| l.available.0)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn v2_takes_the_tightest_of_group_and_parents() {
        let t = Tree::new("v2");
        t.file("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   64 kB\n");
        t.file("proc/self/cgroup", "0::/outer/inner\n");
        t.file("sys/fs/cgroup/outer/memory.max", "1000\n");
        t.file("sys/fs/cgroup/outer/memory.current", "400\n");
        t.file("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 100\n");
        t.file("sys/fs/cgroup/outer/inner/memory.max", "max\n");
        t.file("sys/fs/cgroup/outer/inner/memory.current", "300\n");
        assert_eq!(t.of(LimitSource::Cgroup), Some(700));
        assert_eq!(t.of(LimitSource::System), Some(64 * 1024));
    }

    #[test]
    fn v1_and_paths_that_do_not_exist_here() {
        let t = Tree::new("v1");
        t.file("proc/self/cgroup", "5:cpu:/x\n4:memory:/only/on/host\n0::/\n");
        t.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000");
        t.file("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000");
        assert_eq!(t.of(LimitSource::Cgroup), Some(4000));
    }

    #[test]
    fn no_files_no_limits() {
        let t = Tree::new("none");
        assert_eq!(t.of(LimitSource::Cgroup), None);
        assert_eq!(t.of(LimitSource::System), None);
        assert!(limits().iter().any(|l| l.source == LimitSource::System));
    }
}
