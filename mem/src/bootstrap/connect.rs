//! Joining or hosting the store.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use symmem_hal::{Fault, Kind, Wait};
use thiserror::Error;

use super::{Bootstrap, StoreAddress, StoreHost};
use crate::store::Store;
use crate::store::tcp::{ConnectError, ServeError, StoreServer, TcpStore};

/// Why a rank did not reach its store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Rank 0 could not host it.
    #[error("rank 0 cannot host the store: {}{}", .0, remedy(.0))]
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

/// Which variable chooses the port, where it has to be another.
fn remedy(error: &ServeError) -> &'static str {
    match error.cause.kind() {
        io::ErrorKind::AddrInUse => "; set MASTER_PORT to a free one, the same on all ranks",
        _ => "",
    }
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
pub(super) fn bind_address(host: &str, port: u16) -> SocketAddr {
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
pub(super) fn own_address(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}
