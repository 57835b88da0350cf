//! Gathers in a table: what has been brought, and results for those who ask again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::account::Account;
use super::{ENTRY, TableError};
use crate::store::gather::{Contribution, GatherFault};
use crate::store::tcp::wire::Answer;

/// What a contribution takes besides its bytes, and what a slot that it covers takes.
const PART: usize = 112;
const SLOT: usize = 24;

/// What a contribution takes in all: by itself, and as a part of the result.
fn cost(slots: usize, value: usize) -> usize {
    PART + 2 * value + (8 + SLOT) * slots
}

/// How many results are kept for those who ask again, how many bytes of them, and for how long.
const KEPT: usize = 1 << 10;
const KEPT_BYTES: usize = 64 << 20;
const KEPT_FOR: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Gathers {
    open: HashMap<Box<[u8]>, Gather>,
    /// The complete ones, in the order of that.
    complete: VecDeque<(Instant, Box<[u8]>)>,
    /// What those hold.
    complete_bytes: usize,
    /// Results that were dropped while answers were still being written from them.
    leaving: Vec<Arc<[u8]>>,
}

#[derive(Debug)]
struct Gather {
    total: u32,
    /// By the lowest slot.
    parts: BTreeMap<u32, Stored>,
    /// The lowest slot of the contribution that covers each.
    covered: HashMap<u32, u32>,
    /// The answer to all contributors, once it is complete.
    result: Option<Arc<[u8]>>,
    /// What the account holds for it.
    bytes: usize,
}

#[derive(Debug)]
struct Stored {
    slots: Box<[u32]>,
    value: Box<[u8]>,
}

/// What came of bringing a contribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Brought {
    /// Slots are missing.
    Waits,
    /// All are covered: the answer, as it is written, and whether this contribution was the last.
    Complete { result: Arc<[u8]>, last: bool },
}

impl Gathers {
    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.open.contains_key(key)
    }

    pub fn bring(
        &mut self,
        key: &[u8],
        mine: &Contribution<'_>,
        account: &mut Account,
    ) -> Result<Brought, TableError> {
        mine.check().map_err(TableError::Gather)?;
        self.retire(account);
        let head = mine.slots[0];
        if let Some(gather) = self.open.get(key) {
            gather.fits(mine).map_err(TableError::Gather)?;
            if gather.parts.contains_key(&head) {
                return Ok(gather
                    .result
                    .clone()
                    .map_or(Brought::Waits, |result| Brought::Complete { result, last: false }));
            }
        }
        let known = self.open.contains_key(key);
        let part = cost(mine.slots.len(), mine.value.len());
        let needed = part + if known { 0 } else { ENTRY + key.len() };
        account.exchange(0, needed)?;
        let gather = self.open.entry(key.into()).or_insert_with(|| Gather::new(mine.total));
        gather.bytes += needed;
        gather.add(mine);
        if gather.covered.len() < mine.total as usize {
            return Ok(Brought::Waits);
        }
        let result = gather.finish();
        self.complete_bytes += gather.bytes;
        self.complete.push_back((Instant::now(), key.into()));
        Ok(Brought::Complete { result, last: true })
    }

    pub fn missing(&self, key: &[u8]) -> Vec<u32> {
        let Some(gather) = self.open.get(key) else { return Vec::new() };
        (0..gather.total).filter(|slot| !gather.covered.contains_key(slot)).collect()
    }

    /// Drops the results that are too many, too large or too old, the oldest first.
    fn retire(&mut self, account: &mut Account) {
        self.leaving.retain(|result| {
            let read = Arc::strong_count(result) > 1;
            if !read {
                account.free(result.len());
            }
            read
        });
        while let Some((since, _)) = self.complete.front()
            && (self.complete.len() > KEPT
                || self.complete_bytes > KEPT_BYTES && self.complete.len() > 1
                || since.elapsed() > KEPT_FOR)
        {
            let Some((_, key)) = self.complete.pop_front() else { return };
            let Some(gather) = self.open.remove(&key) else { continue };
            self.complete_bytes -= gather.bytes;
            account.free(gather.bytes);
            if let Some(result) = gather.result.filter(|result| Arc::strong_count(result) > 1) {
                account.add(result.len());
                self.leaving.push(result);
            }
        }
    }
}

impl Gather {
    fn new(total: u32) -> Self {
        Gather { total, parts: BTreeMap::new(), covered: HashMap::new(), result: None, bytes: 0 }
    }

    /// Whether a contribution is one that is there, or leaves those that are there alone.
    fn fits(&self, mine: &Contribution<'_>) -> Result<(), GatherFault> {
        if mine.total != self.total {
            return Err(GatherFault::Total { mine: mine.total, theirs: self.total });
        }
        let taken = |slot| match self.result {
            Some(_) => GatherFault::Ended { slot },
            None => GatherFault::Overlap { slot },
        };
        if let Some(stored) = self.parts.get(&mine.slots[0]) {
            let other = mine.slots.iter().zip(&stored.slots).find(|(mine, stored)| mine != stored);
            if let Some((slot, _)) = other {
                return Err(taken(*slot));
            }
            if *mine.slots != *stored.slots || *mine.value != *stored.value {
                return Err(taken(mine.slots[0]));
            }
            return Ok(());
        }
        match mine.slots.iter().find(|slot| self.covered.contains_key(slot)) {
            Some(&slot) => Err(taken(slot)),
            None => Ok(()),
        }
    }

    fn add(&mut self, mine: &Contribution<'_>) {
        let head = mine.slots[0];
        self.covered.extend(mine.slots.iter().map(|slot| (*slot, head)));
        let stored = Stored { slots: mine.slots.into(), value: mine.value.into() };
        self.parts.insert(head, stored);
    }

    fn finish(&mut self) -> Arc<[u8]> {
        let parts = self.parts.values().map(|part| (&*part.slots, &*part.value));
        let mut answer = Vec::new();
        Answer::put_parts(&mut answer, parts);
        let result: Arc<[u8]> = answer.into();
        self.result = Some(result.clone());
        result
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use crate::store::tcp::wire::Gathered;

    fn bring(
        gathers: &mut Gathers,
        account: &mut Account,
        key: &str,
        mine: Contribution<'_>,
    ) -> Result<Brought, TableError> {
        gathers.bring(key.as_bytes(), &mine, account)
    }

    #[test]
    fn contributions_come_once_and_results_stay() {
        let (mut gathers, mut account) = (Gathers::default(), Account::new(usize::MAX));
        let mut bring = |mine| bring(&mut gathers, &mut account, "k", mine);
        let (a, b) = (Contribution::new(&[0, 2], 3, b"a"), Contribution::new(&[1], 3, b"b"));
        assert_eq!(bring(a), Ok(Brought::Waits));
        assert_eq!(bring(a), Ok(Brought::Waits));
        let overlap = |slot| Err(TableError::Gather(GatherFault::Overlap { slot }));
        assert_eq!(bring(Contribution::new(&[0, 2], 3, b"x")), overlap(0));
        assert_eq!(bring(Contribution::new(&[0], 3, b"a")), overlap(0));
        assert_eq!(bring(Contribution::new(&[0, 1], 3, b"a")), overlap(1));
        assert_eq!(bring(Contribution::new(&[1, 2], 3, b"a")), overlap(2));
        let total = GatherFault::Total { mine: 4, theirs: 3 };
        assert_eq!(bring(Contribution::new(&[1], 4, b"b")), Err(TableError::Gather(total)));
        let Ok(Brought::Complete { result, last: true }) = bring(b) else { panic!() };
        for again in [a, b] {
            let expected = Brought::Complete { result: result.clone(), last: false };
            assert_eq!(bring(again), Ok(expected));
        }
        let ended = TableError::Gather(GatherFault::Ended { slot: 1 });
        assert_eq!(bring(Contribution::new(&[1], 3, b"x")), Err(ended));
        let Some(Gathered::Complete(parts)) = Answer::gathered(&result) else { panic!() };
        assert_eq!(parts.len(), 2);
        assert_eq!((&*parts[0].slots, &*parts[0].value), (&[0, 2][..], &b"a"[..]));
        assert_eq!((&*parts[1].slots, &*parts[1].value), (&[1][..], &b"b"[..]));
    }

    #[test]
    fn what_is_dropped_is_counted_until_it_is_read() {
        let (mut gathers, mut account) = (Gathers::default(), Account::new(usize::MAX));
        let alone = Contribution::new(&[0], 1, b"value");
        let mut bring =
            |i: usize| match bring(&mut gathers, &mut account, &format!("{i:09}"), alone) {
                Ok(Brought::Complete { result, .. }) => (result, account.used()),
                other => panic!("{other:?}"),
            };
        let (first, each) = bring(0);
        let most = (1..5000).map(|i| bring(i).1).max().unwrap();
        assert_eq!(most, each * (KEPT + 1) + first.len());
        let dropped = (Arc::strong_count(&first), bring(0).0 == first);
        assert_eq!(dropped, (2, true));
        drop(first);
        bring(5000);
        assert!(bring(5001).1 <= each * (KEPT + 1));
    }

    #[test]
    fn room_is_needed_before_anything_changes() {
        let (mut gathers, mut account) = (Gathers::default(), Account::new(1000));
        let large = vec![0; 1000];
        let mut bring = |mine| bring(&mut gathers, &mut account, "k", mine);
        let full = bring(Contribution::new(&[0], 2, &large));
        assert!(matches!(full, Err(TableError::Full { used: 0, .. })), "{full:?}");
        assert_eq!(bring(Contribution::new(&[0], 2, b"a")), Ok(Brought::Waits));
        assert!(bring(Contribution::new(&[1], 2, &large)).is_err());
        assert_eq!(gathers.missing(b"k"), [1]);
    }
}
