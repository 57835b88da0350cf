//! What `mem/fuzz` runs: every decoder of bytes that another process sent, with what must hold of it.
//!
//! Each takes any bytes, and fails by a panic. Beside not panicking: what decodes is the same again
//! after it was encoded, no encoding is longer than what it came from, and what is partial says how much
//! more it needs. How much memory that takes is measured by who calls.
#![allow(clippy::panic, reason = "that is how a rule is broken")]

mod exchange;
mod seeds;
mod store;

pub use exchange::{agreement_record, exchange_frame, link_message, parcel, roll, token, votes};
pub use seeds::seeds;
pub use store::{environment, store_answer, store_request};

use core::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A check of any bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All of them, by the names that their corpora have.
pub const TARGETS: [Target; 10] = [
    ("agreement_record", agreement_record),
    ("environment", environment),
    ("exchange_frame", exchange_frame),
    ("link_message", link_message),
    ("parcel", parcel),
    ("roll", roll),
    ("store_answer", store_answer),
    ("store_request", store_request),
    ("token", token),
    ("votes", votes),
];

/// What bytes decode to, if they do: it decodes from its own encoding, which is no longer.
pub(crate) fn round_trip<T>(bytes: &[u8]) -> Option<T>
where
    T: Debug + PartialEq + Serialize + DeserializeOwned,
{
    let (value, rest) = postcard::take_from_bytes::<T>(bytes).ok()?;
    let encoded = postcard::to_stdvec(&value);
    let Ok(encoded) = encoded else { panic!("{value:?} is not encoded: {encoded:?}") };
    assert!(encoded.len() + rest.len() <= bytes.len(), "{value:?} in {} bytes", encoded.len());
    assert_eq!(postcard::from_bytes::<T>(&encoded).as_ref(), Ok(&value));
    Some(value)
}

/// A byte off the front; 0 where there is none.
fn byte(bytes: &mut &[u8]) -> u8 {
    let Some((first, rest)) = bytes.split_first() else { return 0 };
    *bytes = rest;
    *first
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each seed, whatever it is cut to, and with any byte of it changed.
    #[test]
    fn seeds_and_what_is_near_them_are_decoded() {
        let seeds = seeds();
        for (name, check) in TARGETS {
            let of: Vec<_> = seeds.iter().filter(|(target, _)| *target == name).collect();
            assert!(of.len() > 1, "{name} has {} seeds", of.len());
            for (_, seed) in of {
                check(seed);
                // Large ones at a stride: this is not where new inputs are looked for.
                let stride = seed.len().div_ceil(300).max(1);
                for at in (0..seed.len()).step_by(stride) {
                    check(&seed[..at]);
                    for flip in [1, 0x80, 0xff] {
                        let mut changed = seed.clone();
                        changed[at] ^= flip;
                        check(&changed);
                    }
                }
            }
        }
        assert!(seeds.iter().all(|(target, _)| TARGETS.iter().any(|(name, _)| name == target)));
    }

    #[test]
    fn a_broken_rule_is_found() {
        // A number in two bytes where one is enough: decoded, and encoded in one.
        assert_eq!(round_trip::<u64>(&[0x81, 0x00]), Some(1));
        assert_eq!(round_trip::<u64>(&[0x81]), None);
        let found = std::panic::catch_unwind(|| round_trip::<f32>(&f32::NAN.to_le_bytes()));
        assert!(found.is_err(), "what is not equal to itself");
    }
}
