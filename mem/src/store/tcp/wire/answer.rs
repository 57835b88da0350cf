//! What servers send back.

use super::{Cursor, Decoded, Limits, Stop, WireError, put_string};

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
}

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
}
