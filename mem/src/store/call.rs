//! One call in progress: what it was asked, until when, and its errors.

use std::sync::Arc;
use std::time::Instant;

use symmem_hal::Wait;

use super::tcp::wire::Limits;
use super::{LostCause, Missing, StoreError};

/// How a wait ended that did not get what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Deadline,
    Cancelled,
}

pub(super) struct Call<'a> {
    store: &'a Arc<str>,
    operation: &'static str,
    pub keys: &'a [&'a str],
    pub wait: &'a Wait,
    pub deadline: Instant,
    started: Instant,
}

impl<'a> Call<'a> {
    /// Begins a call: refuses keys beyond the limits and a token that is cancelled already.
    pub fn begin(
        store: &'a Arc<str>,
        operation: &'static str,
        keys: &'a [&'a str],
        wait: &'a Wait,
        limits: &Limits,
    ) -> Result<Self, StoreError> {
        let deadline = wait.deadline();
        let call = Call { store, operation, keys, wait, deadline, started: Instant::now() };
        call.fits("the list of keys", keys.len(), limits.keys)?;
        let longest = keys.iter().map(|key| key.len()).max().unwrap_or(0);
        call.fits("a key", longest, limits.key)?;
        let total = keys.iter().map(|key| key.len() + 8).sum::<usize>() + 9;
        call.fits("the request", total, limits.request)?;
        if wait.is_cancelled() {
            return Err(call.ended(Ended::Cancelled));
        }
        Ok(call)
    }

    /// Refuses `found` over `limit`.
    pub fn fits(&self, what: &'static str, found: usize, limit: usize) -> Result<(), StoreError> {
        if found <= limit {
            return Ok(());
        }
        let cut = |key: &&str| key.chars().take(64).collect();
        Err(StoreError::TooLarge {
            store: self.store.clone(),
            operation: self.operation,
            keys: self.keys.iter().take(8).map(cut).collect(),
            what,
            found,
            limit,
        })
    }

    /// Refuses values, or all of a request's keys and values, over the limits.
    pub fn fit_together(
        &self,
        entries: &[(&str, &[u8])],
        limits: &Limits,
    ) -> Result<(), StoreError> {
        let longest = entries.iter().map(|(_, value)| value.len()).max().unwrap_or(0);
        self.fits("a value", longest, limits.value)?;
        let bytes = entries.iter().map(|(key, value)| 16 + key.len() + value.len());
        self.fits("the request", bytes.sum::<usize>() + 9, limits.request)
    }

    pub fn timed_out(&self, missing: Missing) -> StoreError {
        StoreError::TimedOut {
            store: self.store.clone(),
            operation: self.operation,
            missing,
            elapsed: self.started.elapsed(),
            allowed: self.wait.duration(),
        }
    }

    pub fn lost(&self, cause: LostCause) -> StoreError {
        let (store, operation) = (self.store.clone(), self.operation);
        StoreError::Lost { store, operation, keys: self.key_names(), cause }
    }

    pub fn doubtful(&self, doubtful: Vec<String>, cause: LostCause) -> StoreError {
        let (store, operation) = (self.store.clone(), self.operation);
        let (keys, doubtful) = (self.key_names(), doubtful.into());
        StoreError::Doubtful { store, operation, keys, doubtful, cause }
    }

    pub fn refused(&self, reason: String) -> StoreError {
        let (store, operation) = (self.store.clone(), self.operation);
        StoreError::Refused { store, operation, keys: self.key_names(), reason }
    }

    /// The end of a wait for the server.
    pub fn ended(&self, ended: Ended) -> StoreError {
        match ended {
            Ended::Deadline => self.timed_out(Missing::Answer(self.key_names())),
            Ended::Cancelled => StoreError::Cancelled {
                store: self.store.clone(),
                operation: self.operation,
                keys: self.key_names(),
                elapsed: self.started.elapsed(),
            },
        }
    }

    pub fn key_names(&self) -> Vec<String> {
        self.keys.iter().map(|&key| key.to_owned()).collect()
    }

    pub fn key_bytes(&self) -> Vec<&'a [u8]> {
        self.keys.iter().map(|key| key.as_bytes()).collect()
    }
}
