//! What clients send.

use super::{Answer, Cursor, Decoded, Limits, MAGIC, Stop, WireError, put_string};
use crate::store::gather::MOST_SLOTS;

/// As many slots as a gather has, for lengths.
const MOST: usize = MOST_SLOTS as usize;

/// The codes of the protocol's requests, and of those that servers of this crate know besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the protocol's, or say the same as the requests'")]
pub enum Query {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Wait = 6,
    GetNumKeys = 7,
    DeleteKey = 8,
    Append = 9,
    MultiGet = 10,
    MultiSet = 11,
    CancelWait = 12,
    Ping = 13,
    QueuePush = 14,
    QueuePop = 15,
    QueueLen = 16,
    ListKeys = 17,
    Barrier = 18,
    // Far from the protocol's next ones.
    Open = 240,
    Resume = 241,
    Gather = 242,
}

impl Query {
    /// Every query, in the order of the codes.
    pub const ALL: [Query; 22] = [
        Query::Validate,
        Query::Set,
        Query::CompareSet,
        Query::Get,
        Query::Add,
        Query::Check,
        Query::Wait,
        Query::GetNumKeys,
        Query::DeleteKey,
        Query::Append,
        Query::MultiGet,
        Query::MultiSet,
        Query::CancelWait,
        Query::Ping,
        Query::QueuePush,
        Query::QueuePop,
        Query::QueueLen,
        Query::ListKeys,
        Query::Barrier,
        Query::Open,
        Query::Resume,
        Query::Gather,
    ];

    /// The byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The query of a code; `None` for a code of none.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|query| query.code() == code)
    }

    /// Whether only servers of this crate know it.
    #[must_use]
    pub const fn is_extension(self) -> bool {
        matches!(self, Query::Open | Query::Resume | Query::Gather)
    }

    /// Whether it changes what is stored, each time anew: so it cannot be sent again without more.
    #[must_use]
    pub const fn has_effect(self) -> bool {
        match self {
            Query::Set
            | Query::CompareSet
            | Query::Add
            | Query::DeleteKey
            | Query::Append
            | Query::MultiSet
            | Query::QueuePush
            | Query::QueuePop
            | Query::Barrier => true,
            Query::Validate
            | Query::Get
            | Query::Check
            | Query::Wait
            | Query::GetNumKeys
            | Query::MultiGet
            | Query::CancelWait
            | Query::Ping
            | Query::QueueLen
            | Query::ListKeys
            | Query::Open
            | Query::Resume
            | Query::Gather => false,
        }
    }

    /// The name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Query::Validate => "VALIDATE",
            Query::Set => "SET",
            Query::CompareSet => "COMPARE_SET",
            Query::Get => "GET",
            Query::Add => "ADD",
            Query::Check => "CHECK",
            Query::Wait => "WAIT",
            Query::GetNumKeys => "GETNUMKEYS",
            Query::DeleteKey => "DELETE_KEY",
            Query::Append => "APPEND",
            Query::MultiGet => "MULTI_GET",
            Query::MultiSet => "MULTI_SET",
            Query::CancelWait => "CANCEL_WAIT",
            Query::Ping => "PING",
            Query::QueuePush => "QUEUE_PUSH",
            Query::QueuePop => "QUEUE_POP",
            Query::QueueLen => "QUEUE_LEN",
            Query::ListKeys => "LIST_KEYS",
            Query::Barrier => "BARRIER",
            Query::Open => "OPEN",
            Query::Resume => "RESUME",
            Query::Gather => "GATHER",
        }
    }
}

/// A request, borrowing from the buffer it was decoded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Must be the first, and carries [`MAGIC`]. No answer.
    Validate,
    /// Answered by the same nonce.
    Ping {
        /// Any number.
        nonce: u32,
    },
    /// Stores a value. No answer.
    Set {
        /// Its key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty.
    /// Answered by the value after that; by `expected` if there is none.
    CompareSet {
        /// The key.
        key: &'a [u8],
        /// The value replaced.
        expected: &'a [u8],
        /// The value stored.
        desired: &'a [u8],
    },
    /// Answered by the value; by an empty one if there is none, so clients WAIT first.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Adds to a decimal number kept as text, absent being 0. Answered by the sum.
    Add {
        /// The key.
        key: &'a [u8],
        /// What is added.
        amount: i64,
    },
    /// Answered by whether all keys are there.
    Check {
        /// The keys.
        keys: Vec<&'a [u8]>,
    },
    /// Answered once all keys are there.
    Wait {
        /// The keys.
        keys: Vec<&'a [u8]>,
    },
    /// Answered by the values, empty where there is none.
    MultiGet {
        /// The keys.
        keys: Vec<&'a [u8]>,
    },
    /// Ends the WAIT, BARRIER or GATHER in progress, if it was not answered before.
    CancelWait,
    /// Answered by how many keys have a value.
    GetNumKeys,
    /// Removes a value, not a queue. Answered by how many were removed: 1 or 0.
    DeleteKey {
        /// Its key.
        key: &'a [u8],
    },
    /// Puts bytes after the value, absent being empty. No answer.
    Append {
        /// The key.
        key: &'a [u8],
        /// The bytes.
        value: &'a [u8],
    },
    /// Stores values, all before anybody sees one of them. No answer.
    MultiSet {
        /// Keys and values.
        entries: Vec<(&'a [u8], &'a [u8])>,
    },
    /// Puts a value at the end of a queue, and ends the wait of one that waits for it. A key can have
    /// a queue and a value, which do not touch each other. No answer.
    QueuePush {
        /// The queue's key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Answered by the length of a queue, and if that is not 0 by the first value, which is taken away.
    QueuePop {
        /// The queue's key.
        key: &'a [u8],
    },
    /// Answered by the length of a queue.
    QueueLen {
        /// The queue's key.
        key: &'a [u8],
    },
    /// Answered by the keys that have a value, in no order.
    ListKeys,
    /// Adds 1 to the number under the key. Answered once it is `count`, for all who wait for that.
    Barrier {
        /// The key.
        key: &'a [u8],
        /// How many are to come.
        count: i64,
    },
    /// Begins a session: from here on the requests of this connection that
    /// [change something](Query::has_effect) are numbered, from 1. No answer.
    Open {
        /// Its name, drawn by the client.
        session: u64,
    },
    /// Goes on with a session on a new connection. Requests that are numbered less than the next one
    /// that the server expects are not done again, but answered as they were. Answered by
    /// [`Resumed`](super::Resumed).
    Resume {
        /// Its name.
        session: u64,
        /// The number of the next request that changes something.
        next: u64,
    },
    /// Brings a contribution. Answered by all contributions once they cover all slots; where CANCEL_WAIT
    /// comes first, by the slots that are missing.
    Gather {
        /// The gather's key.
        key: &'a [u8],
        /// How many slots there are.
        total: u32,
        /// The slots that are covered, as little-endian u32.
        slots: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
}

/// The slots of a [`Request::Gather`] and of its answer.
pub fn slots(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|slot| u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]))
}

impl<'a> Request<'a> {
    /// Its code.
    #[must_use]
    pub const fn query(&self) -> Query {
        match self {
            Request::Validate => Query::Validate,
            Request::Ping { .. } => Query::Ping,
            Request::Set { .. } => Query::Set,
            Request::CompareSet { .. } => Query::CompareSet,
            Request::Get { .. } => Query::Get,
            Request::Add { .. } => Query::Add,
            Request::Check { .. } => Query::Check,
            Request::Wait { .. } => Query::Wait,
            Request::MultiGet { .. } => Query::MultiGet,
            Request::CancelWait => Query::CancelWait,
            Request::GetNumKeys => Query::GetNumKeys,
            Request::DeleteKey { .. } => Query::DeleteKey,
            Request::Append { .. } => Query::Append,
            Request::MultiSet { .. } => Query::MultiSet,
            Request::QueuePush { .. } => Query::QueuePush,
            Request::QueuePop { .. } => Query::QueuePop,
            Request::QueueLen { .. } => Query::QueueLen,
            Request::ListKeys => Query::ListKeys,
            Request::Barrier { .. } => Query::Barrier,
            Request::Open { .. } => Query::Open,
            Request::Resume { .. } => Query::Resume,
            Request::Gather { .. } => Query::Gather,
        }
    }

    /// The shape of the server's answer; `None` for the requests without one.
    #[must_use]
    pub fn answer(&self) -> Option<Answer> {
        match self {
            Request::Validate
            | Request::Set { .. }
            | Request::Append { .. }
            | Request::MultiSet { .. }
            | Request::QueuePush { .. }
            | Request::Open { .. } => None,
            Request::Ping { .. } => Some(Answer::Nonce),
            Request::CompareSet { .. } | Request::Get { .. } => Some(Answer::Values { count: 1 }),
            Request::Add { .. }
            | Request::GetNumKeys
            | Request::DeleteKey { .. }
            | Request::QueueLen { .. } => Some(Answer::Integer),
            Request::Check { .. } => Some(Answer::Check),
            Request::Wait { .. } | Request::Barrier { .. } => Some(Answer::Wait),
            Request::MultiGet { keys } => Some(Answer::Values { count: keys.len() }),
            Request::CancelWait => Some(Answer::CancelledWait),
            Request::QueuePop { .. } => Some(Answer::Popped),
            Request::ListKeys => Some(Answer::Keys),
            Request::Resume { .. } => Some(Answer::Resumed),
            Request::Gather { .. } => Some(Answer::Gathered),
        }
    }

    /// Appends the request's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.query().code());
        match self {
            Request::Validate => out.extend_from_slice(&MAGIC.to_le_bytes()),
            Request::Ping { nonce } => out.extend_from_slice(&nonce.to_le_bytes()),
            Request::Set { key, value }
            | Request::Append { key, value }
            | Request::QueuePush { key, value } => {
                put_string(out, key);
                put_string(out, value);
            }
            Request::CompareSet { key, expected, desired } => {
                put_string(out, key);
                put_string(out, expected);
                put_string(out, desired);
            }
            Request::Get { key }
            | Request::DeleteKey { key }
            | Request::QueuePop { key }
            | Request::QueueLen { key } => put_string(out, key),
            Request::Barrier { key, count } => {
                put_string(out, key);
                out.extend_from_slice(&count.to_le_bytes());
            }
            Request::MultiSet { entries } => {
                out.extend_from_slice(&(entries.len() as u64).to_le_bytes());
                for (key, value) in entries {
                    put_string(out, key);
                    put_string(out, value);
                }
            }
            Request::Open { session } => out.extend_from_slice(&session.to_le_bytes()),
            Request::Resume { session, next } => {
                out.extend_from_slice(&session.to_le_bytes());
                out.extend_from_slice(&next.to_le_bytes());
            }
            Request::Gather { key, total, slots, value } => {
                put_string(out, key);
                out.extend_from_slice(&total.to_le_bytes());
                put_string(out, slots);
                put_string(out, value);
            }
            Request::Add { key, amount } => {
                put_string(out, key);
                out.extend_from_slice(&amount.to_le_bytes());
            }
            Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys } => {
                out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
                for key in keys {
                    put_string(out, key);
                }
            }
            Request::CancelWait | Request::GetNumKeys | Request::ListKeys => {}
        }
    }

    /// Decodes the request at the front of `bytes`.
    ///
    /// # Errors
    ///
    /// Bytes that no continuation makes a request, as early as they show it.
    pub fn decode(bytes: &'a [u8], limits: &Limits) -> Result<Decoded<Self>, WireError> {
        let mut cursor = Cursor { bytes, at: 0, limit: limits.request };
        let request = Self::read(&mut cursor, limits);
        cursor.finish(request)
    }

    fn read(cursor: &mut Cursor<'a>, limits: &Limits) -> Result<Self, Stop> {
        let code = cursor.u8()?;
        let query = Query::from_code(code).ok_or(WireError::UnknownQuery { code })?;
        let key = |cursor: &mut Cursor<'a>| cursor.string("a key", limits.key);
        let value = |cursor: &mut Cursor<'a>| cursor.string("a value", limits.value);
        let keys = |cursor: &mut Cursor<'a>| {
            let count = cursor.length("a list of keys", limits.keys)?;
            cursor.strings(count, "a key", limits.key)
        };
        Ok(match query {
            Query::Validate => match cursor.u32()? {
                MAGIC => Request::Validate,
                found => {
                    let found = u64::from(found);
                    return Err(
                        WireError::Unexpected { expected: "the magic number", found }.into()
                    );
                }
            },
            Query::Ping => Request::Ping { nonce: cursor.u32()? },
            Query::Set => Request::Set { key: key(cursor)?, value: value(cursor)? },
            Query::CompareSet => Request::CompareSet {
                key: key(cursor)?,
                expected: value(cursor)?,
                desired: value(cursor)?,
            },
            Query::Get => Request::Get { key: key(cursor)? },
            Query::Add => Request::Add { key: key(cursor)?, amount: cursor.i64()? },
            Query::Check => Request::Check { keys: keys(cursor)? },
            Query::Wait => Request::Wait { keys: keys(cursor)? },
            Query::MultiGet => Request::MultiGet { keys: keys(cursor)? },
            Query::CancelWait => Request::CancelWait,
            Query::GetNumKeys => Request::GetNumKeys,
            Query::DeleteKey => Request::DeleteKey { key: key(cursor)? },
            Query::Append => Request::Append { key: key(cursor)?, value: value(cursor)? },
            Query::MultiSet => {
                let count = cursor.length("a list of keys", limits.keys)?;
                Request::MultiSet { entries: cursor.pairs(count, limits)? }
            }
            Query::QueuePush => Request::QueuePush { key: key(cursor)?, value: value(cursor)? },
            Query::QueuePop => Request::QueuePop { key: key(cursor)? },
            Query::QueueLen => Request::QueueLen { key: key(cursor)? },
            Query::ListKeys => Request::ListKeys,
            Query::Barrier => Request::Barrier { key: key(cursor)?, count: cursor.i64()? },
            Query::Open => Request::Open { session: cursor.u64()? },
            Query::Resume => Request::Resume { session: cursor.u64()?, next: cursor.u64()? },
            Query::Gather => {
                let (key, total) = (key(cursor)?, cursor.u32()?);
                let slots = cursor.string("a list of slots", limits.request.min(4 * MOST))?;
                if let Some(found) = Some(slots.len()).filter(|n| n % 4 != 0) {
                    let (expected, found) = ("a list of slots", found as u64);
                    return Err(WireError::Unexpected { expected, found }.into());
                }
                Request::Gather { key, total, slots, value: value(cursor)? }
            }
        })
    }
}
