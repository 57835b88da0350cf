//! Who has which expert, and where each routed row goes: functions of all ranks' counts alone, the same on
//! every backend.
//!
//! A *bin* is what rows are counted for: an expert, or where rows lie by rank a target rank. A rank's counts
//! say how many rows it has for each bin of each rank.

use crate::verdict::Finding;

/// How the rows that a rank receives lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// The rows of each local expert together, in the order of experts, a row for each choice of a token;
    /// an expert's begin at a multiple of `align` rows, and one that has none counts as long as one
    /// multiple. 0 for neither. Within an expert by source rank, then token, then choice.
    Compact {
        /// In rows.
        align: u64,
    },
    /// The same, with room for as many rows for each local expert, wherever the one before ends.
    Padded {
        /// Rows for each expert.
        rows: u64,
    },
    /// One row for each token that has chosen any expert of this rank, by source rank, each of which has room
    /// for as many tokens as a rank may have.
    RankMajor,
}

/// What a routing is made for: equal on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub world: usize,
    pub experts: usize,
    pub choices: usize,
    /// Most tokens of a rank.
    pub tokens: u64,
    /// Rows that a rank has room for.
    pub capacity: u64,
    pub layout: Layout,
}

/// Words of a rank's message before its counts: its tokens, then its [`Finding`].
pub(crate) const HEAD: usize = 4;

impl Shape {
    /// The first expert of a rank, or one past the last of the rank before.
    pub(crate) fn first(&self, rank: usize) -> usize {
        // Of fewer experts than ranks some ranks have none.
        (rank as u128 * self.experts as u128 / self.world as u128) as usize
    }

    pub(crate) fn owner(&self, expert: usize) -> usize {
        (((expert as u128 + 1) * self.world as u128 - 1) / self.experts as u128) as usize
    }

    pub(crate) fn is_by_rank(&self) -> bool {
        self.layout == Layout::RankMajor
    }

    /// Bins of all ranks.
    pub(crate) fn bins(&self) -> usize {
        if self.is_by_rank() { self.world } else { self.experts }
    }

    /// The bin of a choice.
    pub(crate) fn bin(&self, expert: usize) -> usize {
        if self.is_by_rank() { self.owner(expert) } else { expert }
    }

    /// The bins of a rank.
    pub(crate) fn bins_of(&self, rank: usize) -> core::ops::Range<usize> {
        match self.layout {
            Layout::RankMajor => rank..rank + 1,
            _ => self.first(rank)..self.first(rank + 1),
        }
    }

    pub(crate) fn words(&self) -> usize {
        HEAD + self.bins()
    }

    /// What a rank is told of what it received: of each local expert, or of each source.
    pub(crate) fn groups(&self) -> usize {
        if self.is_by_rank() { self.world } else { self.experts.div_ceil(self.world) }
    }

    /// Calls `each` with bin, source, the first row and one past the last that there is room for, and rows, in
    /// the order of `target`'s output. The largest need of rows beyond what there is room for, with that
    /// room, if there is any.
    pub(crate) fn place(
        &self,
        target: usize,
        rows: impl Fn(usize, usize) -> u64,
        mut each: impl FnMut(Placed),
    ) -> Option<(u64, u64)> {
        let bins = self.bins_of(target);
        let (mut at, mut over) = (0_u64, None);
        for bin in bins.clone() {
            let (start, mut end, room) = match self.layout {
                Layout::Compact { .. } => (at, self.capacity, self.capacity),
                Layout::Padded { rows } => {
                    let start = (bin - bins.start) as u64 * rows;
                    (start, start + rows, rows)
                }
                Layout::RankMajor => (0, self.tokens, self.tokens),
            };
            at = start;
            // Where a bin has no rows, it needs none, wherever it begins.
            let mut last = 0;
            for source in 0..self.world {
                let count = rows(source, bin);
                if self.is_by_rank() {
                    at = source as u64 * self.tokens;
                    end = at + self.tokens;
                }
                each(Placed { bin, source, at, end, rows: count });
                at = at.saturating_add(count);
                if count > 0 {
                    last = at;
                }
            }
            let needed = match self.layout {
                Layout::Compact { .. } => last,
                _ => last.saturating_sub(start),
            };
            // A rank never has more tokens than there is room for.
            if !self.is_by_rank() && needed > room && over.is_none_or(|(most, _)| needed > most) {
                over = Some((needed, room));
            }
            if let Layout::Compact { align: align @ 1.. } = self.layout {
                let length = (at - start).max(1).checked_next_multiple_of(align);
                at = start.saturating_add(length.unwrap_or(u64::MAX));
            }
        }
        over
    }
}

/// The rows that one rank has for one bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub bin: usize,
    pub source: usize,
    /// The first.
    pub at: u64,
    /// One past the last row that the bin has room for.
    pub end: u64,
    pub rows: u64,
}

impl Placed {
    /// Rows that there is room for.
    pub(crate) fn kept(&self) -> u64 {
        self.rows.min(self.end.saturating_sub(self.at))
    }
}

/// All ranks' messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts<'a> {
    pub shape: Shape,
    /// By rank, [`Shape::words`] each.
    pub words: &'a [u64],
}

impl Counts<'_> {
    fn message(&self, rank: usize) -> &[u64] {
        &self.words[rank * self.shape.words()..][..self.shape.words()]
    }

    /// Tokens of a rank.
    pub(crate) fn tokens(&self, source: usize) -> u64 {
        self.message(source)[0]
    }

    pub(crate) fn rows(&self, source: usize, bin: usize) -> u64 {
        self.message(source)[HEAD + bin]
    }

    /// As [`Shape::place`].
    pub(crate) fn place(&self, target: usize, each: impl FnMut(Placed)) -> Option<(u64, u64)> {
        self.shape.place(target, |source, bin| self.rows(source, bin), each)
    }

    /// The rank that the call fails for, and why: of several, the lowest whose own tokens are wrong, else the
    /// lowest whose output is too small.
    pub(crate) fn verdict(&self, drops: bool) -> Option<(usize, Finding)> {
        let ranks = || 0..self.shape.world;
        let own = ranks().find_map(|rank| {
            let [what, value, limit] = [1, 2, 3].map(|i| self.message(rank)[i]);
            (what != 0).then_some((rank, Finding { what, value, limit }))
        });
        let overflows = |rank: usize| {
            let (needed, room) = self.place(rank, |_| {})?;
            Some((rank, Finding::new(Finding::OVERFLOW, 0, needed, room)))
        };
        own.or_else(|| if drops { None } else { ranks().find_map(overflows) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use proptest::prelude::*;

    use super::*;

    fn shape(world: usize, experts: usize, layout: Layout) -> Shape {
        Shape { world, experts, choices: 2, tokens: 8, capacity: 20, layout }
    }

    proptest! {
        #[test]
        fn every_expert_has_one_owner(world in 1_usize..41, experts in 1_usize..258) {
            let shape = shape(world, experts, Layout::Compact { align: 0 });
            for expert in 0..experts {
                prop_assert!(shape.bins_of(shape.owner(expert)).contains(&expert));
            }
            let lengths = || (0..world).map(|rank| shape.bins_of(rank).len());
            prop_assert_eq!(lengths().sum::<usize>(), experts);
            prop_assert!(lengths().max().unwrap() <= shape.groups());
            prop_assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1);
        }
    }

    /// What `rows` by source and bin become on `target`.
    fn placed(shape: Shape, target: usize, rows: &[&[u64]]) -> (Vec<Placed>, Option<(u64, u64)>) {
        let mut all = Vec::new();
        let over = shape.place(target, |source, bin| rows[source][bin], |placed| all.push(placed));
        (all, over)
    }

    #[test]
    fn compact_bins_follow_each_other_padded_as_asked() {
        let rows: &[&[u64]] = &[&[9, 3, 0, 1], &[9, 2, 0, 0]];
        let at = |layout| {
            let (all, over) = placed(shape(2, 4, layout), 1, rows);
            (all.iter().map(|p| (p.bin, p.source, p.at, p.rows)).collect::<Vec<_>>(), over)
        };
        let rows = [(2, 0, 0, 0), (2, 1, 0, 0), (3, 0, 0, 1), (3, 1, 1, 0)];
        assert_eq!(at(Layout::Compact { align: 0 }), (rows.to_vec(), None));
        let rows = [(2, 0, 0, 0), (2, 1, 0, 0), (3, 0, 4, 1), (3, 1, 5, 0)];
        assert_eq!(at(Layout::Compact { align: 4 }), (rows.to_vec(), None));
        // A bin without rows may begin past the end.
        let few = Shape { capacity: 5, ..shape(1, 4, Layout::Compact { align: 4 }) };
        assert_eq!(placed(few, 0, &[&[5, 0, 0, 0]]).1, None);
    }

    #[test]
    fn a_bin_with_too_many_rows_says_how_many() {
        let rows: &[&[u64]] = &[&[7, 12], &[4, 0]];
        let of = |layout| placed(shape(1, 2, layout), 0, &rows[..1]);
        let (all, over) = of(Layout::Padded { rows: 8 });
        assert_eq!(over, Some((12, 8)));
        assert_eq!(all.iter().map(Placed::kept).collect::<Vec<_>>(), [7, 8]);
        let compact = shape(2, 2, Layout::Compact { align: 0 });
        assert_eq!(placed(compact, 1, rows).1, None);
        let small = Shape { capacity: 10, ..compact };
        let (all, over) = placed(small, 0, rows);
        assert_eq!((over, all[1].kept()), (Some((11, 10)), 3));
    }

    #[test]
    fn by_rank_every_source_has_a_place() {
        let (all, over) = placed(shape(2, 5, Layout::RankMajor), 1, &[&[8, 3], &[1, 8]]);
        let of = |source, at, rows| Placed { bin: 1, source, at, end: at + 8, rows };
        assert_eq!((all, over), (vec![of(0, 0, 3), of(1, 8, 8)], None));
    }
}
