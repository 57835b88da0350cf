//! Ranks that are processes of this host.
#![allow(unsafe_code, reason = "sets the death signal between fork and exec")]

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use symmem_hal::types::RankSet;
use symmem_hal::{Fault, Kind, Wait};

use super::room::{self, TaskLimit};
use crate::bootstrap::SYMMEM_RUN;
use crate::exchange::token::random;
use crate::store::tcp::{ServeError, StoreServer};

/// Ranks about to be started as processes.
///
/// Each gets torchrun's variables (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`,
/// `GROUP_RANK`, `GROUP_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_*`), so that
/// [`Group::from_env`](crate::Group::from_env) joins them, and anything else that reads those. The
/// store is the launcher's, outside all ranks. Ranks die with the launcher.
#[derive(Clone, Debug)]
pub struct Processes {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    ranks: usize,
    piped: bool,
    grouped: bool,
}

/// Why ranks could not be started. Those that had been are gone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// No ranks were asked for.
    #[error("0 ranks: at least one is needed")]
    NoRanks,
    /// More ranks were asked for than processes can be started; none was.
    #[error("{ranks} ranks: {} more processes can run under {}: start fewer, or raise that", limit.available, limit.source)]
    TooManyRanks {
        /// How many were asked for.
        ranks: usize,
        /// The limit that is too tight.
        limit: TaskLimit,
    },
    /// The store has no port.
    #[error(transparent)]
    Store(#[from] ServeError),
    /// A process could not be started.
    #[error("rank {rank}: cannot start {program:?}: {cause}")]
    Spawn {
        /// Which.
        rank: usize,
        /// What.
        program: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The system gave no random bytes for the run's id.
    #[error("no random bytes for the run's id")]
    Random,
}

impl Fault for SpawnError {
    fn kind(&self) -> Kind {
        match self {
            SpawnError::NoRanks => Kind::InvalidArgument,
            SpawnError::TooManyRanks { .. } => Kind::Exhausted,
            SpawnError::Store(e) => e.kind(),
            SpawnError::Spawn { cause, .. } => Kind::of_io(cause),
            SpawnError::Random => Kind::System,
        }
    }
}

/// Why waiting for a job ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Ranks are still running.
    #[error("ranks {ranks} still run after {allowed:?}: wait again, or drop the job to end them")]
    TimedOut {
        /// Who.
        ranks: RankSet,
        /// What the caller allowed.
        allowed: Duration,
    },
    /// The caller's token ended the wait.
    #[error("the wait for the ranks was cancelled: wait again, or drop the job to end them")]
    Cancelled,
    /// The system would not tell how a process ended.
    #[error("rank {rank}: {cause}")]
    System {
        /// Which.
        rank: usize,
        /// Why.
        cause: io::Error,
    },
}

impl Fault for JobError {
    fn kind(&self) -> Kind {
        match self {
            JobError::TimedOut { .. } => Kind::TimedOut,
            JobError::Cancelled => Kind::Cancelled,
            JobError::System { .. } => Kind::System,
        }
    }
}

impl Processes {
    /// `ranks` processes of `program`.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, ranks: usize) -> Self {
        Processes {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            ranks,
            piped: false,
            grouped: false,
        }
    }

    /// An argument for all.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Arguments for all.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// A variable for all, beside the launcher's own environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Pipes the ranks' output to the launcher, who takes it from the children.
    #[must_use]
    pub fn piped(mut self) -> Self {
        self.piped = true;
        self
    }

    /// Makes each rank the leader of a process group, of its own process id: so that signals can
    /// reach what a rank starts, too, and a terminal's interrupt reaches the launcher alone.
    #[must_use]
    pub fn process_groups(mut self) -> Self {
        self.grouped = true;
        self
    }

    /// Starts the ranks.
    ///
    /// # Errors
    ///
    /// [`SpawnError`]; more ranks than the system has processes for are refused before any is started.
    /// What memory they take is theirs to know; see [`check_room`](super::check_room).
    pub fn spawn(self) -> Result<Job, SpawnError> {
        if self.ranks == 0 {
            return Err(SpawnError::NoRanks);
        }
        if let Some(limit) = room::tightest_of_tasks().filter(|l| self.ranks as u64 > l.available) {
            return Err(SpawnError::TooManyRanks { ranks: self.ranks, limit });
        }
        let server = StoreServer::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let id = random::<8>().map_err(|_| SpawnError::Random)?;
        let id = format!("{SYMMEM_RUN}{:016x}", u64::from_ne_bytes(id));
        let port = server.local_addr().port();
        let ranks = self.ranks;
        let (started, starting) = mpsc::channel();
        let (nursery, held) = mpsc::channel::<()>();
        let program = self.program.clone();
        // The kernel sends a child its death signal when the *thread* that made it ends, so one
        // thread makes all ranks and stays until the job is dropped.
        let no_thread = |cause| SpawnError::Spawn { rank: 0, program: program.clone(), cause };
        std::thread::Builder::new()
            .name("symmem-launcher".to_owned())
            .spawn(move || {
                for rank in 0..self.ranks {
                    let child = self.start(rank, &id, port);
                    if child.is_err() | started.send(child).is_err() {
                        break;
                    }
                }
                drop(started);
                // Ends when the job drops the other end.
                let _ = held.recv();
            })
            .map_err(no_thread)?;
        let mut job = Job { children: Vec::with_capacity(ranks), server, _nursery: nursery };
        for child in starting {
            let rank = job.children.len();
            let child = child.map_err(|cause| SpawnError::Spawn {
                rank,
                program: program.clone(),
                cause,
            })?;
            job.children.push(Rank { child, status: None });
        }
        Ok(job)
    }

    fn start(&self, rank: usize, id: &str, port: u16) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().map(|(n, v)| (n, v)));
        let ranks = self.ranks.to_string();
        for (name, value) in [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", ranks.clone()),
            ("LOCAL_RANK", rank.to_string()),
            ("LOCAL_WORLD_SIZE", ranks),
            // Those of a torchrun around this would be of its hosts.
            ("GROUP_RANK", "0".to_owned()),
            ("GROUP_WORLD_SIZE", "1".to_owned()),
            ("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string()),
            ("MASTER_PORT", port.to_string()),
            ("TORCHELASTIC_RUN_ID", id.to_owned()),
            ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
        ] {
            command.env(name, value);
        }
        if self.piped {
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if self.grouped {
            command.process_group(0);
        }
        let launcher = rustix::process::getpid();
        // SAFETY: the closure makes system calls only, which are async-signal-safe, and touches no
        // memory of the parent's but a number it owns.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // The launcher may have died before the line above.
                if rustix::process::getppid() == Some(launcher) {
                    Ok(())
                } else {
                    Err(io::ErrorKind::BrokenPipe.into())
                }
            });
        }
        command.spawn()
    }
}

/// Running ranks. Dropping it kills them.
#[derive(Debug)]
pub struct Job {
    children: Vec<Rank>,
    server: StoreServer,
    /// Keeps the thread that made the ranks, and so the ranks.
    _nursery: mpsc::Sender<()>,
}

#[derive(Debug)]
struct Rank {
    child: Child,
    status: Option<ExitStatus>,
}

impl Job {
    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.children.len()
    }

    /// A rank's process.
    #[must_use]
    pub fn child(&mut self, rank: usize) -> Option<&mut Child> {
        self.children.get_mut(rank).map(|r| &mut r.child)
    }

    /// The run's store.
    #[must_use]
    pub fn store(&self) -> &StoreServer {
        &self.server
    }

    /// How each rank ended, `None` while it runs.
    ///
    /// # Errors
    ///
    /// [`JobError::System`].
    pub fn poll(&mut self) -> Result<Vec<Option<ExitStatus>>, JobError> {
        let mut all = Vec::with_capacity(self.children.len());
        for (rank, r) in self.children.iter_mut().enumerate() {
            if r.status.is_none() {
                r.status = r.child.try_wait().map_err(|cause| JobError::System { rank, cause })?;
            }
            all.push(r.status);
        }
        Ok(all)
    }

    /// Waits until all ranks have ended.
    ///
    /// # Errors
    ///
    /// [`JobError`]; the ranks go on until the job is dropped.
    pub fn wait(&mut self, wait: &Wait) -> Result<Vec<ExitStatus>, JobError> {
        let deadline = wait.deadline();
        loop {
            let all = self.poll()?;
            let running: RankSet =
                all.iter().enumerate().filter(|(_, s)| s.is_none()).map(|(i, _)| i).collect();
            if running.is_empty() {
                return Ok(all.into_iter().flatten().collect());
            }
            if wait.is_cancelled() {
                return Err(JobError::Cancelled);
            }
            if Instant::now() >= deadline {
                return Err(JobError::TimedOut { ranks: running, allowed: wait.duration() });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for r in &mut self.children {
            if r.status.is_none() {
                let _ = r.child.kill();
                let _ = r.child.wait();
            }
        }
    }
}
