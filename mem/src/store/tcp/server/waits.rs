//! Requests that are answered later: who waits, and what ends it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::event_loop::EventLoop;
use super::peer::{Closing, Peer, Pending};
use crate::store::tcp::wire::Answer;

/// What a key that is waited for takes besides its bytes.
const AWAITED: usize = 48;

/// What the entry of a connection among those who wait for a key takes besides the key's bytes.
const WAITING: usize = 192;

/// Who waits for what.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Who is to look again when a key comes, by their tickets: who waits longer is first.
    keys: HashMap<Box<[u8]>, BTreeMap<u64, u64>>,
    barriers: HashMap<Box<[u8]>, BTreeSet<u64>>,
    gathers: HashMap<Box<[u8]>, BTreeSet<u64>>,
    tickets: u64,
    /// How many connections wait.
    count: usize,
}

impl EventLoop {
    /// Whether a connection may begin to wait.
    pub(super) fn is_free(&self, peer: &Peer) -> Result<(), Closing> {
        match peer.pending {
            Pending::Nothing => Ok(()),
            _ => Err(Closing::SecondWait),
        }
    }

    /// Takes a place for a pending request of so many bytes.
    fn wait(&mut self, peer: &mut Peer, bytes: usize) -> Result<(), Closing> {
        let limit = self.limits.waits;
        if self.waiting.count >= limit {
            return Err(Closing::Waits { limit });
        }
        self.waiting.count += 1;
        peer.pending_bytes = WAITING + bytes;
        Ok(())
    }

    /// Gives the place back.
    fn waited(&mut self, peer: &mut Peer) {
        peer.pending_bytes = 0;
        self.waiting.count -= 1;
    }

    pub(super) fn await_keys(
        &mut self,
        id: u64,
        peer: &mut Peer,
        keys: &[&[u8]],
    ) -> Result<(), Closing> {
        self.is_free(peer)?;
        let missing = keys.iter().rev().filter(|key| !self.table.contains(key));
        let awaited: Vec<Box<[u8]>> = missing.map(|&key| key.into()).collect();
        if awaited.is_empty() {
            Answer::put_wait(peer.output.end(), false);
            return Ok(());
        }
        let longest = awaited.iter().map(|key| key.len()).max().unwrap_or(0);
        let bytes = awaited.iter().map(|key| AWAITED + key.len()).sum::<usize>() + longest;
        self.wait(peer, bytes)?;
        let (ticket, since) = (self.waiting.tickets, self.table.begin());
        self.waiting.tickets += 1;
        peer.pending = Pending::Wait { awaited, ticket, since };
        self.look(id, peer);
        Ok(())
    }

    /// Ends the wait of a connection if its keys have all come, else has it look again when one comes
    /// that has not. Says whether it ended.
    fn look(&mut self, id: u64, peer: &mut Peer) -> bool {
        let Pending::Wait { awaited, ticket, since } = &mut peer.pending else { return false };
        while let Some(key) = awaited.last() {
            if !self.table.seen(key, *since) {
                self.waiting.keys.entry(key.clone()).or_default().insert(*ticket, id);
                return false;
            }
            awaited.pop();
        }
        self.table.end(*since);
        peer.pending = Pending::Nothing;
        self.waited(peer);
        Answer::put_wait(peer.output.end(), false);
        true
    }

    /// [`look`](Self::look) for a connection that may be the one being `served`.
    fn look_again(&mut self, id: u64, served: u64, peer: &mut Peer) -> bool {
        if id == served {
            return self.look(id, peer);
        }
        let Some(mut waiter) = self.peers.remove(&id) else { return false };
        let ended = self.look(id, &mut waiter);
        if ended {
            self.woken.push(id);
        }
        self.peers.insert(id, waiter);
        ended
    }

    /// Has all who wait for `key`, which has a value now, look again. `peer` is the connection being
    /// served.
    pub(super) fn arrived(&mut self, served: u64, peer: &mut Peer, key: &[u8]) {
        for id in self.waiting.keys.remove(key).into_iter().flat_map(BTreeMap::into_values) {
            self.look_again(id, served, peer);
        }
        for id in self.waiting.barriers.remove(key).into_iter().flatten() {
            if id == served {
                self.pass(peer);
            } else if let Some(mut waiter) = self.peers.remove(&id) {
                self.pass(&mut waiter);
                self.peers.insert(id, waiter);
                self.woken.push(id);
            }
        }
    }

    /// Has the one who waits longest for a queue, which has one value more, look again: the value is
    /// for one. Who waits for other keys as well and has to go on leaves it to the next.
    pub(super) fn pushed(&mut self, served: u64, peer: &mut Peer, key: &[u8]) {
        while let Some(id) = self.waiting.next(key) {
            if !self.look_again(id, served, peer) {
                continue;
            }
            if id == served {
                peer.called = Some(key.into());
            } else if let Some(waiter) = self.peers.get_mut(&id) {
                waiter.called = Some(key.into());
            }
            return;
        }
    }

    /// Where a connection whose wait a queue has ended does not take a value, calls the next one.
    pub(super) fn hand_on(&mut self, peer: &mut Peer) {
        if let Some(key) = peer.called.take() {
            self.call_next(&key);
        }
    }

    pub(super) fn call_next(&mut self, key: &[u8]) {
        if self.table.queue_len(key) == 0 {
            return;
        }
        while let Some(id) = self.waiting.next(key) {
            let Some(mut waiter) = self.peers.remove(&id) else { continue };
            let ended = self.look(id, &mut waiter);
            if ended {
                waiter.called = Some(key.into());
                self.woken.push(id);
            }
            self.peers.insert(id, waiter);
            if ended {
                return;
            }
        }
    }

    /// Arrives at a barrier: `arrivals` times, which is 0 for who comes again. Lets all go if enough have.
    pub(super) fn barrier(
        &mut self,
        id: u64,
        peer: &mut Peer,
        key: &[u8],
        count: i64,
        arrivals: i64,
    ) -> Result<(), Closing> {
        self.is_free(peer)?;
        let arrived = match arrivals {
            0 => self.table.number(key)?,
            n => self.table.add(key, n)?,
        };
        if arrived >= count {
            Answer::put_wait(peer.output.end(), false);
            self.arrived(id, peer, key);
            return Ok(());
        }
        self.wait(peer, 2 * key.len())?;
        peer.pending = Pending::Barrier(key.into());
        self.waiting.barriers.entry(key.into()).or_default().insert(id);
        Ok(())
    }

    /// Lets a connection go from its barrier.
    fn pass(&mut self, peer: &mut Peer) {
        peer.pending = Pending::Nothing;
        self.waited(peer);
        Answer::put_wait(peer.output.end(), false);
    }

    pub(super) fn await_gather(
        &mut self,
        id: u64,
        peer: &mut Peer,
        key: &[u8],
    ) -> Result<(), Closing> {
        self.wait(peer, 2 * key.len())?;
        peer.pending = Pending::Gather(key.into());
        self.waiting.gathers.entry(key.into()).or_default().insert(id);
        Ok(())
    }

    /// Answers all who wait for the other contributions of a gather. The connection being served does
    /// not: it has one pending request at most, and brought the last contribution.
    pub(super) fn gathered(&mut self, key: &[u8], result: &Arc<[u8]>) {
        for id in self.waiting.gathers.remove(key).into_iter().flatten() {
            let Some(mut waiter) = self.peers.remove(&id) else { continue };
            waiter.pending = Pending::Nothing;
            self.waited(&mut waiter);
            waiter.output.share(result);
            self.peers.insert(id, waiter);
            self.woken.push(id);
        }
    }

    /// Serves CANCEL_WAIT. A GATHER is answered in any case: if it is pending, by what is missing.
    pub(super) fn cancel(&mut self, id: u64, peer: &mut Peer) {
        if let Pending::Gather(key) = &peer.pending {
            Answer::put_missing(peer.output.end(), &self.table.missing(key));
        }
        self.forget(id, peer);
        Answer::put_wait(peer.output.end(), true);
    }

    /// Ends the pending request of a connection, if it has one, without an answer.
    pub(super) fn forget(&mut self, id: u64, peer: &mut Peer) {
        match std::mem::replace(&mut peer.pending, Pending::Nothing) {
            Pending::Nothing => return,
            Pending::Wait { awaited, ticket, since } => {
                if let Some(key) = awaited.last()
                    && let Some(waiters) = self.waiting.keys.get_mut(key)
                {
                    waiters.remove(&ticket);
                    if waiters.is_empty() {
                        self.waiting.keys.remove(key);
                    }
                }
                self.table.end(since);
            }
            Pending::Barrier(key) => leave(&mut self.waiting.barriers, &key, id),
            Pending::Gather(key) => leave(&mut self.waiting.gathers, &key, id),
        }
        self.waited(peer);
    }
}

impl Waiting {
    /// Takes out who waits longest for a key.
    fn next(&mut self, key: &[u8]) -> Option<u64> {
        let waiters = self.keys.get_mut(key)?;
        let (_, id) = waiters.pop_first()?;
        if waiters.is_empty() {
            self.keys.remove(key);
        }
        Some(id)
    }
}

fn leave(all: &mut HashMap<Box<[u8]>, BTreeSet<u64>>, key: &[u8], id: u64) {
    if let Some(waiters) = all.get_mut(key) {
        waiters.remove(&id);
        if waiters.is_empty() {
            all.remove(key);
        }
    }
}
