//! `symmem store`: the rendezvous server, in the foreground.
//!
//! Ranks first meet at a store. Hosted by one of them it dies with that one; hosted here it outlives
//! all of them, and serves runs one after the other. It speaks PyTorch's TCPStore protocol, so that
//! its clients may be symmem's, PyTorch's, or both.
//!
//! Does not: keep anything beyond its end, or ask who somebody is: whoever reaches the port can read
//! and change what is stored. That is why it listens on the loopback unless told otherwise.

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use symmem::hal::types::Bytes;
use symmem::mem::store::tcp::{ServeError, ServerLimits, ServerStats, StoreServer};

use crate::descriptors;
use crate::parse::{at_least_one, memory, seconds};

/// Arguments of `symmem store`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address to serve at, or a name of this host; 0.0.0.0 or :: for all its addresses
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to serve at; 0 picks a free one
    #[arg(long, default_value_t = 29500)]
    port: u16,
    /// Print nothing but address and port, once the store can be reached
    #[arg(long, conflicts_with = "json")]
    print_address: bool,
    /// Print address and port as JSON
    #[arg(long)]
    json: bool,
    /// Most connections at a time; 131072, or what the limit of open files allows
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    connections: Option<usize>,
    /// Most of them that have not identified themselves: one more takes the place of the oldest
    #[arg(long, value_name = "N", default_value_t = ServerLimits::DEFAULT.unidentified, value_parser = at_least_one)]
    unidentified: usize,
    /// Most keys, queues and gathers
    #[arg(long, value_name = "N", default_value_t = ServerLimits::DEFAULT.keys, value_parser = at_least_one)]
    keys: usize,
    /// Most bytes of keys and values
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = memory)]
    stored: usize,
    /// Most connections that wait at a time
    #[arg(long, value_name = "N", default_value_t = ServerLimits::DEFAULT.waits, value_parser = at_least_one)]
    waits: usize,
    /// Most bytes of messages under way
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = memory)]
    buffered: usize,
    /// How long a new connection may take to identify itself
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    handshake: Duration,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{host:?} is no address of this host: {cause}")]
    Host { host: String, cause: io::Error },
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("cannot watch for signals: {0}")]
    Watch(io::Error),
    #[error("cannot write: {0}")]
    Output(io::Error),
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        StoreError::Output(error)
    }
}

/// Where the store is.
#[derive(Debug, Serialize)]
struct Place {
    host: String,
    port: u16,
}

/// Serves until SIGINT, SIGTERM or SIGHUP.
pub fn store(args: &Args) -> Result<ExitCode, StoreError> {
    // First, so that a signal that comes as soon as somebody can know of the store ends it in order.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(StoreError::Watch)?;
    let address = resolve(&args.host, args.port)?;
    let limits = ServerLimits {
        connections: connections(args.connections),
        unidentified: args.unidentified,
        keys: args.keys,
        stored: args.stored,
        waits: args.waits,
        buffered: args.buffered,
        handshake: args.handshake,
        ..ServerLimits::DEFAULT
    };
    let server = StoreServer::bind_with(address, limits)?;
    announce(args, server.local_addr())?;
    signals.forever().next();
    let stats = server.stats();
    drop(server);
    eprintln!("symmem store: ended; {}", summary(&stats));
    Ok(ExitCode::SUCCESS)
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, StoreError> {
    let unknown = |cause| StoreError::Host { host: host.to_owned(), cause };
    let mut found = (host, port).to_socket_addrs().map_err(unknown)?;
    found.next().ok_or_else(|| unknown(io::ErrorKind::NotFound.into()))
}

fn announce(args: &Args, address: SocketAddr) -> io::Result<()> {
    let place = Place { host: address.ip().to_string(), port: address.port() };
    let mut out = io::stdout().lock();
    if args.json {
        let text = serde_json::to_string(&place).map_err(io::Error::from)?;
        writeln!(out, "{text}")?;
    } else if args.print_address {
        writeln!(out, "{address}")?;
    } else {
        writeln!(out, "serving a store at {address} until SIGINT or SIGTERM")?;
        // An unspecified address is a place to listen at, not one to connect to.
        let host = if address.ip().is_unspecified() { "<this host>" } else { &place.host };
        writeln!(out, "ranks find it by MASTER_ADDR={host} MASTER_PORT={}", place.port)?;
        writeln!(out, "and TORCHELASTIC_USE_AGENT_STORE=True, which says that no rank hosts it")?;
    }
    out.flush()
}

/// How many connections to allow: what is asked for, or the default, within the limit of open files,
/// which is raised as far as that is allowed.
fn connections(asked: Option<usize>) -> usize {
    let wanted = asked.unwrap_or(ServerLimits::DEFAULT.connections);
    let needed = wanted as u64 + descriptors::OWN;
    let current = descriptors::raise(needed);
    if current >= needed {
        return wanted;
    }
    let fit = usize::try_from(current.saturating_sub(descriptors::OWN)).unwrap_or(wanted).max(1);
    if asked.is_some() {
        eprintln!("symmem store: RLIMIT_NOFILE is {current}: {fit} connections at most");
    }
    fit
}

fn summary(stats: &ServerStats) -> String {
    let ServerStats { accepted, refused, expelled, requests, keys, stored, .. } = *stats;
    let stored = Bytes(stored);
    format!(
        "{requests} requests on {accepted} connections, {refused} refused, {expelled} expelled; \
         held {keys} keys, {stored}"
    )
}
