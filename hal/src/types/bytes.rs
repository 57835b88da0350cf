//! Byte counts and offsets.

use core::fmt;

/// A number of bytes, or a byte offset from the start of something.
///
/// A newtype so that elements and bytes cannot be confused; arithmetic is checked and
/// overflow is `None`, never a wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// `n` bytes.
    #[must_use]
    pub const fn new(n: u64) -> Self {
        Bytes(n)
    }

    /// Kibibytes; at most `u64::MAX` bytes.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Bytes(n.saturating_mul(1 << 10))
    }

    /// Mebibytes; at most `u64::MAX` bytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Bytes(n.saturating_mul(1 << 20))
    }

    /// The bytes of `count` elements of `size` bytes each, `None` on overflow.
    #[must_use]
    pub const fn of(count: u64, size: u64) -> Option<Self> {
        match count.checked_mul(size) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// As `usize`; `None` where the address space is too small for it.
    #[must_use]
    pub fn to_usize(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }

    /// Sum, `None` on overflow.
    #[must_use]
    pub const fn checked_add(self, other: Bytes) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }

    /// Rounds up to a multiple of `align`; `None` on overflow, or where `align` is 0.
    #[must_use]
    pub const fn round_up(self, align: u64) -> Option<Self> {
        if align == 0 {
            return None;
        }
        match self.0.checked_next_multiple_of(align) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }
}

impl From<usize> for Bytes {
    fn from(n: usize) -> Self {
        Bytes(n as u64)
    }
}

impl fmt::Display for Bytes {
    /// Exact bytes below 1 KiB and wherever a binary unit would round; else the unit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        for (size, unit) in UNITS {
            if self.0 >= size && self.0.is_multiple_of(size) {
                return write!(f, "{} {unit}", self.0 / size);
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_exact() {
        for (n, text) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1025, "1025 B"), (3 << 20, "3 MiB")]
        {
            assert_eq!(Bytes(n).to_string(), text);
        }
    }

    #[test]
    fn overflow_is_none() {
        assert_eq!(Bytes::of(u64::MAX, 2), None);
        assert_eq!(Bytes(u64::MAX).checked_add(Bytes(1)), None);
        assert_eq!(Bytes(u64::MAX).round_up(128), None);
        assert_eq!(Bytes(129).round_up(128), Some(Bytes(256)));
    }
}
