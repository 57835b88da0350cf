//! The number of an operation on a lane.

use core::fmt;

/// The number of an operation on a lane, the same on every rank.
///
/// 31 bits, from 2 to 2^31 - 1: bit 31 is free for the busy bit of an epoch copy, and 0 and 1 are
/// never an epoch, so that zeroed memory holds none. After 2^31 - 1 comes 2, which keeps parities
/// alternating across the wrap.
///
/// Epochs have no order. A word is compared for equality with the epoch awaited or with its
/// successor; that ranks are never further apart is what the lane protocol guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(u32);

/// Which of the two rotating buffers an epoch uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Parity {
    /// Of even epochs.
    Even = 0,
    /// Of odd epochs.
    Odd = 1,
}

impl Parity {
    /// Both.
    pub const BOTH: [Parity; 2] = [Parity::Even, Parity::Odd];

    /// 0 or 1.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl Epoch {
    /// The smallest value, which follows [`MAX`](Self::MAX).
    pub const MIN: Epoch = Epoch(2);

    /// The largest value.
    pub const MAX: Epoch = Epoch(0x7fff_ffff);

    /// What a fresh lane is initialised with, as if it had completed. The four epochs from
    /// [`MIN`](Self::MIN) on are behind it, so that the first operations of a lane do not pay for
    /// the [scrub](Self::scrub_due) of memory that nobody wrote yet.
    pub const FRESH: Epoch = Epoch(4);

    /// The first operation of a fresh lane.
    pub const FIRST: Epoch = Epoch(5);

    /// The middle of the range, where the second scrub of a cycle begins.
    pub const MIDDLE: Epoch = Epoch(1 << 30);

    /// The epoch of these bits; `None` below 2 and above 2^31 - 1.
    #[must_use]
    pub const fn new(bits: u32) -> Option<Self> {
        if bits >= Self::MIN.0 && bits <= Self::MAX.0 { Some(Epoch(bits)) } else { None }
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        if self.0 == Self::MAX.0 { Self::MIN } else { Epoch(self.0 + 1) }
    }

    /// The epoch before this one.
    #[must_use]
    pub const fn previous(self) -> Self {
        if self.0 == Self::MIN.0 { Self::MAX } else { Epoch(self.0 - 1) }
    }

    /// Which of the two rotating buffers this epoch uses: never that of its neighbours.
    #[must_use]
    pub const fn parity(self) -> Parity {
        if self.0.is_multiple_of(2) { Parity::Even } else { Parity::Odd }
    }

    /// Whether the operation of this epoch clears what earlier epochs left in its buffers: the
    /// two operations, one of each parity, that begin each half of the range.
    ///
    /// One scrub in a cycle would leave the words that the scrubbing operation itself wrote: they
    /// would meet their own epoch again before the next scrub. Two leave nothing that old.
    #[must_use]
    pub const fn scrub_due(self) -> bool {
        matches!(self.0 & !1, 2 | 0x4000_0000)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parity_alternates_across_the_wrap() {
        for e in [Epoch::MIN, Epoch::FIRST, Epoch::MIDDLE, Epoch::MAX, Epoch::MAX.previous()] {
            assert_ne!(e.parity(), e.next().parity(), "{e}");
            assert_eq!(e.next().previous(), e);
            assert_eq!(e.previous().next(), e);
        }
        assert_eq!(Epoch::MAX.next(), Epoch::MIN);
    }

    #[test]
    fn only_31_bits_from_2_are_epochs() {
        for bits in [0, 1, 1 << 31, (1 << 31) + 5, u32::MAX] {
            assert_eq!(Epoch::new(bits), None);
        }
        for bits in [2, 3, 0x7fff_ffff] {
            assert_eq!(Epoch::new(bits).unwrap().get(), bits);
        }
    }

    #[test]
    fn each_half_begins_with_a_scrub_of_both_parities() {
        for start in [Epoch::MIN, Epoch::MIDDLE] {
            assert!(!start.previous().scrub_due());
            assert!(start.scrub_due() && start.next().scrub_due());
            assert!(!start.next().next().scrub_due());
        }
        assert!(!Epoch::FRESH.scrub_due() && !Epoch::FIRST.scrub_due());
        assert_eq!(Epoch::FRESH.next(), Epoch::FIRST);
    }
}
