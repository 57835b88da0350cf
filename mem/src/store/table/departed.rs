//! Keys that were there and are no more, as long as a wait may ask.
//!
//! A wait for several keys ends once each has been there since it began, even if one of them was
//! deleted before another came: so it is with PyTorch's servers. To know that of a key that is gone
//! without an entry for each wait and key, the time of its going is kept until all older waits have
//! ended.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// The most bytes kept, book-keeping included. Beyond it the oldest are forgotten: a wait for one of
/// those goes on until the key comes again.
const MOST: usize = 16 << 20;

const ENTRY: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Departed {
    /// Goes on by one with each key that goes.
    clock: u64,
    /// When each key went last.
    times: HashMap<Box<[u8]>, u64>,
    /// All goings in their order.
    order: VecDeque<(u64, Box<[u8]>)>,
    bytes: usize,
    /// When the waits in progress began, and how many then.
    waits: BTreeMap<u64, usize>,
}

impl Departed {
    /// A wait begins; gives the time of it.
    pub fn begin(&mut self) -> u64 {
        *self.waits.entry(self.clock).or_default() += 1;
        self.clock
    }

    /// A wait that began at that time ends.
    pub fn end(&mut self, began: u64) {
        if let Some(waits) = self.waits.get_mut(&began) {
            *waits -= 1;
            if *waits == 0 {
                self.waits.remove(&began);
            }
        }
        let oldest = self.waits.keys().next().copied().unwrap_or(u64::MAX);
        while self.order.front().is_some_and(|(time, _)| *time <= oldest) {
            self.drop_first();
        }
    }

    pub fn add(&mut self, key: &[u8]) {
        self.clock += 1;
        if self.waits.is_empty() {
            return;
        }
        self.times.insert(key.into(), self.clock);
        self.order.push_back((self.clock, key.into()));
        self.bytes += ENTRY + 2 * key.len();
        while self.bytes > MOST {
            self.drop_first();
        }
    }

    pub fn since(&self, key: &[u8], since: u64) -> bool {
        self.times.get(key).is_some_and(|time| *time > since)
    }

    fn drop_first(&mut self) {
        let Some((time, key)) = self.order.pop_front() else { return };
        self.bytes -= ENTRY + 2 * key.len();
        if self.times.get(&key) == Some(&time) {
            self.times.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_to_those_who_began_before_it_went() {
        let mut departed = Departed::default();
        departed.add(b"before");
        let since = departed.begin();
        departed.add(b"k");
        let later = departed.begin();
        assert_eq!(departed.begin(), later);
        assert!(departed.since(b"k", since) && !departed.since(b"k", later));
        assert!(!departed.since(b"before", 0) && !departed.since(b"other", 0));
        departed.add(b"k");
        departed.end(since);
        departed.end(later);
        assert!(departed.since(b"k", later));
        departed.end(later);
        assert!(!departed.since(b"k", 0));
        assert_eq!((departed.bytes, departed.order.len(), departed.times.len()), (0, 0, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut departed = Departed::default();
        departed.begin();
        let key = |i: usize| format!("{i:08192}").into_bytes();
        (0..5000).for_each(|i| departed.add(&key(i)));
        assert!(departed.bytes <= MOST && departed.order.len() == departed.times.len());
        assert!(departed.since(&key(4999), 0) && !departed.since(&key(0), 0));
    }
}
