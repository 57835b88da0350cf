//! What every rank says of its call before anybody believes its data.

use super::{Epoch, Word64, packet};
use core::fmt;

/// The words of a header: two packets, one aligned 32-byte sector.
pub const HEADER_WORDS: usize = 4;

/// What a rank is doing in an epoch. Blocks of equal index compare theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// The call: operation, count, type, operator, root, algorithm, grid, memory, origin.
    pub signature: u64,
    /// Which issue of it: operations issued on the lane, or 2^63 + runs of a replayed node.
    pub issue: u64,
}

impl Header {
    /// Compares this rank's header with a peer's.
    ///
    /// # Errors
    ///
    /// [`Difference`] with both, when the ranks are not doing the same.
    pub fn compare(self, theirs: Header) -> Result<(), Difference> {
        if self == theirs { Ok(()) } else { Err(Difference { mine: self, theirs }) }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}#{:#x}", self.signature, self.issue)
    }
}

/// Two headers of one epoch that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// This rank's.
    pub mine: Header,
    /// The peer's.
    pub theirs: Header,
}

/// Publishes a header. Everything the caller did before happens before a [`poll`] that sees it.
///
/// Only the last word is a release: a reader that finds it has the edge, and the others carry
/// their own proof.
pub fn publish<W: Word64>(slot: &[W; HEADER_WORDS], header: Header, epoch: Epoch) {
    let [a, b] = packet::encode(header.signature, epoch);
    let [c, d] = packet::encode(header.issue, epoch);
    slot[0].store_relaxed(a);
    slot[1].store_relaxed(b);
    slot[2].store_relaxed(c);
    slot[3].store_release(d);
}

/// The header in a slot, once all of it is of `epoch`.
#[must_use]
pub fn poll<W: Word64>(slot: &[W; HEADER_WORDS], epoch: Epoch) -> Option<Header> {
    let last = slot[3].load_acquire();
    packet::unstamp(last, epoch)?;
    let issue = packet::decode([slot[2].load_relaxed(), last], epoch)?;
    let signature = packet::decode([slot[0].load_relaxed(), slot[1].load_relaxed()], epoch)?;
    Some(Header { signature, issue })
}

/// Whether a slot holds a header of `epoch`, or of the next operation that uses the slot.
///
/// For a wait that needs to know how far the writer has come, not what it did.
#[must_use]
pub fn reached<W: Word64>(slot: &[W; HEADER_WORDS], epoch: Epoch) -> bool {
    let last = slot[3].load_acquire();
    packet::unstamp(last, epoch).is_some() || packet::unstamp(last, epoch.next().next()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Word;
    use core::sync::atomic::AtomicU64;

    const HEADER: Header = Header { signature: 0xfeed_0000_0000_beef, issue: 1 << 63 | 7 };

    #[test]
    fn a_header_is_seen_whole_or_not_at_all() {
        let e = Epoch::MIDDLE;
        for missing in 0..HEADER_WORDS {
            let slot = [0u64; HEADER_WORDS].map(AtomicU64::new);
            publish(&slot, HEADER, e);
            assert_eq!(poll(&slot, e), Some(HEADER));
            slot[missing].store_relaxed(packet::stamp(0, e.previous()));
            assert_eq!(poll(&slot, e), None, "word {missing}");
        }
    }

    #[test]
    fn reached_knows_the_epoch_and_the_next_of_its_parity() {
        let slot = [0u64; HEADER_WORDS].map(AtomicU64::new);
        publish(&slot, HEADER, Epoch::MIN);
        assert!(reached(&slot, Epoch::MIN));
        assert!(reached(&slot, Epoch::MAX.previous()));
        assert!(!reached(&slot, Epoch::MAX));
        assert!(!reached(&slot, Epoch::MIN.next()));
    }

    #[test]
    fn a_difference_names_both() {
        let theirs = Header { issue: 8, ..HEADER };
        assert_eq!(HEADER.compare(HEADER), Ok(()));
        assert_eq!(HEADER.compare(theirs), Err(Difference { mine: HEADER, theirs }));
    }
}
