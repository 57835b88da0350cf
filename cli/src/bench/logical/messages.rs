//! What the processes of a benchmark say to each other, a line of JSON for each.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use clap::ValueEnum;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::content::Content;
use super::layout::Layout;

/// How the ranks of a group come to know each other's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Plan {
    /// Every rank asks for the token; the leader of each host then gathers records, and votes: one
    /// request each, by servers of this library
    Gather,
    /// The same on other servers: a gather is a multi_set and a multi_get
    Keys,
    /// Every rank sets its record and gets those of the others, one after the other
    Flat,
    /// Every rank sets its record and gets all by one multi_get
    MultiGet,
}

impl Plan {
    pub const ALL: [Plan; 4] = [Plan::Gather, Plan::Keys, Plan::Flat, Plan::MultiGet];

    /// Its name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Plan::Gather => "gather",
            Plan::Keys => "keys",
            Plan::Flat => "flat",
            Plan::MultiGet => "multi_get",
        }
    }

    /// Whether the leaders of hosts speak for their ranks.
    pub fn has_leaders(self) -> bool {
        matches!(self, Plan::Gather | Plan::Keys)
    }
}

/// What speaks to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Client {
    /// Requests on non-blocking sockets, watched by epoll: one thread for all ranks of a process
    Wire,
    /// The library's own client, a thread for each rank
    Library,
}

impl Client {
    pub fn name(self) -> &'static str {
        match self {
            Client::Wire => "wire",
            Client::Library => "library",
        }
    }

    /// Descriptors for each rank.
    pub fn descriptors(self) -> u64 {
        match self {
            Client::Wire => 1,
            // What wakes it.
            Client::Library => 2,
        }
    }
}

/// What a process is to do next.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Serve a store for so many connections.
    Serve { connections: u64 },
    /// Say what the server did up to now.
    Count,
    /// Connect ranks.
    Connect(Wave),
    /// Let them meet, from that moment on.
    Go { at_ns: u64 },
    /// Disconnect them.
    Leave,
}

/// What a process has to say.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Serving {
        address: SocketAddr,
    },
    Counted {
        counts: Counts,
        /// Connections that are there.
        open: u64,
    },
    Connected {
        connections: u64,
    },
    Met(Met),
    Left,
    /// Nothing follows.
    Failed {
        because: String,
    },
}

/// Ranks that meet at the same time, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wave {
    pub server: SocketAddr,
    pub plan: Plan,
    pub client: Client,
    pub layout: Layout,
    pub groups: Range<u32>,
    /// A number that no other run has.
    pub run: u64,
    /// Bytes of a record.
    pub record: usize,
    /// The rank that does not come.
    pub missing: Option<u32>,
    pub deadline: Duration,
    /// Which of so many processes this is for.
    pub process: u32,
    pub processes: u32,
}

impl Wave {
    pub fn content(&self) -> Content {
        Content::new(self.run, self.record)
    }
}

/// Requests and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub requests: u64,
    /// By clients.
    pub sent: u64,
    /// By clients.
    pub received: u64,
}

impl Counts {
    /// Of handshakes: VALIDATE with its number and PING with its nonce, which comes back. Those are no
    /// requests.
    pub fn handshakes(connections: u64) -> Self {
        Counts { requests: 0, sent: 10 * connections, received: 4 * connections }
    }
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Counts {
            requests: self.requests + other.requests,
            sent: self.sent + other.sent,
            received: self.received + other.received,
        }
    }
}

/// What came of a process's ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Met {
    /// When the last of them had everything, or knew who is missing.
    pub finished_ns: u64,
    /// How many have everything, all of it right.
    pub complete: u32,
    /// Those that know who is missing.
    pub told: Vec<Told>,
    /// Handshakes left out.
    pub counts: Counts,
    /// Requests of the rank with the most.
    pub most_requests: u64,
    /// Of this process.
    pub cpu_seconds: f64,
}

/// Ranks that were told, by one of them, who is missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// How many.
    pub ranks: u32,
    pub missing: Vec<u32>,
    pub at_ns: u64,
}

/// The time on a clock that all processes of a host have.
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// What this process has used of processors.
pub fn cpu_seconds() -> f64 {
    nanoseconds(ClockId::ProcessCPUTime) as f64 / 1e9
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
