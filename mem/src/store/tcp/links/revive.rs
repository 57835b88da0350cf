//! A new connection in place of a lost one.

use std::time::Duration;

use rustix::io::Errno;

use super::graced;
use super::lease::{Lease, Role};
use crate::store::call::Ended;
use crate::store::tcp::connect::{ConnectError, Target, connect};
use crate::store::tcp::connection::{Connection, Outcome};
use crate::store::tcp::wire::{Answer, Request, Resumed};
use crate::store::{LostCause, StoreError};

/// How many connections one call may lose before it takes that for the server's answer: one that
/// refuses a request closes the connection, and would do so for ever.
const MOST_LOSSES: u32 = 8;

/// The pause before the second new connection of a call, doubled with each.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

impl Lease<'_> {
    /// Replaces the connection, which ended by `cause`, and sends again what may be.
    pub(super) fn revive(&mut self, cause: LostCause) -> Result<(), StoreError> {
        self.confirm();
        self.count_moved();
        let lost = self.link.take();
        self.losses += 1;
        if !cause.may_pass() || self.losses > MOST_LOSSES {
            return Err(self.lose(cause));
        }
        if !self.links.is_ours()
            && let Some(written) = lost.map(|link| link.written())
            && let Some(journal) = &mut self.journal
        {
            let doubtful = journal.doubtful(written);
            if !doubtful.is_empty() {
                return Err(self.call.doubtful(doubtful, cause));
            }
        }
        self.connect(&cause)
    }

    /// Opens a connection to the same server, which takes over what the journal holds. Tries again where
    /// it ends, too.
    pub(super) fn connect(&mut self, cause: &LostCause) -> Result<(), StoreError> {
        loop {
            self.link = Some(self.open(cause)?);
            self.watch();
            match self.take_over() {
                Ok(result) => {
                    if result.is_err() {
                        // What the journal holds is not on it.
                        self.link = None;
                    }
                    return result;
                }
                Err(again) if again.may_pass() && self.losses <= MOST_LOSSES => self.losses += 1,
                Err(last) => return Err(self.lose(last)),
            }
        }
    }

    /// A connection to the server, or to what is at its place.
    fn open(&mut self, cause: &LostCause) -> Result<Connection, StoreError> {
        let (links, call) = (self.links, self.call);
        let target = Target::Known(links.peer);
        let pause = match self.losses.checked_sub(2) {
            Some(n) => FIRST_PAUSE * 2u32.pow(n.min(MOST_LOSSES)),
            None => Duration::ZERO,
        };
        let until = graced(call.deadline);
        let opened = connect(&target, &links.limits, call.wait, until, pause);
        let link = match opened {
            Ok(link) => link,
            Err(ConnectError::Cancelled { .. }) => return Err(call.ended(Ended::Cancelled)),
            Err(ConnectError::TimedOut { .. }) => return Err(call.ended(Ended::Deadline)),
            Err(ConnectError::NotAStore { cause, .. }) => return Err(self.lose(cause)),
            // Nobody listens there any more.
            Err(ConnectError::System { cause: error, .. })
                if Errno::from_io_error(&error) == Some(Errno::CONNREFUSED) =>
            {
                return Err(self.lose(cause.clone()));
            }
            Err(ConnectError::System { cause, .. }) => {
                return Err(self.lose(LostCause::Io(cause)));
            }
        };
        if link.server() != links.server {
            return Err(self.lose(LostCause::Restarted));
        }
        Ok(link)
    }

    /// Sees that a new connection's server is the one that was lost, and sends again what the journal
    /// holds. An outer error is the loss of that connection.
    fn take_over(&mut self) -> Result<Result<(), StoreError>, LostCause> {
        let until = graced(self.call.deadline);
        let ask = |lease: &mut Self, request: &Request<'_>| {
            if let Some(link) = &mut lease.link {
                link.queue(request, 0);
            }
            lease.count_requests(1);
            lease.step(|link, stop| link.answer(until, stop))
        };
        if !self.links.is_ours() {
            let witness = self.links.state.lock().witness.clone();
            // One more connection, beside one that there is, needs no proof.
            let more = self.role == Role::Spare && self.losses == 0;
            if let Some(key) = witness.filter(|_| !more) {
                let request = Request::Check { keys: vec![key.as_bytes()] };
                match ask(self, &request)? {
                    Outcome::Done(answer) if Answer::is_ready(&answer) => {}
                    Outcome::Done(_) => return Ok(Err(self.lose(LostCause::Restarted))),
                    outcome => return Ok(self.done(outcome).map(drop)),
                }
            }
        } else if let Some(journal) = &self.journal {
            let request = Request::Resume { session: journal.session, next: journal.first() };
            let is_empty = journal.is_empty();
            let resumed = match ask(self, &request)? {
                Outcome::Done(answer) => Answer::resumed(&answer),
                outcome => return Ok(self.done(outcome).map(drop)),
            };
            match resumed {
                Some(Resumed::Known { .. } | Resumed::New { forgetful: false }) => {}
                Some(Resumed::New { forgetful: true }) if is_empty => {}
                // It may have done what it does not remember.
                Some(Resumed::New { forgetful: true }) => {
                    let doubtful =
                        self.journal.take().map(|mut journal| journal.doubtful(u64::MAX));
                    let doubtful = doubtful.unwrap_or_default();
                    return Ok(Err(self.call.doubtful(doubtful, LostCause::Forgotten)));
                }
                Some(Resumed::Refused { reason }) => {
                    return Ok(Err(self.lose(LostCause::Refused { reason })));
                }
                None => return Err(LostCause::Unasked { bytes: 0 }),
            }
        }
        if let (Some(link), Some(journal)) = (&mut self.link, &mut self.journal) {
            let sent = journal.send_again(link);
            self.count_requests(sent);
        }
        Ok(Ok(()))
    }

    /// Gives the store up.
    fn lose(&mut self, cause: LostCause) -> StoreError {
        self.link = None;
        self.links.state.lock().lost.get_or_insert(cause.clone());
        self.links.state.notify();
        self.call.lost(cause)
    }
}
