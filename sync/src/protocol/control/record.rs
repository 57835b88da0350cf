//! The failure of a group in words.

use symmem_hal::types::RankSet;

use super::Word64;
use crate::protocol::{Difference, Epoch, Header};

/// Words of a record before the mask of missing ranks.
const FIXED_WORDS: usize = 7;

/// Why a lane operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A deadline passed while words were missing.
    TimedOut,
    /// The writer of a missing word is gone: it ended without leaving.
    PeerLost,
    /// The writer of a missing word is gone: it left in an orderly way.
    PeerLeft,
    /// Two ranks issued different calls in one epoch; `mine` is the reporter's.
    CallMismatch(Difference),
    /// Two operations overlapped on one lane.
    LaneBusy,
    /// A closed lane was entered, by a graph that outlived it.
    StaleGraph,
    /// The caller ended the wait.
    Cancelled,
    /// The device reported an error.
    Device,
}

impl Reason {
    fn code(self) -> u32 {
        match self {
            Reason::TimedOut => 1,
            Reason::PeerLost => 2,
            Reason::CallMismatch(_) => 3,
            Reason::LaneBusy => 4,
            Reason::StaleGraph => 5,
            Reason::Cancelled => 6,
            Reason::Device => 7,
            Reason::PeerLeft => 8,
        }
    }

    fn from_code(code: u32, difference: Difference) -> Option<Self> {
        Some(match code {
            1 => Reason::TimedOut,
            2 => Reason::PeerLost,
            3 => Reason::CallMismatch(difference),
            4 => Reason::LaneBusy,
            5 => Reason::StaleGraph,
            6 => Reason::Cancelled,
            7 => Reason::Device,
            8 => Reason::PeerLeft,
            _ => return None,
        })
    }
}

/// The first failure of a group, as its reporter saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Why.
    pub reason: Reason,
    /// The rank that reports it.
    pub reporter: usize,
    /// The rank it is about, where it is about one.
    pub culprit: Option<usize>,
    /// The lane.
    pub lane: u32,
    /// The operation's code.
    pub operation: u32,
    /// The epoch, where it was known.
    pub epoch: Option<Epoch>,
    /// The ranks whose words were missing.
    pub missing: RankSet,
}

impl Record {
    /// How many words a record of a group of `world` ranks takes.
    #[must_use]
    pub const fn words(world: usize) -> usize {
        FIXED_WORDS + world.div_ceil(64)
    }

    /// The record as `rank` tells it, which issued `call` in the record's epoch if it came so far.
    ///
    /// A mismatch has two sides, and a rank belongs to the one whose call it issued, even if it was
    /// not the one that was compared. On the culprit's side the reporter becomes the other and
    /// `mine` and `theirs` change places; a rank that has not come yet tells it as the reporter.
    #[must_use]
    pub fn seen_by(mut self, rank: usize, call: Option<Header>) -> Record {
        if let Reason::CallMismatch(Difference { mine, theirs }) = self.reason
            && (self.culprit == Some(rank) || self.reporter != rank && call == Some(theirs))
        {
            let reporter = self.reporter;
            self.reporter = self.culprit.unwrap_or(rank);
            self.culprit = Some(reporter);
            self.reason = Reason::CallMismatch(Difference { mine: theirs, theirs: mine });
        }
        self
    }

    /// Stores it; the caller releases it.
    pub(super) fn store<W: Word64>(&self, words: &[W], world: usize) {
        let Difference { mine, theirs } = match self.reason {
            Reason::CallMismatch(difference) => difference,
            _ => Difference { mine: Header::default(), theirs: Header::default() },
        };
        let fixed = [
            pair(self.reason.code(), self.lane),
            pair(rank_word(Some(self.reporter)), rank_word(self.culprit)),
            pair(self.operation, self.epoch.map_or(0, Epoch::get)),
            mine.signature,
            mine.issue,
            theirs.signature,
            theirs.issue,
        ];
        let mask = (0..world.div_ceil(64)).map(|word| {
            (0..64).filter(|bit| self.missing.contains(word * 64 + bit)).map(|bit| 1 << bit).sum()
        });
        for (word, value) in words.iter().zip(fixed.into_iter().chain(mask)) {
            word.store_relaxed(value);
        }
    }

    /// Loads a record that the caller acquired; `None` where the words are none.
    pub(crate) fn load<W: Word64>(words: &[W], world: usize) -> Option<Record> {
        let word = |i: usize| words.get(i).map(W::load_relaxed);
        let (code, lane) = unpair(word(0)?);
        let (reporter, culprit) = unpair(word(1)?);
        let (operation, epoch) = unpair(word(2)?);
        let header = |i: usize| Some(Header { signature: word(i)?, issue: word(i + 1)? });
        let difference = Difference { mine: header(3)?, theirs: header(5)? };
        let missing = (0..world)
            .filter(|rank| word(FIXED_WORDS + rank / 64).is_some_and(|w| w >> (rank % 64) & 1 == 1))
            .collect();
        Some(Record {
            reason: Reason::from_code(code, difference)?,
            reporter: rank_of(reporter, world)?,
            culprit: rank_of(culprit, world),
            lane,
            operation,
            epoch: Epoch::new(epoch),
            missing,
        })
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn unpair(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// A rank as 1 + its index; 0 is none.
fn rank_word(rank: Option<usize>) -> u32 {
    rank.and_then(|rank| u32::try_from(rank + 1).ok()).unwrap_or(0)
}

fn rank_of(word: u32, world: usize) -> Option<usize> {
    (word as usize).checked_sub(1).filter(|rank| *rank < world)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use core::sync::atomic::AtomicU64;

    fn words(world: usize) -> Vec<AtomicU64> {
        (0..Record::words(world)).map(|_| AtomicU64::new(0)).collect()
    }

    fn mismatch(world: usize) -> Record {
        let header = |signature| Header { signature, issue: u64::MAX };
        Record {
            reason: Reason::CallMismatch(Difference { mine: header(1), theirs: header(2) }),
            reporter: 0,
            culprit: Some(world - 1),
            lane: u32::MAX,
            operation: 9,
            epoch: Some(Epoch::MAX),
            missing: RankSet::one(world - 1),
        }
    }

    #[test]
    fn records_of_any_world_and_reason_come_back() {
        for world in [2, 63, 64, 65, 200] {
            for code in 1..=8 {
                let Reason::CallMismatch(difference) = mismatch(world).reason else { continue };
                let reason = Reason::from_code(code, difference).unwrap();
                let record = Record { reason, ..mismatch(world) };
                let words = words(world);
                record.store(&words, world);
                assert_eq!(Record::load(&words, world), Some(record));
            }
        }
    }

    #[test]
    fn words_that_are_no_record_are_none() {
        for world in [1, 64] {
            let words = words(world);
            assert_eq!(Record::load(&words, world), None, "zeros");
            mismatch(world).store(&words, world);
            for (place, garbage) in [(0, 9), (0, u64::MAX), (1, 0), (1, world as u64 + 1)] {
                let kept = words[place].swap(garbage, core::sync::atomic::Ordering::Relaxed);
                assert_eq!(Record::load(&words, world), None, "{garbage} in word {place}");
                words[place].store(kept, core::sync::atomic::Ordering::Relaxed);
            }
            assert_eq!(Record::load(&words[..3], world), None, "too few words");
        }
    }

    #[test]
    fn the_culprit_tells_it_from_its_side() {
        let record = mismatch(4);
        assert_eq!(record.clone().seen_by(1, None), record);
        let Reason::CallMismatch(Difference { mine, theirs }) = record.reason else { return };
        let other = record.seen_by(3, None);
        assert_eq!(other.culprit, Some(0));
        assert_eq!(other.reason, Reason::CallMismatch(Difference { mine: theirs, theirs: mine }));
    }
}
