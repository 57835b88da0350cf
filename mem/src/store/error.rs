//! What store calls report.

use core::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use symmem_hal::{Fault, Kind};
use thiserror::Error;

use super::gather::GatherFault;
use super::tcp::wire::WireError;

/// Why a store call failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The bound passed first.
    #[error(
        "{store}: {operation} timed out after {elapsed:.3?} of {allowed:.3?}, missing {missing}: {}, or allow more time",
        missing.look()
    )]
    TimedOut {
        /// The store.
        store: Arc<str>,
        /// The call.
        operation: &'static str,
        /// What did not come.
        missing: Missing,
        /// How long the call took.
        elapsed: Duration,
        /// How long it was allowed to take.
        allowed: Duration,
    },
    /// The caller's token was cancelled.
    #[error(
        "{store}: {operation} of {} was cancelled by the caller after {elapsed:.3?}: it may have been done, so look before doing it again",
        KeyList(keys)
    )]
    Cancelled {
        /// The store.
        store: Arc<str>,
        /// The call.
        operation: &'static str,
        /// Its keys.
        keys: Vec<String>,
        /// How long the call took.
        elapsed: Duration,
    },
    /// The store is gone, or of no more use. Later calls through this store fail with the same cause at
    /// once.
    #[error(
        "{store}: lost during {operation} of {}: {cause}; connect again if the server still runs, else start the run again",
        KeyList(keys)
    )]
    Lost {
        /// The store.
        store: Arc<str>,
        /// The call.
        operation: &'static str,
        /// Its keys.
        keys: Vec<String>,
        /// What ended the connection.
        cause: LostCause,
    },
    /// The connection to the store ended while something was being changed, and the server is not one
    /// of this crate, so that it cannot be asked whether it was done. Later calls connect again.
    #[error(
        "{store}: lost during {operation} of {}: {cause}; whether {} changed is not known: look before doing it again",
        KeyList(keys),
        Changed(doubtful)
    )]
    Doubtful {
        /// The store.
        store: Arc<str>,
        /// The call.
        operation: &'static str,
        /// Its keys. The call itself was not done unless they are among the doubtful ones.
        keys: Vec<String>,
        /// The keys of requests that may have been done or not, this call's or those of earlier calls
        /// that wait for no answer, as [`set`](super::Store::set).
        doubtful: Box<[String]>,
        /// What ended the connection.
        cause: LostCause,
    },
    /// The server has no room for it; nothing was changed.
    #[error(
        "{store}: {operation} of {}: the server refuses it: {reason}: send less, or give the server more",
        KeyList(keys)
    )]
    Refused {
        /// The store.
        store: Arc<str>,
        /// The call.
        operation: &'static str,
        /// Its keys.
        keys: Vec<String>,
        /// Why, as its log has it.
        reason: String,
    },
    /// An argument beyond the store's limits; nothing was sent or stored.
    #[error(
        "{store}: {operation} of {}: {what} of {found} is over the limit of {limit}: send less, or give the server more",
        KeyList(keys)
    )]
    TooLarge {
        /// The store.
        store: Arc<str>,
        /// The call.
        operation: &'static str,
        /// Its keys, cut to a readable length.
        keys: Vec<String>,
        /// What is too large.
        what: &'static str,
        /// Its length in bytes, or its count.
        found: usize,
        /// The largest length or count.
        limit: usize,
    },
    /// The value to add to is not a number; it was left as it is.
    #[error(
        "{store}: add to {key:?}, whose value {found:?} is not a decimal number of 64 bits: set it to one, or take another key"
    )]
    NotANumber {
        /// The store.
        store: Arc<str>,
        /// The key.
        key: String,
        /// The start of its value.
        found: String,
    },
    /// The sum does not fit; the number was left as it is.
    #[error(
        "{store}: adding {amount} to {key:?}, which is {stored}, leaves 64 bits: set it to a smaller number, or take another key"
    )]
    Overflow {
        /// The store.
        store: Arc<str>,
        /// The key.
        key: String,
        /// Its value.
        stored: i64,
        /// What was to be added.
        amount: i64,
    },
    /// Contributions to a gather that do not fit, by themselves or together.
    #[error("{store}: gather under {key:?}: {fault}")]
    Gather {
        /// The store.
        store: Arc<str>,
        /// The gather's key.
        key: String,
        /// What does not fit.
        fault: GatherFault,
    },
}

impl Fault for StoreError {
    fn kind(&self) -> Kind {
        match self {
            StoreError::TimedOut { .. } => Kind::TimedOut,
            StoreError::Cancelled { .. } => Kind::Cancelled,
            StoreError::Lost { .. } | StoreError::Doubtful { .. } | StoreError::Refused { .. } => {
                Kind::System
            }
            StoreError::TooLarge { .. }
            | StoreError::NotANumber { .. }
            | StoreError::Overflow { .. }
            | StoreError::Gather { .. } => Kind::InvalidArgument,
        }
    }
}

/// What a call that timed out was waiting for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// These keys have no value.
    Keys(Vec<String>),
    /// At least one of these keys has no value; the server did not say which in time.
    AmongKeys(Vec<String>),
    /// The server did not answer a request about these keys.
    Answer(Vec<String>),
    /// Nobody has contributed for these slots of a gather.
    Slots {
        /// The gather's key.
        key: String,
        /// The slots, in ascending order.
        slots: Box<[u32]>,
    },
    /// Not so many have arrived at a barrier.
    Arrivals {
        /// The barrier's key.
        key: String,
        /// How many have, this one included; `None` where the server did not say.
        arrived: Option<u32>,
        /// How many are to.
        count: u64,
    },
}

impl Missing {
    /// The keys it is about.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        match self {
            Missing::Keys(keys) | Missing::AmongKeys(keys) | Missing::Answer(keys) => keys,
            Missing::Slots { key, .. } | Missing::Arrivals { key, .. } => std::slice::from_ref(key),
        }
    }
}

impl Missing {
    /// What to look at first.
    fn look(&self) -> &'static str {
        match self {
            Missing::Keys(_) | Missing::AmongKeys(_) => "see where those are who set them",
            Missing::Answer(_) => "see whether the server is busy or cut off",
            Missing::Slots { .. } => "see where those are who contribute them",
            Missing::Arrivals { .. } => "see where the others are",
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Keys(keys) => write!(f, "{}", KeyList(keys)),
            Missing::AmongKeys(keys) => write!(f, "at least one of {}", KeyList(keys)),
            Missing::Answer(keys) => write!(f, "the server's answer for {}", KeyList(keys)),
            Missing::Slots { key, slots } => {
                f.write_str(if slots.len() == 1 { "slot" } else { "slots" })?;
                list(f, slots)?;
                write!(f, " of key {key:?}")
            }
            Missing::Arrivals { key, arrived: Some(arrived), count } => {
                write!(f, "{} of {count} at key {key:?}", count.saturating_sub(u64::from(*arrived)))
            }
            Missing::Arrivals { key, arrived: None, count } => {
                write!(f, "some of {count} at key {key:?}")
            }
        }
    }
}

/// What ended a connection.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LostCause {
    /// The server closed it: it ended, or it refused the request (its log says why).
    #[error(
        "the server closed the connection: it has ended, or refused the request, which its log tells"
    )]
    Closed,
    /// The operating system reported an error.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// The server sent what the protocol does not allow.
    #[error("the server does not follow the protocol: {0}")]
    Protocol(WireError),
    /// Another server answers in its place: what was stored is gone.
    #[error("the server has been started again, and what was stored is gone")]
    Restarted,
    /// The server has had too many clients to know what this one had it do.
    #[error("the server has forgotten this client")]
    Forgotten,
    /// The server would not do a request, this one or one before it that had no answer.
    #[error("the server refused a request: {reason}")]
    Refused {
        /// Why, as its log has it.
        reason: String,
    },
    /// The server sent bytes that nothing asked for.
    #[error("the server sent {bytes} bytes that answer no request")]
    Unasked {
        /// How many.
        bytes: usize,
    },
}

impl LostCause {
    /// Whether a new connection may do better.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, LostCause::Closed | LostCause::Io(_))
    }
}

impl From<WireError> for LostCause {
    fn from(error: WireError) -> Self {
        LostCause::Protocol(error)
    }
}

impl From<io::Error> for LostCause {
    fn from(error: io::Error) -> Self {
        LostCause::Io(Arc::new(error))
    }
}

impl From<rustix::io::Errno> for LostCause {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// The keys of a list, as the subject of a sentence.
struct Changed<'a>(&'a [String]);

impl fmt::Display for Changed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", KeyList(self.0), if self.0.len() == 1 { "was" } else { "were" })
    }
}

/// The first few keys of a list and how many there are.
struct KeyList<'a>(&'a [String]);

impl fmt::Display for KeyList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "key" } else { "keys" })?;
        list(f, self.0)
    }
}

/// Writes the first few of a list, each after a space, and how many more there are.
fn list(f: &mut fmt::Formatter<'_>, items: &[impl fmt::Debug]) -> fmt::Result {
    const SHOWN: usize = 8;
    for (i, item) in items.iter().take(SHOWN).enumerate() {
        write!(f, "{} {item:?}", if i == 0 { "" } else { "," })?;
    }
    match items.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_keys_and_times() {
        let error = StoreError::TimedOut {
            store: "tcp://10.0.0.1:29500".into(),
            operation: "multi_get",
            missing: Missing::Keys((0..10).map(|i| format!("rank/{i}")).collect()),
            elapsed: Duration::from_millis(1501),
            allowed: Duration::from_millis(1500),
        };
        assert_eq!(
            error.to_string(),
            "tcp://10.0.0.1:29500: multi_get timed out after 1.501s of 1.500s, missing keys \
             \"rank/0\", \"rank/1\", \"rank/2\", \"rank/3\", \"rank/4\", \"rank/5\", \"rank/6\", \
             \"rank/7\" and 2 more: see where those are who set them, or allow more time"
        );
        assert_eq!(error.kind(), Kind::TimedOut);
    }

    #[test]
    fn each_text_says_what_to_do() {
        let (store, operation, keys): (Arc<str>, _, _) =
            ("local".into(), "get", vec!["k".to_owned()]);
        let (key, elapsed, allowed) = ("k".to_owned(), Duration::ZERO, Duration::ZERO);
        let timed_out = |missing| {
            let store = store.clone();
            StoreError::TimedOut { store, operation, missing, elapsed, allowed }
        };
        let cases = [
            (timed_out(Missing::Keys(keys.clone())), "who set them, or allow more time"),
            (timed_out(Missing::AmongKeys(keys.clone())), "who set them, or allow more time"),
            (timed_out(Missing::Answer(keys.clone())), "busy or cut off, or allow more time"),
            (
                timed_out(Missing::Slots { key: key.clone(), slots: [3, 7].into() }),
                "missing slots 3, 7 of key \"k\": see where those are who contribute them, or allow \
                 more time",
            ),
            (
                timed_out(Missing::Arrivals { key: key.clone(), arrived: Some(3), count: 4 }),
                "missing 1 of 4 at key \"k\": see where the others are, or allow more time",
            ),
            (
                StoreError::Cancelled {
                    store: store.clone(),
                    operation,
                    keys: keys.clone(),
                    elapsed,
                },
                "look before doing it again",
            ),
            (
                StoreError::Lost {
                    store: store.clone(),
                    operation,
                    keys: keys.clone(),
                    cause: LostCause::Closed,
                },
                "connect again if the server still runs, else start the run again",
            ),
            (
                StoreError::Doubtful {
                    store: store.clone(),
                    operation,
                    keys: keys.clone(),
                    doubtful: ["k".to_owned(), "l".to_owned()].into(),
                    cause: LostCause::Closed,
                },
                "whether keys \"k\", \"l\" were changed is not known: look before doing it again",
            ),
            (
                StoreError::Refused {
                    store: store.clone(),
                    operation,
                    keys: keys.clone(),
                    reason: "2 is over the limit of 1".to_owned(),
                },
                "send less, or give the server more",
            ),
            (
                StoreError::TooLarge {
                    store: store.clone(),
                    operation,
                    keys,
                    what: "a value",
                    found: 2,
                    limit: 1,
                },
                "send less, or give the server more",
            ),
            (
                StoreError::NotANumber {
                    store: store.clone(),
                    key: key.clone(),
                    found: "x".to_owned(),
                },
                "set it to one, or take another key",
            ),
            (
                StoreError::Overflow {
                    store: store.clone(),
                    key: key.clone(),
                    stored: i64::MAX,
                    amount: 1,
                },
                "set it to a smaller number, or take another key",
            ),
            (
                StoreError::Gather { store, key, fault: GatherFault::Overlap { slot: 3 } },
                "see who else has that place, or take another key",
            ),
        ];
        for (error, remedy) in cases {
            // A new sort of error needs its line above.
            match &error {
                StoreError::TimedOut { .. }
                | StoreError::Cancelled { .. }
                | StoreError::Lost { .. }
                | StoreError::Doubtful { .. }
                | StoreError::Refused { .. }
                | StoreError::TooLarge { .. }
                | StoreError::NotANumber { .. }
                | StoreError::Overflow { .. }
                | StoreError::Gather { .. } => {}
            }
            assert!(error.to_string().ends_with(remedy), "{error}");
        }
    }
}
