//! What a group failed of.

use symmem_hal::types::{Rank, RankSet};
use symmem_hal::{Fault, Kind};

use crate::call::{Called, Operation};

/// The first thing that went wrong in a group, the same on every member.
///
/// Sticky: once a group has one, every later operation on it returns it. The memory stays mapped
/// and readable. Bad arguments and signal time-outs are not failures of the group.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Ranks did not come to an operation in time.
    #[error("{}, epoch {epoch}: ranks {ranks} did not come before the deadline of rank {reporter}; they are alive but late, stuck, or in another call: see where they are, or allow more time (Options::deadline, a call's Wait)", operation.map_or("operation", Operation::name))]
    TimedOut {
        /// The operation that gave up; `None` where it was of a kind this release does not know.
        operation: Option<Operation>,
        /// Its epoch on its lane.
        epoch: u32,
        /// Who was missing.
        ranks: RankSet,
        /// The rank whose deadline was over first.
        reporter: Rank,
    },
    /// A rank is gone: its process or thread ended without leaving, or it left before an operation
    /// that needs it.
    #[error("rank {rank} {}", if *left { "has left the group and cannot take part in a later operation: go on without it by Group::recover" } else { "is lost: its process or thread ended; start again, or go on without it by Group::recover" })]
    PeerLost {
        /// Who.
        rank: Rank,
        /// Whether it ended in an orderly way.
        left: bool,
    },
    /// Two ranks issued different calls, in another order, or on other memory.
    #[error(
        "rank {rank} issued another call than rank {reporter} (epoch {epoch}): rank {reporter} {mine}, rank {rank} {theirs}{}; all ranks must issue the same calls in one order on a lane",
        differs(mine, theirs)
    )]
    CallMismatch {
        /// Whose call differs.
        rank: Rank,
        /// From whose: this rank's or that of one that issued the same; where this rank had not
        /// come so far, that of the rank that found it.
        reporter: Rank,
        /// The epoch in which both were issued.
        epoch: u32,
        /// The reporter's call.
        mine: Called,
        /// The other rank's call.
        theirs: Called,
    },
    /// Two operations ran at once on one lane.
    #[error(
        "two operations ran at once on lane {lane}: order them, or give each a lane of its own"
    )]
    LaneBusy {
        /// The lane.
        lane: u32,
    },
    /// A graph was launched with operations of a group that takes none any more: it failed, was left
    /// or was recovered. Told of the launch, beside the group's own failure.
    #[error(
        "a graph was launched after the lane of an operation in it had closed: capture it again on the new group"
    )]
    StaleGraph,
    /// A rank's caller ended the wait of an operation.
    #[error("{}, epoch {epoch}: cancelled by the caller of rank {rank}: go on by Group::recover", operation.map_or("operation", Operation::name))]
    Cancelled {
        /// The operation.
        operation: Option<Operation>,
        /// Its epoch on its lane.
        epoch: u32,
        /// Whose caller.
        rank: Rank,
    },
    /// The device reported an error.
    #[error("the device failed: {0}; if it still works, go on by Group::recover")]
    Device(String),
    /// [`recover`](crate::Group::recover) replaced the group on this rank.
    #[error("the group was recovered: use the group of generation {generation}")]
    Recovered {
        /// The generation that this rank went on to, or tried to.
        generation: u32,
    },
    /// This rank has closed the group.
    #[error("this rank has left the group: it can join another")]
    Left,
    /// The process was forked after the group was made; the child has no part in it.
    #[error(
        "this process is a fork of a member and is no member itself: make the group after fork, or exec"
    )]
    Forked,
    /// The group went on without this rank.
    #[error(
        "the group recovered without this rank (generation {generation}): it can join another run"
    )]
    Excluded {
        /// The generation that does not have it.
        generation: u32,
    },
    /// The store is gone, so ranks cannot meet.
    #[error("the store is lost: {0}; groups that are made work on, new ones need a new run")]
    StoreLost(String),
    /// The group was made without what the operation needs.
    #[error("not prepared: {0}")]
    NotPrepared(&'static str),
}

/// In which way two calls of one epoch differ.
fn differs(mine: &Called, theirs: &Called) -> &'static str {
    let same = mine.signature == theirs.signature;
    match (mine.issued.is_replay(), theirs.issued.is_replay()) {
        (true, true) if same => {
            ": the same operation of the same graph, launched more often on one rank"
        }
        (false, false) if same => {
            ": the same call, but one rank has issued more of them on this lane"
        }
        (true, false) | (false, true) => {
            ": one in a graph, the other not; the ranks launch graphs and issue calls in another order, or one launches a graph once too often"
        }
        _ if mine.signature.0 >> 48 != theirs.signature.0 >> 48 => "",
        (true, true) => {
            ": the same operation in another graph, at another place in it, or with another count, root, algorithm, memory or tag"
        }
        (false, false) => ": the same operation with another count, root, algorithm, memory or tag",
    }
}

impl Fault for Failure {
    fn kind(&self) -> Kind {
        match self {
            Failure::TimedOut { .. } => Kind::TimedOut,
            Failure::PeerLost { .. } => Kind::PeerLost,
            Failure::CallMismatch { .. } => Kind::Disagreement,
            Failure::LaneBusy { .. } | Failure::NotPrepared(_) => Kind::InvalidArgument,
            Failure::Cancelled { .. } => Kind::Cancelled,
            Failure::Device(_) => Kind::Device,
            Failure::StoreLost(_) => Kind::System,
            Failure::StaleGraph
            | Failure::Left
            | Failure::Forked
            | Failure::Recovered { .. }
            | Failure::Excluded { .. } => Kind::Stale,
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            Failure::TimedOut { ranks, .. } => ranks.clone(),
            Failure::PeerLost { rank, .. }
            | Failure::CallMismatch { rank, .. }
            | Failure::Cancelled { rank, .. } => RankSet::one(rank.index()),
            _ => RankSet::new(),
        }
    }
}
