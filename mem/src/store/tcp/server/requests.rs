//! What each request does.

use std::sync::Arc;

use super::event_loop::EventLoop;
use super::peer::{Closing, Peer};
use super::sessions::Turn;
use crate::store::gather::Contribution;
use crate::store::table::{Brought, TableError};
use crate::store::tcp::wire::{Answer, HELLO, Request, WireError, slots, welcome};

impl EventLoop {
    pub(super) fn answer(
        &mut self,
        id: u64,
        peer: &mut Peer,
        request: &Request<'_>,
    ) -> Result<(), Closing> {
        if !peer.validated {
            peer.validated = matches!(request, Request::Validate);
            if !peer.validated {
                return Err(Closing::NotValidated);
            }
            self.unidentified.remove(&id);
            return Ok(());
        }
        let query = request.query();
        if query.is_extension() && !peer.extended {
            return Err(WireError::Uninvited { query }.into());
        }
        match *request {
            Request::Validate => return Ok(()),
            Request::Ping { nonce: HELLO } => {
                peer.extended = true;
                Answer::put_nonce(peer.output.end(), welcome(self.instance));
                return Ok(());
            }
            Request::Ping { nonce } => {
                Answer::put_nonce(peer.output.end(), nonce);
                return Ok(());
            }
            Request::Open { session } => {
                if peer.session.is_some() {
                    return Err(Closing::Session);
                }
                self.sessions.open(session, id)?;
                peer.session = Some((session, 1));
                return Ok(());
            }
            Request::Resume { session, next } => return self.resume(id, peer, session, next),
            _ => {}
        }
        peer.moved.requests.add(1);
        self.stats.moved.requests.add(1);
        if !matches!(request, Request::QueuePop { .. }) {
            self.hand_on(peer);
        }
        match peer.session {
            Some((session, number)) if query.has_effect() => {
                self.numbered(id, peer, request, session, number)
            }
            _ => self.serve_one(id, peer, request),
        }
    }

    fn resume(&mut self, id: u64, peer: &mut Peer, session: u64, next: u64) -> Result<(), Closing> {
        if peer.session.is_some() {
            return Err(Closing::Session);
        }
        let (resumed, before) = self.sessions.resume(session, next, id)?;
        peer.session = Some((session, next));
        Answer::put_resumed(peer.output.end(), &resumed);
        if let Some(before) = before {
            self.close(before, &Closing::Moved);
        }
        Ok(())
    }

    /// Does a request of a session, unless it was done before: then it is answered as it was.
    fn numbered(
        &mut self,
        id: u64,
        peer: &mut Peer,
        request: &Request<'_>,
        session: u64,
        number: u64,
    ) -> Result<(), Closing> {
        peer.session = Some((session, number + 1));
        // Who has arrived at a barrier waits there again; how often it was asked does not count.
        let barrier = match *request {
            Request::Barrier { key, count } => Some((key, count)),
            _ => None,
        };
        let answered = request.answer().is_some() && barrier.is_none();
        match (self.sessions.turn(session, number, answered)?, barrier) {
            (Turn::Fresh, _) => {}
            (Turn::Done(_), Some((key, count))) => return self.barrier(id, peer, key, count, 0),
            (Turn::Done(answer), None) => {
                peer.output.end().extend_from_slice(answer);
                return Ok(());
            }
        }
        let before = peer.output.end().len();
        self.serve_one(id, peer, request)?;
        let answer = if answered { &peer.output.end()[before..] } else { &[] };
        peer.recorded = answer.len();
        self.sessions.done(session, number, answer);
        Ok(())
    }

    fn serve_one(
        &mut self,
        id: u64,
        peer: &mut Peer,
        request: &Request<'_>,
    ) -> Result<(), Closing> {
        // A peer's input is out of it while it is served.
        let held = peer.held();
        let output = peer.output.end();
        match request {
            Request::Validate
            | Request::Ping { .. }
            | Request::Open { .. }
            | Request::Resume { .. } => {}
            Request::Set { key, value } => {
                self.table.set(key, value)?;
                self.arrived(id, peer, key);
            }
            Request::MultiSet { entries } => {
                self.table.set_all(entries)?;
                entries.iter().for_each(|(key, _)| self.arrived(id, peer, key));
            }
            Request::Append { key, value } => {
                self.table.append(key, value)?;
                self.arrived(id, peer, key);
            }
            Request::CompareSet { key, expected, desired } => {
                let now = self.table.compare_set(key, expected, desired)?;
                Answer::put_value(output, now.unwrap_or(expected));
                if now.is_some() {
                    self.arrived(id, peer, key);
                }
            }
            Request::Add { key, amount } => {
                Answer::put_integer(output, self.table.add(key, *amount)?);
                self.arrived(id, peer, key);
            }
            Request::DeleteKey { key } => {
                Answer::put_integer(output, i64::from(self.table.delete(key)));
            }
            Request::GetNumKeys => Answer::put_integer(output, self.table.len() as i64),
            Request::Get { key } => self.put_values(peer, &[key], held)?,
            Request::MultiGet { keys } => self.put_values(peer, keys, held)?,
            Request::ListKeys => {
                let needed = self.table.keys().map(|key| 8 + key.len()).sum::<usize>() + 8;
                self.fits(needed, held)?;
                Answer::put_keys(output, self.table.keys());
            }
            Request::Check { keys } => {
                Answer::put_check(output, keys.iter().all(|key| self.table.contains(key)));
            }
            Request::QueuePush { key, value } => {
                self.table.push(key, value)?;
                self.pushed(id, peer, key);
            }
            Request::QueuePop { key } => {
                let value = self.table.front(key).map_or(0, <[u8]>::len);
                self.fits(16 + value, held)?;
                let length = self.table.queue_len(key);
                Answer::put_popped(output, length, self.table.pop(key).as_deref());
                match peer.called.take() {
                    Some(called) if *called != **key => self.call_next(&called),
                    _ => {}
                }
            }
            Request::QueueLen { key } => {
                Answer::put_integer(output, self.table.queue_len(key) as i64);
            }
            Request::Wait { keys } => self.await_keys(id, peer, keys)?,
            Request::Barrier { key, count } => self.barrier(id, peer, key, *count, 1)?,
            Request::Gather { key, total, slots: covered, value } => {
                let covered: Vec<u32> = slots(covered).collect();
                self.gather(id, peer, key, &Contribution::new(&covered, *total, value))?;
            }
            Request::CancelWait => self.cancel(id, peer),
        }
        Ok(())
    }

    /// Whether an answer of so many bytes may be made.
    fn fits(&mut self, needed: usize, held: usize) -> Result<(), Closing> {
        let limit = self.limits.wire.answer;
        if needed > limit {
            return Err(Closing::Answer { needed, limit });
        }
        self.make_room(needed, held.saturating_add(needed))
    }

    /// Appends the values, empty where there is none, unless they are too much.
    fn put_values(&mut self, peer: &mut Peer, keys: &[&[u8]], held: usize) -> Result<(), Closing> {
        let length = |key: &&[u8]| self.table.get(key).unwrap_or_default().len();
        self.fits(keys.iter().map(|key| 8 + length(key)).sum(), held)?;
        let value = |key: &&[u8]| self.table.get(key).unwrap_or_default();
        let output = peer.output.end();
        keys.iter().for_each(|key| Answer::put_value(output, value(key)));
        Ok(())
    }

    /// Brings a contribution, and answers all who brought theirs if it is the last.
    fn gather(
        &mut self,
        id: u64,
        peer: &mut Peer,
        key: &[u8],
        mine: &Contribution<'_>,
    ) -> Result<(), Closing> {
        self.is_free(peer)?;
        let brought = self.table.bring(key, mine);
        let refused: Closing = match brought {
            Ok(Brought::Waits) => match self.await_gather(id, peer, key) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            },
            Ok(Brought::Complete { result, last }) => {
                let (needed, limit) = (result.len(), self.limits.wire.answer);
                let answer = if needed <= limit {
                    result
                } else {
                    no_room(peer, &Closing::Answer { needed, limit })
                };
                peer.output.share(&answer);
                if last {
                    self.gathered(key, &answer);
                }
                return Ok(());
            }
            Err(TableError::Gather(fault)) => {
                Answer::put_fault(peer.output.end(), fault);
                return Ok(());
            }
            Err(other) => other.into(),
        };
        // Here there is an answer that says so, and no need to close the connection.
        let answer = no_room(peer, &refused);
        peer.output.share(&answer);
        Ok(())
    }
}

/// The answer to a GATHER that is too much.
fn no_room(peer: &Peer, why: &Closing) -> Arc<[u8]> {
    let reason = why.to_string();
    tracing::warn!(address = %peer.address, %reason, "the store refuses a contribution");
    let mut answer = Vec::new();
    Answer::put_no_room(&mut answer, &reason);
    answer.into()
}
