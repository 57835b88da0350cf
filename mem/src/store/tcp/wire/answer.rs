//! What servers send back.

use super::{Cursor, Decoded, Limits, Stop, WireError, put_string, slots};
use crate::store::gather::{GatherFault, MOST_SLOTS, Part};

/// The shape of an answer, known from the request it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `count` byte strings.
    Values {
        /// How many.
        count: usize,
    },
    /// An i64.
    Integer,
    /// The u32 that was sent.
    Nonce,
    /// One byte: all keys are there, or not.
    Check,
    /// One byte: all keys are there.
    Wait,
    /// What follows a WAIT that was cancelled: WAIT's own answer if the server sent it before it
    /// read the cancellation, then the cancellation's.
    CancelledWait,
    /// One byte: what follows a GATHER, which has been answered before, that was cancelled.
    Cancelled,
    /// An i64, the length of a queue, and if that is not 0 a byte string.
    Popped,
    /// A list of byte strings.
    Keys,
    /// How a session goes on.
    Resumed,
    /// The contributions, or the slots that are missing, or what does not fit.
    Gathered,
}

/// How a session goes on: the answer to RESUME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// Requests up to this number were done.
    Known {
        /// The number of the last one.
        done: u64,
    },
    /// The server does not know it. It has begun one, with none done.
    New {
        /// Whether the server has forgotten any session: if not, this one never was.
        forgetful: bool,
    },
    /// The server closed its last connection, for this reason.
    Refused {
        /// The reason.
        reason: String,
    },
}

const KNOWN: u8 = 0;
const NEW: u8 = 1;
const NEW_FORGETFUL: u8 = 2;
const REFUSED: u8 = 3;

/// The longest reason.
const REASON: usize = 1 << 10;

const COMPLETE: u8 = 0;
const INCOMPLETE: u8 = 1;
const FAULT: u8 = 2;
const NO_ROOM: u8 = 3;

/// The longest list of slots, in bytes.
const SLOTS: usize = 4 * MOST_SLOTS as usize;

const READY: u8 = 0;
const NOT_READY: u8 = 1;
const STOP_WAITING: u8 = 0;
const WAIT_CANCELLED: u8 = 1;

impl Answer {
    /// Finds the end of the answer at the front of `bytes`.
    ///
    /// # Errors
    ///
    /// Bytes that no continuation makes such an answer, as early as they show it.
    pub fn decode<'a>(
        self,
        bytes: &'a [u8],
        limits: &Limits,
    ) -> Result<Decoded<&'a [u8]>, WireError> {
        let mut cursor = Cursor { bytes, at: 0, limit: limits.answer };
        let result = self.skip(&mut cursor, limits).map(|()| &bytes[..cursor.at]);
        cursor.finish(result)
    }

    fn skip(self, cursor: &mut Cursor<'_>, limits: &Limits) -> Result<(), Stop> {
        let byte = |cursor: &mut Cursor<'_>, expected, allowed: &[u8]| match cursor.u8()? {
            found if allowed.contains(&found) => Ok(found),
            found => Err(WireError::Unexpected { expected, found: u64::from(found) }.into()),
        };
        match self {
            Answer::Values { count } => cursor.skip_strings(count, "a value", limits.answer),
            Answer::Integer => cursor.take(8).map(drop),
            Answer::Nonce => cursor.take(4).map(drop),
            Answer::Check => byte(cursor, "ready or not ready", &[READY, NOT_READY]).map(drop),
            Answer::Wait => byte(cursor, "the end of a wait", &[STOP_WAITING]).map(drop),
            Answer::CancelledWait => {
                let expected = "the end of a cancelled wait";
                if byte(cursor, expected, &[STOP_WAITING, WAIT_CANCELLED])? == STOP_WAITING {
                    byte(cursor, expected, &[WAIT_CANCELLED])?;
                }
                Ok(())
            }
            Answer::Cancelled => {
                byte(cursor, "the end of a cancelled gather", &[WAIT_CANCELLED]).map(drop)
            }
            Answer::Popped => match cursor.i64()? {
                0 => Ok(()),
                1.. => cursor.string("a value", limits.answer).map(drop),
                found => {
                    let expected = "the length of a queue";
                    Err(WireError::Unexpected { expected, found: found as u64 }.into())
                }
            },
            Answer::Keys => {
                let count = cursor.length("a list of keys", limits.answer / 8)?;
                cursor.skip_strings(count, "a key", limits.answer)
            }
            Answer::Resumed => {
                let expected = "how a session goes on";
                match byte(cursor, expected, &[KNOWN, NEW, NEW_FORGETFUL, REFUSED])? {
                    KNOWN => cursor.take(8).map(drop),
                    REFUSED => cursor.string("a reason", REASON).map(drop),
                    _ => Ok(()),
                }
            }
            Answer::Gathered => {
                let allowed = [COMPLETE, INCOMPLETE, FAULT, NO_ROOM];
                match byte(cursor, "the result of a gather", &allowed)? {
                    COMPLETE => {
                        let parts = cursor.length("contributions", MOST_SLOTS as usize)?;
                        cursor.skip_strings(2 * parts, "a contribution", limits.answer)
                    }
                    INCOMPLETE => cursor.string("a list of slots", SLOTS).map(drop),
                    NO_ROOM => cursor.string("a reason", REASON).map(drop),
                    _ => cursor.take(9).map(drop),
                }
            }
        }
    }

    /// The values of a whole [`Answer::Values`]. Other bytes give fewer of them.
    #[must_use]
    pub fn values(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut cursor = Cursor { bytes, at: 0, limit: usize::MAX };
        std::iter::from_fn(|| cursor.string("a value", usize::MAX).ok().map(<[u8]>::to_vec))
            .collect()
    }

    /// The number of a whole [`Answer::Integer`]; `None` for other lengths.
    #[must_use]
    pub fn integer(bytes: &[u8]) -> Option<i64> {
        Some(i64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The number of a whole [`Answer::Nonce`]; `None` for other lengths.
    #[must_use]
    pub fn nonce(bytes: &[u8]) -> Option<u32> {
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Whether a whole [`Answer::Check`] says that all keys are there.
    #[must_use]
    pub fn is_ready(bytes: &[u8]) -> bool {
        bytes == [READY]
    }

    /// Appends a value.
    pub fn put_value(out: &mut Vec<u8>, value: &[u8]) {
        put_string(out, value);
    }

    /// Appends an integer.
    pub fn put_integer(out: &mut Vec<u8>, n: i64) {
        out.extend_from_slice(&n.to_le_bytes());
    }

    /// Appends a nonce.
    pub fn put_nonce(out: &mut Vec<u8>, nonce: u32) {
        out.extend_from_slice(&nonce.to_le_bytes());
    }

    /// Appends the answer to CHECK.
    pub fn put_check(out: &mut Vec<u8>, ready: bool) {
        out.push(if ready { READY } else { NOT_READY });
    }

    /// Appends the end of a wait: all keys are there, or the wait was cancelled.
    pub fn put_wait(out: &mut Vec<u8>, cancelled: bool) {
        out.push(if cancelled { WAIT_CANCELLED } else { STOP_WAITING });
    }

    /// The value of a whole [`Answer::Popped`]; `None` if the queue is empty.
    #[must_use]
    pub fn popped(bytes: &[u8]) -> Option<Vec<u8>> {
        Self::values(bytes.get(8..)?).pop()
    }

    /// Appends the answer to QUEUE_POP: the length of the queue before, and its first value.
    pub fn put_popped(out: &mut Vec<u8>, length: usize, value: Option<&[u8]>) {
        Answer::put_integer(out, length as i64);
        value.into_iter().for_each(|value| put_string(out, value));
    }

    /// The keys of a whole [`Answer::Keys`].
    #[must_use]
    pub fn keys(bytes: &[u8]) -> Vec<Vec<u8>> {
        Self::values(bytes.get(8..).unwrap_or_default())
    }

    /// Appends the answer to LIST_KEYS.
    pub fn put_keys<'a>(out: &mut Vec<u8>, keys: impl ExactSizeIterator<Item = &'a [u8]>) {
        out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
        keys.for_each(|key| put_string(out, key));
    }

    /// What a whole [`Answer::Resumed`] says; `None` for other bytes.
    #[must_use]
    pub fn resumed(bytes: &[u8]) -> Option<Resumed> {
        let (&status, rest) = bytes.split_first()?;
        Some(match status {
            KNOWN => Resumed::Known { done: u64::from_le_bytes(rest.try_into().ok()?) },
            NEW | NEW_FORGETFUL => Resumed::New { forgetful: status == NEW_FORGETFUL },
            REFUSED => Resumed::Refused { reason: reason(rest)? },
            _ => return None,
        })
    }

    /// Appends the answer to RESUME. A long reason is cut.
    pub fn put_resumed(out: &mut Vec<u8>, resumed: &Resumed) {
        match resumed {
            Resumed::Known { done } => {
                out.push(KNOWN);
                out.extend_from_slice(&done.to_le_bytes());
            }
            Resumed::New { forgetful } => out.push(if *forgetful { NEW_FORGETFUL } else { NEW }),
            Resumed::Refused { reason } => {
                out.push(REFUSED);
                put_reason(out, reason);
            }
        }
    }

    /// What a whole [`Answer::Gathered`] says: the contributions, or else the slots missing, or else
    /// what does not fit. `None` for other bytes.
    #[must_use]
    pub fn gathered(bytes: &[u8]) -> Option<Gathered> {
        let (&status, rest) = bytes.split_first()?;
        Some(match status {
            COMPLETE => {
                let mut strings = Self::values(rest.get(8..)?).into_iter();
                let mut parts = Vec::with_capacity(strings.len() / 2);
                while let (Some(covered), Some(value)) = (strings.next(), strings.next()) {
                    parts.push(Part { slots: slots(&covered).collect(), value });
                }
                Gathered::Complete(parts)
            }
            INCOMPLETE => Gathered::Missing(slots(rest.get(8..)?).collect()),
            FAULT => {
                let number = |at: usize| -> Option<u32> {
                    Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?))
                };
                Gathered::Fault(fault(*rest.first()?, number(1)?, number(5)?))
            }
            NO_ROOM => Gathered::Refused(reason(rest)?),
            _ => return None,
        })
    }

    /// Appends the answer to a GATHER that is complete: how many contributions there are, then slots and
    /// value of each.
    pub fn put_parts<'a>(
        out: &mut Vec<u8>,
        parts: impl ExactSizeIterator<Item = (&'a [u32], &'a [u8])>,
    ) {
        out.push(COMPLETE);
        out.extend_from_slice(&(parts.len() as u64).to_le_bytes());
        for (covered, value) in parts {
            put_slots(out, covered);
            put_string(out, value);
        }
    }

    /// Appends the answer to a GATHER that was cancelled.
    pub fn put_missing(out: &mut Vec<u8>, missing: &[u32]) {
        out.push(INCOMPLETE);
        put_slots(out, missing);
    }

    /// Appends the answer to a GATHER for which the server has no room. A long reason is cut.
    pub fn put_no_room(out: &mut Vec<u8>, reason: &str) {
        out.push(NO_ROOM);
        put_reason(out, reason);
    }

    /// Appends the answer to a GATHER whose contribution does not fit.
    pub fn put_fault(out: &mut Vec<u8>, fault: GatherFault) {
        let (code, first, second) = match fault {
            GatherFault::NoSlots => (0, 0, 0),
            GatherFault::Order { slot } => (1, slot, 0),
            GatherFault::OutOfRange { slot, total } => (2, slot, total),
            GatherFault::TooMany { total } => (3, total, 0),
            GatherFault::NotAHead { slot } => (4, slot, 0),
            GatherFault::Overlap { slot } => (5, slot, 0),
            GatherFault::Uncovered { slot } => (6, slot, 0),
            GatherFault::Total { mine, theirs } => (7, mine, theirs),
            GatherFault::Garbled { slot } => (8, slot, 0),
            GatherFault::Ended { slot } => (9, slot, 0),
        };
        out.extend_from_slice(&[FAULT, code]);
        out.extend_from_slice(&u32::to_le_bytes(first));
        out.extend_from_slice(&u32::to_le_bytes(second));
    }
}

/// What a GATHER came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// All contributions.
    Complete(Vec<Part>),
    /// The slots that nobody covers.
    Missing(Vec<u32>),
    /// What does not fit.
    Fault(GatherFault),
    /// The server has no room, for this reason; nothing was brought.
    Refused(String),
}

/// The reason in a whole answer.
fn reason(bytes: &[u8]) -> Option<String> {
    Some(String::from_utf8_lossy(&Answer::values(bytes).pop()?).into_owned())
}

fn put_reason(out: &mut Vec<u8>, reason: &str) {
    put_string(out, &reason.as_bytes()[..reason.len().min(REASON)]);
}

fn fault(code: u8, first: u32, second: u32) -> GatherFault {
    match code {
        0 => GatherFault::NoSlots,
        1 => GatherFault::Order { slot: first },
        2 => GatherFault::OutOfRange { slot: first, total: second },
        3 => GatherFault::TooMany { total: first },
        4 => GatherFault::NotAHead { slot: first },
        5 => GatherFault::Overlap { slot: first },
        6 => GatherFault::Uncovered { slot: first },
        7 => GatherFault::Total { mine: first, theirs: second },
        9 => GatherFault::Ended { slot: first },
        _ => GatherFault::Garbled { slot: first },
    }
}

fn put_slots(out: &mut Vec<u8>, slots: &[u32]) {
    out.extend_from_slice(&(4 * slots.len() as u64).to_le_bytes());
    slots.iter().for_each(|slot| out.extend_from_slice(&slot.to_le_bytes()));
}
