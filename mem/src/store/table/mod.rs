//! The keys, values, queues and gathers themselves, and what the operations mean. No waiting, no
//! limits on single keys or values; both stores are built on it.

mod account;
mod departed;
mod gathers;

use std::collections::{HashMap, VecDeque};

use thiserror::Error;

use account::Account;
use departed::Departed;
use gathers::Gathers;

pub(super) use gathers::Brought;

use super::gather::{Contribution, GatherFault};

#[derive(Debug)]
pub(super) struct Table {
    values: HashMap<Box<[u8]>, Vec<u8>>,
    /// None of them empty.
    queues: HashMap<Box<[u8]>, VecDeque<Box<[u8]>>>,
    gathers: Gathers,
    departed: Departed,
    account: Account,
    most_keys: usize,
}

/// Why a table did not change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum TableError {
    // Without the value, for the sake of the server's log: it may be a secret.
    #[error("the value that is to be added to is not a decimal number of 64 bits")]
    NotANumber { found: String },
    #[error("adding {amount} to {stored} leaves 64 bits")]
    Overflow { stored: i64, amount: i64 },
    #[error(
        "storing {needed} bytes more than the {used} held is over the limit of {capacity} (ServerLimits::stored)"
    )]
    Full { needed: usize, used: usize, capacity: usize },
    #[error("a key beside the {limit} held is over the limit of {limit} keys (ServerLimits::keys)")]
    Keys { limit: usize },
    #[error("{0}")]
    Gather(GatherFault),
}

/// What an entry takes besides its bytes: two boxed slices, the map's share, allocator's slack.
const ENTRY: usize = 96;

/// What a value in a queue takes besides its bytes.
const QUEUED: usize = 32;

impl Table {
    /// A table of at most so many keys, and `capacity` bytes, keys and book-keeping included.
    pub fn new(most_keys: usize, capacity: usize) -> Self {
        Table {
            values: HashMap::new(),
            queues: HashMap::new(),
            gathers: Gathers::default(),
            departed: Departed::default(),
            account: Account::new(capacity),
            most_keys,
        }
    }

    /// How many keys have a value.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn used(&self) -> usize {
        self.account.used()
    }

    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    /// The keys that have a value, in no order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.values.keys().map(|key| &**key)
    }

    /// Whether there is a value, or anything in the queue.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    /// A wait begins, which may ask what it has [seen](Self::seen); gives the time of it.
    pub fn begin(&mut self) -> u64 {
        self.departed.begin()
    }

    /// A wait that began at that time ends.
    pub fn end(&mut self, began: u64) {
        self.departed.end(began);
    }

    /// Whether the key is there, or was at some time after `since`.
    pub fn seen(&self, key: &[u8], since: u64) -> bool {
        self.contains(key) || self.departed.since(key, since)
    }

    /// Whether one key more may be stored.
    fn room_for_a_key(&self) -> Result<(), TableError> {
        let (held, limit) =
            (self.values.len() + self.queues.len() + self.gathers.len(), self.most_keys);
        if held >= limit { Err(TableError::Keys { limit }) } else { Ok(()) }
    }

    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        match self.values.get_mut(key) {
            Some(slot) => {
                self.account.exchange(slot.len(), value.len())?;
                *slot = value.to_vec();
            }
            None => {
                self.room_for_a_key()?;
                self.account.exchange(0, ENTRY + key.len() + value.len())?;
                self.values.insert(key.into(), value.to_vec());
            }
        }
        Ok(())
    }

    /// All of them or, where there is no room, none.
    pub fn set_all(&mut self, entries: &[(&[u8], &[u8])]) -> Result<(), TableError> {
        // As if each were new: what fits so fits.
        let bytes = entries.iter().map(|(key, value)| ENTRY + key.len() + value.len()).sum();
        let new = entries.iter().filter(|(key, _)| !self.values.contains_key(*key)).count();
        let held = self.values.len() + self.queues.len() + self.gathers.len();
        if new > self.most_keys.saturating_sub(held) {
            return Err(TableError::Keys { limit: self.most_keys });
        }
        self.account.has_room(bytes)?;
        entries.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    pub fn append(&mut self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        match self.values.get_mut(key) {
            Some(slot) => {
                self.account.exchange(0, value.len())?;
                slot.extend_from_slice(value);
                Ok(())
            }
            None => self.set(key, value),
        }
    }

    /// Whether there was a value.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.account.free(ENTRY + key.len() + value.len());
        if !self.queues.contains_key(key) {
            self.departed.add(key);
        }
        true
    }

    /// The value afterwards; `None` if there is none, which is so only if `expected` is not empty.
    pub fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Option<&[u8]>, TableError> {
        let equal = match self.get(key) {
            Some(value) => value == expected,
            None => expected.is_empty(),
        };
        if equal {
            self.set(key, desired)?;
        }
        Ok(self.get(key))
    }

    /// The number under a key, absent being 0.
    pub fn number(&self, key: &[u8]) -> Result<i64, TableError> {
        self.get(key).map_or(Ok(0), parse)
    }

    pub fn add(&mut self, key: &[u8], amount: i64) -> Result<i64, TableError> {
        let stored = self.number(key)?;
        let sum = stored.checked_add(amount).ok_or(TableError::Overflow { stored, amount })?;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        let needed = QUEUED + value.len();
        match self.queues.get_mut(key) {
            Some(queue) => {
                self.account.exchange(0, needed)?;
                queue.push_back(value.into());
            }
            None => {
                self.room_for_a_key()?;
                self.account.exchange(0, ENTRY + key.len() + needed)?;
                self.queues.insert(key.into(), VecDeque::from([value.into()]));
            }
        }
        Ok(())
    }

    /// The first value of a queue.
    pub fn front(&self, key: &[u8]) -> Option<&[u8]> {
        self.queues.get(key)?.front().map(|value| &**value)
    }

    /// Takes the first value of a queue away.
    pub fn pop(&mut self, key: &[u8]) -> Option<Box<[u8]>> {
        let queue = self.queues.get_mut(key)?;
        let value = queue.pop_front()?;
        self.account.free(QUEUED + value.len());
        if queue.is_empty() {
            self.queues.remove(key);
            self.account.free(ENTRY + key.len());
            if !self.values.contains_key(key) {
                self.departed.add(key);
            }
        }
        Some(value)
    }

    pub fn queue_len(&self, key: &[u8]) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    /// Brings a contribution to a gather.
    pub fn bring(&mut self, key: &[u8], mine: &Contribution<'_>) -> Result<Brought, TableError> {
        if !self.gathers.contains(key) {
            self.room_for_a_key()?;
        }
        self.gathers.bring(key, mine, &mut self.account)
    }

    /// The slots of a gather that nobody covers.
    pub fn missing(&self, key: &[u8]) -> Vec<u32> {
        self.gathers.missing(key)
    }
}

fn parse(value: &[u8]) -> Result<i64, TableError> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
        let found = String::from_utf8_lossy(value).chars().take(32).collect();
        TableError::NotANumber { found }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn capacity_holds_at_its_edge() {
        let mut table = Table::new(usize::MAX, ENTRY + 10);
        let full = |needed, used| Err(TableError::Full { needed, used, capacity: ENTRY + 10 });
        assert_eq!(table.set(b"k", &[0; 10]), full(ENTRY + 11, 0));
        assert_eq!(table.set(b"k", &[0; 9]), Ok(()));
        assert_eq!(table.set(b"k", &[1; 10]), full(10, ENTRY + 1));
        assert_eq!(table.get(b"k"), Some(&[0; 9][..]));
        assert_eq!(table.set(b"k", &[]), Ok(()));
        assert_eq!(table.set(b"l", &[]), full(ENTRY + 1, ENTRY + 1));
        assert_eq!((table.used(), table.len()), (ENTRY + 1, 1));
    }

    #[test]
    fn keys_are_counted() {
        let mut table = Table::new(2, usize::MAX);
        assert_eq!((table.set(b"a", b""), table.add(b"b", 1)), (Ok(()), Ok(1)));
        let full = TableError::Keys { limit: 2 };
        assert_eq!(table.set(b"c", b""), Err(full.clone()));
        assert_eq!(table.compare_set(b"c", b"", b"1"), Err(full.clone()));
        assert_eq!(table.add(b"c", 1), Err(full));
        // Those that are there can change.
        assert_eq!((table.set(b"a", b"long"), table.add(b"b", 1)), (Ok(()), Ok(2)));
    }

    #[test]
    fn add_reads_text_and_refuses_the_rest() {
        let mut table = Table::new(usize::MAX, usize::MAX);
        assert_eq!(table.add(b"n", -3), Ok(-3));
        assert_eq!(table.get(b"n"), Some(&b"-3"[..]));
        table.set(b"n", b" +40 ").unwrap();
        assert_eq!(table.add(b"n", 2), Ok(42));
        for text in ["", "x", "1x", "9223372036854775808"] {
            table.set(b"n", text.as_bytes()).unwrap();
            assert_eq!(table.add(b"n", 0), Err(TableError::NotANumber { found: text.into() }));
        }
        table.set(b"n", i64::MAX.to_string().as_bytes()).unwrap();
        let overflow = TableError::Overflow { stored: i64::MAX, amount: 1 };
        assert_eq!(table.add(b"n", 1), Err(overflow));
        assert_eq!(table.add(b"n", i64::MIN), Ok(-1));
    }

    proptest! {
        /// Against a plain list of pairs.
        #[test]
        fn agrees_with_a_list(steps in proptest::collection::vec((0..2u8, 0..3u8, 0..3u8, 0..3u8), 0..40)) {
            let mut table = Table::new(usize::MAX, usize::MAX);
            let mut list: Vec<(u8, Vec<u8>)> = Vec::new();
            let text = |n: u8| if n == 0 { Vec::new() } else { vec![n] };
            for (op, key, a, b) in steps {
                let (first, second) = (text(a), text(b));
                let at = list.iter().position(|(k, _)| *k == key);
                if op == 0 {
                    table.set(&[key], &first).unwrap();
                    match at {
                        Some(i) => list[i].1 = first,
                        None => list.push((key, first)),
                    }
                } else {
                    match at {
                        Some(i) if list[i].1 == first => list[i].1 = second.clone(),
                        None if a == 0 => list.push((key, second.clone())),
                        _ => {}
                    }
                    let now = list.iter().find(|(k, _)| *k == key).map(|(_, v)| v.as_slice());
                    prop_assert_eq!(table.compare_set(&[key], &first, &second).unwrap(), now);
                }
            }
            prop_assert_eq!(table.len(), list.len());
            let bytes: usize = list.iter().map(|(_, v)| ENTRY + 1 + v.len()).sum();
            prop_assert_eq!(table.used(), bytes);
        }
    }
}
