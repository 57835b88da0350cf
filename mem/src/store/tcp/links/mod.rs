//! The connections of one client, shared by the threads that call it.
//!
//! All requests use the primary connection, in the order of the calls. A wait for keys occupies the
//! connection for as long as it lasts, since the protocol gives answers no names; so a waiter lets
//! go of the primary connection as soon as another call wants it and waits on a spare one. One
//! thread alone never opens a second connection, and any number of waits cannot block a set that
//! would end them.
//!
//! A connection that ends is replaced within the call that needs it (`revive`): what only asks is asked
//! again, and what changes something is sent again where the server knows what it has done (`journal`).

mod journal;
mod lease;
mod revive;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::connection::{Connection, Server};
use super::wake::Wake;
use super::wire::{Gathered, Limits, Request};
use crate::store::call::{Call, Ended};
use crate::store::monitor::Monitor;
use crate::store::{LostCause, StoreError};
use journal::Journal;
use lease::{Lease, Role};

/// How long the answer to a request that was sent is awaited at least, even past the call's bound.
///
/// A server answers at once; what takes long is waiting for keys, and that ends at the bound. So a
/// call outlasts its bound by this much only if the server or the network has stopped.
pub const GRACE: Duration = Duration::from_millis(500);

/// Spare connections kept for the next contended wait.
const KEPT_SPARE: usize = 4;

#[derive(Debug)]
pub(super) struct Links {
    peer: SocketAddr,
    limits: Limits,
    server: Server,
    /// The name of the next session.
    session: AtomicU64,
    state: Arc<Monitor<State>>,
    /// Wakes whoever holds the primary connection.
    wake: Arc<Wake>,
    /// Calls that want the primary connection while another has it.
    contenders: AtomicUsize,
    traffic: Counters,
}

#[derive(Debug)]
struct State {
    /// `None` while a call has it.
    primary: Option<Line>,
    spare: Vec<Line>,
    lost: Option<LostCause>,
    /// A key that is there, and was so since this client came: a server that does not have it is not
    /// the same one.
    witness: Option<String>,
}

/// A connection and what is under way on it.
#[derive(Debug)]
struct Line {
    /// `None` after a loss, until the next call.
    link: Option<Connection>,
    /// Made by the first request that changes something.
    journal: Option<Journal>,
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    requests: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// What a client has exchanged with its server, handshakes left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Calls that needed the server.
    pub calls: u64,
    /// Requests on the wire.
    pub requests: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
}

impl Links {
    /// `session` is a number that no other client has.
    pub fn new(primary: Connection, limits: Limits, session: u64) -> Self {
        Links {
            peer: primary.peer(),
            limits,
            server: primary.server(),
            session: AtomicU64::new(session),
            wake: primary.wake().clone(),
            state: Arc::new(Monitor::new(State {
                primary: Some(Line { link: Some(primary), journal: None }),
                spare: Vec::new(),
                lost: None,
                witness: None,
            })),
            contenders: AtomicUsize::new(0),
            traffic: Counters::default(),
        }
    }

    /// Whether the server is one of this crate.
    pub fn is_ours(&self) -> bool {
        self.server != Server::Foreign
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn count_call(&self) {
        self.traffic.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub fn traffic(&self) -> Traffic {
        let Counters { calls, requests, sent, received } = &self.traffic;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            calls: load(calls),
            requests: load(requests),
            sent: load(sent),
            received: load(received),
        }
    }

    /// Sends a request that changes something and has no answer.
    pub fn send(&self, call: &Call<'_>, request: &Request<'_>) -> Result<(), StoreError> {
        self.primary(call)?.send(request)
    }

    /// Sends a request and returns its answer.
    pub fn exchange(&self, call: &Call<'_>, request: &Request<'_>) -> Result<Vec<u8>, StoreError> {
        self.primary(call)?.exchange(request)
    }

    /// Waits until all keys of the call are there.
    pub fn await_keys(&self, call: &Call<'_>) -> Result<(), StoreError> {
        let contended = || self.contenders.load(Ordering::SeqCst) > 0;
        if let Some(there) = self.primary(call)?.await_keys(&contended)? {
            return Ok(there);
        }
        let there = self.spare(call)?.await_keys(&|| false)?;
        there.ok_or_else(|| call.ended(Ended::Cancelled))
    }

    /// Brings a contribution, and waits for the others.
    pub fn gather(&self, call: &Call<'_>, request: &Request<'_>) -> Result<Gathered, StoreError> {
        let contended = || self.contenders.load(Ordering::SeqCst) > 0;
        if let Some(gathered) = self.primary(call)?.gather(request, &contended)? {
            return Ok(gathered);
        }
        let gathered = self.spare(call)?.gather(request, &|| false)?;
        gathered.ok_or_else(|| call.ended(Ended::Cancelled))
    }

    /// Arrives at a barrier, and waits for the others: on a connection for itself, since it can be sent
    /// only once.
    pub fn barrier(&self, call: &Call<'_>, request: &Request<'_>) -> Result<(), StoreError> {
        self.spare(call)?.barrier(request)
    }

    /// Notes a key that is there.
    pub fn saw(&self, key: &str) {
        if !self.is_ours() {
            self.state.lock().witness.get_or_insert_with(|| key.to_owned());
        }
    }

    /// Notes that a key is no more.
    pub fn gone(&self, key: &str) {
        self.state.lock().witness.take_if(|witness| witness == key);
    }

    /// Takes the primary connection, with nothing due on it.
    fn primary<'a>(&'a self, call: &'a Call<'a>) -> Result<Lease<'a>, StoreError> {
        let take = |state: &mut State| match &state.lost {
            Some(cause) => Some(Err(cause.clone())),
            None => state.primary.take().map(Ok),
        };
        let free = take(&mut self.state.lock());
        let taken = match free {
            Some(taken) => Ok(taken),
            None => {
                self.contenders.fetch_add(1, Ordering::SeqCst);
                self.wake.wake();
                let taken = self.state.wait(call, take);
                self.contenders.fetch_sub(1, Ordering::SeqCst);
                taken
            }
        };
        let taken = taken.map_err(|ended| call.ended(ended))?;
        let line = taken.map_err(|cause| call.lost(cause))?;
        Lease::new(self, call, line, Role::Primary)
    }

    /// Takes a connection that no other call wants; opens one if there is none.
    fn spare<'a>(&'a self, call: &'a Call<'a>) -> Result<Lease<'a>, StoreError> {
        let mut state = self.state.lock();
        if let Some(cause) = &state.lost {
            return Err(call.lost(cause.clone()));
        }
        let spare = state.spare.pop();
        drop(state);
        let line = spare.unwrap_or(Line { link: None, journal: None });
        Lease::new(self, call, line, Role::Spare)
    }
}

/// Until when an answer is awaited.
fn graced(deadline: Instant) -> Instant {
    deadline.max(Instant::now() + GRACE)
}
