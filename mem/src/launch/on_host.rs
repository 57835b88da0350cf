//! Where a process of a run on several hosts is, and where the others reach it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _, UdpSocket};

use super::StartError;
use crate::bootstrap::{Bootstrap, StoreAddress};
use crate::exchange::hosts::Unit;

/// Names an address of this host, where the one towards the store is not for others.
pub(crate) const ADDRESS: &str = "SYMMEM_ADDRESS";

/// A process's place on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnHost {
    /// Its index among the ranks that were started there together.
    pub local_rank: usize,
    /// How many those are.
    pub local_world_size: usize,
    /// Which of the hosts, or of the launcher's agents; 0 where nobody counts them.
    pub node: usize,
    /// Where processes on the other hosts reach this one.
    pub address: IpAddr,
}

impl OnHost {
    pub(super) fn unit(&self, world_size: usize) -> Result<Unit, StartError> {
        let &OnHost { local_rank, local_world_size, node, .. } = self;
        if local_rank >= local_world_size || local_world_size > world_size {
            let local_rank = Some(local_rank);
            return Err(StartError::Unit { local_rank, local_world_size, world_size });
        }
        // Less than the number of ranks, which fits; a node's number only tells it from others.
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (local_rank, local_size) = (small(local_rank), small(local_world_size));
        Ok(Unit { local_rank, local_size, node: node as u32 })
    }
}

/// What a launcher says of this process's host, where it started ranks on several.
pub(super) fn on_host(bootstrap: &Bootstrap) -> Result<Option<OnHost>, StartError> {
    let world_size = bootstrap.world_size;
    let Some(local_world_size) = bootstrap.local_world_size.filter(|n| *n != world_size) else {
        return Ok(None);
    };
    let Some(local_rank) = bootstrap.local_rank else {
        return Err(StartError::Unit { local_rank: None, local_world_size, world_size });
    };
    let address = address(&bootstrap.store).map_err(|found| {
        let store = bootstrap.store.to_string();
        StartError::NoAddress { world_size, local_world_size, store, found }
    })?;
    let node = bootstrap.node.unwrap_or(0);
    Ok(Some(OnHost { local_rank, local_world_size, node, address }))
}

/// The address of this host that the others are told: the one from which it reaches the store, which they
/// reach as well, unless the environment names another. Nothing is sent. In place of it, what was found.
fn address(store: &StoreAddress) -> Result<IpAddr, String> {
    let named = std::env::var(ADDRESS).ok().filter(|named| !named.is_empty());
    if let Some(named) = named {
        return named.parse().map_err(|_| format!("{ADDRESS}={named:?}, which is no IP address"));
    }
    let found = towards(store)?;
    if found.is_loopback() || found.is_unspecified() {
        return Err(format!("{found}, which is of no use to other hosts"));
    }
    Ok(found)
}

fn towards(store: &StoreAddress) -> Result<IpAddr, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut last = "no address".to_owned();
    for address in (store.host.as_str(), store.port).to_socket_addrs().map_err(text)? {
        let any: IpAddr = if address.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let asked = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(address)?;
            socket.local_addr()
        });
        match asked {
            Ok(found) => return Ok(found.ip()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn store(host: &str) -> StoreAddress {
        StoreAddress { host: host.to_owned(), port: 4000 }
    }

    #[test]
    fn an_address_for_nobody_else_is_none() {
        assert_eq!(towards(&store("127.0.0.1")).unwrap(), IpAddr::from([127, 0, 0, 1]));
        let refused = address(&store("127.0.0.1")).unwrap_err();
        assert!(refused.contains("127.0.0.1") && refused.contains("other hosts"), "{refused}");
        assert!(address(&store("no such host")).is_err());
    }

    #[test]
    fn a_process_is_one_of_its_hosts() {
        let address = IpAddr::from([10, 0, 0, 1]);
        let of = |local_rank, local_world_size| OnHost {
            local_rank,
            local_world_size,
            node: 3,
            address,
        };
        let unit = of(1, 2).unit(4).unwrap();
        assert_eq!((unit.local_rank, unit.local_size, unit.node), (1, 2, 3));
        for wrong in [of(2, 2), of(0, 5), of(0, 0)] {
            assert!(matches!(wrong.unit(4), Err(StartError::Unit { .. })), "{wrong:?}");
        }
    }
}
