//! `symmem bench-load`: a process that does what it is told, line by line: it serves a store, or is some
//! of the ranks that meet at one.

mod connect;
mod library;
mod serve;
mod station;
mod wire;

use std::io::{self, BufRead as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use symmem::mem::store::StoreError;
use symmem::mem::store::tcp::{ConnectError, ServeError};

use super::messages::{Client, Met, Order, Reply, Wave, now_ns};
use serve::Served;

/// How long after the deadline answers to what was asked then are awaited.
const GRACE: Duration = Duration::from_secs(10);

/// Why a process cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("standard input: {0}")]
    Input(io::Error),
    #[error("{line:?} is no order: {cause}")]
    Garbled { line: String, cause: serde_json::Error },
    #[error("nothing to {what}: that order comes too early")]
    Order { what: &'static str },
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("watching connections: {0}")]
    Watch(io::Error),
    #[error(
        "{connections} connections need RLIMIT_NOFILE of {needed}, which is {limit}: ulimit -n"
    )]
    Descriptors { connections: usize, needed: u64, limit: u64 },
    #[error("rank {rank} cannot connect to {server}: {cause}")]
    Connect { rank: u32, server: SocketAddr, cause: io::Error },
    #[error("rank {rank}'s handshake: {found}: is {server} a store?")]
    Handshake { rank: u32, server: SocketAddr, found: String },
    #[error("rank {rank}, while it {state}: {cause}: the server's log may say why")]
    Lost { rank: u32, state: String, cause: io::Error },
    #[error("rank {rank}, while it {state}: {cause}")]
    Answer { rank: u32, state: String, cause: String },
    #[error("rank {rank}, while it {state}: {what} is not what it must be")]
    Wrong { rank: u32, state: String, what: String },
    #[error(
        "rank {rank} {state}, {:.1} s after the deadline of {:.1} s, and {others} more have not ended: allow more by --deadline",
        grace.as_secs_f64(), deadline.as_secs_f64()
    )]
    Silent { rank: u32, state: String, others: usize, deadline: Duration, grace: Duration },
    #[error("rank {rank}: {cause}")]
    Library { rank: u32, cause: Box<StoreError> },
    #[error("rank {rank}: {cause}")]
    LibraryConnect { rank: u32, cause: Box<ConnectError> },
    #[error("a thread for rank {rank}: {cause}: threads may be limited (ulimit -u)")]
    Thread { rank: u32, cause: io::Error },
    #[error("the thread of rank {rank} panicked")]
    Panicked { rank: u32 },
}

/// Connected ranks.
enum Ranks {
    Wire(Box<wire::Load>),
    Library(library::Load),
}

impl Ranks {
    fn connect(wave: Wave) -> Result<Self, LoadError> {
        Ok(match wave.client {
            Client::Wire => Ranks::Wire(Box::new(wire::Load::connect(wave)?)),
            Client::Library => Ranks::Library(library::Load::connect(wave)?),
        })
    }

    fn len(&self) -> usize {
        match self {
            Ranks::Wire(load) => load.len(),
            Ranks::Library(load) => load.len(),
        }
    }

    fn meet(&mut self, at_ns: u64) -> Result<Met, LoadError> {
        match self {
            Ranks::Wire(load) => load.meet(at_ns),
            Ranks::Library(load) => load.meet(at_ns),
        }
    }
}

/// Does what standard input says, until it ends.
pub fn bench_load() -> ExitCode {
    let (mut served, mut ranks) = (None, None);
    for line in io::stdin().lock().lines() {
        let reply = line
            .map_err(LoadError::Input)
            .and_then(|line| obey(&line, &mut served, &mut ranks))
            .unwrap_or_else(|error| Reply::Failed { because: error.to_string() });
        let failed = matches!(reply, Reply::Failed { .. });
        if say(&reply).is_err() || failed {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn say(reply: &Reply) -> io::Result<()> {
    let line = serde_json::to_string(reply).map_err(io::Error::from)?;
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

fn obey(
    line: &str,
    served: &mut Option<Served>,
    ranks: &mut Option<Ranks>,
) -> Result<Reply, LoadError> {
    let order = serde_json::from_str(line)
        .map_err(|cause| LoadError::Garbled { line: line.to_owned(), cause })?;
    Ok(match order {
        Order::Serve { connections } => {
            let server = served.insert(Served::new(connections)?);
            Reply::Serving { address: server.address() }
        }
        Order::Count => {
            let server = served.as_ref().ok_or(LoadError::Order { what: "count" })?;
            let (counts, open) = server.counts();
            Reply::Counted { counts, open }
        }
        Order::Connect(wave) => {
            Reply::Connected { connections: ranks.insert(Ranks::connect(wave)?).len() as u64 }
        }
        Order::Go { at_ns } => {
            let ranks = ranks.as_mut().ok_or(LoadError::Order { what: "let meet" })?;
            Reply::Met(ranks.meet(at_ns)?)
        }
        Order::Leave => {
            *ranks = None;
            Reply::Left
        }
    })
}

/// Whether a server is one of this library.
pub fn is_ours(server: SocketAddr) -> Result<bool, LoadError> {
    connect::connect(&[0], server, 0).map(|(_, ours)| ours)
}

/// Sleeps until that moment.
fn sleep_until(at_ns: u64) {
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
}
