//! User signals: a slot is empty or full.
//!
//! A slot has one writer in each state: the sender while it is empty, the receiver while it is
//! full. So no read-modify-write is needed, and kernels that use compare-and-swap on the same
//! words interoperate, provided that at most one put and one wait of a slot is in flight.

use super::Word32;

/// An empty slot.
pub const EMPTY: u32 = 0;
/// A full slot.
pub const FULL: u32 = 1;

/// Fills a slot if it is empty; true once it has. Everything the sender did before happens before
/// the [`poll_wait`] that empties it.
#[must_use]
pub fn poll_put<W: Word32>(slot: &W) -> bool {
    poll_put_after(slot, || ())
}

/// As [`poll_put`], with what the signal announces stored by `before`, once the slot is empty: what
/// the signal before it announced is not touched while that signal has not been taken.
#[must_use]
pub fn poll_put_after<W: Word32>(slot: &W, before: impl FnOnce()) -> bool {
    let empty = slot.load_acquire() == EMPTY;
    if empty {
        before();
        slot.store_release(FULL);
    }
    empty
}

/// Empties a slot if it is full; true once it has.
#[must_use]
pub fn poll_wait<W: Word32>(slot: &W) -> bool {
    poll_wait_before(slot, || ())
}

/// As [`poll_wait`], with what its receiver does by `before` while the slot is still full: its sender
/// cannot put another.
#[must_use]
pub fn poll_wait_before<W: Word32>(slot: &W, before: impl FnOnce()) -> bool {
    let full = slot.load_acquire() == FULL;
    if full {
        before();
        slot.store_release(EMPTY);
    }
    full
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;

    #[test]
    fn put_and_wait_alternate() {
        let slot = AtomicU32::new(EMPTY);
        assert!(!poll_wait(&slot));
        assert!(poll_put(&slot));
        assert!(!poll_put(&slot));
        assert!(poll_wait(&slot));
        assert!(!poll_wait(&slot));
    }

    #[test]
    fn data_is_stored_into_an_empty_slot_only() {
        let (slot, mut stored) = (AtomicU32::new(FULL), 0);
        assert!(!poll_put_after(&slot, || stored += 1));
        assert!(poll_wait(&slot));
        assert!(poll_put_after(&slot, || stored += 1));
        assert_eq!(stored, 1);
        assert!(poll_wait(&slot));
    }
}
