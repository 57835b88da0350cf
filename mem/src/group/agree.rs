//! Agreement on one number.

use serde::{Deserialize, Serialize};
use symmem_hal::Wait;
use symmem_hal::types::RankSet;

use super::Group;
use crate::exchange::Part;
use crate::rendezvous::{Mismatch, RendezvousError};

/// What a member says. The name first: another call's bytes do not look like it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Word {
    what: String,
    value: u64,
}

impl Group {
    /// Makes sure that every member passes the same value; collective. For the layers above, whose
    /// set-up must be the same on every rank.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::Mismatch`], the same on every rank; [`RendezvousError::Unreadable`] names
    /// ranks that are in another call.
    pub fn agree(&self, what: &str, value: u64, wait: &Wait) -> Result<(), RendezvousError> {
        self.check()?;
        let word = Word { what: format!("agree: {what}"), value };
        // The type has no value that cannot be encoded.
        let payload = postcard::to_stdvec(&word).unwrap_or_default();
        let wait = &wait.begun();
        let mut turn = self.meeting(wait)?;
        let parts = self.gather(&mut turn, Part::plain(payload), wait)?;
        drop(turn);
        let mut values: Vec<(String, RankSet)> = Vec::new();
        let mut unreadable = RankSet::new();
        for (index, part) in parts.iter().enumerate() {
            match postcard::from_bytes::<Word>(&part.payload) {
                Ok(theirs) if theirs.what == word.what => {
                    let value = theirs.value.to_string();
                    match values.iter_mut().find(|(known, _)| *known == value) {
                        Some((_, ranks)) => ranks.insert(index),
                        None => values.push((value, RankSet::one(index))),
                    }
                }
                _ => unreadable.insert(index),
            }
        }
        if !unreadable.is_empty() {
            return Err(RendezvousError::Unreadable { ranks: unreadable });
        }
        if values.len() > 1 {
            // Stable, so ties keep the order of ranks: the same on every rank.
            values.sort_by_key(|(_, ranks)| core::cmp::Reverse(ranks.len()));
            return Err(Mismatch { field: what.to_owned(), values }.into());
        }
        Ok(())
    }
}

/// For fuzzing: any bytes as a member's word.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    crate::fuzzing::round_trip::<Word>(bytes);
}

/// For fuzzing: the bytes of a word.
#[cfg(any(test, fuzzing))]
pub(crate) fn seed(what: &str, value: u64) -> Vec<u8> {
    postcard::to_stdvec(&Word { what: format!("agree: {what}"), value }).unwrap_or_default()
}
