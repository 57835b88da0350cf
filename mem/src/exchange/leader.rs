//! The leader: the thread at which the processes of a host meet.
//!
//! Keeps nothing between rounds, so that any member can take its place when its process ends. All
//! sockets are non-blocking and each connection has its own queue: a slow or hostile client holds
//! up nobody.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};

use super::frame::{self, Frame, MAX_FRAME, WIRE_VERSION};
use super::parcel::Parcel;
use super::service::{Service, Stop};
use super::token::{Side, Token, random};
use super::{ExchangeError, RoundKey};
use crate::liveness::fork::LinkFd;

/// Connections at once; one more is turned away at the door.
const MAX_CONNECTIONS: usize = 4096;

/// Connections at once that have not proven themselves; one more takes the place of the oldest, which
/// comes again if it is a member. Few enough to leave descriptors, by default 1024, for the rounds.
const MAX_STRANGERS: usize = 256;

/// How long a client may take to prove itself.
const GREETING: Duration = Duration::from_secs(5);

/// How long a member takes to prove itself at most, unless its process was stopped.
const PROMPT: Duration = Duration::from_millis(250);

/// Connections accepted, and frames read of a connection, before the others have their turn.
const TURN: usize = 64;

/// How often deadlines and deaths are looked at while nothing arrives.
const TICK: Duration = Duration::from_millis(20);

/// Tells whether a global rank is known to have ended, and if so, as which of those that have.
pub(crate) type LostOrder = Arc<dyn Fn(u32) -> Option<usize> + Send + Sync>;

/// A running leader; stops when dropped.
#[derive(Debug)]
pub(crate) struct Leader {
    starved: Arc<Mutex<Option<ExchangeError>>>,
    _service: Service,
}

impl Leader {
    /// Starts to lead on a bound, listening socket.
    pub(crate) fn start(
        listener: OwnedFd,
        token: Token,
        lost_order: LostOrder,
    ) -> Result<Self, ExchangeError> {
        let starved = Arc::<Mutex<Option<ExchangeError>>>::default();
        let told = starved.clone();
        let service = Service::start("symmem-leader", move |stop| {
            let mut desk = Desk {
                listener: LinkFd::new(listener),
                token,
                lost_order,
                spare: stop.bell().try_clone_to_owned().ok(),
                stop,
                starved: told,
                clients: HashMap::new(),
                next: 0,
                rounds: HashMap::new(),
                buffer: vec![0; MAX_FRAME],
            };
            desk.run();
        })?;
        Ok(Leader { starved, _service: service })
    }

    /// What a member was told that this process turned away, if no round has succeeded since: who is
    /// missed here may be that member, come early.
    pub(crate) fn starved(&self) -> Option<ExchangeError> {
        self.starved.lock().clone()
    }
}

struct Desk {
    listener: LinkFd,
    token: Token,
    lost_order: LostOrder,
    stop: Stop,
    /// Given up to turn away whoever comes when descriptors have run out.
    spare: Option<OwnedFd>,
    starved: Arc<Mutex<Option<ExchangeError>>>,
    clients: HashMap<u64, Client>,
    next: u64,
    rounds: HashMap<RoundKey, Meeting>,
    buffer: Vec<u8>,
}

struct Client {
    socket: LinkFd,
    process: Option<Pid>,
    state: State,
    out: VecDeque<Outgoing>,
}

/// A frame and the descriptors beside it.
type Outgoing = (Arc<[u8]>, Vec<Arc<OwnedFd>>);

enum State {
    /// Challenged with this nonce, at this time.
    Greeting { nonce: [u8; 16], since: Instant },
    /// Proven; has not said which round.
    Known,
    /// In a round.
    Come { key: RoundKey },
    /// Everything is in its queue; goes when that is empty.
    Leaving,
}

struct Meeting {
    members: Vec<u32>,
    come: Vec<Option<Member>>,
    /// The first deadline of those who came, and what its rank allowed.
    deadline: (Instant, Duration),
}

struct Member {
    client: u64,
    payload: Vec<u8>,
    parcels: Vec<Parcel>,
    fds: Vec<Arc<OwnedFd>>,
    linked: Vec<u32>,
}

impl Desk {
    fn run(&mut self) {
        while !self.stop.is_asked() {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(e) => {
                    tracing::error!(error = %e, "the leader's poll failed; the next member leads");
                    return;
                }
            };
            if ready.listener {
                self.accept();
            }
            for id in ready.readable {
                self.read(id);
            }
            for id in ready.writable {
                self.flush(id);
            }
            self.expire();
        }
        // What is queued for members of finished rounds still goes out, as far as it can at once.
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        ids.into_iter().for_each(|id| self.flush(id));
    }

    fn wait(&self) -> rustix::io::Result<Ready> {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.stop.bell(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
        ];
        for id in &ids {
            let client = &self.clients[id];
            let mut events = PollFlags::IN;
            if !client.out.is_empty() {
                events |= PollFlags::OUT;
            }
            fds.push(PollFd::from_borrowed_fd(client.socket.as_fd(), events));
        }
        // With nobody here, only the door and the bell matter.
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        match poll(&mut fds, (!ids.is_empty()).then_some(&tick)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        let of = |flags: PollFlags| {
            ids.iter()
                .zip(&fds[2..])
                .filter(move |(_, fd)| fd.revents().intersects(flags))
                .map(|(id, _)| *id)
        };
        Ok(Ready {
            listener: fds[1].revents().contains(PollFlags::IN),
            readable: of(PollFlags::IN | PollFlags::HUP | PollFlags::ERR).collect(),
            writable: of(PollFlags::OUT).collect(),
        })
    }

    fn accept(&mut self) {
        for _ in 0..TURN {
            let socket = match rustix::net::accept_with(
                &self.listener,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                // Strangers that keep descriptors must not starve the members.
                Err(Errno::MFILE | Errno::NFILE) if self.drop_stranger(PROMPT) => continue,
                Err(e @ (Errno::MFILE | Errno::NFILE)) => return self.turn_away(e),
                Err(e) => {
                    // The connection stays at the door: a tick later it may come in.
                    tracing::warn!(error = %e, "accept failed");
                    std::thread::sleep(TICK);
                    return;
                }
            };
            if self.clients.len() >= MAX_CONNECTIONS {
                tracing::warn!(limit = MAX_CONNECTIONS, "too many connections; one is turned away");
                continue;
            }
            // Another user's process is no member, whatever it knows.
            let Ok((uid, process)) = frame::peer(socket.as_fd()) else { continue };
            if uid != rustix::process::geteuid().as_raw() {
                tracing::warn!(uid, "a process of another user was turned away");
                continue;
            }
            let Ok(nonce) = random::<16>() else { continue };
            if self.strangers().count() >= MAX_STRANGERS {
                self.drop_stranger(Duration::ZERO);
            }
            let id = self.next;
            self.next += 1;
            let state = State::Greeting { nonce, since: Instant::now() };
            self.clients.insert(
                id,
                Client { socket: LinkFd::new(socket), process, state, out: VecDeque::new() },
            );
            self.send(id, &Frame::Challenge { version: WIRE_VERSION, nonce }, Vec::new());
        }
    }

    /// Who has not proven itself, and since when it could have.
    fn strangers(&self) -> impl Iterator<Item = (u64, Instant)> + '_ {
        self.clients.iter().filter_map(|(id, client)| match client.state {
            State::Greeting { since, .. } => Some((*id, since)),
            _ => None,
        })
    }

    /// Closes the connection that has been there for the longest without a proof, if it has been so
    /// for this long.
    fn drop_stranger(&mut self, at_least: Duration) -> bool {
        let Some((id, since)) = self.strangers().min_by_key(|(id, _)| *id) else { return false };
        let drop = since.elapsed() >= at_least;
        if drop {
            self.clients.remove(&id);
            tracing::warn!(limit = MAX_STRANGERS, "a connection without a proof makes room");
        }
        drop
    }

    /// There is no descriptor for the next connection. Who is at the door learns it at once, and so
    /// do those who have come and would wait for them.
    fn turn_away(&mut self, errno: Errno) {
        let error = self.starved("accept", errno);
        drop(self.spare.take());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if let Ok(socket) = rustix::net::accept_with(&self.listener, flags)
            && let Ok(bytes) = Frame::Failed(error).encode()
        {
            // Who is gone again need not be told.
            let _ = frame::send(&socket, &bytes, &[]);
        }
        self.spare = self.stop.bell().try_clone_to_owned().ok();
        if self.spare.is_none() {
            std::thread::sleep(TICK);
        }
    }

    /// This process has no descriptors left, so no round that still waits for a member can succeed.
    fn starved(&mut self, call: &str, errno: Errno) -> ExchangeError {
        let error = ExchangeError::errno(&format!("{call}, in the process that leads"), errno);
        tracing::warn!(%error, "the rounds in progress fail");
        *self.starved.lock() = Some(error.clone());
        let keys: Vec<RoundKey> = self.rounds.keys().copied().collect();
        keys.into_iter().for_each(|key| self.fail(key, &error));
        error
    }

    fn read(&mut self, id: u64) {
        for _ in 0..TURN {
            let Some(client) = self.clients.get(&id) else { return };
            let received = match client.state {
                State::Greeting { .. } => {
                    frame::receive_from_stranger(&client.socket, &mut self.buffer)
                        .map(|n| n.map(|n| (n, Vec::new())))
                }
                _ => frame::receive(&client.socket, &mut self.buffer),
            };
            match received {
                // Nothing that it says now changes anything, nor is it answered.
                Ok(Some(_)) if matches!(client.state, State::Leaving) => {}
                Ok(Some((n, fds))) => {
                    if let Err(e) = self.handle(id, n, fds) {
                        tracing::warn!(error = %e, "a client was turned away");
                        self.send(id, &Frame::Failed(e), Vec::new());
                        self.leave(id);
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(Errno::PROTO) => {
                    let error = ExchangeError::Refused("descriptors before a proof".to_owned());
                    tracing::warn!(%error, "a client was turned away");
                    self.send(id, &Frame::Failed(error), Vec::new());
                    return self.leave(id);
                }
                // What it sent came without its descriptors.
                Err(e @ (Errno::MFILE | Errno::NFILE)) => {
                    let error = self.starved("recvmsg", e);
                    self.send(id, &Frame::Failed(error), Vec::new());
                    return self.leave(id);
                }
                Ok(None) | Err(_) => return self.gone(id),
            }
        }
    }

    fn handle(&mut self, id: u64, bytes: usize, fds: Vec<OwnedFd>) -> Result<(), ExchangeError> {
        let frame = frame::decode(&self.buffer[..bytes])?;
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        match (frame, &client.state) {
            (Frame::Hello { nonce: theirs, proof }, State::Greeting { nonce, .. }) => {
                if !self.token.verify(Side::Member, nonce, &theirs, &proof) {
                    return Err(ExchangeError::Refused(
                        "the token is another run's: give each run an id of its own".to_owned(),
                    ));
                }
                let proof = self.token.prove(Side::Leader, nonce, &theirs);
                client.state = State::Known;
                self.send(id, &Frame::Welcome { proof }, Vec::new());
                Ok(())
            }
            (
                Frame::Come { key, members, me, left, allowed, linked, payload, parcels },
                State::Known,
            ) => {
                client.state = State::Come { key };
                let fds = fds.into_iter().map(Arc::new).collect();
                let member = Member { client: id, payload, parcels, fds, linked };
                self.come(key, members, me, (left, allowed), member)
            }
            (Frame::Cancel, State::Come { key }) => {
                let key = *key;
                self.fail(key, &ExchangeError::Cancelled);
                Ok(())
            }
            _ => Err(ExchangeError::Refused("a frame out of turn".to_owned())),
        }
    }

    fn come(
        &mut self,
        key: RoundKey,
        members: Vec<u32>,
        me: u32,
        (left, allowed): (Duration, Duration),
        member: Member,
    ) -> Result<(), ExchangeError> {
        let deadline =
            Instant::now().checked_add(left).unwrap_or_else(|| Instant::now() + GREETING);
        let meeting = self.rounds.entry(key).or_insert_with(|| Meeting {
            come: members.iter().map(|_| None).collect(),
            members: members.clone(),
            deadline: (deadline, allowed),
        });
        if meeting.members != members {
            return Err(ExchangeError::Refused(format!(
                "the group's members are {:?} to this rank and {:?} to others: name the same on all",
                members, meeting.members
            )));
        }
        if deadline < meeting.deadline.0 {
            meeting.deadline = (deadline, allowed);
        }
        match meeting.come.get_mut(me as usize) {
            Some(place @ None) => *place = Some(member),
            _ => {
                // Whoever came first keeps the round from succeeding with a stranger in it.
                self.fail(key, &ExchangeError::Duplicate { rank: me });
                return Err(ExchangeError::Duplicate { rank: me });
            }
        }
        if self.rounds.get(&key).is_some_and(|m| m.come.iter().all(Option::is_some)) {
            self.complete(key);
        }
        Ok(())
    }

    /// Everybody is here: all parts to all, and a link to each pair that has none.
    fn complete(&mut self, key: RoundKey) {
        let Some(meeting) = self.rounds.remove(&key) else { return };
        let all: Vec<Member> = meeting.come.into_iter().flatten().collect();
        for (index, part) in all.iter().enumerate() {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let (payload, parcels) = (part.payload.clone(), part.parcels.clone());
            let Ok(bytes) = (Frame::Part { index, payload, parcels }).encode() else { continue };
            let bytes: Arc<[u8]> = bytes.into();
            for to in &all {
                let own = to.client == part.client;
                let fds = if own { Vec::new() } else { part.fds.clone() };
                self.queue(to.client, bytes.clone(), fds);
            }
        }
        for i in 0..all.len() {
            for j in i + 1..all.len() {
                let (gi, gj) = (meeting.members[i], meeting.members[j]);
                if all[i].linked.contains(&gj) && all[j].linked.contains(&gi) {
                    continue;
                }
                if let Err(e) = self.link((i, &all[i]), (j, &all[j])) {
                    tracing::error!(error = %e, "no link between two members; the round fails");
                    let failed = Frame::Failed(ExchangeError::errno("socketpair", e));
                    for member in &all {
                        self.send(member.client, &failed, Vec::new());
                        self.leave(member.client);
                    }
                    return;
                }
            }
        }
        *self.starved.lock() = None;
        for member in &all {
            self.send(member.client, &Frame::Done, Vec::new());
            self.leave(member.client);
        }
    }

    fn link(&mut self, a: (usize, &Member), b: (usize, &Member)) -> rustix::io::Result<()> {
        let (end_a, end_b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        for (to, end, (index, other)) in [(a.1, end_a, b), (b.1, end_b, a)] {
            let mut fds = vec![Arc::new(end)];
            // The process itself, as far as this kernel and sandbox can name it: a second witness
            // of its end, for when a stray copy of the link stays open somewhere.
            if let Some(client) = self.clients.get(&other.client)
                && let Some(process) = client.process
                && let Ok(process) = rustix::process::pidfd_open(process, PidfdFlags::empty())
            {
                fds.push(Arc::new(process));
            }
            self.send(
                to.client,
                &Frame::Link { index: u32::try_from(index).unwrap_or(u32::MAX) },
                fds,
            );
        }
        Ok(())
    }

    /// The round is over for everybody who has come; who comes later begins a new one and waits in
    /// vain, within its own deadline.
    fn fail(&mut self, key: RoundKey, error: &ExchangeError) {
        let Some(meeting) = self.rounds.remove(&key) else { return };
        for member in meeting.come.into_iter().flatten() {
            self.send(member.client, &Frame::Failed(error.clone()), Vec::new());
            self.leave(member.client);
        }
    }

    /// Ends rounds whose time is over or whose missing members are known to be dead, and drops
    /// clients that do not prove themselves.
    fn expire(&mut self) {
        let now = Instant::now();
        let mut ended = Vec::new();
        for (key, meeting) in &self.rounds {
            let missing = || {
                meeting.come.iter().enumerate().filter(|(_, m)| m.is_none()).map(|(i, _)| i as u32)
            };
            // Whoever ended first is the cause; others may have ended because of it.
            let order = |i: &u32| (self.lost_order)(meeting.members[*i as usize]);
            if let Some((_, rank)) = missing().filter_map(|i| Some((order(&i)?, i))).min() {
                ended.push((*key, ExchangeError::Lost { rank }));
            } else if now >= meeting.deadline.0 {
                let missing = missing().collect();
                let allowed = meeting.deadline.1;
                ended.push((*key, ExchangeError::Missing { missing, allowed, hosts: Vec::new() }));
            }
        }
        for (key, error) in ended {
            self.fail(key, &error);
        }
        self.clients.retain(|_, client| match client.state {
            State::Greeting { since, .. } => now.duration_since(since) < GREETING,
            State::Leaving => !client.out.is_empty(),
            _ => true,
        });
    }

    /// A client's connection ended. If it was in a round, that round fails for the others: the
    /// process has died, or given up.
    fn gone(&mut self, id: u64) {
        let Some(client) = self.clients.remove(&id) else { return };
        let State::Come { key } = client.state else { return };
        let rank = self.rounds.get_mut(&key).and_then(|meeting| {
            let place =
                meeting.come.iter().position(|m| m.as_ref().is_some_and(|m| m.client == id))?;
            meeting.come[place] = None;
            Some(place as u32)
        });
        if let Some(rank) = rank {
            self.fail(key, &ExchangeError::Lost { rank });
        }
    }

    fn leave(&mut self, id: u64) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.state = State::Leaving;
        }
        self.flush(id);
    }

    fn send(&mut self, id: u64, frame: &Frame, fds: Vec<Arc<OwnedFd>>) {
        match frame.encode() {
            Ok(bytes) => self.queue(id, bytes.into(), fds),
            Err(e) => tracing::error!(error = %e, "a frame of the leader does not fit"),
        }
    }

    fn queue(&mut self, id: u64, bytes: Arc<[u8]>, fds: Vec<Arc<OwnedFd>>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.out.push_back((bytes, fds));
        self.flush(id);
    }

    fn flush(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        while let Some((bytes, fds)) = client.out.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
            match frame::send(&client.socket, bytes, &fds) {
                Ok(()) => {
                    client.out.pop_front();
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // Too many descriptors in flight: they drain as receivers read.
                Err(Errno::TOOMANYREFS) => {
                    std::thread::sleep(Duration::from_millis(1));
                    return;
                }
                Err(_) => {
                    // The reader finds the end of the connection and cleans up.
                    client.out.clear();
                    return;
                }
            }
        }
    }
}

struct Ready {
    listener: bool,
    readable: Vec<u64>,
    writable: Vec<u64>,
}
