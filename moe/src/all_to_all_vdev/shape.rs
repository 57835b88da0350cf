//! Where rows of each split go: a function of all ranks' splits alone, the same on every backend.
//!
//! A split is the rows that one rank has for another, and for one of that rank's `minor` bins: experts, or
//! one for all. Its index among a rank's splits is by rank then bin, or by bin then rank; what a rank
//! receives is indexed the other way round.

use crate::verdict::Finding;

/// How splits are indexed on either side, and how a rank's output is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub world: usize,
    /// Bins of each rank.
    pub minor: usize,
    /// Whether the input's splits are by bin, then by rank: its rows were dispatched here. Else by rank,
    /// then by bin.
    pub by_bin: bool,
    /// What the rows of a major bin of the output are padded to a multiple of, with one of it for a bin
    /// without rows; 0 for no padding.
    pub align: u64,
}

/// Words of a rank's message before its splits: its capacity, then its [`Finding`].
pub(crate) const HEAD: usize = 4;

impl Shape {
    /// Splits of a rank.
    pub(crate) fn splits(&self) -> usize {
        self.world * self.minor
    }

    /// Words of a rank's message.
    pub(crate) fn words(&self) -> usize {
        HEAD + self.splits()
    }

    /// Index of a split among those of the rank that sends it.
    pub(crate) fn input(&self, target: usize, bin: usize) -> usize {
        if self.by_bin { bin * self.world + target } else { target * self.minor + bin }
    }

    /// Index of a split among those of the rank that receives it.
    pub(crate) fn output(&self, source: usize, bin: usize) -> usize {
        if self.by_bin { source * self.minor + bin } else { bin * self.world + source }
    }

    /// Calls `each` with source, bin, first row and rows of every split that a rank receives, in the order
    /// of its output. How many rows that takes, padding before the last of them included.
    ///
    /// Sums saturate: no output has room for as many.
    pub(crate) fn place(
        &self,
        rows: impl Fn(usize, usize) -> u64,
        mut each: impl FnMut(usize, usize, u64, u64),
    ) -> u64 {
        let (majors, minors) =
            if self.by_bin { (self.world, self.minor) } else { (self.minor, self.world) };
        let (mut at, mut needed) = (0_u64, 0);
        for major in 0..majors {
            let start = at;
            for minor in 0..minors {
                let (source, bin) = if self.by_bin { (major, minor) } else { (minor, major) };
                let count = rows(source, bin);
                each(source, bin, at, count);
                at = at.saturating_add(count);
                if count > 0 {
                    needed = at;
                }
            }
            if self.align > 0 {
                let length = (at - start).max(1).checked_next_multiple_of(self.align);
                at = start.saturating_add(length.unwrap_or(u64::MAX));
            }
        }
        needed
    }
}

/// All ranks' messages: who sends how many rows to whom, and who has room for how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub shape: Shape,
    /// By rank, [`Shape::words`] each.
    pub words: &'a [u64],
}

impl Matrix<'_> {
    fn message(&self, rank: usize) -> &[u64] {
        &self.words[rank * self.shape.words()..][..self.shape.words()]
    }

    pub(crate) fn capacity(&self, rank: usize) -> u64 {
        self.message(rank)[0]
    }

    /// Rows of a split.
    pub(crate) fn rows(&self, source: usize, target: usize, bin: usize) -> u64 {
        self.message(source)[HEAD + self.shape.input(target, bin)]
    }

    /// As [`Shape::place`], of what `target` receives.
    pub(crate) fn place(&self, target: usize, each: impl FnMut(usize, usize, u64, u64)) -> u64 {
        self.shape.place(|source, bin| self.rows(source, target, bin), each)
    }

    /// The rank that the call fails for, and why: of several, the lowest whose own splits are wrong, else
    /// the lowest whose output is too small.
    pub(crate) fn verdict(&self, drops: bool) -> Option<(usize, Finding)> {
        let found = |rank: &usize| {
            let [what, value, limit] = [1, 2, 3].map(|i| self.message(*rank)[i]);
            (what != 0).then_some((*rank, Finding { what, value, limit }))
        };
        let overflows = |rank: usize| {
            let (needed, capacity) = (self.place(rank, |_, _, _, _| {}), self.capacity(rank));
            let finding = Finding::new(Finding::OVERFLOW, 0, needed, capacity);
            (needed > capacity).then_some((rank, finding))
        };
        let ranks = || 0..self.shape.world;
        let own = ranks().find_map(|rank| found(&rank));
        own.or_else(|| if drops { None } else { ranks().find_map(overflows) })
    }
}

/// Checks a rank's own splits, with where the rows of each begin, if that is given; writes its message.
pub(crate) fn message(
    splits: &[i64],
    offsets: Option<&[i64]>,
    input_rows: u64,
    capacity: u64,
    words: &mut [u64],
) {
    let finding = check(splits, offsets, input_rows);
    words[..HEAD].copy_from_slice(&[capacity, finding.what, finding.value, finding.limit]);
    for (word, split) in words[HEAD..].iter_mut().zip(splits) {
        // Of wrong splits none counts.
        *word = if finding.what == 0 { split.cast_unsigned() } else { 0 };
    }
}

fn check(splits: &[i64], offsets: Option<&[i64]>, rows: u64) -> Finding {
    if let Some(at) = splits.iter().position(|split| *split < 0) {
        return Finding::new(Finding::NEGATIVE, at, splits[at].cast_unsigned(), rows);
    }
    let Some(offsets) = offsets else {
        let add = |sum: u64, split: &i64| sum.saturating_add(split.cast_unsigned());
        let needed = splits.iter().fold(0, add);
        let finding = Finding::new(Finding::PAST_INPUT, 0, needed, rows);
        return if needed > rows { finding } else { Finding::default() };
    };
    let end = |at: usize| match u64::try_from(offsets[at]) {
        Ok(offset) => offset.saturating_add(splits[at].cast_unsigned()),
        Err(_) => u64::MAX,
    };
    // Where a split has no rows, its offset means nothing.
    match (0..splits.len()).find(|at| splits[*at] > 0 && end(*at) > rows) {
        Some(at) => Finding::new(Finding::OUTSIDE_INPUT, at, end(at), rows),
        None => Finding::default(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use proptest::prelude::*;

    use super::*;

    const HUGE: i64 = i64::MAX;

    fn shape(world: usize, minor: usize, by_bin: bool, align: u64) -> Shape {
        Shape { world, minor, by_bin, align }
    }

    /// Every rank's message, of splits that are all right.
    fn matrix(shape: Shape, splits: &[Vec<i64>], capacity: u64) -> Vec<u64> {
        let mut words = vec![0; shape.world * shape.words()];
        for (splits, words) in splits.iter().zip(words.chunks_exact_mut(shape.words())) {
            message(splits, None, u64::MAX, capacity, words);
        }
        words
    }

    #[test]
    fn bins_are_padded_and_an_empty_one_is_as_long_as_one() {
        // Two ranks, three experts each; rank 0 receives 3 + 2, nothing, 0 + 8 rows.
        let shape = shape(2, 3, false, 4);
        let rows = [[3, 0, 0], [2, 0, 8]];
        let mut placed = Vec::new();
        let needed = shape.place(
            |source, bin| rows[source][bin],
            |source, bin, at, count| placed.push((shape.output(source, bin), at, count)),
        );
        assert_eq!(placed, [(0, 0, 3), (1, 3, 2), (2, 8, 0), (3, 8, 0), (4, 12, 0), (5, 12, 8)]);
        assert_eq!(needed, 20);
        // Padding after the last row needs no room.
        let needed = shape.place(|source, bin| u64::from(source + bin == 0), |_, _, _, _| {});
        assert_eq!(needed, 1);
    }

    #[test]
    fn without_padding_rows_follow_each_other() {
        let shape = shape(2, 2, true, 0);
        let mut placed = Vec::new();
        let needed = shape.place(
            |source, bin| [[1, 0], [5, 2]][source][bin],
            |source, bin, at, count| placed.push((shape.output(source, bin), at, count)),
        );
        assert_eq!((placed, needed), (vec![(0, 0, 1), (1, 1, 0), (2, 1, 5), (3, 6, 2)], 8));
    }

    #[test]
    fn wrong_splits_are_found_with_their_numbers() {
        let found = |splits: &[i64], offsets, rows| check(splits, offsets, rows);
        assert_eq!(found(&[1, 2, 3], None, 6), Finding::default());
        let negative = Finding::new(Finding::NEGATIVE, 1, (-2_i64).cast_unsigned(), 9);
        assert_eq!(found(&[1, -2], None, 9), negative);
        assert_eq!(found(&[4, 3], None, 6), Finding::new(Finding::PAST_INPUT, 0, 7, 6));
        let huge = Finding::new(Finding::PAST_INPUT, 0, u64::MAX, 6);
        assert_eq!(found(&[HUGE, HUGE, HUGE], None, 6), huge);
        assert_eq!(found(&[2, 0, 4], Some(&[0, 77, 2]), 6), Finding::default());
        let outside = Finding::new(Finding::OUTSIDE_INPUT, 2, 7, 6);
        assert_eq!(found(&[2, 0, 4], Some(&[0, 77, 3]), 6), outside);
        let before = Finding::new(Finding::OUTSIDE_INPUT, 0, u64::MAX, 6);
        assert_eq!(found(&[2], Some(&[-1]), 6), before);
    }

    #[test]
    fn the_verdict_is_the_lowest_ranks() {
        let shape = shape(3, 1, false, 0);
        let splits = [vec![0, 5, 9], vec![0, 0, 0], vec![0, 0, 0]];
        let mut words = matrix(shape, &splits, 4);
        let of = |words: &[u64], drops| Matrix { shape, words }.verdict(drops);
        assert_eq!(of(&words, false), Some((1, Finding::new(Finding::OVERFLOW, 0, 5, 4))));
        assert_eq!(of(&words, true), None);
        // Of rank 2's wrong splits none counts, and they come before any overflow.
        message(&[1, -1, 0], None, 3, 4, &mut words[2 * shape.words()..]);
        let negative = Finding::new(Finding::NEGATIVE, 1, u64::MAX, 3);
        assert_eq!(of(&words, false), Some((2, negative)));
        assert_eq!(of(&words, true), Some((2, negative)));
    }

    #[test]
    fn splits_beyond_64_bits_overflow() {
        let shape = shape(3, 1, false, 8);
        let words = matrix(shape, &[vec![HUGE, 0, 0], vec![HUGE, 0, 0], vec![HUGE, 0, 0]], 4);
        let huge = Finding::new(Finding::OVERFLOW, 0, u64::MAX, 4);
        assert_eq!(Matrix { shape, words: &words }.verdict(false), Some((0, huge)));
    }

    proptest! {
        #[test]
        fn every_split_has_a_place_of_its_own(
            world in 1_usize..9,
            minor in 1_usize..20,
            by_bin: bool,
            align in 0_u64..9,
            seed: u64,
        ) {
            let shape = shape(world, minor, by_bin, align);
            let rows = |source: usize, bin: usize| {
                (seed >> ((source * minor + bin) % 61)) & 7
            };
            let mut seen = vec![false; shape.splits()];
            let (mut end, mut last_bin) = (0, 0);
            let needed = shape.place(rows, |source, bin, at, count| {
                let index = shape.output(source, bin);
                assert!(!core::mem::replace(&mut seen[index], true));
                let major = if by_bin { source } else { bin };
                if align > 0 && major != last_bin {
                    assert!(at.is_multiple_of(align) && at >= end.max(u64::from(major != 0)));
                    last_bin = major;
                } else {
                    assert_eq!(at, end);
                }
                end = at + count;
            });
            prop_assert!(seen.iter().all(|seen| *seen) && needed <= end);
            let mut inputs: Vec<_> =
                (0..world).flat_map(|r| (0..minor).map(move |b| shape.input(r, b))).collect();
            inputs.sort_unstable();
            prop_assert!(inputs.iter().copied().eq(0..shape.splits()));
        }
    }
}
