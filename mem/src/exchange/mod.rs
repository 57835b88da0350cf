//! How the members of a group meet: everybody gives something, everybody gets all of it.
//!
//! One call, [`Exchange::gather`], carries all agreement: group creation, rendezvous, votes. It
//! either gives every member the same parts or fails on every member that waits. Three
//! implementations: [`local`] for ranks that are threads of one process, [`unix`] for processes of
//! one host, [`hosts`] for those of several.

pub(crate) mod door;
pub(crate) mod frame;
pub(crate) mod hosts;
pub(crate) mod leader;
pub(crate) mod local;
pub(crate) mod parcel;
mod service;
pub(crate) mod token;
pub(crate) mod unix;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symmem_hal::types::RankSet;
use symmem_hal::{Fault, Kind, Memory, Shareable, Wait};

/// Names one round: which of its group's current call. What members disagree about, which call it is
/// among it, travels inside, so that they meet and learn of it. A round that is over is forgotten, and
/// who comes later begins it anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct RoundKey {
    pub group: u64,
    pub generation: u32,
    /// Counted within a call.
    pub number: u64,
    /// Which of the meetings on one host that a round of several hosts takes; 0 where it takes one.
    pub part: u32,
}

/// Something mappable that travels with a part.
#[derive(Debug)]
pub(crate) enum Handle {
    /// To another process, or another thread that is to have a handle of its own.
    Shared(Shareable),
    /// To another thread: the mapping itself, since one process maps memory once.
    Local(Memory),
}

/// What one member gives to a round.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub payload: Vec<u8>,
    /// For members on this one's host. At most [`frame::MAX_FDS`].
    pub handles: Vec<Handle>,
    /// Of the same memory, for members on other hosts, which descriptors do not reach. A member gets one
    /// or the other.
    pub fabric: Vec<Handle>,
}

impl Part {
    /// A part without handles.
    pub(crate) fn plain(payload: Vec<u8>) -> Self {
        Part { payload, ..Part::default() }
    }
}

/// A member's call of a round. `members` are global ranks in group order; `me` indexes them.
#[derive(Debug)]
pub(crate) struct Round<'a> {
    pub key: RoundKey,
    pub members: &'a [u32],
    pub me: usize,
    /// Whether those who meet and have no link get one: not where `members` number something else.
    pub links: bool,
    pub part: Part,
}

/// Why a round failed; ranks are group indices.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Members did not come in time.
    #[error(
        "ranks {} did not come within {allowed:?}{}: see where they are, or allow more time",
        set(missing),
        other_hosts(hosts)
    )]
    Missing {
        /// Group indices of those who did not come.
        missing: Vec<u32>,
        /// The deadline of the rank that gave up first.
        allowed: Duration,
        /// The hosts on which ranks of this run have met, where there is more than one.
        hosts: Vec<String>,
    },
    /// A member ended while the others waited for it.
    #[error("rank {rank} ended before it came: start again, or go on without it by Group::recover")]
    Lost {
        /// Its group index.
        rank: u32,
    },
    /// The caller's token ended the wait, on this rank or another.
    #[error("the meeting was cancelled by a caller; all ranks can call again")]
    Cancelled,
    /// This rank was turned away by whoever leads the meeting, or turned it away.
    #[error("the meeting point refused: {0}")]
    Refused(String),
    /// A rank came twice to one round: two processes claim one rank.
    #[error("two processes claim rank {rank}: start each with a rank of its own (RANK)")]
    Duplicate {
        /// The group index claimed twice.
        rank: u32,
    },
    /// Another thread of this rank was meeting the others on the group for as long as the call could
    /// wait.
    #[error(
        "another thread of this rank was meeting the others for {allowed:?}: let one thread at a time, or allow more time"
    )]
    Busy {
        /// What the caller allowed.
        allowed: Duration,
    },
    /// What this rank wants to send does not fit in a message.
    #[error(
        "{bytes} bytes to send, at most {limit} fit in a message: they grow with the group, and with the blocks dropped since the last Group::reclaim"
    )]
    TooLarge {
        /// Bytes to send.
        bytes: usize,
        /// Bytes that fit.
        limit: usize,
    },
    /// A process has no descriptors left: this one, or the one that leads the meeting.
    #[error(
        "{call}: out of descriptors: close some, or allow more than {limit} by RLIMIT_NOFILE (ulimit -n)"
    )]
    Descriptors {
        /// The system call.
        call: String,
        /// How many the process may have.
        limit: u64,
    },
    /// The operating system reported an error.
    #[error("{call}: {reason}")]
    System {
        /// The system call.
        call: String,
        /// The kernel's reason.
        reason: String,
    },
    /// The others, on other hosts, had given up waiting.
    #[error(
        "the others had given up waiting for rank {rank} when it came, or another process claims its place: all can call again; start each with a rank of its own (RANK)"
    )]
    Late {
        /// Its group index, or that of the first of its host.
        rank: u32,
    },
    /// The store through which hosts meet failed.
    #[error("ranks on several hosts meet through the store: {0}")]
    Store(String),
    /// A rank on another host cannot be spoken to.
    #[error(
        "rank {rank} on another host cannot be reached at {address}: {reason}; SYMMEM_ADDRESS names an address of its host that this one can reach"
    )]
    Unreachable {
        /// Its group index.
        rank: u32,
        /// Where it said that it is.
        address: std::net::SocketAddr,
        /// What happened.
        reason: String,
    },
    /// Two processes that a launcher started on one host claim one rank, or one that is not there.
    #[error(
        "more than one process of this host claims rank {rank} of the run: start each with a rank of its own (RANK)"
    )]
    Claimed {
        /// The rank in the run.
        rank: u32,
    },
}

fn set(indices: &[u32]) -> RankSet {
    indices.iter().map(|i| *i as usize).collect()
}

fn other_hosts(hosts: &[String]) -> String {
    if hosts.len() < 2 {
        return String::new();
    }
    format!(
        "; ranks of this run met on {} different hosts or namespaces, which cannot share memory: {}",
        hosts.len(),
        hosts.join("; ")
    )
}

impl ExchangeError {
    pub(crate) fn system(call: &str, error: impl std::fmt::Display) -> Self {
        ExchangeError::System { call: call.to_owned(), reason: error.to_string() }
    }

    /// As it came from the leader of a round of so many: what is no member's index is left out, since a
    /// set of ranks is as large as the largest.
    pub(crate) fn of_round(mut self, members: usize) -> Self {
        let is_member = |index: u32| (index as usize) < members;
        match &mut self {
            ExchangeError::Missing { missing, .. } => missing.retain(|index| is_member(*index)),
            ExchangeError::Lost { rank }
            | ExchangeError::Late { rank }
            | ExchangeError::Duplicate { rank }
            | ExchangeError::Unreachable { rank, .. }
                if !is_member(*rank) =>
            {
                return ExchangeError::Refused(format!(
                    "the leader speaks of rank {rank} of {members}"
                ));
            }
            _ => {}
        }
        self
    }

    /// As [`system`](Self::system), told apart where descriptors have run out.
    pub(crate) fn errno(call: &str, error: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        if !matches!(error, Errno::MFILE | Errno::NFILE) {
            return Self::system(call, error);
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        ExchangeError::Descriptors { call: call.to_owned(), limit: limit.unwrap_or(u64::MAX) }
    }
}

impl Fault for ExchangeError {
    fn kind(&self) -> Kind {
        match self {
            ExchangeError::Missing { .. }
            | ExchangeError::Late { .. }
            | ExchangeError::Busy { .. } => Kind::TimedOut,
            ExchangeError::Lost { .. } => Kind::PeerLost,
            ExchangeError::Cancelled => Kind::Cancelled,
            ExchangeError::Duplicate { .. } | ExchangeError::Claimed { .. } => Kind::Disagreement,
            ExchangeError::TooLarge { .. } => Kind::InvalidArgument,
            ExchangeError::Descriptors { .. } => Kind::Exhausted,
            ExchangeError::Refused(_)
            | ExchangeError::Store(_)
            | ExchangeError::Unreachable { .. }
            | ExchangeError::System { .. } => Kind::System,
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            ExchangeError::Missing { missing, .. } => set(missing),
            ExchangeError::Lost { rank }
            | ExchangeError::Late { rank }
            | ExchangeError::Duplicate { rank }
            | ExchangeError::Unreachable { rank, .. } => RankSet::one(*rank as usize),
            _ => RankSet::new(),
        }
    }
}

/// Where members meet.
pub(crate) trait Exchange: Send + Sync + std::fmt::Debug {
    /// Gives this member's part and returns every member's, in group order (this member's own
    /// included, without its handle). Links between members that have none are made on the way.
    fn gather(&self, round: Round<'_>, wait: &Wait) -> Result<Vec<Part>, ExchangeError>;

    /// Whether a global rank is on this one's host, so that descriptors go between them. Known once the
    /// first round of all ranks is over.
    fn is_near(&self, _global: u32) -> bool {
        true
    }

    /// Whether ranks are on other hosts, to which only what fabrics carry goes.
    fn has_hosts(&self) -> bool {
        false
    }

    /// The meeting point of those who recover the group of this `root`: none that a rank which is
    /// left behind may lead.
    fn succeed(&self, root: u64, generation: u32) -> Arc<dyn Exchange>;
}
