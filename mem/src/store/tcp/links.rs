//! The connections of one client, shared by the threads that call it.
//!
//! All requests use the primary connection, in the order of the calls. A wait for keys occupies the
//! connection for as long as it lasts, since the protocol gives answers no names; so a waiter lets
//! go of the primary connection as soon as another call wants it and waits on a spare one. One
//! thread alone never opens a second connection, and any number of waits cannot block a set that
//! would end them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use symmem_hal::CancelGuard;

use super::connect::{ConnectError, Target, connect};
use super::connection::{Connection, Outcome};
use super::wake::Wake;
use super::wire::{Answer, Limits, Request};
use crate::store::call::{Call, Ended};
use crate::store::monitor::Monitor;
use crate::store::{LostCause, Missing, StoreError};

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
    primary: Option<Connection>,
    spare: Vec<Connection>,
    lost: Option<LostCause>,
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
    pub fn new(primary: Connection, limits: Limits) -> Self {
        Links {
            peer: primary.peer(),
            limits,
            wake: primary.wake().clone(),
            state: Arc::new(Monitor::new(State {
                primary: Some(primary),
                spare: Vec::new(),
                lost: None,
            })),
            contenders: AtomicUsize::new(0),
            traffic: Counters::default(),
        }
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

    /// Sends a request that has no answer.
    pub fn send(&self, call: &Call<'_>, request: &Request<'_>) -> Result<(), StoreError> {
        let mut lease = self.primary(call)?;
        lease.queue(request);
        lease.run(|link, stop| link.send(graced(call.deadline), stop))
    }

    /// Sends a request and returns its answer.
    pub fn exchange(&self, call: &Call<'_>, request: &Request<'_>) -> Result<Vec<u8>, StoreError> {
        let mut lease = self.primary(call)?;
        lease.queue(request);
        lease.run(|link, stop| link.answer(graced(call.deadline), stop))
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
        let link = taken.map_err(|cause| call.lost(cause))?;
        Lease::new(self, call, link, Role::Primary)
    }

    /// Takes a connection that no other call wants; opens one if there is none.
    fn spare<'a>(&'a self, call: &'a Call<'a>) -> Result<Lease<'a>, StoreError> {
        let spare = self.state.lock().spare.pop();
        let link = match spare {
            Some(link) => link,
            None => {
                let target = Target::Known(self.peer);
                let opened = connect(&target, &self.limits, call.wait, call.deadline);
                opened.map_err(|error| match error {
                    ConnectError::Cancelled { .. } => call.ended(Ended::Cancelled),
                    ConnectError::TimedOut { .. } => {
                        call.timed_out(Missing::AmongKeys(call.key_names()))
                    }
                    ConnectError::NotAStore { cause, .. } => call.lost(cause),
                    ConnectError::System { cause, .. } => call.lost(LostCause::Io(cause)),
                })?
            }
        };
        Lease::new(self, call, link, Role::Spare)
    }
}

/// Until when an answer is awaited.
fn graced(deadline: Instant) -> Instant {
    deadline.max(Instant::now() + GRACE)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Primary,
    Spare,
}

/// A connection in the hands of one call; dropping it gives it back.
struct Lease<'a> {
    links: &'a Links,
    call: &'a Call<'a>,
    /// `None` once it is lost.
    link: Option<Connection>,
    role: Role,
    _cancel: Option<CancelGuard>,
}

impl<'a> Lease<'a> {
    fn new(
        links: &'a Links,
        call: &'a Call<'a>,
        link: Connection,
        role: Role,
    ) -> Result<Self, StoreError> {
        let cancel = call.wait.cancel().map(|token| {
            let wake = link.wake().clone();
            token.on_cancel(Arc::new(move || wake.wake()))
        });
        let mut lease = Lease { links, call, link: Some(link), role, _cancel: cancel };
        lease.run(|link, stop| link.settle(graced(call.deadline), stop))?;
        Ok(lease)
    }

    fn queue(&mut self, request: &Request<'_>) {
        if let Some(link) = &mut self.link {
            link.queue(request);
            self.links.traffic.requests.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Does `step` with the connection; stops at the call's cancellation or where `or` holds.
    fn step<T>(
        &mut self,
        or: &dyn Fn() -> bool,
        step: impl FnOnce(&mut Connection, &dyn Fn() -> bool) -> Result<Outcome<T>, LostCause>,
    ) -> Result<Outcome<T>, StoreError> {
        let Some(link) = &mut self.link else {
            return Err(self.call.lost(LostCause::Closed));
        };
        let stop = || self.call.wait.is_cancelled() || or();
        step(link, &stop).map_err(|cause| {
            self.link = None;
            self.links.state.lock().lost.get_or_insert(cause.clone());
            self.links.state.notify();
            self.call.lost(cause)
        })
    }

    fn run<T>(
        &mut self,
        step: impl FnOnce(&mut Connection, &dyn Fn() -> bool) -> Result<Outcome<T>, LostCause>,
    ) -> Result<T, StoreError> {
        match self.step(&|| false, step)? {
            Outcome::Done(result) => Ok(result),
            Outcome::Deadline => Err(self.call.ended(Ended::Deadline)),
            Outcome::Stopped => Err(self.call.ended(Ended::Cancelled)),
        }
    }

    /// Waits until all keys of the call are there; `None` if it stopped because `give_up` held.
    fn await_keys(mut self, give_up: &dyn Fn() -> bool) -> Result<Option<()>, StoreError> {
        let call = self.call;
        self.queue(&Request::Wait { keys: call.key_bytes() });
        let outcome = self.step(give_up, |link, stop| link.answer(call.deadline, stop))?;
        if let Outcome::Done(_) = outcome {
            return Ok(Some(()));
        }
        self.links.traffic.requests.fetch_add(1, Ordering::Relaxed);
        self.run(|link, _| link.cancel_wait().map(Outcome::Done))?;
        match outcome {
            Outcome::Stopped if call.wait.is_cancelled() => Err(call.ended(Ended::Cancelled)),
            Outcome::Stopped => Ok(None),
            _ => self.name_missing().map(Some),
        }
    }

    /// After a wait that ran out: asks for each key alone which one is missing. Succeeds if by now
    /// none is.
    fn name_missing(&mut self) -> Result<(), StoreError> {
        let call = self.call;
        for key in call.key_bytes() {
            self.queue(&Request::Check { keys: vec![key] });
        }
        let until = Instant::now() + GRACE;
        let mut missing: Vec<&&str> = Vec::new();
        // The first answer is that of the cancelled wait.
        for key in std::iter::once(None).chain(call.keys.iter().map(Some)) {
            match self.step(&|| false, |link, stop| link.answer(until, stop))? {
                Outcome::Done(answer) => {
                    missing.extend(key.filter(|_| !Answer::is_ready(&answer)));
                }
                Outcome::Deadline => {
                    return Err(call.timed_out(Missing::AmongKeys(call.key_names())));
                }
                Outcome::Stopped => return Err(call.ended(Ended::Cancelled)),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.into_iter().map(|key| (*key).to_owned()).collect();
        Err(call.timed_out(Missing::Keys(missing)))
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let Some(mut link) = self.link.take() else { return };
        let moved = link.take_moved();
        self.links.traffic.sent.fetch_add(moved.sent, Ordering::Relaxed);
        self.links.traffic.received.fetch_add(moved.received, Ordering::Relaxed);
        let mut state = self.links.state.lock();
        match self.role {
            _ if state.lost.is_some() => {}
            Role::Primary => state.primary = Some(link),
            Role::Spare if state.spare.len() < KEPT_SPARE => state.spare.push(link),
            Role::Spare => {}
        }
        drop(state);
        self.links.state.notify();
    }
}
