//! Ranks of a group and sets of them.

use core::fmt;
use smallvec::{SmallVec, smallvec};

/// Identifies the group that a [`Rank`] counts in, within this process.
///
/// Made by the layer that owns groups; two live groups never share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(pub u32);

/// An index in one group: 0 to its size - 1.
///
/// The value carries which group it counts in, so that the global rank of a process cannot pass
/// for its rank in a sub-group: every call that takes a rank compares the scope first. Ranks come
/// from a group (`group.rank_at(2)?`, `group.ranks()`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank {
    index: u32,
    scope: Scope,
}

impl Rank {
    /// For the layer that owns groups: the rank `index` of the group `scope`.
    #[doc(hidden)]
    #[must_use]
    pub const fn in_scope(index: u32, scope: Scope) -> Self {
        Rank { index, scope }
    }

    /// The plain index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// The group it counts in.
    #[must_use]
    pub const fn scope(self) -> Scope {
        self.scope
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.index)
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rank({})", self.index)
    }
}

/// A set of rank indices of one group, for reports: which are missing, lost, late.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct RankSet {
    words: SmallVec<[u64; 2]>,
}

impl RankSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        RankSet::default()
    }

    /// The set of one index.
    #[must_use]
    pub fn one(index: usize) -> Self {
        let mut set = RankSet::new();
        set.insert(index);
        set
    }

    /// All of 0 to `n` - 1.
    #[must_use]
    pub fn first(n: usize) -> Self {
        (0..n).collect()
    }

    /// Adds an index.
    pub fn insert(&mut self, index: usize) {
        let word = index / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (index % 64);
    }

    /// Takes an index out.
    pub fn remove(&mut self, index: usize) {
        if let Some(word) = self.words.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
        }
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    /// Whether an index is in it.
    #[must_use]
    pub fn contains(&self, index: usize) -> bool {
        self.words.get(index / 64).is_some_and(|w| w >> (index % 64) & 1 == 1)
    }

    /// How many are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether none is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    /// The indices, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            (0..64).filter(move |b| word >> b & 1 == 1).map(move |b| i * 64 + b)
        })
    }
}

impl FromIterator<usize> for RankSet {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Self {
        let mut set = RankSet { words: smallvec![] };
        for index in iter {
            set.insert(index);
        }
        set
    }
}

impl fmt::Display for RankSet {
    /// Ranges, as in `0, 2-5, 9`; `none` for the empty set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = self.iter().peekable();
        if items.peek().is_none() {
            return f.write_str("none");
        }
        let mut first = true;
        while let Some(start) = items.next() {
            let mut end = start;
            while items.next_if_eq(&(end + 1)).is_some() {
                end += 1;
            }
            if !first {
                f.write_str(", ")?;
            }
            first = false;
            match end - start {
                0 => write!(f, "{start}")?,
                1 => write!(f, "{start}, {end}")?,
                _ => write!(f, "{start}-{end}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_operations() {
        let mut s: RankSet = [0, 2, 3, 4, 63, 64, 200].into_iter().collect();
        assert_eq!(s.to_string(), "0, 2-4, 63, 64, 200");
        assert_eq!(s.len(), 7);
        assert!(s.contains(200) && !s.contains(199));
        s.remove(200);
        assert_eq!(s, [0, 2, 3, 4, 63, 64].into_iter().collect());
        assert_eq!(RankSet::new().to_string(), "none");
    }
}
