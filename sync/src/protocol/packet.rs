//! Data whose arrival needs no flag: the data is the flag.
//!
//! A packet is two 64-bit words; each carries 32 bits of data in its low half and the epoch in
//! its high half. A 64-bit word never tears, so each half proves itself and the two may arrive in
//! any order. That is why neither the stores nor the loads need an order of their own.

use super::{Epoch, Word64};

/// The bytes of data that one packet carries.
pub const PACKET_DATA: usize = 8;

/// The word that carries `data` in `epoch`.
#[must_use]
pub const fn stamp(data: u32, epoch: Epoch) -> u64 {
    (epoch.get() as u64) << 32 | data as u64
}

/// The data of a word, if it was written in `epoch`.
#[must_use]
pub const fn unstamp(word: u64, epoch: Epoch) -> Option<u32> {
    if (word >> 32) as u32 == epoch.get() { Some(word as u32) } else { None }
}

/// The two words that carry `data` in `epoch`, low half first.
#[must_use]
pub const fn encode(data: u64, epoch: Epoch) -> [u64; 2] {
    [stamp(data as u32, epoch), stamp((data >> 32) as u32, epoch)]
}

/// The data of two words, if both were written in `epoch`.
#[must_use]
pub const fn decode(words: [u64; 2], epoch: Epoch) -> Option<u64> {
    match (unstamp(words[0], epoch), unstamp(words[1], epoch)) {
        (Some(low), Some(high)) => Some((high as u64) << 32 | low as u64),
        _ => None,
    }
}

/// Stores `data` into a slot.
pub fn put<W: Word64>(slot: &[W; 2], data: u64, epoch: Epoch) {
    let [low, high] = encode(data, epoch);
    slot[0].store_relaxed(low);
    slot[1].store_relaxed(high);
}

/// The data of a slot, once both halves of `epoch` are there.
#[must_use]
pub fn poll<W: Word64>(slot: &[W; 2], epoch: Epoch) -> Option<u64> {
    let low = unstamp(slot[0].load_relaxed(), epoch)?;
    let high = unstamp(slot[1].load_relaxed(), epoch)?;
    Some(u64::from(high) << 32 | u64::from(low))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::protocol::Word;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn each_half_must_be_of_the_epoch() {
        let (e, data) = (Epoch::MAX, 0x0123_4567_89ab_cdef);
        let slot = [AtomicU64::new(0), AtomicU64::new(0)];
        assert_eq!(poll(&slot, e), None);
        slot[1].store_relaxed(encode(data, e)[1]);
        assert_eq!(poll(&slot, e), None);
        put(&slot, data, e);
        assert_eq!(poll(&slot, e), Some(data));
        assert_eq!(poll(&slot, e.next()), None);
        assert_eq!(poll(&slot, e.previous()), None);
        slot[0].store_relaxed(encode(data, e.previous())[0]);
        assert_eq!(poll(&slot, e), None);
    }

    #[test]
    fn zeroed_memory_holds_no_packet() {
        assert_eq!(decode([0, 0], Epoch::MIN), None);
    }
}
