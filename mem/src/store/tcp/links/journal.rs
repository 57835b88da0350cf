//! Requests that change something, until the server is known to have done them.
//!
//! On a server of this crate they are numbered, in a session: after a loss of the connection they are
//! all sent again, and those that were done are not done twice. No other server can tell; there only
//! what had not left at all is sent again, and the rest is doubtful.

use std::collections::VecDeque;

use crate::store::tcp::connection::Connection;
use crate::store::tcp::wire::{Answer, Request};

/// How many requests, and how many bytes of them, go out before one is sent that has an answer.
const MOST: usize = 4 << 10;
const MOST_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Journal {
    pub session: u64,
    /// The number of the next request.
    next: u64,
    pending: VecDeque<Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    request: Vec<u8>,
    answer: Option<Answer>,
    keys: Vec<String>,
    /// A key that is there once it is done.
    leaves: Option<String>,
    /// Where it begins on the connection it is on.
    position: u64,
}

impl Journal {
    pub fn new(session: u64) -> Self {
        Journal { session, next: 1, pending: VecDeque::new(), bytes: 0 }
    }

    /// Whether an answer is to be had before this request.
    pub fn is_full(&self, request: &Request<'_>) -> bool {
        let bytes = self.bytes.saturating_add(weight(request));
        !self.pending.is_empty() && (self.pending.len() >= MOST || bytes > MOST_BYTES)
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The number that the first request has which is sent next over a new connection.
    pub fn first(&self) -> u64 {
        self.pending.front().map_or(self.next, |entry| entry.number)
    }

    /// The mark for requests that are sent now: all before are done when one is answered.
    pub fn mark(&self) -> u64 {
        self.next
    }

    /// Notes a request and puts it in line.
    pub fn send(&mut self, link: &mut Connection, request: &Request<'_>, keys: Vec<String>) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.bytes += bytes.len();
        let (number, position) = (self.next, link.position());
        self.next += 1;
        let answer = request.answer();
        link.queue_bytes(&bytes, answer, self.next);
        let leaves = leaves(request).map(|key| String::from_utf8_lossy(key).into_owned());
        self.pending.push_back(Entry { number, request: bytes, answer, keys, leaves, position });
    }

    /// Puts everything that is not known to be done in line on another connection; how many there are.
    pub fn send_again(&mut self, link: &mut Connection) -> u64 {
        for entry in &mut self.pending {
            entry.position = link.position();
            link.queue_bytes(&entry.request, entry.answer, entry.number + 1);
        }
        self.pending.len() as u64
    }

    /// Drops what was done before the request with that mark; gives a key that is there since.
    pub fn confirm(&mut self, mark: u64) -> Option<String> {
        let mut key = None;
        while let Some(done) = self.pending.pop_front_if(|entry| entry.number < mark) {
            self.bytes -= done.request.len();
            key = key.or(done.leaves);
        }
        key
    }

    /// The keys of the requests of which some of the first `written` bytes of the connection were a
    /// part. If there are any, everything is dropped.
    pub fn doubtful(&mut self, written: u64) -> Vec<String> {
        let left = self.pending.iter().filter(|entry| entry.position < written);
        let mut keys: Vec<String> = left.flat_map(|entry| entry.keys.iter().cloned()).collect();
        if self.pending.front().is_some_and(|entry| entry.position < written) {
            self.clear();
        }
        keys.dedup();
        keys
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.pending.clear();
        self.bytes = 0;
    }
}

/// A key that is there after a request.
fn leaves<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    match request {
        Request::Set { key, .. } | Request::Append { key, .. } | Request::Add { key, .. } => {
            Some(key)
        }
        Request::CompareSet { key, expected: [], .. } => Some(key),
        Request::MultiSet { entries } => entries.first().map(|(key, _)| *key),
        _ => None,
    }
}

/// What makes a request large.
fn weight(request: &Request<'_>) -> usize {
    match request {
        Request::Set { value, .. }
        | Request::Append { value, .. }
        | Request::QueuePush { value, .. } => value.len(),
        Request::MultiSet { entries } => entries.iter().map(|(_, value)| value.len()).sum(),
        _ => 0,
    }
}
