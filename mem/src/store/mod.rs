//! The key-value store through which ranks meet.
//!
//! Does: small values and queues under string keys, visible to every rank, with a wait for keys that
//! are not there yet, and [gathers](Store::gather), in which everybody gets what everybody brought.
//! [`LocalStore`] serves the threads of one process; [`tcp`] speaks PyTorch's TCPStore protocol as
//! client and as server, so that ranks started by torchrun meet on the agent's store and Python and
//! Rust ranks meet on one; [`PrefixStore`] is a namespace in any of them.
//!
//! Does not: persist anything, authenticate anyone, or carry bulk data. Who can reach a TCP store
//! can read and change it. Values over 8 MiB, which PyTorch's server refuses, are put together by
//! [`Store::append`].
//!
//! Choices:
//! - The trait is object-safe and synchronous: it is used at start-up, by code that must not care
//!   which store it was given. Every call is bounded by a [`Wait`]; no call waits for ever.
//! - The operations are those of PyTorch 2.15, with the semantics of its `TCPStore`, surprises
//!   included ([`Store::compare_set`], a key with a value and a queue), because ranks of both meet on
//!   one store. One body of checks runs on every store here, and on both of PyTorch's servers.
//! - A gather's contributors cover *slots*, of which alone the number is known: so the leaders of
//!   hosts gather without knowing how many they are.

mod call;
mod error;
mod gather;
mod local;
mod monitor;
mod prefix;
mod table;
pub mod tcp;

#[cfg(test)]
mod conformance;

pub use error::{LostCause, Missing, StoreError};
pub use gather::{Contribution, GatherFault, MOST_SLOTS, Part};
pub use local::LocalStore;
pub use prefix::PrefixStore;

use core::fmt;
use std::sync::Arc;

use symmem_hal::Wait;

/// A key-value store shared by ranks.
///
/// Values are bytes, at most 8 MiB; keys are text, at most 8 KiB. Calls from several threads may
/// overlap: one that waits for keys does not hold up the others. A call whose token was cancelled
/// before it began has no effect; one that is cancelled or times out later may have had its effect.
///
/// # Errors
///
/// All calls return [`StoreError`]; it names the store, the operation, the keys and the times.
pub trait Store: Send + Sync + fmt::Debug {
    /// What the store is called in errors.
    fn name(&self) -> Arc<str>;

    /// Stores `value` under `key`, replacing what was there.
    ///
    /// On a network store the request is on its way when this returns; every later call through
    /// the same store sees its effect. If it does not arrive a later call says so.
    fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError>;

    /// The value of `key`; waits until there is one.
    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>, StoreError>;

    /// Stores values, all before anybody sees one of them. Of a key named twice the last one stays.
    ///
    /// As [`set`](Self::set) for when it is done.
    fn multi_set(&self, entries: &[(&str, &[u8])], wait: &Wait) -> Result<(), StoreError>;

    /// Puts bytes after the value of `key`, absent being empty. The whole may become longer than what
    /// one call takes.
    ///
    /// As [`set`](Self::set) for when it is done.
    fn append(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError>;

    /// Removes the value of `key`; whether there was one.
    fn delete(&self, key: &str, wait: &Wait) -> Result<bool, StoreError>;

    /// Adds `amount` to the number under `key`, absent being 0, and returns the sum.
    ///
    /// The number is kept as decimal text, which is what [`get`](Self::get) returns.
    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64, StoreError>;

    /// Stores `desired` if the value of `key` is `expected`, or if there is none and `expected` is
    /// empty. Returns the value that is then there: `desired` after a success.
    ///
    /// Where there is no value and `expected` is not empty nothing is stored, and `expected` is
    /// returned, as if it were there.
    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
        wait: &Wait,
    ) -> Result<Vec<u8>, StoreError>;

    /// Waits until every key has a value, or something in its queue. An empty list is there at once.
    ///
    /// A key that was there during the call and is gone counts as well, as long as the wait did not
    /// have to move to another connection.
    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<(), StoreError>;

    /// Whether every key has a value, or something in its queue, now.
    fn check(&self, keys: &[&str], wait: &Wait) -> Result<bool, StoreError>;

    /// The values of all keys, in their order; waits until every one is there.
    fn multi_get(&self, keys: &[&str], wait: &Wait) -> Result<Vec<Vec<u8>>, StoreError>;

    /// How many keys have a value, those of others and outside of any [prefix](PrefixStore) included.
    fn num_keys(&self, wait: &Wait) -> Result<u64, StoreError>;

    /// The keys that have a value, in no order; within a [prefix](PrefixStore) those of it, without it.
    /// What is no text in a key is replaced.
    fn list_keys(&self, wait: &Wait) -> Result<Vec<String>, StoreError>;

    /// Puts a value at the end of the queue of `key`. A key's queue and value do not touch each other.
    ///
    /// As [`set`](Self::set) for when it is done.
    fn queue_push(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError>;

    /// Takes the first value of a queue; waits until there is one. Who waits longest is first, among
    /// those who came to wait at the server.
    fn queue_pop(&self, key: &str, wait: &Wait) -> Result<Vec<u8>, StoreError>;

    /// Takes the first value of a queue, if there is one.
    fn queue_try_pop(&self, key: &str, wait: &Wait) -> Result<Option<Vec<u8>>, StoreError>;

    /// The length of a queue.
    fn queue_len(&self, key: &str, wait: &Wait) -> Result<u64, StoreError>;

    /// Adds 1 to the number under `key`, as [`add`](Self::add) does, and waits until it is `count`.
    ///
    /// Who comes later finds it reached; a call that fails may have been counted. So a key serves one
    /// barrier. Ranks of PyTorch meet here by `TCPStore.barrier`: its `PrefixStore` and its other stores
    /// make barriers of other keys.
    fn barrier(&self, key: &str, count: u64, wait: &Wait) -> Result<(), StoreError>;

    /// Brings `mine` to the gather under `key`, waits until the contributions cover all slots, and
    /// returns them all, the one with the lowest slot first.
    ///
    /// The same contribution again gives the same result, also after the gather is complete: a call
    /// that failed can be repeated. A different one that covers a slot twice is refused, with the
    /// slot. A key serves one gather: take another one for the next.
    ///
    /// As provided it is one request to claim the key of the lowest slot of `mine`, another to write it and those of
    /// its other slots, and one [`multi_get`](Self::multi_get) of all slots' keys, `key/0` and so on, which stay in the
    /// store; of the [heads](Contribution::heads)' alone where those are given. Of two contributors that
    /// claim one lowest slot the second one is told; of another slot the one that was overwritten, unless it was
    /// through before.
    ///
    /// # Errors
    ///
    /// Besides those of all calls: [`StoreError::Gather`], and a time-out that names the slots that
    /// nobody covers ([`Missing::Slots`]).
    fn gather(
        &self,
        key: &str,
        mine: &Contribution<'_>,
        wait: &Wait,
    ) -> Result<Vec<Part>, StoreError> {
        gather::over_keys::gather(self, key, mine, wait)
    }
}
