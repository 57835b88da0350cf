//! What travels between hosts, through the store.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::super::{ExchangeError, Handle, Part, parcel};
use crate::exchange::parcel::Parcel;

/// One member's part of a round, and where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Word {
    /// The round's number, as this member counts.
    pub count: u64,
    /// Its index among the round's members, and its global rank.
    pub index: u32,
    pub rank: u32,
    /// What decides who shares memory by descriptors: equal on one host.
    pub host: String,
    /// Where it lets members on other hosts in.
    pub door: SocketAddr,
    pub payload: Vec<u8>,
    /// What fabrics carry.
    fabric: Vec<Parcel>,
}

impl Word {
    pub fn new(
        count: u64,
        (index, rank): (u32, u32),
        (host, door): (String, SocketAddr),
        part: &Part,
    ) -> Self {
        let (fabric, fds) = parcel::pack(&part.fabric);
        debug_assert!(fds.is_empty(), "descriptors do not reach other hosts");
        Word { count, index, rank, host, door, payload: part.payload.clone(), fabric }
    }

    /// As a member on another host takes it; `None` where a handle is none that can travel.
    pub fn into_part(self) -> Option<Part> {
        let fabric: Vec<Handle> = parcel::unpack(&self.fabric, Vec::new())?;
        Some(Part { payload: self.payload, handles: Vec::new(), fabric })
    }
}

/// What one host's members bring to a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Says {
    /// All of them have come.
    All(Vec<Word>),
    /// This member has; others of its host, whose ranks nobody knows yet, have not.
    Incomplete,
    /// The round cannot succeed.
    Failed(ExchangeError),
}

impl Says {
    pub fn encode(&self) -> Vec<u8> {
        // The type has no value that cannot be encoded.
        postcard::to_stdvec(self).unwrap_or_default()
    }
}

/// What became of a round, as the member that was at the store tells the others of its host: the words
/// of members on other hosts.
pub(super) type Outcome = Result<Vec<Word>, ExchangeError>;

/// What all hosts said, read: every member's word, in group order, or why there is none. The same for
/// all who read the same.
pub(super) fn read(parts: &[crate::store::Part], members: &[u32]) -> Outcome {
    let garbled = |slots: &[u32]| {
        let first = slots.first().copied().unwrap_or_default();
        ExchangeError::Refused(format!("what the host of rank {first} sent is no part of a round"))
    };
    let mut words: Vec<Option<Word>> = members.iter().map(|_| None).collect();
    let mut trouble = None;
    for part in parts {
        match postcard::from_bytes(&part.value) {
            Ok(Says::All(all)) => {
                for word in all {
                    let index = word.index as usize;
                    let is_its = part.slots.contains(&word.index)
                        && members.get(index) == Some(&word.rank)
                        && words[index].is_none();
                    if !is_its {
                        return Err(garbled(&part.slots));
                    }
                    words[index] = Some(word);
                }
            }
            Ok(Says::Incomplete) => {}
            Ok(Says::Failed(error)) => trouble = trouble.or(Some(error.of_round(members.len()))),
            Err(_) => return Err(garbled(&part.slots)),
        }
    }
    if let Some(error) = trouble {
        return Err(error);
    }
    let missing: Vec<u32> =
        (0u32..).zip(&words).filter_map(|(index, word)| word.is_none().then_some(index)).collect();
    if !missing.is_empty() {
        return Err(ExchangeError::Refused(format!(
            "nothing of ranks {missing:?} in a whole round"
        )));
    }
    Ok(words.into_iter().flatten().collect())
}

/// For fuzzing: any bytes as what two hosts of two ranks said.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(first: &[u8], second: &[u8]) {
    crate::fuzzing::round_trip::<Says>(first);
    let part = |slots: &[u32], value: &[u8]| crate::store::Part {
        slots: slots.to_vec(),
        value: value.to_vec(),
    };
    let members = [5, 6, 7, 8];
    if let Ok(words) = read(&[part(&[0, 1], first), part(&[2, 3], second)], &members) {
        assert!(words.iter().map(|word| word.rank).eq(members));
        words.into_iter().for_each(|word| drop(word.into_part()));
    }
}

/// For fuzzing: the bytes of what a host says.
#[cfg(any(test, fuzzing))]
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let door = SocketAddr::from(([10, 0, 0, 1], 4000));
    let word = |index: u32| {
        Word::new(3, (index, 5 + index), ("a host".to_owned(), door), &Part::plain(vec![7; 9]))
    };
    [Says::All(vec![word(0), word(1)]), Says::Incomplete, Says::Failed(ExchangeError::Cancelled)]
        .iter()
        .map(Says::encode)
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;
    use crate::store;

    const MEMBERS: [u32; 3] = [4, 2, 9];

    fn word(index: u32) -> Word {
        let door = SocketAddr::from(([127, 0, 0, 1], 1));
        let part = Part::plain(vec![index as u8]);
        Word::new(0, (index, MEMBERS[index as usize]), (String::new(), door), &part)
    }

    fn part(slots: &[u32], says: &Says) -> store::Part {
        store::Part { slots: slots.to_vec(), value: says.encode() }
    }

    #[test]
    fn words_come_in_group_order() {
        let all = |indices: &[u32]| Says::All(indices.iter().map(|i| word(*i)).collect());
        let parts = [part(&[0, 2], &all(&[2, 0])), part(&[1], &all(&[1]))];
        let words = read(&parts, &MEMBERS).unwrap();
        assert!(words.iter().map(|word| word.index).eq(0..3));
        // Of another's slot, twice, or none.
        for wrong in [all(&[0, 1]), all(&[0, 0]), all(&[0])] {
            let parts = [part(&[0, 2], &wrong), part(&[1], &all(&[1]))];
            assert!(matches!(read(&parts, &MEMBERS), Err(ExchangeError::Refused(_))), "{wrong:?}");
        }
        let garbage = store::Part { slots: vec![1], value: vec![9; 3] };
        let parts = [part(&[0, 2], &all(&[0, 2])), garbage];
        assert!(matches!(read(&parts, &MEMBERS), Err(ExchangeError::Refused(_))));
    }

    #[test]
    fn one_failure_is_everybodys() {
        let failed = ExchangeError::Lost { rank: 1 };
        let parts = [
            part(&[0], &Says::Incomplete),
            part(&[1], &Says::Failed(failed.clone())),
            part(&[2], &Says::All(vec![word(2)])),
        ];
        assert_eq!(read(&parts, &MEMBERS), Err(failed));
    }
}
