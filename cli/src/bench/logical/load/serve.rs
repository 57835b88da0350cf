//! A store of this library in a process for itself.

use std::net::{Ipv4Addr, SocketAddr};

use symmem::mem::store::tcp::{ServerLimits, StoreServer};

use super::LoadError;
use crate::bench::logical::messages::Counts;
use crate::descriptors;

pub struct Served(StoreServer);

impl Served {
    pub fn new(connections: u64) -> Result<Self, LoadError> {
        let needed = connections + descriptors::OWN;
        let limit = descriptors::raise(needed);
        let connections = usize::try_from(connections).unwrap_or(usize::MAX);
        if limit < needed {
            return Err(LoadError::Descriptors { connections, needed, limit });
        }
        let limits = ServerLimits { connections, ..ServerLimits::DEFAULT };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(Served(StoreServer::bind_with(address, limits)?))
    }

    pub fn address(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// As its clients see it, and how many are connected.
    pub fn counts(&self) -> (Counts, u64) {
        let stats = self.0.stats();
        let (sent, received) = (stats.received, stats.sent);
        (Counts { requests: stats.requests, sent, received }, stats.open)
    }
}
