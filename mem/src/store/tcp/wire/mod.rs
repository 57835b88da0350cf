//! PyTorch's TCPStore protocol, as functions over bytes.
//!
//! Does: encodes and decodes every message this crate sends or serves. Does not: touch a socket,
//! keep state, or allocate before a message is known to be whole and within the [`Limits`].
//!
//! A connection is two streams. The client's carries [`Request`]s, each a one-byte [`Query`] code
//! and its arguments; the first is VALIDATE with [`MAGIC`]. The server's carries the answers, in
//! the order of the requests and without any code: what an answer looks like follows from the
//! request ([`Request::answer`]). Integers are little-endian (the protocol uses the sender's order,
//! and peers of unlike order do not understand each other), a byte string is its length as u64 and
//! the bytes, a list is its length as u64 and the items. The one answer that may come late, between
//! the answers to later requests, is WAIT's; [`Query::CancelWait`] ends the wait, and its answer
//! ends the doubt whether WAIT's was sent before.
//!
//! The protocol has no way to refuse a request: a server closes the connection.
//!
//! Servers of this crate know three more requests, OPEN, RESUME and GATHER, for clients that ask for
//! them by the nonce of the handshake's PING ([`HELLO`]): no other client meets them, and no server
//! that does not know them is asked.

mod answer;
mod request;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Gathered, Resumed};
pub use request::{Query, Request, slots};

use thiserror::Error;

/// The number that a client's first request carries.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// The nonce by which a client of this crate asks whether the server knows the extension: above any
/// process id, which is what PyTorch's clients send. Other servers send it back.
pub const HELLO: u32 = 0xF553_4D01;

/// What a server of this crate answers to [`HELLO`]: it knows the extension, and is this one. A number
/// drawn at its start is in the low 24 bits, so that one that took its place is told from it.
#[must_use]
pub const fn welcome(instance: u32) -> u32 {
    WELCOME | instance & 0x00FF_FFFF
}

/// The instance of a server of this crate in its answer to [`HELLO`]; `None` in any other's.
#[must_use]
pub const fn welcomed(nonce: u32) -> Option<u32> {
    if nonce & 0xFF00_0000 == WELCOME { Some(nonce & 0x00FF_FFFF) } else { None }
}

const WELCOME: u32 = 0xF600_0000;

/// The largest messages that are encoded or accepted. Sizes in bytes.
///
/// The first three are those of PyTorch's own server, so that what is accepted here is accepted
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of one key.
    pub key: usize,
    /// Of one value.
    pub value: usize,
    /// The number of keys in one request.
    pub keys: usize,
    /// Of one request as a whole.
    pub request: usize,
    /// Of one answer as a whole.
    pub answer: usize,
}

impl Limits {
    /// 8 KiB a key, 8 MiB a value, 131072 keys, 64 MiB a request, 256 MiB an answer.
    pub const DEFAULT: Limits = Limits {
        key: 8 << 10,
        value: 8 << 20,
        keys: 128 << 10,
        request: 64 << 20,
        answer: 256 << 20,
    };
}

/// What came of decoding the front of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<T> {
    /// A message, which is the first `length` bytes.
    Whole {
        /// The message.
        message: T,
        /// The bytes it took.
        length: usize,
    },
    /// Not all of it is there: decoding again is useless before the buffer holds `needed` bytes.
    Partial {
        /// The least length of the buffer at which the next attempt can tell more.
        needed: usize,
    },
}

/// Why bytes are not a message. The connection they came from cannot be used further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// A code that no known release of the protocol has.
    #[error("query code {code} is unknown")]
    UnknownQuery {
        /// The code found.
        code: u8,
    },
    /// A query of this crate's servers, from a client that did not [ask](HELLO) for them.
    #[error("query {} ({}) without the handshake for it", query.name(), query.code())]
    Uninvited {
        /// The query found.
        query: Query,
    },
    /// A length beyond a limit.
    #[error("{what} of {found} is over the limit of {limit}")]
    TooLong {
        /// What the length is of.
        what: &'static str,
        /// The length found.
        found: u64,
        /// The limit.
        limit: usize,
    },
    /// An answer that the request does not have.
    #[error("answer {found:#x} where {expected} was expected")]
    Unexpected {
        /// What the protocol allows here.
        expected: &'static str,
        /// What was found.
        found: u64,
    },
}

/// Why a read from a [`Cursor`] ended early.
enum Stop {
    /// The buffer must hold this many bytes before the read can succeed.
    Needs(usize),
    Bad(WireError),
}

impl Stop {
    /// With so many bytes that must come after those.
    fn and(self, more: usize) -> Self {
        match self {
            Stop::Needs(n) => Stop::Needs(n.saturating_add(more)),
            bad @ Stop::Bad(_) => bad,
        }
    }
}

impl From<WireError> for Stop {
    fn from(error: WireError) -> Self {
        Stop::Bad(error)
    }
}

/// Reads from the front of a buffer that may hold less than a message.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The longest message: no need beyond it is ever reported.
    limit: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.saturating_add(n);
        if end > self.limit {
            let found = end as u64;
            return Err(WireError::TooLong { what: "a message", found, limit: self.limit }.into());
        }
        let taken = self.bytes.get(self.at..end).ok_or(Stop::Needs(end))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, Stop> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Stop> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn i64(&mut self) -> Result<i64, Stop> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A length or count of at most `limit`.
    fn length(&mut self, what: &'static str, limit: usize) -> Result<usize, Stop> {
        let found = u64::from_le_bytes(self.array()?);
        match usize::try_from(found) {
            Ok(n) if n <= limit => Ok(n),
            _ => Err(WireError::TooLong { what, found, limit }.into()),
        }
    }

    fn string(&mut self, what: &'static str, limit: usize) -> Result<&'a [u8], Stop> {
        let n = self.length(what, limit)?;
        self.take(n)
    }

    /// Steps over `count` byte strings. The need it reports includes the lengths of the strings
    /// not yet seen: a sender of many small pieces cannot make each piece cost a whole scan.
    fn skip_strings(&mut self, count: usize, what: &'static str, limit: usize) -> Result<(), Stop> {
        for seen in 0..count {
            match self.string(what, limit) {
                Ok(_) => {}
                Err(stop) => return Err(stop.and(8 * (count - seen - 1))),
            }
        }
        Ok(())
    }

    fn strings(
        &mut self,
        count: usize,
        what: &'static str,
        limit: usize,
    ) -> Result<Vec<&'a [u8]>, Stop> {
        let start = self.at;
        self.skip_strings(count, what, limit)?;
        self.at = start;
        (0..count).map(|_| self.string(what, limit)).collect()
    }

    /// So many keys, each with its value. As [`skip_strings`](Self::skip_strings) for what is missing.
    fn pairs(&mut self, count: usize, limits: &Limits) -> Result<Vec<Pair<'a>>, Stop> {
        let start = self.at;
        // Nothing is kept before all of it is there.
        for seen in 0..count {
            let left = 16 * (count - seen - 1);
            self.string("a key", limits.key).map_err(|stop| stop.and(left + 8))?;
            self.string("a value", limits.value).map_err(|stop| stop.and(left))?;
        }
        self.at = start;
        let pair =
            |_| Ok((self.string("a key", limits.key)?, self.string("a value", limits.value)?));
        (0..count).map(pair).collect()
    }

    /// Ends a decoding that produced `result`.
    fn finish<T>(self, result: Result<T, Stop>) -> Result<Decoded<T>, WireError> {
        match result {
            Ok(message) => Ok(Decoded::Whole { message, length: self.at }),
            Err(Stop::Needs(needed)) if needed <= self.limit => Ok(Decoded::Partial { needed }),
            Err(Stop::Needs(needed)) => {
                let found = needed as u64;
                Err(WireError::TooLong { what: "a message", found, limit: self.limit })
            }
            Err(Stop::Bad(error)) => Err(error),
        }
    }
}

/// A key and its value.
type Pair<'a> = (&'a [u8], &'a [u8]);

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}
