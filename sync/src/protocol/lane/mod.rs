//! One operation on a lane, step by step.
//!
//! [`enter`] reads this rank's epoch, [`Arrival`] waits until this rank may store anything,
//! [`Operation`] moves the payload, compares headers and advances the epoch. Each step that can
//! find a word missing is a poll that never blocks: the caller decides how to wait, and a
//! [`Gate`](super::control::Gate) when to stop. Each step that must not come too early takes the proof that
//! the poll before it gave.
//!
//! What the caller upholds: the blocks of a rank begin an operation after all blocks of its
//! previous operation on the lane have left (stream order, or the lane's lock on the host), and
//! what each block did happens before the next operation's begin. An operation that does not reach
//! its [`exit`](Operation::exit) leaves the lane dead.

mod arrival;
mod look_back;
mod operation;

pub use arrival::{Arrival, Clear, enter};
pub use look_back::{LookedBack, look_back};
pub use operation::{Agreed, Operation};

use symmem_hal::types::RankSet;
use symmem_hal::{Fault, Kind};

use super::control::{ControlPage, Look};
use super::{
    Difference, Epoch, Header, LaneMemory, Peers, Placement, Word, Word32, Word64, header,
};

/// The bit of an epoch copy that a checked operation holds from its entry to its exit.
pub const BUSY: u32 = 1 << 31;

/// Which part of an operation this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The block, below `grid`.
    pub block: usize,
    /// How many blocks the operation has on this rank, at least one and at most
    /// [`max_blocks`](LaneMemory::max_blocks).
    pub grid: usize,
    /// Whether entry takes the busy bit of every copy this block owns.
    pub checked: bool,
}

impl Seat {
    /// This block's share of `n` things: b, b + g, b + 2g, ...
    pub(super) fn share(self, n: usize) -> impl Iterator<Item = usize> {
        (self.block..n).step_by(self.grid.max(1))
    }
}

/// What a block does in an operation, seen from its lane. The calling rank itself is ignored in
/// both sets.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What every rank compares.
    pub header: Header,
    /// The ranks whose blocks of equal index read payload of this block.
    pub feeds: Peers<'a>,
    /// The ranks whose blocks of equal index write payload that this block reads.
    pub consumes: Peers<'a>,
}

/// A part of an operation in which it waits for ranks.
pub trait Phase {
    /// Whether `rank` has to come yet, as its words say now.
    fn awaits(&self, rank: usize) -> bool;

    /// Whether the word of `writer` that a poll missed can still come.
    ///
    /// # Errors
    ///
    /// [`Mismatch`] when `writer` issued another call.
    fn check(&self, writer: usize) -> Result<(), Mismatch>;

    /// The number of ranks.
    fn world(&self) -> usize;

    /// The ranks that have to come yet.
    fn missing(&self) -> RankSet {
        (0..self.world()).filter(|&rank| self.awaits(rank)).collect()
    }

    /// What a [`Gate`](super::control::Gate) asks for when a poll missed a word of `writer`.
    ///
    /// `page` is this rank's. A wait for one rank looks whether any that has to come is gone,
    /// since the one may be just slow.
    ///
    /// # Errors
    ///
    /// [`Mismatch`] when `writer` issued another call.
    fn look<W32: Word32, W64: Word64>(
        &self,
        writer: usize,
        page: &ControlPage<'_, W32, W64>,
        cancelled: bool,
        overdue: bool,
    ) -> Result<Look, Mismatch> {
        self.check(writer)?;
        let lost = if page.is_lost(writer) {
            Some(writer)
        } else {
            (0..self.world()).find(|&rank| page.is_lost(rank) && self.awaits(rank))
        };
        Ok(Look { aborted: page.is_aborted(), lost, cancelled, overdue })
    }
}

/// An operation that may not begin. Nothing was stored where a peer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The group failed earlier.
    #[error("the group failed earlier")]
    Failed,
    /// The lane was replaced or its group dropped.
    #[error("the lane is retired")]
    Retired,
    /// Another operation is on the lane: a copy of the epoch is held, or differs from the others.
    #[error("another operation is on the lane: epoch copy {copy} is {found:#x}")]
    Busy {
        /// The copy.
        copy: usize,
        /// Its bits; bit 31 is the busy bit.
        found: u32,
    },
}

impl Fault for Refused {
    fn kind(&self) -> Kind {
        match self {
            Refused::Failed | Refused::Retired => Kind::Stale,
            Refused::Busy { .. } => Kind::Disagreement,
        }
    }
}

/// A peer that issued another call than this rank in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} issued {} in epoch {epoch}, this rank {}", difference.theirs, difference.mine)]
pub struct Mismatch {
    /// The peer.
    pub rank: usize,
    /// The epoch.
    pub epoch: Epoch,
    /// Both headers.
    pub difference: Difference,
}

impl Fault for Mismatch {
    fn kind(&self) -> Kind {
        Kind::Disagreement
    }

    fn ranks(&self) -> RankSet {
        RankSet::one(self.rank)
    }
}

/// Makes a lane of zeroed words, on this rank: as if every rank had completed `completed` with an
/// empty header. All ranks must have done this before any enters.
pub fn initialise<M: LaneMemory>(memory: &M, completed: Epoch) {
    let me = memory.rank();
    let stamp = |writer| {
        let slot = memory.header(completed.parity(), 0, writer, me);
        header::publish(slot, Header::default(), completed);
    };
    match memory.placement() {
        Placement::Shared => stamp(me),
        Placement::PerReader => (0..memory.world()).for_each(stamp),
    }
    for copy in 0..memory.max_blocks() {
        memory.epoch_copy(copy).store_release(completed.next().get());
    }
}
