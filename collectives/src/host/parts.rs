//! Where parts lie in memory, and how they are walked.
#![allow(unsafe_code, reason = "copies memory that peers write, which is never behind a reference")]

use super::streaming;

/// Runs of equal length, `stride` apart. The bytes of all runs, one after the other, are its
/// *logical* range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    /// Where logical byte 0 lies. May be out of the memory, where only a later range is.
    pub base: *mut u8,
    pub stride: usize,
}

impl Runs {
    /// Where a logical byte lies, in runs of `row` bytes.
    pub(crate) fn at(self, row: usize, logical: usize) -> *mut u8 {
        if self.stride == row {
            return self.base.wrapping_add(logical);
        }
        self.base.wrapping_add(logical / row * self.stride + logical % row)
    }
}

/// The stretches of the logical bytes `start..start + length` in which no run of `row` bytes ends,
/// as where they begin and their length; all in one where there are no gaps.
pub(crate) fn stretches(
    row: usize,
    has_gaps: bool,
    start: usize,
    length: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let end = start + length;
    let mut at = start;
    core::iter::from_fn(move || {
        let begin = at;
        at = if has_gaps { (begin / row + 1) * row } else { end }.min(end);
        (begin < end).then_some((begin, at - begin))
    })
}

/// Copies the logical bytes `start..start + length`.
///
/// # Safety
///
/// They can be read at `from` and written at `to`, which are apart or the same; nobody writes the
/// former or touches the latter meanwhile, by the protocol of the caller.
pub(crate) unsafe fn copy(from: Runs, to: Runs, row: usize, start: usize, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_by(core::ptr::copy_nonoverlapping, from, to, row, start, length) }
}

/// As [`copy`], past the cache: for more than it holds, so that what is stored is not read first.
///
/// # Safety
///
/// As [`copy`].
pub(crate) unsafe fn stream(from: Runs, to: Runs, row: usize, start: usize, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_by(streaming::copy, from, to, row, start, length) }
}

/// Copies stretch by stretch.
///
/// # Safety
///
/// As [`copy`]; `bytes` copies as much as it is told from one address to another.
unsafe fn copy_by(
    bytes: unsafe fn(*const u8, *mut u8, usize),
    from: Runs,
    to: Runs,
    row: usize,
    start: usize,
    length: usize,
) {
    if core::ptr::eq(from.base, to.base) && from.stride == to.stride {
        return;
    }
    let has_gaps = from.stride != row || to.stride != row;
    for (at, stretch) in stretches(row, has_gaps, start, length) {
        // SAFETY: the caller's promise, for a stretch of the range.
        unsafe { bytes(from.at(row, at).cast_const(), to.at(row, at), stretch) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_end_where_runs_do() {
        let of = |gaps, start, length| stretches(10, gaps, start, length).collect::<Vec<_>>();
        assert_eq!(of(true, 7, 20), [(7, 3), (10, 10), (20, 7)]);
        assert_eq!(of(true, 10, 10), [(10, 10)]);
        assert_eq!(of(true, 3, 2), [(3, 2)]);
        assert_eq!(of(false, 7, 20), [(7, 20)]);
        assert_eq!(of(true, 7, 0), []);
        assert_eq!(of(false, 7, 0), []);
    }

    #[test]
    fn a_copy_leaves_gaps_alone() {
        let mut from: Vec<u8> = (0..50).collect();
        let mut to = [99u8; 40];
        // Rows of 3: ten apart there, five apart here; logical bytes 2 to 9.
        let (a, b) = (
            Runs { base: from.as_mut_ptr(), stride: 10 },
            Runs { base: to.as_mut_ptr(), stride: 5 },
        );
        // SAFETY: the last byte copied is 8: byte 22 of 50, and byte 12 of 40.
        unsafe { copy(a, b, 3, 2, 7) };
        let mut expected = [99u8; 40];
        for (at, value) in [(2, 2), (5, 10), (6, 11), (7, 12), (10, 20), (11, 21), (12, 22)] {
            expected[at] = value;
        }
        assert_eq!(to, expected);
    }
}
