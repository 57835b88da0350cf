//! How a group fails: one first failure, the same on every rank.
//!
//! Every rank of a group has a control page that its peers can write. The rank that gives up on a
//! lane operation claims the page of the lowest reachable rank by compare-exchange. Who wins
//! writes its record into every reachable page, that page first, and then releases the page's
//! abort word; who loses adopts the winner's record.
//!
//! A record is written only by whoever claimed its page, so none is ever torn. Adoption is
//! bounded: a winner that dies between its claim and its record leaves a loser waiting for its
//! bound, after which the loser [settles](settle) for its own record. Only then can two ranks of a
//! group report different failures.

mod gate;
mod record;

pub use gate::{Cause, Gate, Look};
pub use record::{Reason, Record};

use super::{Word32, Word64};

/// The words of a rank's control page. Zeros are a page on which nothing happened.
#[derive(Debug)]
pub struct ControlPage<'a, W32, W64> {
    /// 0, or 1 + the rank that writes the record.
    pub claim: &'a W32,
    /// 0, or 1 once the record is complete.
    pub abort: &'a W32,
    /// A bit for each rank whose process or thread is gone, set by this rank's watcher; one word
    /// for each 64 ranks.
    pub lost: &'a [W64],
    /// Of those, the ranks that left in an orderly way; set before their bit in `lost`.
    pub left: &'a [W64],
    /// [`Record::words`] words.
    pub record: &'a [W64],
}

impl<W32, W64> Clone for ControlPage<'_, W32, W64> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W32, W64> Copy for ControlPage<'_, W32, W64> {}

impl<W32: Word32, W64: Word64> ControlPage<'_, W32, W64> {
    /// Whether a failure was recorded here.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.abort.load_acquire() != 0
    }

    /// Whether `rank` is known to be gone.
    #[must_use]
    pub fn is_lost(&self, rank: usize) -> bool {
        self.lost.get(rank / 64).is_some_and(|word| word.load_acquire() >> (rank % 64) & 1 == 1)
    }

    /// Whether `rank`, which is gone, went in an orderly way.
    #[must_use]
    pub fn has_left(&self, rank: usize) -> bool {
        self.left.get(rank / 64).is_some_and(|word| word.load_acquire() >> (rank % 64) & 1 == 1)
    }

    /// Who writes, or has written, the record of this page.
    #[must_use]
    pub fn claimant(&self) -> Option<usize> {
        (self.claim.load_acquire() as usize).checked_sub(1)
    }

    /// Notes that `rank` is gone. What `rank` stored before its end, and its death told, happens
    /// before an [`is_lost`](Self::is_lost) that says so.
    pub fn set_lost(&self, rank: usize) {
        if let Some(word) = self.lost.get(rank / 64) {
            word.fetch_or(1 << (rank % 64));
        }
    }

    /// The failure recorded here, if any.
    #[must_use]
    pub fn failure(&self, world: usize) -> Option<Record> {
        if self.is_aborted() { Record::load(self.record, world) } else { None }
    }

    /// Claims the record for `rank`; false if somebody else has it.
    fn claim(&self, rank: usize) -> bool {
        self.claim.compare_exchange(0, claimant(rank)).is_ok()
    }

    /// Writes the record of a claimed page and releases its abort word.
    fn publish(&self, record: &Record, world: usize) {
        record.store(self.record, world);
        self.abort.store_release(1);
    }
}

fn claimant(rank: usize) -> u32 {
    u32::try_from(rank + 1).unwrap_or(u32::MAX)
}

/// One rank's sight of the control pages of its group.
pub trait ControlMemory {
    /// Its 32-bit words.
    type Word32: Word32;
    /// Its 64-bit words.
    type Word64: Word64;

    /// This rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn world(&self) -> usize;

    /// The control page of `rank`; `None` where this rank cannot reach it. Its own it always can.
    fn control(&self, rank: usize) -> Option<ControlPage<'_, Self::Word32, Self::Word64>>;
}

/// What became of [`give_up`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The group's failure: this rank's own report, now in every reachable page, or an earlier
    /// one.
    Failed(Record),
    /// Another rank is reporting: poll [`adopt`] for a bounded time, then [`settle`].
    Adopting,
}

/// Reports `record` as the failure of the group, unless another was first.
///
/// The caller then closes its entry word and wakes its peers.
pub fn give_up<M: ControlMemory>(memory: &M, record: &Record) -> Verdict {
    if let Some(earlier) = adopt(memory) {
        return Verdict::Failed(earlier);
    }
    let (me, world) = (memory.rank(), memory.world());
    let mut pages = (0..world).filter_map(|rank| memory.control(rank));
    let Some(arbiter) = pages.next() else { return Verdict::Failed(record.clone()) };
    if !arbiter.claim(me) {
        return Verdict::Adopting;
    }
    arbiter.publish(record, world);
    // A page claimed already belongs to a rank that settled for its own record.
    pages.filter(|page| page.claim(me)).for_each(|page| page.publish(record, world));
    Verdict::Failed(record.clone())
}

/// The group's failure, if one was recorded where this rank can see it: in its own page, or in
/// that of the lowest rank it reaches, which is written first.
#[must_use]
pub fn adopt<M: ControlMemory>(memory: &M) -> Option<Record> {
    let world = memory.world();
    let own = memory.control(memory.rank());
    let arbiter = (0..world).find_map(|rank| memory.control(rank));
    [own, arbiter].into_iter().flatten().find_map(|page| page.failure(world))
}

/// Ends an adoption whose bound is over: records `record` in this rank's page, unless a record is
/// there or being written there, and returns what this rank reports.
pub fn settle<M: ControlMemory>(memory: &M, record: &Record) -> Record {
    if let Some(adopted) = adopt(memory) {
        return adopted;
    }
    if let Some(own) = memory.control(memory.rank())
        && own.claim(memory.rank())
    {
        own.publish(record, memory.world());
    }
    record.clone()
}

/// Who is writing the record that [`adopt`] waits for: none is to be expected once that rank is
/// gone.
#[must_use]
pub fn reporter<M: ControlMemory>(memory: &M) -> Option<usize> {
    (0..memory.world()).find_map(|rank| memory.control(rank))?.claimant()
}

/// Puts the failure that this rank reports into its own page, where its host looks, unless it is
/// there: a record adopted from the arbiter's page may not have come to this one yet. Whether it is
/// there now; if not, its reporter is writing it, and the caller asks again for a bounded time.
pub fn keep<M: ControlMemory>(memory: &M, record: &Record) -> bool {
    let Some(own) = memory.control(memory.rank()) else { return true };
    if own.claim(memory.rank()) {
        own.publish(record, memory.world());
    }
    own.is_aborted()
}

/// The entry word of a lane: whether an operation may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Entry {
    /// It may.
    Open = 0,
    /// An operation failed: no other may begin on this lane.
    Failed = 1,
    /// The lane was replaced by `recover` or its group was dropped.
    Retired = 2,
}

impl Entry {
    /// Reads an entry word. What is no entry counts as failed.
    #[must_use]
    pub fn look<W: Word32>(word: &W) -> Entry {
        match word.load_acquire() {
            0 => Entry::Open,
            2 => Entry::Retired,
            _ => Entry::Failed,
        }
    }

    /// Closes an open entry word after a failure; a retired one stays retired.
    pub fn fail<W: Word32>(word: &W) {
        // Another value found is a lane closed already.
        let _ = word.compare_exchange(Entry::Open as u32, Entry::Failed as u32);
    }

    /// Closes an entry word for good.
    pub fn retire<W: Word32>(word: &W) {
        word.store_release(Entry::Retired as u32);
    }
}
