//! Counters that others may read while the server's thread writes them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// What a server did, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed at once because there were too many.
    pub refused: u64,
    /// Connections closed because of what they sent, or did not send.
    pub expelled: u64,
    /// Requests served, handshakes left out.
    pub requests: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Connections open now.
    pub open: u64,
    /// Keys that have a value now.
    pub keys: u64,
    /// Bytes of keys and values now, book-keeping included.
    pub stored: u64,
}

/// What one open connection did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// The client's address.
    pub peer: SocketAddr,
    /// Requests served, handshakes left out.
    pub requests: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

/// A counter of one writer.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Moved {
    pub requests: Counter,
    pub received: Counter,
    pub sent: Counter,
}

#[derive(Debug, Default)]
pub(super) struct Stats {
    pub accepted: Counter,
    pub refused: Counter,
    pub expelled: Counter,
    pub moved: Moved,
    pub keys: Counter,
    pub stored: Counter,
    connections: Mutex<HashMap<u64, (SocketAddr, Arc<Moved>)>>,
}

impl Stats {
    /// Counters of a new connection, until [`close`](Self::close).
    pub fn open(&self, id: u64, peer: SocketAddr) -> Arc<Moved> {
        let moved = Arc::new(Moved::default());
        self.connections.lock().insert(id, (peer, moved.clone()));
        self.accepted.add(1);
        moved
    }

    pub fn close(&self, id: u64) {
        self.connections.lock().remove(&id);
    }

    pub fn total(&self) -> ServerStats {
        ServerStats {
            accepted: self.accepted.get(),
            refused: self.refused.get(),
            expelled: self.expelled.get(),
            requests: self.moved.requests.get(),
            received: self.moved.received.get(),
            sent: self.moved.sent.get(),
            open: self.connections.lock().len() as u64,
            keys: self.keys.get(),
            stored: self.stored.get(),
        }
    }

    pub fn connections(&self) -> Vec<ConnectionStats> {
        let connections = self.connections.lock();
        let stats = |(peer, moved): &(SocketAddr, Arc<Moved>)| ConnectionStats {
            peer: *peer,
            requests: moved.requests.get(),
            received: moved.received.get(),
            sent: moved.sent.get(),
        };
        connections.values().map(stats).collect()
    }
}
