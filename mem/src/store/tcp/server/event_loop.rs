//! The server's thread.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::ServerLimits;
use super::peer::{Closing, Peer};
use super::stats::Stats;
use crate::store::table::Table;
use crate::store::tcp::wake::{Wake, timespec};
use crate::store::tcp::wire::{Answer, Decoded, Request};

const STOP: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_PEER: u64 = 2;

/// The most bytes read from a connection in one turn.
const BLOCK: usize = 64 << 10;

/// What a key that is waited for takes besides its bytes.
const AWAITED: usize = 48;

/// How long accepting rests when the process is out of descriptors.
const REST: Duration = Duration::from_millis(100);

pub(super) struct EventLoop {
    epoll: OwnedFd,
    listener: TcpListener,
    limits: ServerLimits,
    stats: Arc<Stats>,
    peers: HashMap<u64, Peer>,
    next: u64,
    table: Table,
    /// Who is to be woken when a key has a value.
    waiting: HashMap<Box<[u8]>, BTreeSet<u64>>,
    /// Who has just seen the last key come, in the order of that.
    woken: Vec<u64>,
    /// New connections and when they must have identified themselves.
    handshakes: VecDeque<(Instant, u64)>,
    /// Bytes held for all connections.
    buffered: usize,
    /// Until when accepting rests.
    resting: Option<Instant>,
    block: Box<[u8]>,
}

impl EventLoop {
    /// A loop that ends once `stop`, which must stay open until then, is woken.
    pub fn new(
        listener: TcpListener,
        stop: &Wake,
        limits: ServerLimits,
        stats: Arc<Stats>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(EventLoop {
            epoll,
            listener,
            limits,
            stats,
            peers: HashMap::new(),
            next: FIRST_PEER,
            table: Table::new(limits.stored),
            waiting: HashMap::new(),
            woken: Vec::new(),
            handshakes: VecDeque::new(),
            buffered: 0,
            resting: None,
            block: vec![0; BLOCK].into(),
        })
    }

    /// Serves until the stop descriptor is woken.
    pub fn run(mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        loop {
            events.clear();
            let timeout = self.timeout().map(timespec);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "the store ends: it cannot watch its connections");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    STOP => return,
                    LISTENER => self.accept(),
                    id => self.turn(id, event.flags),
                }
            }
            self.expire();
        }
    }

    /// Until the next thing to do that no event announces.
    fn timeout(&self) -> Option<Duration> {
        let handshake = self.handshakes.front().map(|(until, _)| *until);
        let next = handshake.into_iter().chain(self.resting).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while self.handshakes.front().is_some_and(|(until, _)| *until <= now) {
            let Some((_, id)) = self.handshakes.pop_front() else { break };
            if self.peers.get(&id).is_some_and(|peer| !peer.validated) {
                self.close(id, &Closing::Silent);
            }
        }
        if self.resting.is_some_and(|until| until <= now) {
            self.resting = None;
            self.watch_listener(EventFlags::IN);
        }
    }

    fn watch_listener(&mut self, events: EventFlags) {
        let data = EventData::new_u64(LISTENER);
        if let Err(errno) = epoll::modify(&self.epoll, &self.listener, data, events) {
            tracing::error!(%errno, "the store cannot watch its port");
        }
    }

    /// Accepts what has come, up to a bound that lets the others have their turn.
    fn accept(&mut self) {
        for _ in 0..64 {
            match self.listener.accept() {
                Ok((stream, address)) if self.peers.len() >= self.limits.connections => {
                    self.stats.refused.add(1);
                    let limit = self.limits.connections;
                    tracing::warn!(%address, limit, "the store refuses a connection over its limit");
                    drop(stream);
                }
                Ok((stream, address)) => {
                    if let Err(error) = self.admit(stream, address) {
                        tracing::warn!(%address, %error, "the store drops a new connection");
                    }
                }
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN | Errno::INTR) => return,
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        tracing::warn!(%error, "the store stops accepting for a moment");
                        self.resting = Some(Instant::now() + REST);
                        self.watch_listener(EventFlags::empty());
                        return;
                    }
                    // The connection ended before it was accepted.
                    _ => {}
                },
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, address: SocketAddr) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // A client whose host has vanished does not hold its slot for ever.
        sockopt::set_socket_keepalive(&stream, true)?;
        let id = self.next;
        self.next += 1;
        epoll::add(&self.epoll, &stream, EventData::new_u64(id), EventFlags::IN)?;
        self.peers.insert(id, Peer::new(stream, address, self.stats.open(id, address)));
        self.handshakes.push_back((Instant::now() + self.limits.handshake, id));
        Ok(())
    }

    /// Gives a connection its turn, and those that its requests woke theirs.
    fn turn(&mut self, id: u64, ready: EventFlags) {
        // Taken out for the turn: its requests change the rest of the server.
        let Some(mut peer) = self.peers.remove(&id) else { return };
        let served = self.exchange(id, &mut peer, ready);
        self.peers.insert(id, peer);
        if let Err(closing) = served {
            self.close(id, &closing);
        }
        for id in std::mem::take(&mut self.woken) {
            self.wake(id);
        }
    }

    fn exchange(&mut self, id: u64, peer: &mut Peer, ready: EventFlags) -> Result<(), Closing> {
        if ready.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            let n = peer.read(&mut self.block)?;
            self.stats.moved.received.add(n as u64);
        }
        self.serve(id, peer)?;
        // Before the answers leave, so that who has one sees its effect counted.
        self.stats.keys.set(self.table.len() as u64);
        self.stats.stored.set(self.table.used() as u64);
        self.finish(id, peer)
    }

    /// Writes what it can and settles the connection's account and events.
    fn finish(&mut self, id: u64, peer: &mut Peer) -> Result<(), Closing> {
        let n = peer.write()?;
        self.stats.moved.sent.add(n as u64);
        let held = peer.held();
        self.buffered = self.buffered - peer.accounted + held;
        peer.accounted = held;
        if self.buffered > self.limits.buffered {
            let (needed, limit) = (self.buffered, self.limits.buffered);
            return Err(Closing::Buffered { needed, limit });
        }
        let wanted = peer.wants();
        if wanted != peer.watched {
            let data = EventData::new_u64(id);
            epoll::modify(&self.epoll, peer.as_fd(), data, wanted)
                .map_err(|errno| Closing::Io(errno.into()))?;
            peer.watched = wanted;
        }
        Ok(())
    }

    /// Serves the whole requests at hand, until the answers pile up.
    fn serve(&mut self, id: u64, peer: &mut Peer) -> Result<(), Closing> {
        let input = std::mem::take(&mut peer.input);
        let mut served = 0;
        let mut result = Ok(());
        while served < input.len() && input.len() - served >= peer.needed && !peer.is_clogged() {
            peer.needed = 0;
            match Request::decode(&input[served..], &self.limits.wire) {
                Ok(Decoded::Whole { message, length }) => {
                    result = self.answer(id, peer, &message);
                    if result.is_err() {
                        break;
                    }
                    served += length;
                }
                Ok(Decoded::Partial { needed }) => peer.needed = needed,
                Err(error) => {
                    result = Err(error.into());
                    break;
                }
            }
        }
        peer.input = input;
        peer.consume(served);
        result
    }

    fn answer(&mut self, id: u64, peer: &mut Peer, request: &Request<'_>) -> Result<(), Closing> {
        if !peer.validated {
            peer.validated = matches!(request, Request::Validate);
            return if peer.validated { Ok(()) } else { Err(Closing::NotValidated) };
        }
        if !matches!(request, Request::Validate | Request::Ping { .. }) {
            peer.moved.requests.add(1);
            self.stats.moved.requests.add(1);
        }
        let output = &mut peer.output;
        match request {
            Request::Validate => {}
            Request::Ping { nonce } => Answer::put_nonce(output, *nonce),
            Request::Set { key, value } => {
                self.table.set(key, value)?;
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
            Request::Get { key } => self.put_values(output, &[key])?,
            Request::MultiGet { keys } => self.put_values(output, keys)?,
            Request::Check { keys } => {
                Answer::put_check(output, keys.iter().all(|key| self.table.contains(key)));
            }
            Request::Wait { keys } => self.await_keys(id, peer, keys)?,
            Request::CancelWait => {
                self.forget(id, peer);
                Answer::put_wait(&mut peer.output, true);
            }
        }
        Ok(())
    }

    /// Appends the values, empty where there is none, unless they are too much.
    fn put_values(&self, output: &mut Vec<u8>, keys: &[&[u8]]) -> Result<(), Closing> {
        let value = |key: &&[u8]| self.table.get(key).unwrap_or_default();
        let needed: usize = keys.iter().map(|key| 8 + value(key).len()).sum();
        let limit = self.limits.wire.answer;
        if needed > limit {
            return Err(Closing::Answer { needed, limit });
        }
        let (needed, limit) = (self.buffered + needed, self.limits.buffered);
        if needed > limit {
            return Err(Closing::Buffered { needed, limit });
        }
        keys.iter().for_each(|key| Answer::put_value(output, value(key)));
        Ok(())
    }

    fn await_keys(&mut self, id: u64, peer: &mut Peer, keys: &[&[u8]]) -> Result<(), Closing> {
        if !peer.awaited.is_empty() {
            return Err(Closing::SecondWait);
        }
        let missing = keys.iter().rev().filter(|key| !self.table.contains(key));
        peer.awaited = missing.map(|&key| key.into()).collect();
        peer.awaited_bytes = peer.awaited.iter().map(|key| AWAITED + key.len()).sum();
        self.look(id, peer);
        Ok(())
    }

    /// Ends the wait of a connection if its keys are all there, else has it woken for one that is
    /// not. Says whether it ended.
    fn look(&mut self, id: u64, peer: &mut Peer) -> bool {
        while let Some(key) = peer.awaited.last() {
            if !self.table.contains(key) {
                self.waiting.entry(key.clone()).or_default().insert(id);
                return false;
            }
            peer.awaited.pop();
        }
        peer.awaited_bytes = 0;
        Answer::put_wait(&mut peer.output, false);
        true
    }

    /// Has those who wait for `key`, which has a value now, look again. `peer` is the connection
    /// being served.
    fn arrived(&mut self, serving: u64, peer: &mut Peer, key: &[u8]) {
        for id in self.waiting.remove(key).into_iter().flatten() {
            if id == serving {
                self.look(id, peer);
            } else if let Some(mut waiter) = self.peers.remove(&id) {
                if self.look(id, &mut waiter) {
                    self.woken.push(id);
                }
                self.peers.insert(id, waiter);
            }
        }
    }

    /// Sends a connection what another one's request brought it.
    fn wake(&mut self, id: u64) {
        let Some(mut peer) = self.peers.remove(&id) else { return };
        let finished = self.finish(id, &mut peer);
        self.peers.insert(id, peer);
        if let Err(closing) = finished {
            self.close(id, &closing);
        }
    }

    /// Ends the wait of a connection, if it has one, without an answer.
    fn forget(&mut self, id: u64, peer: &mut Peer) {
        let Some(key) = peer.awaited.pop() else { return };
        if let Some(waiters) = self.waiting.get_mut(&key) {
            waiters.remove(&id);
            if waiters.is_empty() {
                self.waiting.remove(&key);
            }
        }
        peer.awaited = Vec::new();
        peer.awaited_bytes = 0;
    }

    fn close(&mut self, id: u64, why: &Closing) {
        let Some(mut peer) = self.peers.remove(&id) else { return };
        self.forget(id, &mut peer);
        self.buffered -= peer.accounted;
        self.stats.close(id);
        if why.is_violation() {
            self.stats.expelled.add(1);
            tracing::warn!(address = %peer.address, %why, "the store closes a connection");
        } else {
            tracing::debug!(address = %peer.address, %why, "a connection of the store ended");
        }
    }
}
