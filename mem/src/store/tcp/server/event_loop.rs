//! The server's thread.

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use rustix::process::{Resource, getrlimit};

use super::ServerLimits;
use super::peer::{Closing, Peer};
use super::sessions::Sessions;
use super::stats::Stats;
use super::waits::Waiting;
use crate::store::table::Table;
use crate::store::tcp::wake::{Wake, timespec};
use crate::store::tcp::wire::{Decoded, Request};

const STOP: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_PEER: u64 = 2;

/// The most bytes read from a connection in one turn.
const BLOCK: usize = 64 << 10;

/// How long accepting rests when the process is out of descriptors.
const REST: Duration = Duration::from_millis(100);

pub(super) struct EventLoop {
    epoll: OwnedFd,
    listener: TcpListener,
    pub(super) limits: ServerLimits,
    pub(super) stats: Arc<Stats>,
    pub(super) peers: HashMap<u64, Peer>,
    next: u64,
    /// What tells this server from one that takes its place.
    pub(super) instance: u32,
    pub(super) table: Table,
    pub(super) waiting: Waiting,
    pub(super) sessions: Sessions,
    /// Whose pending request has just been answered, in the order of that.
    pub(super) woken: Vec<u64>,
    /// Connections that have not identified themselves, and when they must have: in their order.
    pub(super) unidentified: BTreeMap<u64, Instant>,
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
        instance: u32,
        stats: Arc<Stats>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
        let unidentified = usize::try_from(descriptors).unwrap_or(usize::MAX).max(1);
        let limits =
            ServerLimits { unidentified: unidentified.min(limits.unidentified.max(1)), ..limits };
        Ok(EventLoop {
            epoll,
            listener,
            limits,
            stats,
            peers: HashMap::new(),
            next: FIRST_PEER,
            instance,
            table: Table::new(limits.keys, limits.stored),
            waiting: Waiting::default(),
            sessions: Sessions::default(),
            woken: Vec::new(),
            unidentified: BTreeMap::new(),
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
                self.wake_all();
            }
            self.expire();
            self.wake_all();
        }
    }

    /// Until the next thing to do that no event announces.
    fn timeout(&self) -> Option<Duration> {
        let handshake = self.unidentified.values().next().copied();
        let next = handshake.into_iter().chain(self.resting).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some((&id, until)) = self.unidentified.first_key_value()
            && *until <= now
        {
            self.close(id, &Closing::Silent);
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
            match accept(&self.listener) {
                Ok((stream, address))
                    if self.peers.len() >= self.limits.connections && !self.drop_unidentified() =>
                {
                    self.stats.refused.add(1);
                    let limit = self.limits.connections;
                    tracing::warn!(%address, limit, "the store refuses a connection over its limit");
                    drop(stream);
                }
                Ok((stream, address)) => {
                    if self.unidentified.len() >= self.limits.unidentified {
                        self.press_unidentified();
                    }
                    match self.admit(stream, address) {
                        // Its handshake is there, most often.
                        Ok(id) => self.turn(id, EventFlags::IN),
                        Err(error) => {
                            tracing::warn!(%address, %error, "the store drops a new connection");
                        }
                    }
                }
                Err(errno) => match errno {
                    Errno::AGAIN | Errno::INTR => return,
                    Errno::MFILE | Errno::NFILE if self.drop_unidentified() => {}
                    Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => {
                        tracing::warn!(%errno, "the store stops accepting for a moment");
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

    /// Gives the connection that has been there for the longest without identifying itself a last turn,
    /// and closes it then: those who only connect keep out nobody, and nobody is closed for what the
    /// server has not read yet. Whether it is closed; `None` if there is none.
    fn press_unidentified(&mut self) -> Option<bool> {
        let (&id, _) = self.unidentified.first_key_value()?;
        let (unidentified, limit) = (self.unidentified.len(), self.limits.unidentified);
        self.turn(id, EventFlags::IN);
        if self.unidentified.contains_key(&id) {
            self.close(id, &Closing::Crowded { unidentified, limit });
        }
        Some(!self.peers.contains_key(&id))
    }

    /// Closes a connection that does not identify itself; `false` if there is none.
    fn drop_unidentified(&mut self) -> bool {
        std::iter::from_fn(|| self.press_unidentified()).any(|closed| closed)
    }

    fn admit(&mut self, stream: TcpStream, address: SocketAddr) -> Result<u64, Errno> {
        let id = self.next;
        self.next += 1;
        epoll::add(&self.epoll, &stream, EventData::new_u64(id), EventFlags::IN)?;
        self.peers.insert(id, Peer::new(stream, address, self.stats.open(id, address)));
        self.unidentified.insert(id, Instant::now() + self.limits.handshake);
        Ok(id)
    }

    /// Gives a connection its turn.
    fn turn(&mut self, id: u64, ready: EventFlags) {
        // Taken out for the turn: its requests change the rest of the server.
        let Some(mut peer) = self.peers.remove(&id) else { return };
        let served = self.exchange(id, &mut peer, ready);
        self.peers.insert(id, peer);
        if let Err(closing) = served {
            self.close(id, &closing);
        }
    }

    /// Sends those whose pending requests were answered what they wait for. Closing one may answer
    /// others.
    fn wake_all(&mut self) {
        while !self.woken.is_empty() {
            for id in std::mem::take(&mut self.woken) {
                self.wake(id);
            }
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
        self.make_room(0, held)?;
        let wanted = peer.wants();
        if wanted != peer.watched {
            let data = EventData::new_u64(id);
            epoll::modify(&self.epoll, peer.as_fd(), data, wanted)
                .map_err(|errno| Closing::Io(errno.into()))?;
            peer.watched = wanted;
        }
        Ok(())
    }

    /// Has room for `more` bytes, for a connection that would then hold `held`: closes those that hold
    /// more, the largest first, until there is. An error if this one is the largest.
    pub(super) fn make_room(&mut self, more: usize, held: usize) -> Result<(), Closing> {
        let limit = self.limits.buffered;
        loop {
            let needed = self.buffered.saturating_add(more);
            if needed <= limit {
                return Ok(());
            }
            // The connection being served is none of the peers now.
            let largest = self.peers.iter().max_by_key(|(_, peer)| peer.accounted);
            match largest.filter(|(_, peer)| peer.accounted > held) {
                Some((&id, _)) => self.close(id, &Closing::Buffered { needed, limit }),
                None => return Err(Closing::Buffered { needed, limit }),
            }
        }
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

    /// Sends a connection what another one's request brought it.
    fn wake(&mut self, id: u64) {
        let Some(mut peer) = self.peers.remove(&id) else { return };
        let finished = self.finish(id, &mut peer);
        self.peers.insert(id, peer);
        if let Err(closing) = finished {
            self.close(id, &closing);
        }
    }

    pub(super) fn close(&mut self, id: u64, why: &Closing) {
        let Some(mut peer) = self.peers.remove(&id) else { return };
        self.forget(id, &mut peer);
        self.hand_on(&mut peer);
        if let Some((session, _)) = peer.session {
            self.sessions.leave(session, id, why.is_refusal().then(|| why.to_string()));
        }
        self.unidentified.remove(&id);
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

/// Accepts a connection, by one call of the system: what else it is to be it has from the listener.
fn accept(listener: &TcpListener) -> Result<(TcpStream, SocketAddr), Errno> {
    let (stream, address) =
        acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    // Without an address it ended before it was accepted.
    let address = address.ok_or(Errno::CONNABORTED)?.try_into()?;
    Ok((stream.into(), address))
}
