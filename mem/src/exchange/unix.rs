//! Meeting of ranks that are processes of one host.
//!
//! The process that binds the run's name in its network namespace leads; every member, the
//! leader's own included, connects to it, proves that it knows the run's token, has it proven, and
//! takes part in one round. When the leader's process ends, whoever finds the name free leads.
//!
//! "One host" is decided by meeting, not by comparing names: what can connect can share memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use symmem_hal::Wait;

use super::frame::{self, Frame, MAX_FRAME, WIRE_VERSION};
use super::leader::Leader;
use super::token::{Side, Token, meeting_name, random};
use super::{Exchange, ExchangeError, Part, Round, parcel};
use crate::liveness::links::Links;
use crate::stalls::{self, Step};

/// How often a wait looks at its cancel token.
const TICK: Duration = Duration::from_millis(20);

/// One process's way to the meeting point of its run.
#[derive(Debug)]
pub(crate) struct UnixExchange {
    /// The run that the ranks were started in.
    origin: String,
    /// What the meeting point is named after.
    run: String,
    generation: u32,
    token: Token,
    links: Arc<Links>,
    leader: Mutex<Option<Leader>>,
    /// Called once when this process begins to lead: the host is made known to other hosts.
    on_lead: OnLead,
}

/// What a process does when it becomes the leader of its host, and what it can tell of others.
#[derive(Clone)]
pub(crate) struct OnLead {
    pub announce: Arc<dyn Fn() + Send + Sync>,
    pub hosts: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
}

impl core::fmt::Debug for OnLead {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("OnLead")
    }
}

/// Why one attempt at a round ended.
enum Attempt {
    /// The round is over.
    Over(ExchangeError),
    /// The leader is gone; another can lead.
    Leaderless,
}

impl From<ExchangeError> for Attempt {
    fn from(error: ExchangeError) -> Self {
        Attempt::Over(error)
    }
}

impl UnixExchange {
    pub(crate) fn new(
        run: String,
        generation: u32,
        token: Token,
        links: Arc<Links>,
        on_lead: OnLead,
    ) -> Self {
        let (origin, leader) = (run.clone(), Mutex::new(None));
        UnixExchange { origin, run, generation, token, links, leader, on_lead }
    }

    /// Binds the run's name if it is free, and leads.
    fn try_lead(&self, address: &SocketAddrUnix) -> Result<(), ExchangeError> {
        let mut leader = self.leader.lock();
        let socket = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        match rustix::net::bind(&socket, address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Ok(()),
            Err(e) => return Err(ExchangeError::errno("bind", e)),
        }
        rustix::net::listen(&socket, 4096).map_err(|e| ExchangeError::system("listen", e))?;
        let links = self.links.clone();
        *leader = Some(Leader::start(
            socket,
            self.token.clone(),
            Arc::new(move |rank| links.lost_order(rank)),
        )?);
        drop(leader);
        (self.on_lead.announce)();
        Ok(())
    }

    fn connect(&self, bound: &Bound<'_>) -> Result<OwnedFd, Attempt> {
        let name = meeting_name(&self.run, self.generation);
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())
            .map_err(|e| ExchangeError::system("address", e))?;
        loop {
            let socket = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
            match rustix::net::connect(&socket, &address) {
                Ok(()) => {
                    let (uid, _) = frame::peer(socket.as_fd())
                        .map_err(|e| ExchangeError::system("SO_PEERCRED", e))?;
                    let me = rustix::process::geteuid().as_raw();
                    if uid != me {
                        return Err(Attempt::Over(ExchangeError::Refused(format!(
                            "user {uid} holds this run's meeting point; this process is user {me}: start all ranks as one user"
                        ))));
                    }
                    return Ok(socket);
                }
                Err(Errno::CONNREFUSED) => self.try_lead(&address)?,
                // The leader's backlog is full: it is busy with others.
                Err(Errno::AGAIN | Errno::INTR) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Err(Attempt::Over(ExchangeError::errno("connect", e))),
            }
            bound.check()?;
        }
    }

    fn attempt(&self, round: &Round<'_>, bound: &Bound<'_>) -> Result<Vec<Part>, Attempt> {
        stalls::at(Step::Connect);
        let mut line = Line { socket: self.connect(bound)?, buffer: vec![0; MAX_FRAME] };
        let (version, leader) = match line.receive(bound)?.0 {
            Frame::Challenge { version, nonce } => (version, nonce),
            Frame::Failed(error) => return Err(round.failed(error)),
            _ => return Err(out_of_turn()),
        };
        if version != WIRE_VERSION {
            return Err(Attempt::Over(ExchangeError::Refused(format!(
                "the leader speaks wire version {version}, this rank {WIRE_VERSION}: ranks run different releases of symmem"
            ))));
        }
        stalls::at(Step::Prove);
        let nonce = random::<16>()?;
        let proof = self.token.prove(Side::Member, &leader, &nonce);
        line.send(&Frame::Hello { nonce, proof }, &[], bound)?;
        match line.receive(bound)?.0 {
            // Before this holds, nothing of ours has been given away.
            Frame::Welcome { proof }
                if self.token.verify(Side::Leader, &leader, &nonce, &proof) => {}
            Frame::Failed(error) => return Err(round.failed(error)),
            _ => {
                return Err(Attempt::Over(ExchangeError::Refused(
                    "who leads does not know this run's token: give each run an id of its own"
                        .to_owned(),
                )));
            }
        }
        let (parcels, fds) = parcel::pack(&round.part.handles);
        let come = Frame::Come {
            key: round.key,
            members: round.members.to_vec(),
            me: round.me as u32,
            left: bound.left(),
            allowed: bound.wait.duration(),
            linked: if round.links { self.links.peers() } else { round.members.to_vec() },
            payload: round.part.payload.clone(),
            parcels,
        };
        stalls::at(Step::Come);
        line.send(&come, &fds, bound)?;
        stalls::at(Step::Take);
        let mut parts: Vec<Part> = round.members.iter().map(|_| Part::default()).collect();
        loop {
            let (frame, mut fds) = line.receive(bound)?;
            match frame {
                Frame::Part { index, payload, parcels } => {
                    let index = index as usize;
                    let part = parts.get_mut(index).ok_or_else(out_of_turn)?;
                    let others = if index == round.me { &[] } else { &parcels[..] };
                    let handles = parcel::unpack(others, fds).ok_or_else(out_of_turn)?;
                    *part = Part { payload, handles, ..Part::default() };
                }
                Frame::Link { index } => {
                    let peer = *round.members.get(index as usize).ok_or_else(out_of_turn)?;
                    let process = (fds.len() > 1).then(|| fds.pop()).flatten();
                    let link = fds.pop().ok_or_else(out_of_turn)?;
                    self.links.add(peer, link, process)?;
                }
                Frame::Done => return Ok(parts),
                Frame::Failed(error) => return Err(round.failed(error)),
                _ => return Err(out_of_turn()),
            }
        }
    }
}

impl Round<'_> {
    /// What the leader says of it.
    fn failed(&self, error: ExchangeError) -> Attempt {
        Attempt::Over(error.of_round(self.members.len()))
    }
}

fn out_of_turn() -> Attempt {
    Attempt::Over(ExchangeError::Refused("the leader sent a frame out of turn".to_owned()))
}

fn seqpacket(flags: SocketFlags) -> Result<OwnedFd, ExchangeError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| ExchangeError::errno("socket", e))
}

impl Exchange for UnixExchange {
    fn succeed(&self, root: u64, generation: u32) -> Arc<dyn Exchange> {
        Arc::new(UnixExchange {
            origin: self.origin.clone(),
            run: format!("{}/{root:016x}", self.origin),
            generation,
            token: self.token.clone(),
            links: self.links.clone(),
            leader: Mutex::new(None),
            on_lead: self.on_lead.clone(),
        })
    }

    fn gather(&self, round: Round<'_>, wait: &Wait) -> Result<Vec<Part>, ExchangeError> {
        let bound = Bound { wait, deadline: wait.deadline(), round: &round };
        loop {
            match self.attempt(&round, &bound) {
                Ok(parts) => return Ok(parts),
                Err(Attempt::Leaderless) => bound.check()?,
                Err(Attempt::Over(ExchangeError::Missing { missing, allowed, .. })) => {
                    let turned_away = self.leader.lock().as_ref().and_then(Leader::starved);
                    if let Some(error) = turned_away {
                        return Err(error);
                    }
                    let hosts = (self.on_lead.hosts)();
                    return Err(ExchangeError::Missing { missing, allowed, hosts });
                }
                Err(Attempt::Over(error)) => return Err(error),
            }
        }
    }
}

/// The bound on one round.
struct Bound<'a> {
    wait: &'a Wait,
    deadline: Instant,
    round: &'a Round<'a>,
}

impl Bound<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Ends the round on this side alone: nobody answers for longer than the leader was given.
    fn check(&self) -> Result<(), ExchangeError> {
        if self.wait.is_cancelled() {
            return Err(ExchangeError::Cancelled);
        }
        // The leader ends a round at its deadline; this is for a leader that does not.
        if Instant::now() >= self.deadline + 10 * TICK {
            let missing = (0..self.round.members.len()).filter(|i| *i != self.round.me);
            return Err(ExchangeError::Missing {
                missing: missing.map(|i| i as u32).collect(),
                allowed: self.wait.duration(),
                hosts: Vec::new(),
            });
        }
        Ok(())
    }
}

/// One connection to the leader.
struct Line {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Line {
    fn send(
        &mut self,
        frame: &Frame,
        handles: &[BorrowedFd<'_>],
        bound: &Bound<'_>,
    ) -> Result<(), Attempt> {
        let bytes = frame.encode()?;
        loop {
            match frame::send(&self.socket, &bytes, handles) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => self.poll(PollFlags::OUT, bound)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Attempt::Leaderless),
                Err(e) => return Err(Attempt::Over(ExchangeError::errno("sendmsg", e))),
            }
        }
    }

    fn receive(&mut self, bound: &Bound<'_>) -> Result<(Frame, Vec<OwnedFd>), Attempt> {
        loop {
            match frame::receive(&self.socket, &mut self.buffer) {
                Ok(Some((n, fds))) => return Ok((frame::decode(&self.buffer[..n])?, fds)),
                Ok(None) | Err(Errno::CONNRESET) => return Err(Attempt::Leaderless),
                Err(Errno::AGAIN) => self.poll(PollFlags::IN, bound)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Attempt::Over(ExchangeError::errno("recvmsg", e))),
            }
        }
    }

    fn poll(&self, events: PollFlags, bound: &Bound<'_>) -> Result<(), Attempt> {
        if let Err(e) = bound.check() {
            if e == ExchangeError::Cancelled
                && let Ok(bytes) = Frame::Cancel.encode()
            {
                // So that the others learn why; if it does not go through, they see this one leave.
                let _ = frame::send(&self.socket, &bytes, &[]);
            }
            return Err(e.into());
        }
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        match poll(&mut [PollFd::new(&self.socket, events)], Some(&tick)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Attempt::Over(ExchangeError::errno("poll", e))),
        }
    }
}
