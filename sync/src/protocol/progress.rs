//! Waiting for many ranks, one poll at a time.

use symmem_hal::types::RankSet;

/// A set of ranks that an operation knows by rule.
#[derive(Clone, Copy, Debug)]
pub enum Peers<'a> {
    /// No rank.
    None,
    /// Every rank.
    All,
    /// One rank.
    One(usize),
    /// These.
    Set(&'a RankSet),
}

impl Peers<'_> {
    /// Whether a rank is among them.
    #[must_use]
    pub fn contains(self, rank: usize) -> bool {
        match self {
            Peers::None => false,
            Peers::All => true,
            Peers::One(one) => one == rank,
            Peers::Set(set) => set.contains(rank),
        }
    }
}

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress<T> {
    /// All that was awaited is there.
    Ready(T),
    /// A word of this rank is missing.
    Pending {
        /// The rank that will write it.
        writer: usize,
    },
}

impl<T> Progress<T> {
    pub(super) fn map<U>(self, ready: impl FnOnce(T) -> U) -> Progress<U> {
        match self {
            Progress::Ready(value) => Progress::Ready(ready(value)),
            Progress::Pending { writer } => Progress::Pending { writer },
        }
    }
}

/// Goes through the ranks of a set in ascending order, waiting for a word of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    next: usize,
}

impl Cursor {
    pub(super) const START: Cursor = Cursor { next: 0 };

    /// Goes on until `seen` misses a rank of `wanted`. Ranks seen are not polled again.
    pub(super) fn advance<E>(
        &mut self,
        me: usize,
        world: usize,
        wanted: Peers<'_>,
        mut seen: impl FnMut(usize) -> Result<bool, E>,
    ) -> Result<Progress<()>, E> {
        while self.next < world {
            let writer = self.next;
            if writer != me && wanted.contains(writer) && !seen(writer)? {
                return Ok(Progress::Pending { writer });
            }
            self.next += 1;
        }
        Ok(Progress::Ready(()))
    }
}
