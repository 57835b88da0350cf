//! What clients send.

use super::{Answer, Cursor, Decoded, Limits, MAGIC, Stop, WireError, put_string};

/// The codes of the protocol's requests, served here or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the protocol's")]
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
}

impl Query {
    /// Every query, at the index of its code.
    pub const ALL: [Query; 19] = [
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
    ];

    /// The byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The query of a code; `None` for a code of none.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
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
    /// Ends the WAIT in progress, if it was not answered before.
    CancelWait,
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
        }
    }

    /// The shape of the server's answer; `None` for the requests without one.
    #[must_use]
    pub fn answer(&self) -> Option<Answer> {
        match self {
            Request::Validate | Request::Set { .. } => None,
            Request::Ping { .. } => Some(Answer::Nonce),
            Request::CompareSet { .. } | Request::Get { .. } => Some(Answer::Values { count: 1 }),
            Request::Add { .. } => Some(Answer::Integer),
            Request::Check { .. } => Some(Answer::Check),
            Request::Wait { .. } => Some(Answer::Wait),
            Request::MultiGet { keys } => Some(Answer::Values { count: keys.len() }),
            Request::CancelWait => Some(Answer::CancelledWait),
        }
    }

    /// Appends the request's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.query().code());
        match self {
            Request::Validate => out.extend_from_slice(&MAGIC.to_le_bytes()),
            Request::Ping { nonce } => out.extend_from_slice(&nonce.to_le_bytes()),
            Request::Set { key, value } => {
                put_string(out, key);
                put_string(out, value);
            }
            Request::CompareSet { key, expected, desired } => {
                put_string(out, key);
                put_string(out, expected);
                put_string(out, desired);
            }
            Request::Get { key } => put_string(out, key),
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
            Request::CancelWait => {}
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
            Query::GetNumKeys
            | Query::DeleteKey
            | Query::Append
            | Query::MultiSet
            | Query::QueuePush
            | Query::QueuePop
            | Query::QueueLen
            | Query::ListKeys
            | Query::Barrier => return Err(WireError::Unserved { query }.into()),
        })
    }
}
