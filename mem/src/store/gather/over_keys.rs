//! A gather by set and get, for servers that know no other.
//!
//! The slots' keys are the gather's key, a slash and the slot. Under the lowest slot of a
//! contribution stands its *head*, all of it; under each other a *mark*, which names the lowest. So
//! whoever has read all slots' keys has everything, and whoever knows the heads reads only those.
//!
//! One request to write where heads are known, and one [`multi_get`](Store::multi_get) to read; another to
//! write the marks. A head is appended: of two that claim one the first stays, for all who read, and the second
//! is told by what it reads. A compare-and-swap would do the same, but wakes nobody at PyTorch's server without
//! libuv (seen with 2.15). That two claim another slot is noticed by who finds what the other one wrote, or too
//! much or too little: not by who was through before the other came, nor by who wrote last.

use std::time::Instant;

use symmem_hal::Wait;

use super::{Contribution, GatherFault, Part};
use crate::store::{Missing, Store, StoreError};

/// What is stored for a slot, the first of what was appended there: a length, and so many bytes, which are a
/// count and so many slots, then the value; for a mark the count is 0 and the lowest slot follows. Each a
/// little-endian u32.
enum Entry {
    Head(Part),
    Mark { head: u32 },
}

impl Entry {
    fn encode_head(part: &Contribution<'_>) -> Vec<u8> {
        let length = 4 + 4 * part.slots.len() + part.value.len();
        let mut out = Vec::with_capacity(4 + length);
        // Checked: no more slots than a u32 counts, and no longer value than a store takes.
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(&(part.slots.len() as u32).to_le_bytes());
        part.slots.iter().for_each(|slot| out.extend_from_slice(&slot.to_le_bytes()));
        out.extend_from_slice(part.value);
        out
    }

    fn encode_mark(head: u32) -> [u8; 12] {
        let mut out = [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        out[8..].copy_from_slice(&head.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Entry> {
        let (length, rest) = bytes.split_first_chunk()?;
        let bytes = rest.get(..usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
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

/// A bound for reading what is there.
const BRIEF: Wait = Wait::millis(100);

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
            Err(StoreError::TimedOut { store: name, missing: Missing::Keys(missing), .. }) => {
                // Who is missing may be so since all others have gone to another gather.
                if let Ok(first) = store.get(&own[0], &BRIEF) {
                    stands(mine, Entry::decode(&first).as_ref()).map_err(bad)?;
                }
                // The store's keys may have a prefix that this one's caller does not know of.
                let is_missing = |name: &str| missing.iter().any(|m| m.ends_with(name));
                let slots = read.iter().zip(&read_names).filter(|(_, name)| is_missing(name));
                let slots = slots.map(|(slot, _)| *slot).collect();
                return Err(StoreError::TimedOut {
                    store: name,
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
    let [head, marks @ ..] = own else { return Ok(()) };
    store.append(head, &Entry::encode_head(mine), wait)?;
    if marks.is_empty() {
        return Ok(());
    }
    let mark = Entry::encode_mark(mine.slots[0]);
    let entries: Vec<(&str, &[u8])> = marks.iter().map(|key| (key.as_str(), &mark[..])).collect();
    store.multi_set(&entries, wait)
}

/// Whether what stands under the lowest slot of a contribution is that one: what an earlier gather of the key has
/// left is not mixed with this one.
fn stands(mine: &Contribution<'_>, first: Option<&Entry>) -> Result<(), GatherFault> {
    let slot = mine.slots[0];
    match first {
        None => Err(GatherFault::Garbled { slot }),
        Some(Entry::Head(part)) if part.slots == mine.slots && part.value == mine.value => Ok(()),
        Some(_) => Err(GatherFault::Ended { slot }),
    }
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
        let entry = Entry::decode(bytes);
        if slot == mine.slots[0] {
            stands(mine, entry.as_ref())?;
        }
        match entry.ok_or(GatherFault::Garbled { slot })? {
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
            // Another contribution with the same slots came first.
            (
                all([a.clone(), [head(&[1, 3], 4, b"x"), b.clone()].concat(), mark(0), mark(1)]),
                GatherFault::Ended { slot: 1 },
            ),
            // One took a slot away, by its head and by its mark.
            (
                all([a.clone(), b.clone(), mark(0), head(&[3], 4, b"x")]),
                GatherFault::Overlap { slot: 3 },
            ),
            (all([a.clone(), b.clone(), mark(0), mark(0)]), GatherFault::Overlap { slot: 3 }),
            (all([a.clone(), mark(0), mark(0), mark(1)]), GatherFault::Ended { slot: 1 }),
            (all([vec![], b.clone(), mark(0), mark(1)]), GatherFault::Garbled { slot: 0 }),
            (all([b.clone(), b.clone(), mark(0), mark(1)]), GatherFault::Garbled { slot: 0 }),
            (all([a.clone(), vec![9; 9], mark(0), mark(1)]), GatherFault::Garbled { slot: 1 }),
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

    /// A call that is repeated appends its head again.
    #[test]
    fn what_was_appended_first_stands() {
        let mine = Contribution::new(&[0], 2, b"a");
        let first = [head(&[0], 2, b"a"), head(&[0], 2, b"x"), head(&[0], 2, b"a")].concat();
        let other = head(&[1], 2, b"b");
        let parts = assemble(&mine, &[0, 1], &[first, other]).unwrap();
        assert_eq!(parts[0], Part { slots: vec![0], value: b"a".to_vec() });
    }

    #[test]
    fn arbitrary_bytes_are_no_entry_or_one() {
        let bodies = [&b""[..], b"\0", &[0; 4], &[0; 9], &[1, 0, 0, 0, 7], &[255; 64]];
        let framed = bodies.map(|body| [&(body.len() as u32).to_le_bytes()[..], body].concat());
        let cut = [b"".to_vec(), vec![8, 0, 0], vec![8, 0, 0, 0, 0, 0, 0, 0], vec![255; 64]];
        for bytes in framed.iter().chain(&cut) {
            assert!(Entry::decode(bytes).is_none(), "{bytes:?}");
        }
        assert!(matches!(Entry::decode(&Entry::encode_mark(7)), Some(Entry::Mark { head: 7 })));
    }
}
