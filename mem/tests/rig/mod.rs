//! Ranks that are processes of the test's own program, on a store that the test keeps: whatever
//! becomes of a run, the next one of its name finds what it has left there.

use std::env;
use std::net::Ipv4Addr;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use symmem_hal::types::Bytes;
use symmem_hal::{Device, Wait};
use symmem_mem::bootstrap::RunId;
use symmem_mem::launch::{Place, StartError};
use symmem_mem::store::tcp::{StoreServer, TcpStore};
use symmem_mem::{Group, Options, SymmetricMemory, Tensor};

pub type Failed = libtest_mimic::Failed;

/// A bound on what is expected to happen.
pub const PATIENT: Wait = Wait::seconds(60);

/// What a rank is told.
const PART: &str = "SYMMEM_TEST_PART";
const RANK: &str = "SYMMEM_TEST_RANK";
const RANKS: &str = "SYMMEM_TEST_RANKS";
const NAME: &str = "SYMMEM_TEST_NAME";
const PORT: &str = "SYMMEM_TEST_PORT";

/// Runs of one name.
pub struct Runs {
    name: String,
    ranks: usize,
    server: StoreServer,
}

impl Runs {
    pub fn new(name: &str, ranks: usize) -> Result<Self, Failed> {
        let server = StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into())?;
        Ok(Runs { name: format!("{name}-{}", std::process::id()), ranks, server })
    }

    /// Waits until a rank leads the meetings: the store has the token and, for other hosts, this one.
    pub fn await_leader(&self) -> Result<(), Failed> {
        let deadline = Instant::now() + PATIENT.duration();
        while self.server.stats().keys < 3 {
            if Instant::now() >= deadline {
                return Err("nobody leads".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Makes a command that runs this program into one that runs it as a rank.
    pub fn as_rank<'c>(
        &self,
        command: &'c mut Command,
        rank: usize,
        part: &str,
    ) -> &'c mut Command {
        command
            .env(PART, part)
            .env(RANK, rank.to_string())
            .env(RANKS, self.ranks.to_string())
            .env(NAME, &self.name)
            .env(PORT, self.server.local_addr().port().to_string())
    }

    pub fn start(&self, rank: usize, part: &str) -> Result<Running, Failed> {
        let mut command = Command::new(env::current_exe()?);
        Ok(Running(self.as_rank(&mut command, rank, part).spawn()?))
    }

    /// All ranks, from the first to the last, to a good end.
    pub fn all(&self, part: &str) -> Result<(), Failed> {
        let ranks: Vec<_> =
            (0..self.ranks).map(|rank| self.start(rank, part)).collect::<Result<_, _>>()?;
        ranks.into_iter().enumerate().try_for_each(|(rank, running)| running.ends_well(rank))
    }
}

/// A process that is killed when it is dropped.
pub struct Running(pub Child);

impl Running {
    pub fn end(mut self) -> Result<ExitStatus, Failed> {
        let deadline = Instant::now() + PATIENT.duration();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(format!("process {} does not end", self.0.id()).into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn ends_well(self, rank: usize) -> Result<(), Failed> {
        let status = self.end()?;
        if status.success() { Ok(()) } else { Err(format!("rank {rank} ended: {status}").into()) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails for one that has ended, which is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process is that was started as a rank.
pub struct Member {
    pub part: String,
    pub rank: usize,
    ranks: usize,
    name: String,
    port: u16,
}

impl Member {
    pub fn from_env() -> Option<Self> {
        let number = |name| env::var(name).ok()?.parse().ok();
        Some(Member {
            part: env::var(PART).ok()?,
            rank: number(RANK)?,
            ranks: number(RANKS)?,
            name: env::var(NAME).ok()?,
            port: u16::try_from(number(PORT)?).ok()?,
        })
    }

    /// Does its part; what goes wrong is told.
    pub fn main(&self, play: fn(&Member) -> Result<(), Failed>) -> ExitCode {
        match play(self) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!(
                    "rank {} ({}): {}",
                    self.rank,
                    self.part,
                    e.message().unwrap_or("failed")
                );
                ExitCode::FAILURE
            }
        }
    }

    pub fn store(&self) -> Result<Arc<TcpStore>, Failed> {
        Ok(Arc::new(TcpStore::connect("127.0.0.1", self.port, &PATIENT)?))
    }

    pub fn join(&self, wait: &Wait) -> Result<Result<Group, StartError>, Failed> {
        Ok(self.join_on(self.store()?, wait))
    }

    pub fn join_on(&self, store: Arc<TcpStore>, wait: &Wait) -> Result<Group, StartError> {
        let run = RunId { launcher: Some(self.name.clone()), restart: 0 };
        let place = Place::new(self.rank, self.ranks, run);
        let options = Options { workspace: Bytes::kib(256), ..Options::default() };
        Group::join_store(store, &place, &Device::host(), &options, wait)
    }
}

/// Memory of every rank, in which every rank finds every rank's number.
pub fn exchange(group: &Group) -> Result<SymmetricMemory, Failed> {
    let tensor = Tensor::<u32>::zeros(group.device(), &[1000])?;
    tensor.write(&[group.rank().index() as u32 + 1; 1000])?;
    let memory = group.rendezvous(&tensor, &PATIENT)?;
    group.split(None, 0, &PATIENT)?;
    for (rank, view) in memory.remotes()?.into_iter().enumerate() {
        let found = Tensor::<u32>::try_from(view)?.to_vec()?;
        if found != [rank as u32 + 1; 1000] {
            return Err(format!("rank {rank}'s memory holds {:?}", &found[..4]).into());
        }
    }
    group.split(None, 0, &PATIENT)?;
    Ok(memory)
}
