//! How many ranks can be connected at a time.

use std::fs;
use std::net::SocketAddr;

use super::layout::Layout;
use super::messages::Client;

/// Why no group can meet.
#[derive(Debug, thiserror::Error)]
#[error(
    "a group of {group} needs as many connections at a time, and there is room for {room}: \
     RLIMIT_NOFILE is {descriptors} at most in each of the {processes} processes of ranks and in the \
     server ({client} client: {each} a rank){ports}: raise it (ulimit -Hn), or take more --processes"
)]
pub struct NoRoom {
    group: u32,
    room: u64,
    descriptors: u64,
    processes: u32,
    client: &'static str,
    each: u64,
    ports: String,
}

/// What bounds the connections at a time.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// What a process may have open.
    pub descriptors: u64,
    /// What it needs for itself.
    pub own: u64,
    /// Ports to leave from, where there are not as many as one likes.
    pub ports: Option<u64>,
    /// Waves that may be connected to the server at a time, where one does not hold all.
    pub waves: u64,
    pub processes: u32,
    pub client: Client,
}

impl Room {
    /// The groups that can meet at a time. The server, whoever runs it, is taken to have the limit of
    /// this process.
    pub fn groups(&self, layout: Layout) -> Result<u32, NoRoom> {
        let Room { descriptors, own, ports, waves, processes, client } = *self;
        let free = descriptors.saturating_sub(own);
        // Hosts are dealt out whole: a process may have one more than its share.
        let each = (free / client.descriptors()).saturating_sub(u64::from(layout.per_host));
        let server = free.min(ports.unwrap_or(u64::MAX));
        let server = if u64::from(layout.ranks) <= server { server } else { server / waves };
        let room = server.min(each.saturating_mul(processes.into()));
        let groups = room / u64::from(layout.group.min(layout.ranks));
        if groups == 0 {
            let ports = ports.map(|n| format!(", and {n} ports to leave from")).unwrap_or_default();
            let (group, each) = (layout.group.min(layout.ranks), client.descriptors());
            let client = client.name();
            return Err(NoRoom { group, room, descriptors, processes, client, each, ports });
        }
        Ok(u32::try_from(groups).unwrap_or(u32::MAX))
    }
}

/// The ports that connections to one server leave from; `None` on the loopback, which has many addresses
/// to leave from.
pub fn ports(server: SocketAddr) -> Option<u64> {
    if server.is_ipv4() && server.ip().is_loopback() {
        return None;
    }
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut bounds = range.split_whitespace().map_while(|bound| bound.parse::<u64>().ok());
    let (first, last) = (bounds.next()?, bounds.next()?);
    Some((last + 1).saturating_sub(first))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const ROOM: Room = Room {
        descriptors: 20_000,
        own: 64,
        ports: None,
        waves: 1,
        processes: 2,
        client: Client::Wire,
    };
    const LAYOUT: Layout = Layout { ranks: 100_800, group: 72, per_host: 8 };

    #[test]
    fn the_server_has_one_connection_for_each_rank() {
        assert_eq!(ROOM.groups(LAYOUT).unwrap(), 19_936 / 72);
        let threads = Room { client: Client::Library, ..ROOM };
        assert_eq!(threads.groups(LAYOUT).unwrap(), 2 * (19_936 / 2 - 8) / 72);
        assert_eq!(Room { ports: Some(1000), ..ROOM }.groups(LAYOUT).unwrap(), 13);
        let two = Room { waves: 2, ..ROOM };
        assert_eq!(two.groups(LAYOUT).unwrap(), 19_936 / 2 / 72);
        assert_eq!(two.groups(Layout { ranks: 19_936, ..LAYOUT }).unwrap(), 19_936 / 72);
        let plenty = Room { descriptors: u64::MAX, ..ROOM };
        assert_eq!(plenty.groups(LAYOUT).unwrap(), u32::MAX);
    }

    #[test]
    fn too_little_is_said_in_numbers() {
        let error = Room { descriptors: 100, ..ROOM }.groups(LAYOUT).unwrap_err().to_string();
        assert!(error.contains("a group of 72") && error.contains("room for 36"), "{error}");
        assert!(error.contains("RLIMIT_NOFILE is 100") && error.contains("--processes"), "{error}");
        // A group that is not full needs no more than it has.
        assert_eq!(
            Room { descriptors: 100, ..ROOM }.groups(Layout { ranks: 30, ..LAYOUT }).unwrap(),
            1
        );
    }

    #[test]
    fn the_loopback_has_many_addresses() {
        assert_eq!(ports("127.0.0.1:1".parse().unwrap()), None);
        assert!(ports("192.0.2.1:1".parse().unwrap()).is_none_or(|n| n > 0));
    }
}
