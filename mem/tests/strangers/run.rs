//! A run that goes on: a store and ranks, each a process of this program that logs all it can.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use symmem_hal::types::Bytes;
use symmem_hal::{Device, Wait};
use symmem_mem::bootstrap::RunId;
use symmem_mem::launch::Place;
use symmem_mem::store::Store as _;
use symmem_mem::store::tcp::{ServerLimits, StoreServer, TcpStore};
use symmem_mem::{Group, Options, Tensor};
use tracing_subscriber::fmt::format::FmtSpan;

use crate::Failed;

/// A bound on what is expected to happen.
pub const PATIENT: Wait = Wait::seconds(60);

pub const RANKS: usize = 2;

/// As many descriptors as a rank may have.
pub const DESCRIPTORS: u64 = 1024;

const ROLE: &str = "SYMMEM_TEST_ROLE";
const NAME: &str = "SYMMEM_TEST_NAME";
const RANK: &str = "SYMMEM_TEST_RANK";
const PORT: &str = "SYMMEM_TEST_PORT";
const LOG: &str = "SYMMEM_TEST_LOG";

/// Limits of a store that a test can reach, and measure.
pub const LIMITS: ServerLimits = ServerLimits {
    connections: 512,
    unidentified: 64,
    keys: 100_000,
    stored: 16 << 20,
    waits: 256,
    buffered: 16 << 20,
    handshake: Duration::from_secs(5),
    ..ServerLimits::DEFAULT
};

/// What this process was started as, if as anything.
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

pub fn play(role: &str) -> Result<(), Failed> {
    match role {
        "store" => store(),
        "rank" => rank(),
        "refused rank" => refused_rank(),
        "another user" => crate::door::play_another_user(),
        other => Err(format!("no role {other:?}").into()),
    }
}

/// Everything that the crates say, at every level, goes into a file.
fn log() -> Result<(), Failed> {
    let file = File::create(env::var(LOG)?)?;
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
    subscriber
        .with_span_events(FmtSpan::FULL)
        .with_ansi(false)
        .with_writer(Mutex::new(file))
        .init();
    Ok(())
}

/// Serves until its standard input ends.
fn store() -> Result<(), Failed> {
    log()?;
    let server = StoreServer::bind_with((Ipv4Addr::LOCALHOST, 0).into(), LIMITS)?;
    println!("{}", server.local_addr().port());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn client(port: u16) -> Result<Arc<TcpStore>, Failed> {
    Ok(Arc::new(TcpStore::connect("127.0.0.1", port, &PATIENT)?))
}

fn join(store: Arc<TcpStore>, wait: &Wait) -> Result<Group, Failed> {
    let rank: usize = env::var(RANK)?.parse()?;
    let run = RunId { launcher: Some(env::var(NAME)?), restart: 0 };
    let place = Place::new(rank, RANKS, run);
    let options = Options { workspace: Bytes::kib(256), ..Options::default() };
    let joined = Group::join_store(store, &place, &Device::host(), &options, wait);
    joined.map_err(|error| {
        tracing::error!(%error, ?error, "not joined");
        error.into()
    })
}

/// Meets the others, and maps and reads their memory, again and again, until it is told to stop.
fn rank() -> Result<(), Failed> {
    log()?;
    // What most systems allow, unless less is allowed here: strangers must not use it up.
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.map_or(DESCRIPTORS, |current| current.min(DESCRIPTORS));
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit })?;
    let store = client(env::var(PORT)?.parse()?)?;
    let group = join(store.clone(), &PATIENT)?;
    tracing::info!(?group, ?store, "joined");
    for round in 0.. {
        exchange(&group, round)?;
        let key = format!("go/{round}");
        if group.rank().index() == 0 {
            let over = store.check(&["enough"], &PATIENT)?;
            store.set(&key, if over { b"end" } else { b"on" }, &PATIENT)?;
            store.add("rounds", 1, &PATIENT)?;
        }
        if store.get(&key, &PATIENT)? == b"end" {
            break;
        }
    }
    group.leave();
    Ok(())
}

/// Joins with the token of another store, which must fail.
fn refused_rank() -> Result<(), Failed> {
    log()?;
    let store = client(env::var(PORT)?.parse()?)?;
    let Err(error) = join(store, &PATIENT) else { return Err("a group".into()) };
    let text = error.message().unwrap_or_default().to_owned();
    let told = text.contains("the token is another run's");
    if told { Ok(()) } else { Err(format!("another refusal: {text}").into()) }
}

fn exchange(group: &Group, round: u32) -> Result<(), Failed> {
    let tensor = Tensor::<u32>::zeros(group.device(), &[1000])?;
    tensor.write(&[round + group.rank().index() as u32; 1000])?;
    let memory = group.rendezvous(&tensor, &PATIENT)?;
    group.split(None, 0, &PATIENT)?;
    for (rank, view) in memory.remotes()?.into_iter().enumerate() {
        let found = Tensor::<u32>::try_from(view)?.to_vec()?;
        if found != [round + rank as u32; 1000] {
            return Err(format!("rank {rank}'s memory holds {:?}", &found[..4]).into());
        }
    }
    group.split(None, 0, &PATIENT)?;
    Ok(())
}

/// A process that is killed when it is dropped.
pub struct Running(pub Child);

impl Running {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn ends_well(mut self, who: &str) -> Result<(), Failed> {
        let deadline = Instant::now() + PATIENT.duration();
        while Instant::now() < deadline {
            match self.0.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{who} ended: {status}").into()),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Err(format!("{who} does not end").into())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails for one that has ended, which is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes of a run, and where they log.
pub struct Run {
    pub name: String,
    pub store: Running,
    pub port: u16,
    pub ranks: Vec<Running>,
    folder: tempfile::TempDir,
}

impl Run {
    /// A store without ranks.
    pub fn new(name: &str) -> Result<Self, Failed> {
        let name = format!("{name}-{}", std::process::id());
        let folder = tempfile::tempdir()?;
        let mut command = as_role("store");
        command.env(LOG, folder.path().join("store"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut store = Running(command.spawn()?);
        let mut line = String::new();
        let out = store.0.stdout.take().ok_or("no output")?;
        BufReader::new(out).read_line(&mut line)?;
        let port = line.trim().parse()?;
        Ok(Run { name, store, port, ranks: Vec::new(), folder })
    }

    /// A store and ranks that go on.
    pub fn started(name: &str) -> Result<Self, Failed> {
        let mut run = Self::new(name)?;
        run.start()?;
        Ok(run)
    }

    pub fn start(&mut self) -> Result<(), Failed> {
        for rank in 0..RANKS {
            let started = self.process("rank", rank, self.port)?;
            self.ranks.push(started);
        }
        Ok(())
    }

    /// One more process of the run's name, with a store of choice.
    pub fn process(&self, role: &str, rank: usize, port: u16) -> Result<Running, Failed> {
        let mut command = as_role(role);
        command.env(NAME, &self.name).env(RANK, rank.to_string()).env(PORT, port.to_string());
        command.env(LOG, self.folder.path().join(format!("{role} {rank}")));
        Ok(Running(command.spawn()?))
    }

    pub fn client(&self) -> Result<Arc<TcpStore>, Failed> {
        client(self.port)
    }

    /// Waits until the ranks have met a few times more.
    pub fn goes_on(&self) -> Result<(), Failed> {
        let store = self.client()?;
        let before = store.add("rounds", 0, &PATIENT)?;
        let deadline = Instant::now() + PATIENT.duration();
        while store.add("rounds", 0, &PATIENT)? < before + 3 {
            if Instant::now() >= deadline {
                return Err(format!("the ranks meet no more: {before} times").into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Lets the ranks end, which they must do well.
    pub fn ends_well(&mut self) -> Result<(), Failed> {
        self.client()?.set("enough", b"", &PATIENT)?;
        let mut ranks = std::mem::take(&mut self.ranks).into_iter().enumerate();
        ranks.try_for_each(|(rank, running)| running.ends_well(&format!("rank {rank}")))
    }

    /// What each process has logged, by its name.
    pub fn logs(&self) -> Result<Vec<(PathBuf, String)>, Failed> {
        let read = |entry: std::io::Result<fs::DirEntry>| {
            let path = entry?.path();
            let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
            Ok((path, text))
        };
        fs::read_dir(self.folder.path())?.map(read).collect()
    }
}

/// This program as something.
pub fn as_role(role: &str) -> Command {
    let program = env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut command = Command::new(program);
    command.env(ROLE, role);
    command
}

/// Open descriptors of a process.
pub fn descriptors(process: u32) -> Result<usize, Failed> {
    Ok(fs::read_dir(format!("/proc/{process}/fd"))?.count())
}

/// Most memory that a process has had so far, in bytes.
pub fn most_memory(process: u32) -> Result<usize, Failed> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let kib: usize = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}
