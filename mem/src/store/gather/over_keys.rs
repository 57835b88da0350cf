//! A gather by set and get, for servers that know no other.
//!
//! The slots' keys are the gather's key, a slash and the slot. Under the lowest slot of a
//! contribution stands its *head*, all of it; under each other a *mark*, which names the lowest. So
//! whoever has read all slots' keys has everything, and whoever knows the heads reads only those.
//!
//! One request to claim the head, one to write it and the marks, and two to read (the store's
//! [`multi_get`](Store::multi_get)). Of two that claim a head the first one stays and the second is told. That
//! two claim another slot is noticed by who finds what the other one wrote, or too much or too little: not by
//! who was through before the other came, nor by who wrote last.

use std::time::Instant;

use symmem_hal::Wait;

use super::{Contribution, GatherFault, Part};
use crate::store::{Missing, Store, StoreError};

/// What is stored for a slot: a count and so many slots, then the value; for a mark the count is 0
/// and the lowest slot follows. Each a little-endian u32.
enum Entry {
    Head(Part),
    Mark { head: u32 },
}

impl Entry {
    fn encode_head(part: &Contribution<'_>) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + 4 * part.slots.len() + part.value.len());
        // Checked: no more slots than a u32 counts.
        out.extend_from_slice(&(part.slots.len() as u32).to_le_bytes());
        part.slots.iter().for_each(|slot| out.extend_from_slice(&slot.to_le_bytes()));
        out.extend_from_slice(part.value);
        out
    }

    fn encode_mark(head: u32) -> [u8; 8] {
        let mut out = [0; 8];
        out[4..].copy_from_slice(&head.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Entry> {
        let (count, rest) = bytes.split_first_chunk()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        if count == 0 {
            let head = u32::from_le_bytes(rest.try_into().ok()?);
            return Some(Entry::Mark { head });
        }
        let (slots, value) = rest.split_at_checked(count.checked_mul(4)?)?;
        let slots = slots.chunks_exact(4).map(|s| u32::from_le_bytes([s[0], s[1], s[2], s[3]]));
        Some(Entry::Head(Part { slots: slots.collect(), value: value.to_vec() }))
    }
}

/// How often a contribution is written again whose connection was lost.
const MOST_LOSSES: u32 = 8;

/// See [`Store::gather`].
pub(in crate::store) fn gather(
    store: &(impl Store + ?Sized),
    key: &str,
    mine: &Contribution<'_>,
    wait: &Wait,
) -> Result<Vec<Part>, StoreError> {
    let bad = |fault| StoreError::Gather { store: store.name(), key: key.to_owned(), fault };
    mine.check().map_err(bad)?;
    let (wait, started) = (&wait.begun(), Instant::now());
    let names = |slots: &[u32]| -> Vec<String> {
        slots.iter().map(|slot| format!("{key}/{slot}")).collect()
    };
    let own = names(if mine.heads.is_some() { &mine.slots[..1] } else { mine.slots });
    let all: Vec<u32> = (0..mine.total).collect();
    let read = mine.heads.unwrap_or(&all);
    let read_names = names(read);
    let mut losses = 0;
    let found = loop {
        let found = write(store, &own, mine, wait).and_then(|()| {
            let keys: Vec<&str> = read_names.iter().map(String::as_str).collect();
            store.multi_get(&keys, wait)
        });
        match found {
            // What may have been written is the same when it is written again.
            Err(StoreError::Doubtful { doubtful, .. })
                if losses < MOST_LOSSES && doubtful.iter().all(|key| own.contains(key)) =>
            {
                losses += 1;
            }
            Err(StoreError::TimedOut { store, missing: Missing::Keys(missing), .. }) => {
                // The store's keys may have a prefix that this one's caller does not know of.
                let is_missing = |name: &str| missing.iter().any(|m| m.ends_with(name));
                let slots = read.iter().zip(&read_names).filter(|(_, name)| is_missing(name));
                let slots = slots.map(|(slot, _)| *slot).collect();
                return Err(StoreError::TimedOut {
                    store,
                    operation: "gather",
                    missing: Missing::Slots { key: key.to_owned(), slots },
                    elapsed: started.elapsed(),
                    allowed: wait.duration(),
                });
            }
            found => break found?,
        }
    };
    assemble(mine, read, &found).map_err(bad)
}

/// Writes a contribution under the keys of its slots, or of the lowest alone.
fn write(
    store: &(impl Store + ?Sized),
    own: &[String],
    mine: &Contribution<'_>,
    wait: &Wait,
) -> Result<(), StoreError> {
    let (head, mark) = (Entry::encode_head(mine), Entry::encode_mark(mine.slots[0]));
    let [key, ..] = own else { return Ok(()) };
    // Who is there first stays: what an earlier gather of the key has left is not mixed with this one.
    let there = store.compare_set(key, b"", &head, wait)?;
    if there != head {
        let fault = GatherFault::Ended { slot: mine.slots[0] };
        return Err(StoreError::Gather { store: store.name(), key: gather_of(key), fault });
    }
    // Written again: PyTorch's servers wake nobody who waits for a key that compare_set made.
    if own.len() == 1 {
        return store.set(key, &head, wait);
    }
    let values = core::iter::once(&head[..]).chain(core::iter::repeat(&mark[..]));
    let entries: Vec<(&str, &[u8])> = own.iter().map(String::as_str).zip(values).collect();
    store.multi_set(&entries, wait)
}

/// The gather that a slot's key is of.
fn gather_of(key: &str) -> String {
    key.rsplit_once('/').map_or(key, |(gather, _)| gather).to_owned()
}

/// Puts together what was `found` for the slots that were `read`.
fn assemble(
    mine: &Contribution<'_>,
    read: &[u32],
    found: &[Vec<u8>],
) -> Result<Vec<Part>, GatherFault> {
    let total = mine.total as usize;
    let mut parts = Vec::new();
    let mut marks = Vec::new();
    // The lowest slot of the contribution that covers each.
    let mut covered: Vec<Option<u32>> = vec![None; total];
    for (&slot, bytes) in read.iter().zip(found) {
        match Entry::decode(bytes).ok_or(GatherFault::Garbled { slot })? {
            Entry::Mark { head } => marks.push((slot, head)),
            Entry::Head(part) => {
                if part.slots.first() != Some(&slot) {
                    return Err(GatherFault::Garbled { slot });
                }
                super::ascending(&part.slots, mine.total)?;
                for &slot in &part.slots {
                    let place = &mut covered[slot as usize];
                    if place.replace(part.slots[0]).is_some() {
                        return Err(GatherFault::Overlap { slot });
                    }
                }
                parts.push(part);
            }
        }
    }
    // Another contribution has taken one of its keys: it is there with other slots, or one that the
    // mark does not speak of is.
    for (slot, head) in marks {
        if covered[slot as usize] != Some(head) {
            return Err(GatherFault::Overlap { slot });
        }
    }
    if let Some(slot) = covered.iter().position(Option::is_none) {
        return Err(GatherFault::Uncovered { slot: slot as u32 });
    }
    let same = |part: &Part| part.slots == mine.slots && part.value == mine.value;
    if !parts.iter().any(same) {
        return Err(GatherFault::Overlap { slot: mine.slots[0] });
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn head(slots: &[u32], total: u32, value: &[u8]) -> Vec<u8> {
        Entry::encode_head(&Contribution::new(slots, total, value))
    }

    fn mark(head: u32) -> Vec<u8> {
        Entry::encode_mark(head).to_vec()
    }

    #[test]
    fn parts_are_put_together() {
        let mine = Contribution::new(&[1, 3], 4, b"b");
        let found = [head(&[0, 2], 4, b"a"), head(&[1, 3], 4, b"b"), mark(0), mark(1)];
        let parts = assemble(&mine, &[0, 1, 2, 3], &found).unwrap();
        let expected = [
            Part { slots: vec![0, 2], value: b"a".to_vec() },
            Part { slots: vec![1, 3], value: b"b".to_vec() },
        ];
        assert_eq!(parts, expected);
        assert_eq!(assemble(&mine, &[0, 1], &found[..2]).unwrap(), expected);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let mine = Contribution::new(&[1, 3], 4, b"b");
        let (a, b) = (head(&[0, 2], 4, b"a"), head(&[1, 3], 4, b"b"));
        let all = |found: [Vec<u8>; 4]| assemble(&mine, &[0, 1, 2, 3], &found).unwrap_err();
        let cases = [
            // Another contribution with the same slots came last.
            (
                all([a.clone(), head(&[1, 3], 4, b"x"), mark(0), mark(1)]),
                GatherFault::Overlap { slot: 1 },
            ),
            // One took a slot away, by its head and by its mark.
            (
                all([a.clone(), b.clone(), mark(0), head(&[3], 4, b"x")]),
                GatherFault::Overlap { slot: 3 },
            ),
            (all([a.clone(), b.clone(), mark(0), mark(0)]), GatherFault::Overlap { slot: 3 }),
            (all([a.clone(), mark(0), mark(0), mark(1)]), GatherFault::Overlap { slot: 1 }),
            (all([vec![], b.clone(), mark(0), mark(1)]), GatherFault::Garbled { slot: 0 }),
            (all([b.clone(), b.clone(), mark(0), mark(1)]), GatherFault::Garbled { slot: 0 }),
            (
                all([head(&[0, 9], 4, b""), b.clone(), mark(0), mark(1)]),
                GatherFault::OutOfRange { slot: 9, total: 4 },
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(found, expected);
        }
        let fewer = assemble(&mine, &[1], &[b]).unwrap_err();
        assert_eq!(fewer, GatherFault::Uncovered { slot: 0 });
    }

    #[test]
    fn arbitrary_bytes_are_no_entry_or_one() {
        for bytes in [&b""[..], b"\0", &[0; 4], &[0; 9], &[1, 0, 0, 0, 7], &[255; 64]] {
            assert!(Entry::decode(bytes).is_none(), "{bytes:?}");
        }
        assert!(matches!(Entry::decode(&[0; 8]), Some(Entry::Mark { head: 0 })));
    }
}
