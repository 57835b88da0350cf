//! What clients did over connections that may be gone: so that nothing is done twice.
//!
//! A session numbers a client's requests that change something. The server keeps the number of the
//! last one and its answer; a client that lost its connection goes on over another one, and what it
//! sends again is known by its number. A client has one such request without its answer at a time, so
//! that one answer is enough.

use std::collections::{BTreeMap, HashMap};

use super::peer::Closing;
use crate::store::tcp::wire::Resumed;

/// How many sessions without a connection are kept, and how many bytes of their answers. Beyond it
/// the oldest are forgotten, and from then on the server says so to who asks for one it does not know.
const KEPT: usize = 64 << 10;
const KEPT_BYTES: usize = 64 << 20;

#[derive(Debug, Default)]
pub(super) struct Sessions {
    all: HashMap<u64, Session>,
    /// Those without a connection, in the order in which they lost it.
    left: BTreeMap<u64, u64>,
    /// Counts losses of connections.
    clock: u64,
    left_bytes: usize,
    forgetful: bool,
}

#[derive(Debug)]
struct Session {
    /// The number of the last request done.
    done: u64,
    /// Its answer.
    answer: Box<[u8]>,
    /// Why the connection was closed by the server, if it was.
    refused: Option<String>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On this connection.
    Open(u64),
    /// Without a connection since this time.
    Left(u64),
}

/// What a request of a session is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<'a> {
    Fresh,
    /// It was done, with this answer.
    Done(&'a [u8]),
}

impl Sessions {
    pub fn open(&mut self, session: u64, connection: u64) -> Result<(), Closing> {
        if self.all.contains_key(&session) {
            return Err(Closing::Session);
        }
        let place = Place::Open(connection);
        self.all.insert(session, Session { done: 0, answer: Box::default(), refused: None, place });
        Ok(())
    }

    /// Moves a session to a connection; also gives the connection that it was on, which is to be
    /// closed. `next` is the number of the next request.
    pub fn resume(
        &mut self,
        session: u64,
        next: u64,
        connection: u64,
    ) -> Result<(Resumed, Option<u64>), Closing> {
        // Requests are counted on from here: no client comes as far.
        if next > u64::MAX / 2 {
            return Err(Closing::Session);
        }
        let Some(found) = self.all.get_mut(&session) else {
            self.open(session, connection)?;
            // It numbers its requests on.
            if let Some(new) = self.all.get_mut(&session) {
                new.done = next.saturating_sub(1);
            }
            return Ok((Resumed::New { forgetful: self.forgetful }, None));
        };
        if next == 0 || next > found.done + 1 {
            return Err(Closing::Session);
        }
        let before = match std::mem::replace(&mut found.place, Place::Open(connection)) {
            Place::Open(other) => Some(other).filter(|other| *other != connection),
            Place::Left(time) => {
                self.left.remove(&time);
                self.left_bytes -= found.answer.len();
                None
            }
        };
        let resumed = match found.refused.clone() {
            Some(reason) => Resumed::Refused { reason },
            None => Resumed::Known { done: found.done },
        };
        Ok((resumed, before))
    }

    /// What the request with this number is; `answered` says whether requests of its kind are.
    pub fn turn(&self, session: u64, number: u64, answered: bool) -> Result<Turn<'_>, Closing> {
        let found = self.all.get(&session).ok_or(Closing::Session)?;
        if number > found.done {
            return Ok(Turn::Fresh);
        }
        match (answered, number == found.done) {
            (false, _) => Ok(Turn::Done(&[])),
            (true, true) => Ok(Turn::Done(&found.answer)),
            (true, false) => Err(Closing::Session),
        }
    }

    /// Keeps that a request was done.
    pub fn done(&mut self, session: u64, number: u64, answer: &[u8]) {
        if let Some(found) = self.all.get_mut(&session) {
            found.done = number;
            found.answer = answer.into();
        }
    }

    /// Says that a connection has ended, for a reason if the server closed it.
    pub fn leave(&mut self, session: u64, connection: u64, refused: Option<String>) {
        let Some(found) = self.all.get_mut(&session) else { return };
        if found.place != Place::Open(connection) {
            return;
        }
        // What did nothing yet can begin anew.
        if found.done == 0 && refused.is_none() {
            self.all.remove(&session);
            return;
        }
        self.clock += 1;
        found.place = Place::Left(self.clock);
        found.refused = refused;
        self.left.insert(self.clock, session);
        self.left_bytes += found.answer.len();
        while self.left.len() > KEPT || self.left_bytes > KEPT_BYTES {
            let Some((_, oldest)) = self.left.pop_first() else { return };
            if let Some(forgotten) = self.all.remove(&oldest) {
                self.left_bytes -= forgotten.answer.len();
                self.forgetful = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_session_goes_on_where_it_was() {
        let mut sessions = Sessions::default();
        sessions.open(7, 100).unwrap();
        assert!(matches!(sessions.open(7, 101), Err(Closing::Session)));
        assert_eq!(sessions.turn(7, 1, true).unwrap(), Turn::Fresh);
        sessions.done(7, 1, b"first");
        sessions.done(7, 2, b"");
        sessions.done(7, 3, b"third");
        // While the server has not seen the old connection end.
        let resumed = sessions.resume(7, 2, 101).unwrap();
        assert_eq!(resumed, (Resumed::Known { done: 3 }, Some(100)));
        sessions.leave(7, 100, None);
        assert_eq!(sessions.turn(7, 2, false).unwrap(), Turn::Done(b""));
        assert_eq!(sessions.turn(7, 3, true).unwrap(), Turn::Done(b"third"));
        assert_eq!(sessions.turn(7, 4, true).unwrap(), Turn::Fresh);
        assert!(sessions.turn(7, 1, true).is_err());
        // After it.
        sessions.leave(7, 101, None);
        let resumed = sessions.resume(7, 4, 102).unwrap();
        assert_eq!(resumed, (Resumed::Known { done: 3 }, None));
        assert!(sessions.resume(7, 5, 103).is_err() && sessions.resume(7, 0, 103).is_err());
        sessions.leave(7, 102, Some("no".to_owned()));
        let resumed = sessions.resume(7, 4, 104).unwrap().0;
        assert_eq!(resumed, Resumed::Refused { reason: "no".to_owned() });
    }

    #[test]
    fn the_oldest_are_forgotten_and_that_is_said() {
        let mut sessions = Sessions::default();
        let unknown = |sessions: &mut Sessions, id| sessions.resume(id, 5, 1).unwrap().0;
        assert_eq!(unknown(&mut sessions, u64::MAX), Resumed::New { forgetful: false });
        assert_eq!(sessions.turn(u64::MAX, 5, true).unwrap(), Turn::Fresh);
        for id in 0..KEPT as u64 + 1 {
            sessions.open(id, id).unwrap();
            sessions.done(id, 1, &[0; 100]);
            sessions.leave(id, id, None);
        }
        assert_eq!(sessions.left.len(), KEPT);
        assert_eq!(sessions.left_bytes, KEPT * 100);
        assert_eq!(unknown(&mut sessions, 0), Resumed::New { forgetful: true });
        assert_eq!(sessions.resume(1, 2, 1).unwrap().0, Resumed::Known { done: 1 });
        // By their bytes, too.
        for id in [u64::MAX - 1, u64::MAX - 2] {
            sessions.open(id, id).unwrap();
            sessions.done(id, 1, &vec![0; KEPT_BYTES / 2]);
            sessions.leave(id, id, None);
        }
        assert!(sessions.left_bytes <= KEPT_BYTES && sessions.left.len() < 3);
    }
}
