//! Everybody contributes, everybody gets all.
//!
//! Does: gives each of any number of contributors the contributions of all, once every *slot* of a
//! known number has been covered by one of them. A slot is whatever the callers count: ranks, most
//! often. A contributor covers one slot or several: the leader of a host those of its host's ranks.
//! So a gather is complete although nobody knew how many contributors there are.
//!
//! Does not: deliver a part of the contributions, or remember who asked. One key serves one gather.
//!
//! Choices:
//! - A contribution is its slots and its value, not its sender: the same one again is the same
//!   contribution, so that a call that failed can be repeated, also after the gather is complete.
//! - The order of the result is that of the lowest slots: the same for everybody.
//! - [`over_keys`] does it with the other operations, for servers that do not know it.

pub(super) mod over_keys;

use std::fmt;

/// The most slots of one gather: as many as a request has keys.
pub const MOST_SLOTS: u32 = 128 << 10;

/// What one contributor brings to a [gather](super::Store::gather).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contribution<'a> {
    /// The slots that it covers, in ascending order, at least one, each less than `total`.
    pub slots: &'a [u32],
    /// How many slots there are, at most [`MOST_SLOTS`]; the same for all contributors.
    pub total: u32,
    /// What the others get.
    pub value: &'a [u8],
    /// The lowest slot of each contribution, its own among them, in ascending order, where the
    /// contributors know all of them: then a store that gathers by keys writes and reads no others.
    /// Given by all contributors or by none.
    pub heads: Option<&'a [u32]>,
}

impl<'a> Contribution<'a> {
    /// For `slots` of `total`, by contributors that do not know each other's slots.
    #[must_use]
    pub const fn new(slots: &'a [u32], total: u32, value: &'a [u8]) -> Self {
        Contribution { slots, total, value, heads: None }
    }

    /// Says which slots are the lowest of their contributions.
    #[must_use]
    pub const fn with_heads(self, heads: &'a [u32]) -> Self {
        Contribution { heads: Some(heads), ..self }
    }

    /// Finds what can be wrong with it alone.
    pub(super) fn check(&self) -> Result<(), GatherFault> {
        let &[head, ..] = self.slots else { return Err(GatherFault::NoSlots) };
        if self.total > MOST_SLOTS {
            return Err(GatherFault::TooMany { total: self.total });
        }
        ascending(self.slots, self.total)?;
        if let Some(heads) = self.heads {
            ascending(heads, self.total)?;
            if heads.binary_search(&head).is_err() {
                return Err(GatherFault::NotAHead { slot: head });
            }
        }
        Ok(())
    }
}

/// Whether the slots are below `total`, each above the last.
fn ascending(slots: &[u32], total: u32) -> Result<(), GatherFault> {
    if let Some(pair) = slots.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(GatherFault::Order { slot: pair[1] });
    }
    match slots.last() {
        Some(&slot) if slot >= total => Err(GatherFault::OutOfRange { slot, total }),
        _ => Ok(()),
    }
}

/// One contribution in the result of a [gather](super::Store::gather).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The slots that it covers, in ascending order.
    pub slots: Vec<u32>,
    /// Its value.
    pub value: Vec<u8>,
}

/// Why a gather has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GatherFault {
    /// The contribution covers nothing.
    NoSlots,
    /// This slot comes after one that is not less.
    Order {
        /// The slot.
        slot: u32,
    },
    /// This slot does not exist.
    OutOfRange {
        /// The slot.
        slot: u32,
        /// How many there are.
        total: u32,
    },
    /// More slots than [`MOST_SLOTS`].
    TooMany {
        /// How many.
        total: u32,
    },
    /// This contribution's lowest slot is none of the heads that it names.
    NotAHead {
        /// The slot.
        slot: u32,
    },
    /// Two different contributions cover this slot.
    Overlap {
        /// The slot.
        slot: u32,
    },
    /// The gather was over, or this slot taken, before this contribution came.
    Ended {
        /// The slot.
        slot: u32,
    },
    /// The heads are those of contributions that leave this slot out.
    Uncovered {
        /// The slot.
        slot: u32,
    },
    /// Others count another number of slots.
    Total {
        /// What this contributor says.
        mine: u32,
        /// What another one says.
        theirs: u32,
    },
    /// What is stored for this slot is no contribution.
    Garbled {
        /// The slot.
        slot: u32,
    },
}

impl fmt::Display for GatherFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GatherFault::NoSlots => write!(f, "the contribution covers no slot: give it one"),
            GatherFault::Order { slot } => {
                write!(f, "slot {slot} comes after one that is not less: give them in order")
            }
            GatherFault::OutOfRange { slot, total } => {
                write!(f, "slot {slot} of {total}: count from 0 to {total}, exclusive")
            }
            GatherFault::TooMany { total } => write!(
                f,
                "{total} slots are over the limit of {MOST_SLOTS}: let a slot stand for several"
            ),
            GatherFault::NotAHead { slot } => write!(
                f,
                "the contribution's lowest slot {slot} is none of the heads: name all of them"
            ),
            GatherFault::Overlap { slot } => write!(
                f,
                "two different contributions cover slot {slot}: see who else has that place, or take another key"
            ),
            GatherFault::Ended { slot } => write!(
                f,
                "slot {slot} was covered by others, and the gather over, before this contribution came: take another key"
            ),
            GatherFault::Uncovered { slot } => {
                write!(f, "no contribution of the heads covers slot {slot}: name all heads")
            }
            GatherFault::Total { mine, theirs } => write!(
                f,
                "{mine} slots here, {theirs} elsewhere: count the same, or take another key"
            ),
            GatherFault::Garbled { slot } => {
                write!(f, "what is stored for slot {slot} is no contribution: take another key")
            }
        }
    }
}

impl std::error::Error for GatherFault {}
