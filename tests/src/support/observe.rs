//! What this process holds, as the system sees it.

use std::fs;
use std::io;

use rustix::process::Pid;
use symmem_hal::types::{BackendKind, Bytes};

use super::eventually;
use crate::runner::{Context, TestError};
#[cfg(feature = "sync")]
use crate::{check, check_eq};

/// What a process can leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Mappings of shared memory that the library made.
    pub mappings: usize,
    /// Its threads.
    pub threads: usize,
    /// Of the descriptors, those of sockets.
    pub sockets: usize,
    /// Files of the library in `/dev/shm`, whoever's.
    pub files: usize,
    /// Bytes of the rank's device that are in use, whoever's: of a GPU, where all ranks stand still.
    pub device: u64,
}

impl Holdings {
    pub(crate) fn now() -> io::Result<Self> {
        let count = |path| fs::read_dir(path).map(Iterator::count);
        let maps = fs::read_to_string("/proc/self/maps")?;
        let open = descriptors();
        Ok(Holdings {
            // Not those of other threads that look as well.
            descriptors: open.iter().filter(|of| !of.starts_with("/proc/")).count(),
            mappings: maps.lines().filter(|line| line.contains("/memfd:symmem")).count(),
            threads: count("/proc/self/task")?,
            sockets: open.iter().filter(|of| of.starts_with("socket:")).count(),
            files: shared_files().len(),
            device: 0,
        })
    }

    /// With what is in use of a rank's device.
    fn with(context: &Context) -> Result<Self, TestError> {
        let failed = |e: String| TestError::failed(e);
        // A GPU driver's pool keeps a segment for as long as it likes: with this it has one whenever we look. A
        // CPU's would count as a mapping.
        let is_gpu = context.device().kind() == BackendKind::Cuda;
        let one = is_gpu.then(|| context.device().allocate_private(Bytes::new(4))).transpose();
        let _one = one.map_err(|e| failed(e.to_string()))?;
        let memory = context.device().memory().map_err(|e| failed(e.to_string()))?;
        let device = memory.map_or(0, |memory| memory.total.get() - memory.free.get());
        Ok(Holdings { device, ..Self::now()? })
    }

    /// What the process holds while every rank stands still. Ranks that are threads share it.
    #[track_caller]
    pub(crate) fn of_all_ranks(context: &Context) -> Result<Self, TestError> {
        context.meet()?;
        let now = Self::with(context)?;
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
                && now.sockets <= self.sockets
                && now.files <= self.files
                && now.device <= self.device
        };
        let settled = eventually(|| Self::with(context).is_ok_and(within));
        let now = Self::with(context)?;
        context.meet()?;
        if settled {
            Ok(())
        } else {
            Err(TestError::failed(format!("held before: {self:?}; held after: {now:?}")))
        }
    }
}

#[cfg(feature = "sync")]
impl Holdings {
    /// What the process had when its test began is all that it has: no descriptor, mapping or child
    /// stays, nor a file in `/dev/shm`. For survivors, that let go of everything.
    #[track_caller]
    pub(crate) fn check_nothing_left(self) -> Result<(), TestError> {
        let within = |now: Holdings| {
            // Where the rank is gone that led the run's meetings, one of the others leads them, as long as the
            // run: by a thread with a socket and what wakes it, and a link less.
            now.descriptors <= self.descriptors + usize::from(leads())
                && now.mappings <= self.mappings
        };
        let settled = eventually(|| {
            symmem_mem::collect();
            Self::now().is_ok_and(within)
        });
        check!(
            settled,
            "held before: {self:?}; held after: {:?}: {}",
            Self::now()?,
            descriptors().join(", ")
        );
        let children = fs::read_dir("/proc/self/task")?.flatten().filter_map(|task| {
            let children = fs::read_to_string(task.path().join("children")).ok()?;
            (!children.trim().is_empty()).then_some(children)
        });
        check_eq!(children.collect::<Vec<_>>(), Vec::<String>::new(), "children");
        check!(shared_files().len() <= self.files, "files in /dev/shm: {:?}", shared_files());
        Ok(())
    }
}

/// Files of the library that are not memory of processes alone.
fn shared_files() -> Vec<String> {
    let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("symmem")).collect()
}

/// Whether a thread of this process leads the meetings of a run.
#[cfg(feature = "sync")]
fn leads() -> bool {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).ok();
    threads.filter_map(name).any(|name| name.trim_end() == "symmem-leader")
}

/// What this process's descriptors are of.
fn descriptors() -> Vec<String> {
    let all = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    all.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.display().to_string())).collect()
}

/// Whether a thread of this process sleeps. See `proc(5)`: `S` is the state of one that does.
pub(crate) fn is_asleep(thread: Pid) -> bool {
    let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let stat = fs::read_to_string(stat).unwrap_or_default();
    // The name, in parentheses, may hold anything.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
}
