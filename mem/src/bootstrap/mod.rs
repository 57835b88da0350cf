//! How a process learns which rank it is and where the others meet.
//!
//! Does: reads the variables that torchrun sets ([`Bootstrap::from_env`]), and hosts or joins the
//! store that they name ([`Bootstrap::connect`]).
//!
//! Does not: start processes, choose a run id where the launcher gave none, or guess: a variable
//! that is missing, malformed or in conflict with another is an error that shows what was found.
//!
//! Choices:
//! - The environment is read through a function, so that tests and embedders need not change the
//!   process's own.
//! - torchrun's `none` as a run id means that nobody chose one; two such runs on a host would share
//!   it, so it counts as absent.

mod env;
#[cfg(test)]
mod tests;

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use symmem_hal::{Fault, Kind, Wait};
use thiserror::Error;

use crate::store::Store;
use crate::store::tcp::{ConnectError, ServeError, StoreServer, TcpStore};

pub use env::EnvError;

/// This process's place in its run, as its launcher described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// This process's rank, below `world_size`.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This process's index among those of its host.
    pub local_rank: Option<usize>,
    /// The number of ranks on its host.
    pub local_world_size: Option<usize>,
    /// Which run it belongs to.
    pub run: RunId,
    /// Where the store is.
    pub store: StoreAddress,
    /// Whose server the store is.
    pub host: StoreHost,
}

/// What tells one run from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunId {
    /// The launcher's id; `None` if it gave none, so that rank 0 must choose one.
    pub launcher: Option<String>,
    /// How often the launcher has restarted the ranks. Keys of an earlier attempt may still be in
    /// a store that outlives the ranks.
    pub restart: u32,
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// A name or an address.
    pub host: String,
    /// Its port, not 0.
    pub port: u16,
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreAddress { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Whose server a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHost {
    /// The launcher's: every rank is a client.
    Launcher,
    /// Rank 0's.
    RankZero,
}

impl fmt::Display for StoreHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreHost::Launcher => "the launcher",
            StoreHost::RankZero => "rank 0",
        })
    }
}

/// Why a rank did not reach its store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Rank 0 could not host it.
    #[error("rank 0 cannot host the store: {0}")]
    Serve(ServeError),
    /// It did not answer.
    #[error("rank {rank} of {world_size} cannot reach the store that {host} hosts: {cause}")]
    Connect {
        /// This rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
        /// Who was to host it.
        host: StoreHost,
        /// What happened.
        cause: ConnectError,
    },
}

impl Fault for JoinError {
    fn kind(&self) -> Kind {
        match self {
            JoinError::Serve(error) => error.kind(),
            JoinError::Connect { cause, .. } => cause.kind(),
        }
    }
}

impl Bootstrap {
    /// Reads torchrun's variables from the environment.
    ///
    /// # Errors
    ///
    /// [`EnvError::NotLaunched`] if none of them is set; else what is missing, malformed or in
    /// conflict.
    pub fn from_env() -> Result<Self, EnvError> {
        Self::from_lookup(&|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })
    }

    /// [`from_env`](Self::from_env) with `lookup` in place of the environment.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, EnvError> {
        env::torchrun(lookup)
    }

    /// Joins the run's store. Where rank 0 hosts it, rank 0's result keeps the server: it must
    /// outlive the other ranks' use of the store.
    ///
    /// # Errors
    ///
    /// No server within `wait`; on a hosting rank 0, the port is in use.
    pub fn connect(&self, wait: &Wait) -> Result<Arc<dyn Store>, JoinError> {
        let StoreAddress { host, port } = &self.store;
        let failed = |cause| JoinError::Connect {
            rank: self.rank,
            world_size: self.world_size,
            host: self.host,
            cause,
        };
        if self.host == StoreHost::RankZero && self.rank == 0 {
            let server = StoreServer::bind(bind_address(host, *port)).map_err(JoinError::Serve)?;
            // Through the port itself, not the name: whether the others can use the name is theirs
            // to find out, and this rank's own look-up of it says nothing about that.
            let own = own_address(server.local_addr());
            let store = TcpStore::connect(&own.ip().to_string(), own.port(), wait);
            return Ok(Arc::new(store.map_err(failed)?.hosting(server)));
        }
        Ok(Arc::new(TcpStore::connect(host, *port, wait).map_err(failed)?))
    }
}

/// Where rank 0 listens: at the address that the others are told, if it is an address; for a name
/// other than `localhost` at every address, because a host often finds its own name at a loopback
/// address that the others cannot reach.
fn bind_address(host: &str, port: u16) -> SocketAddr {
    let ip = match host.parse() {
        Ok(ip) if is_own(ip) => ip,
        Ok(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        Ok(IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        Err(_) if host == "localhost" => Ipv4Addr::LOCALHOST.into(),
        Err(_) if is_own(Ipv6Addr::LOCALHOST.into()) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, port)
}

/// Whether this host can listen at `ip`. Where it cannot, the address is another machine's that
/// forwards to this one.
fn is_own(ip: IpAddr) -> bool {
    std::net::UdpSocket::bind((ip, 0)).is_ok()
}

/// How this host itself reaches a server that listens at `bound`.
fn own_address(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}
