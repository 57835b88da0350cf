//! A connection in the hands of one call.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use symmem_hal::CancelGuard;

use super::journal::Journal;
use super::{GRACE, KEPT_SPARE, Line, Links, graced};
use crate::store::call::{Call, Ended};
use crate::store::tcp::connection::{Connection, Outcome};
use crate::store::tcp::wire::{Answer, Gathered, Request};
use crate::store::{LostCause, Missing, StoreError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Primary,
    Spare,
}

/// A line in the hands of one call; dropping it gives it back.
pub(super) struct Lease<'a> {
    pub(super) links: &'a Links,
    pub(super) call: &'a Call<'a>,
    /// `None` after a loss, until it is revived.
    pub(super) link: Option<Connection>,
    pub(super) journal: Option<Journal>,
    pub(super) role: Role,
    /// How many connections were lost in this call.
    pub(super) losses: u32,
    cancel: Option<CancelGuard>,
}

impl<'a> Lease<'a> {
    /// Takes over a line, with a connection and nothing due on it.
    pub fn new(
        links: &'a Links,
        call: &'a Call<'a>,
        line: Line,
        role: Role,
    ) -> Result<Self, StoreError> {
        let Line { link, journal } = line;
        let mut lease = Lease { links, call, link, journal, role, losses: 0, cancel: None };
        lease.watch();
        if lease.link.is_none() {
            lease.connect(&LostCause::Closed)?;
        }
        loop {
            match lease.step(|link, stop| link.settle(graced(call.deadline), stop)) {
                Ok(outcome) => {
                    lease.done(outcome)?;
                    lease.confirm();
                    return Ok(lease);
                }
                Err(cause) => lease.revive(cause)?,
            }
        }
    }

    /// Has the call's cancellation wake the connection.
    pub(super) fn watch(&mut self) {
        let token = self.call.wait.cancel();
        self.cancel = token.zip(self.link.as_ref()).map(|(token, link)| {
            let wake = link.wake().clone();
            token.on_cancel(Arc::new(move || wake.wake()))
        });
    }

    pub(super) fn count_requests(&self, n: u64) {
        self.links.traffic.requests.fetch_add(n, Ordering::Relaxed);
    }

    /// Puts a request in line: into the journal if it changes something.
    fn queue(&mut self, request: &Request<'_>) {
        self.count_requests(1);
        let Some(link) = &mut self.link else { return };
        if !request.query().has_effect() {
            link.queue(request, self.journal.as_ref().map_or(0, Journal::mark));
            return;
        }
        let links = self.links;
        let journal = self.journal.get_or_insert_with(|| {
            let session = links.session.fetch_add(1, Ordering::Relaxed);
            if links.is_ours() {
                link.queue(&Request::Open { session }, 0);
            }
            Journal::new(session)
        });
        journal.send(link, request, self.call.key_names());
    }

    /// Does `step` with the connection; stops at the call's cancellation.
    pub(super) fn step<T>(
        &mut self,
        step: impl FnOnce(&mut Connection, &dyn Fn() -> bool) -> Result<Outcome<T>, LostCause>,
    ) -> Result<Outcome<T>, LostCause> {
        let stop = || self.call.wait.is_cancelled();
        match &mut self.link {
            Some(link) => step(link, &stop),
            None => Err(LostCause::Closed),
        }
    }

    pub(super) fn done<T>(&self, outcome: Outcome<T>) -> Result<T, StoreError> {
        match outcome {
            Outcome::Done(result) => Ok(result),
            Outcome::Deadline => Err(self.call.ended(Ended::Deadline)),
            Outcome::Stopped => Err(self.call.ended(Ended::Cancelled)),
        }
    }

    /// Drops from the journal what the last answer tells to be done.
    pub(super) fn confirm(&mut self) {
        if let (Some(link), Some(journal)) = (&self.link, &mut self.journal)
            && let Some(key) = journal.confirm(link.confirmed())
        {
            self.links.saw(&key);
        }
    }

    /// Sends a request that changes something and has no answer.
    pub fn send(&mut self, request: &Request<'_>) -> Result<(), StoreError> {
        if self.journal.as_ref().is_some_and(|journal| journal.is_full(request)) {
            self.exchange(&Request::Ping { nonce: 0 })?;
        }
        self.queue(request);
        loop {
            let until = graced(self.call.deadline);
            match self.step(|link, stop| link.send(until, stop)) {
                Ok(outcome) => return self.done(outcome),
                Err(cause) => self.revive(cause)?,
            }
        }
    }

    /// Sends a request and returns its answer.
    pub fn exchange(&mut self, request: &Request<'_>) -> Result<Vec<u8>, StoreError> {
        let until = graced(self.call.deadline);
        match self.answer(request, until, &|| false)? {
            Outcome::Done(answer) => Ok(answer),
            outcome => self.done(outcome),
        }
    }

    /// Sends a request and awaits its answer, until `until` or `give_up` holds.
    fn answer(
        &mut self,
        request: &Request<'_>,
        until: Instant,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Outcome<Vec<u8>>, StoreError> {
        self.queue(request);
        loop {
            match self.step(|link, stop| link.answer(until, &|| stop() || give_up())) {
                Ok(outcome) => {
                    self.confirm();
                    return Ok(outcome);
                }
                Err(cause) => self.revive(cause)?,
            }
            // One that changes something is in the journal, and was sent again with it.
            if !request.query().has_effect() {
                self.queue(request);
            }
        }
    }

    /// Ends the pending request, and takes what comes of it: the last answer.
    fn cancel(&mut self) -> Result<(), LostCause> {
        self.count_requests(1);
        self.step(|link, _| link.cancel_wait().map(Outcome::Done)).map(drop)
    }

    /// Waits until all keys of the call are there; `None` if it stopped because `give_up` held.
    pub fn await_keys(mut self, give_up: &dyn Fn() -> bool) -> Result<Option<()>, StoreError> {
        let call = self.call;
        let request = Request::Wait { keys: call.key_bytes() };
        let outcome = self.answer(&request, call.deadline, give_up)?;
        if let Outcome::Done(_) = outcome {
            return Ok(Some(()));
        }
        // A connection that ends now has ended the wait, too.
        let cancelled = self.cancel();
        match outcome {
            Outcome::Stopped if call.wait.is_cancelled() => Err(call.ended(Ended::Cancelled)),
            Outcome::Stopped => Ok(None),
            _ => match cancelled.and_then(|()| self.absent()) {
                Ok(Some(missing)) if missing.is_empty() => Ok(Some(())),
                Ok(Some(missing)) => Err(call.timed_out(Missing::Keys(missing))),
                Ok(None) | Err(_) => Err(call.timed_out(Missing::AmongKeys(call.key_names()))),
            },
        }
    }

    /// After a wait that ran out: asks for each key alone whether it is missing. `None` if the server
    /// does not answer soon.
    fn absent(&mut self) -> Result<Option<Vec<String>>, LostCause> {
        let call = self.call;
        for key in call.key_bytes() {
            self.queue(&Request::Check { keys: vec![key] });
        }
        let until = Instant::now() + GRACE;
        let mut missing = Vec::new();
        // The first answer is that of the cancelled wait.
        for key in std::iter::once(None).chain(call.keys.iter().map(Some)) {
            match self.step(|link, stop| link.answer(until, stop))? {
                Outcome::Done(answer) => {
                    missing.extend(key.filter(|_| !Answer::is_ready(&answer)));
                }
                Outcome::Deadline | Outcome::Stopped => return Ok(None),
            }
        }
        Ok(Some(missing.into_iter().map(|key: &&str| (*key).to_owned()).collect()))
    }

    /// Brings a contribution and waits for the others; `None` if it stopped because `give_up` held.
    pub fn gather(
        mut self,
        request: &Request<'_>,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Option<Gathered>, StoreError> {
        let call = self.call;
        let outcome = self.answer(request, call.deadline, give_up)?;
        if let Outcome::Done(answer) = &outcome {
            return self.gathered(answer).map(Some);
        }
        let until = Instant::now() + GRACE;
        let cancelled = self.cancel();
        // What has come all the same, or what is missing.
        let last = cancelled.and_then(|()| self.step(|link, _| link.answer(until, &|| false)));
        if let Ok(Outcome::Done(answer)) = &last {
            match self.gathered(answer)? {
                Gathered::Missing(_) if call.wait.is_cancelled() => {}
                Gathered::Missing(_) if matches!(outcome, Outcome::Stopped) => return Ok(None),
                gathered => return Ok(Some(gathered)),
            }
        }
        match outcome {
            Outcome::Stopped if !call.wait.is_cancelled() => Ok(None),
            outcome => self.done(outcome).map(|_| None),
        }
    }

    fn gathered(&self, answer: &[u8]) -> Result<Gathered, StoreError> {
        let bytes = answer.len();
        Answer::gathered(answer).ok_or_else(|| self.call.lost(LostCause::Unasked { bytes }))
    }

    /// Arrives at a barrier and waits for the others.
    pub fn barrier(mut self, request: &Request<'_>) -> Result<(), StoreError> {
        let (call, Request::Barrier { key, count }) = (self.call, request) else { return Ok(()) };
        let outcome = match self.answer(request, call.deadline, &|| false)? {
            Outcome::Done(_) => return Ok(()),
            outcome => outcome,
        };
        let until = Instant::now() + GRACE;
        let arrived = self.cancel().and_then(|()| {
            self.queue(&Request::Get { key });
            let mut last = Vec::new();
            // The first answer is that of the cancelled barrier.
            for _ in 0..2 {
                match self.step(|link, _| link.answer(until, &|| false))? {
                    Outcome::Done(answer) => last = answer,
                    Outcome::Deadline | Outcome::Stopped => return Ok(None),
                }
            }
            self.confirm();
            let number = Answer::values(&last).pop();
            Ok(number.and_then(|number| std::str::from_utf8(&number).ok()?.parse().ok()))
        });
        if self.journal.as_ref().is_none_or(|journal| !journal.is_empty()) {
            // Whether it was counted is not known, and it is not to be sent again.
            self.link = None;
            self.journal = None;
        }
        if let Outcome::Stopped = outcome {
            return Err(call.ended(Ended::Cancelled));
        }
        let (key, count) = (String::from_utf8_lossy(key).into_owned(), count.unsigned_abs());
        let arrived = arrived.ok().flatten();
        Err(call.timed_out(Missing::Arrivals { key, arrived, count }))
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.count_moved();
        let line = Line { link: self.link.take(), journal: self.journal.take() };
        let mut state = self.links.state.lock();
        match self.role {
            _ if state.lost.is_some() => {}
            Role::Primary => state.primary = Some(line),
            Role::Spare if line.link.is_some() && state.spare.len() < KEPT_SPARE => {
                state.spare.push(line);
            }
            Role::Spare => {}
        }
        drop(state);
        self.links.state.notify();
    }
}

impl Lease<'_> {
    /// Adds what the connection has moved to the client's counters.
    pub(super) fn count_moved(&mut self) {
        let Some(link) = &mut self.link else { return };
        let moved = link.take_moved();
        self.links.traffic.sent.fetch_add(moved.sent, Ordering::Relaxed);
        self.links.traffic.received.fetch_add(moved.received, Ordering::Relaxed);
    }
}
