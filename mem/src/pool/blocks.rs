//! Which bytes of a stretch of memory are free.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges of a stretch: best fit, of equals the lowest; neighbours grow together.
///
/// A function of the calls made and of nothing else, so that ranks that make the same calls get the
/// same offsets.
#[derive(Debug)]
pub(crate) struct Blocks {
    size: u64,
    free: u64,
    by_offset: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

impl Blocks {
    /// A stretch of `size` bytes, all free.
    pub(crate) fn new(size: u64) -> Self {
        let mut blocks =
            Blocks { size, free: 0, by_offset: BTreeMap::new(), by_length: BTreeSet::new() };
        blocks.give_back(0, size);
        blocks
    }

    /// The length of the range from which [`take`](Self::take) would cut `length` bytes.
    pub(crate) fn fit(&self, length: u64) -> Option<u64> {
        self.by_length.range((length, 0)..).next().map(|(length, _)| *length)
    }

    /// Cuts `length` bytes, more than none, off a free range; their offset.
    pub(crate) fn take(&mut self, length: u64) -> Option<u64> {
        let (found, offset) = *self.by_length.range((length, 0)..).next()?;
        self.remove(offset, found);
        if found > length {
            self.insert(offset + length, found - length);
        }
        Some(offset)
    }

    /// Makes bytes free that `take` gave.
    pub(crate) fn give_back(&mut self, offset: u64, length: u64) {
        let (mut start, mut end) = (offset, offset + length);
        let before = self.by_offset.range(..start).next_back().map(|(o, l)| (*o, *l));
        if let Some((o, l)) = before
            && o + l == start
        {
            self.remove(o, l);
            start = o;
        }
        if let Some(l) = self.by_offset.get(&end).copied() {
            self.remove(end, l);
            end += l;
        }
        self.insert(start, end - start);
    }

    /// Free bytes.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// All bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The largest range.
    pub(crate) fn largest(&self) -> u64 {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    fn insert(&mut self, offset: u64, length: u64) {
        self.by_offset.insert(offset, length);
        self.by_length.insert((length, offset));
        self.free += length;
    }

    fn remove(&mut self, offset: u64, length: u64) {
        self.by_offset.remove(&offset);
        self.by_length.remove(&(length, offset));
        self.free -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same by a table of bytes.
    struct Model(Vec<bool>);

    impl Model {
        fn holes(&self) -> Vec<(u64, u64)> {
            let mut holes = Vec::new();
            let mut start = None;
            for (i, used) in self.0.iter().chain([&true]).enumerate() {
                match (used, start) {
                    (false, None) => start = Some(i),
                    (true, Some(s)) => {
                        holes.push(((i - s) as u64, s as u64));
                        start = None;
                    }
                    _ => {}
                }
            }
            holes
        }

        fn mark(&mut self, offset: u64, length: u64, used: bool) {
            self.0[offset as usize..(offset + length) as usize].fill(used);
        }
    }

    proptest! {
        #[test]
        fn best_fit_lowest_first_as_a_table_of_bytes_has_it(
            calls in prop::collection::vec((any::<bool>(), 1u64..40, any::<prop::sample::Index>()), 0..200)
        ) {
            let mut blocks = Blocks::new(200);
            let mut model = Model(vec![false; 200]);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (take, length, which) in calls {
                if take || held.is_empty() {
                    let expected = model.holes().into_iter().filter(|(l, _)| *l >= length).min();
                    prop_assert_eq!(blocks.fit(length), expected.map(|(l, _)| l));
                    let found = blocks.take(length);
                    prop_assert_eq!(found, expected.map(|(_, offset)| offset));
                    if let Some(offset) = found {
                        model.mark(offset, length, true);
                        held.push((offset, length));
                    }
                } else {
                    let (offset, length) = held.swap_remove(which.index(held.len()));
                    blocks.give_back(offset, length);
                    model.mark(offset, length, false);
                }
                let free = model.0.iter().filter(|used| !**used).count() as u64;
                prop_assert_eq!(blocks.free(), free);
            }
            for (offset, length) in held {
                blocks.give_back(offset, length);
            }
            prop_assert_eq!(blocks.fit(200), Some(200));
        }
    }
}
