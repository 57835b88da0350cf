//! Where a process lets members on other hosts in, and how it goes to theirs.
//!
//! A link between hosts is a TCP connection, whose two ends prove to each other that they know the run's
//! token, as a member and a leader of one host do. Its address travels with the first round.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{SendFlags, SocketFlags};
use symmem_hal::Wait;

use super::ExchangeError;
use super::frame::{self, Frame, WIRE_VERSION};
use super::service::{Service, Stop};
use super::token::{Side, Token, random};
use crate::liveness::fork::LinkFd;
use crate::liveness::links::Links;

/// How long whoever comes may take to prove itself, and a door to answer.
const GREETING: Duration = Duration::from_secs(5);

/// Connections at once that have not proven themselves; one more takes the place of the oldest.
const MAX_STRANGERS: usize = 256;

/// Connections that wait to be accepted, and that are accepted before those in the doorway have their turn.
const BACKLOG: i32 = 4096;
const TURN: usize = 64;

/// How often a wait looks whether somebody has come, and the door whether a stranger's time is over.
const TICK: Duration = Duration::from_millis(20);

/// The largest frame of a greeting.
const MAX_GREETING: usize = 256;

/// An open door; closed when dropped. Links that it has made stay.
#[derive(Debug)]
pub(crate) struct Door {
    address: SocketAddr,
    token: Token,
    rank: u32,
    links: Arc<Links>,
    _service: Service,
}

impl Door {
    /// Opens one at an address of this host, for the process of a rank.
    pub(crate) fn open(
        address: IpAddr,
        token: Token,
        rank: u32,
        links: Arc<Links>,
    ) -> Result<Self, ExchangeError> {
        let failed = |call: &'static str| move |error| of_io(call, &error);
        let listener = TcpListener::bind((address, 0)).map_err(failed("bind"))?;
        // More than the library's: the ranks of all hosts may come at once.
        rustix::net::listen(&listener, BACKLOG).map_err(|e| ExchangeError::errno("listen", e))?;
        listener.set_nonblocking(true).map_err(failed("fcntl"))?;
        let address = listener.local_addr().map_err(failed("getsockname"))?;
        let (known, entered) = (token.clone(), links.clone());
        let service = Service::start("symmem-door", move |stop| {
            let mut porter = Porter {
                listener: LinkFd::new(listener.into()),
                token: known,
                rank,
                links: entered,
                stop,
                guests: BTreeMap::new(),
                next: 0,
            };
            porter.run();
        })?;
        Ok(Door { address, token, rank, links, _service: service })
    }

    /// Where others knock.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a link to the process of another rank by its door: again and again, since many come there at once.
    pub(crate) fn knock(&self, rank: u32, door: SocketAddr, wait: &Wait) -> Result<(), String> {
        let deadline = wait.deadline();
        loop {
            let found = self.greet(door, deadline, wait).and_then(|stream| {
                self.links.add_far(rank, stream).map_err(|e| Refusal::Passing(e.to_string()))
            });
            match found {
                Ok(()) => return Ok(()),
                Err(Refusal::Passing(_))
                    if !wait.is_cancelled() && Instant::now() + TICK < deadline =>
                {
                    std::thread::sleep(TICK);
                }
                Err(Refusal::Passing(reason) | Refusal::Final(reason)) => return Err(reason),
            }
        }
    }

    /// A connection whose two ends have proven themselves.
    fn greet(&self, door: SocketAddr, deadline: Instant, wait: &Wait) -> Result<LinkFd, Refusal> {
        let left = || {
            let left = deadline.saturating_duration_since(Instant::now()).min(GREETING);
            if left.is_zero() || wait.is_cancelled() {
                return Err(Refusal::Final("there was no time left".to_owned()));
            }
            Ok(left)
        };
        let passing = |errno: Errno| Refusal::Passing(errno.to_string());
        let stream = TcpStream::connect_timeout(&door, left()?)
            .map_err(|e| Refusal::Passing(e.to_string()))?;
        let stream = LinkFd::new(stream.into());
        sockopt::set_tcp_nodelay(&stream, true).map_err(passing)?;
        let receive = || {
            sockopt::set_socket_timeout(&stream, Timeout::Recv, Some(left()?)).map_err(passing)?;
            read_frame(&stream)
        };
        let send = |frame: &Frame| {
            sockopt::set_socket_timeout(&stream, Timeout::Send, Some(left()?)).map_err(passing)?;
            send_frame(&stream, frame)
        };
        let out_of_turn = || Refusal::Final("it sent a frame out of turn".to_owned());
        let Frame::Challenge { version, nonce: theirs } = receive()? else {
            return Err(out_of_turn());
        };
        if version != WIRE_VERSION {
            let reason = format!("it speaks wire version {version}, this rank {WIRE_VERSION}");
            return Err(Refusal::Final(reason));
        }
        let nonce = random::<16>().map_err(|e| Refusal::Final(e.to_string()))?;
        let proof = self.token.prove(Side::Member, &theirs, &nonce);
        send(&Frame::Hello { nonce, proof })?;
        match receive()? {
            Frame::Welcome { proof }
                if self.token.verify(Side::Leader, &theirs, &nonce, &proof) => {}
            Frame::Failed(error) => return Err(Refusal::Final(error.to_string())),
            _ => return Err(Refusal::Final("it does not know this run's token".to_owned())),
        }
        send(&Frame::Link { index: self.rank })?;
        let Frame::Done = receive()? else { return Err(out_of_turn()) };
        Ok(stream)
    }

    /// Waits until the process of another rank has come to this door, if only to end.
    /// `false` if the wait ends first.
    pub(crate) fn await_peer(&self, rank: u32, wait: &Wait) -> bool {
        let deadline = wait.deadline();
        while !self.links.has_met(rank) {
            if wait.is_cancelled() || Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

fn of_io(call: &str, error: &std::io::Error) -> ExchangeError {
    match Errno::from_io_error(error) {
        Some(errno) => ExchangeError::errno(call, errno),
        None => ExchangeError::system(call, error),
    }
}

/// Why a door stayed closed.
enum Refusal {
    /// For now.
    Passing(String),
    /// For good.
    Final(String),
}

/// Sends a frame of a greeting: its length, then itself. All of it fits in a new connection's buffer.
fn send_frame(stream: &LinkFd, frame: &Frame) -> Result<(), Refusal> {
    let last = |e: &dyn std::fmt::Display| Refusal::Final(e.to_string());
    let body = frame.encode().map_err(|e| last(&e))?;
    let length = u16::try_from(body.len()).map_err(|e| last(&e))?;
    let bytes = [&length.to_le_bytes()[..], &body].concat();
    match rustix::net::send(stream, &bytes, SendFlags::NOSIGNAL) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(sent) => Err(Refusal::Passing(format!("it took {sent} of {} bytes", bytes.len()))),
        Err(errno) => Err(Refusal::Passing(errno.to_string())),
    }
}

/// Reads one frame of a greeting from a stream that blocks.
fn read_frame(stream: &LinkFd) -> Result<Frame, Refusal> {
    let mut length = [0; 2];
    read_all(stream, &mut length)?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > MAX_GREETING {
        let reason = format!("it sent {length} bytes where at most {MAX_GREETING} belong");
        return Err(Refusal::Final(reason));
    }
    let mut body = vec![0; length];
    read_all(stream, &mut body)?;
    frame::decode(&body).map_err(|e| Refusal::Final(e.to_string()))
}

fn read_all(stream: &LinkFd, mut out: &mut [u8]) -> Result<(), Refusal> {
    while !out.is_empty() {
        match rustix::io::read(stream, &mut *out) {
            Ok(0) => return Err(Refusal::Passing("it closed the connection".to_owned())),
            Ok(n) => out = &mut out[n..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Refusal::Passing(errno.to_string())),
        }
    }
    Ok(())
}

/// The thread at the door.
struct Porter {
    listener: LinkFd,
    token: Token,
    rank: u32,
    links: Arc<Links>,
    stop: Stop,
    /// In the order in which they came.
    guests: BTreeMap<u64, Guest>,
    next: u64,
}

/// Who is in the doorway.
struct Guest {
    stream: LinkFd,
    nonce: [u8; 16],
    proven: bool,
    since: Instant,
    input: Vec<u8>,
}

/// What becomes of a guest.
enum Next {
    Stays,
    Goes,
    /// It is the process of this rank.
    Enters(u32),
}

impl Porter {
    fn run(&mut self) {
        while !self.stop.is_asked() {
            let mut fds = vec![
                PollFd::from_borrowed_fd(self.stop.bell(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
            ];
            let ids: Vec<u64> = self.guests.keys().copied().collect();
            fds.extend(self.guests.values().map(|guest| PollFd::new(&guest.stream, PollFlags::IN)));
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
            // With nobody in the doorway, only the door and the bell matter.
            match poll(&mut fds, (!ids.is_empty()).then_some(&tick)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the door cannot be watched; other hosts' ranks stay outside");
                    return;
                }
            }
            let ready: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            for id in ids.iter().zip(&ready[1..]).filter_map(|(id, ready)| ready.then_some(*id)) {
                self.turn(id);
            }
            if ready[0] {
                // Until nobody is left at the door.
                let _ = (0..TURN).try_for_each(|_| self.accept().then_some(()));
            }
            self.guests.retain(|_, guest| guest.since.elapsed() < GREETING);
        }
    }

    /// `false` if nobody is at the door.
    fn accept(&mut self) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = match rustix::net::accept_with(&self.listener, flags) {
            Ok(stream) => LinkFd::new(stream),
            Err(Errno::INTR | Errno::CONNABORTED) => return true,
            Err(Errno::AGAIN) => return false,
            Err(error) => {
                // The connection stays at the door: a moment later it may come in.
                tracing::warn!(%error, "a connection of another host was not accepted");
                self.drop_stranger();
                std::thread::sleep(TICK);
                return false;
            }
        };
        let Ok(nonce) = random::<16>() else { return false };
        if self.guests.len() >= MAX_STRANGERS {
            self.drop_stranger();
        }
        let guest =
            Guest { stream, nonce, proven: false, since: Instant::now(), input: Vec::new() };
        let challenge = Frame::Challenge { version: WIRE_VERSION, nonce };
        if sockopt::set_tcp_nodelay(&guest.stream, true).is_ok() && guest.send(&challenge) {
            self.guests.insert(self.next, guest);
            self.next += 1;
        }
        true
    }

    /// Closes the connection that has been there for the longest without a proof.
    fn drop_stranger(&mut self) {
        let stranger = self.guests.iter().find(|(_, guest)| !guest.proven).map(|(id, _)| *id);
        if let Some(id) = stranger {
            self.guests.remove(&id);
            tracing::warn!(limit = MAX_STRANGERS, "a connection without a proof makes room");
        }
    }

    fn turn(&mut self, id: u64) {
        let Some(mut guest) = self.guests.remove(&id) else { return };
        match guest.hear(&self.token, self.rank) {
            Next::Stays => {
                self.guests.insert(id, guest);
            }
            Next::Goes => {}
            Next::Enters(rank) => {
                if let Err(error) = self.links.add_far(rank, guest.stream) {
                    tracing::error!(%error, rank, "no link to a rank on another host");
                }
            }
        }
    }
}

impl Guest {
    fn send(&self, frame: &Frame) -> bool {
        send_frame(&self.stream, frame).is_ok()
    }

    fn hear(&mut self, token: &Token, rank: u32) -> Next {
        let mut block = [0; MAX_GREETING];
        match rustix::io::read(&self.stream, &mut block) {
            Ok(0) => return Next::Goes,
            Ok(n) => self.input.extend_from_slice(&block[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return Next::Stays,
            Err(_) => return Next::Goes,
        }
        while let Some((length, rest)) = self.input.split_first_chunk::<2>() {
            let length = usize::from(u16::from_le_bytes(*length));
            if length > MAX_GREETING {
                return Next::Goes;
            }
            let Some(body) = rest.get(..length) else { return Next::Stays };
            let frame = frame::decode(body);
            let is_last = rest.len() == length;
            self.input.drain(..2 + length);
            match frame {
                Ok(Frame::Hello { nonce, proof }) if !self.proven => {
                    if !token.verify(Side::Member, &self.nonce, &nonce, &proof) {
                        let refusal = "the token is another run's".to_owned();
                        tracing::warn!("a connection with another run's token was turned away");
                        self.send(&Frame::Failed(ExchangeError::Refused(refusal)));
                        return Next::Goes;
                    }
                    self.proven = true;
                    let proof = token.prove(Side::Leader, &self.nonce, &nonce);
                    if !self.send(&Frame::Welcome { proof }) {
                        return Next::Goes;
                    }
                }
                // Nothing follows before it is answered.
                Ok(Frame::Link { index }) if self.proven && is_last && index != rank => {
                    return if self.send(&Frame::Done) { Next::Enters(index) } else { Next::Goes };
                }
                _ => return Next::Goes,
            }
        }
        Next::Stays
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Write as _;
    use std::net::Ipv4Addr;

    use super::*;
    use crate::liveness::Register;

    fn door(rank: u32, token: &Token) -> (Door, Arc<Links>) {
        let links = Arc::new(Links::new(Arc::new(Register::default())).unwrap());
        let here = Ipv4Addr::LOCALHOST.into();
        (Door::open(here, token.clone(), rank, links.clone()).unwrap(), links)
    }

    #[test]
    fn who_knows_the_token_gets_a_link_on_both_sides() {
        let token = Token::fresh().unwrap();
        let ((low, links), (high, others)) = (door(3, &token), door(8, &token));
        high.knock(3, low.address(), &Wait::seconds(10)).unwrap();
        assert!(low.await_peer(8, &Wait::seconds(10)));
        assert_eq!((links.peers(), others.peers()), (vec![8], vec![3]));
        // Links outlive the doors, and end with a side's process, which here are its links.
        drop((low, high, others));
        let ended = Instant::now() + Duration::from_secs(10);
        while links.lost_order(8).is_none() {
            assert!(Instant::now() < ended, "the end of a link was not seen");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(links.peers(), Vec::<u32>::new());
    }

    #[test]
    fn another_runs_token_opens_nothing() {
        let ((low, links), (high, others)) =
            (door(0, &Token::fresh().unwrap()), door(1, &Token::fresh().unwrap()));
        let refused = high.knock(0, low.address(), &Wait::seconds(10)).unwrap_err();
        assert!(refused.contains("token is another run's"), "{refused}");
        assert!(!low.await_peer(1, &Wait::millis(50)));
        assert!(links.peers().is_empty() && others.peers().is_empty());
    }

    #[test]
    fn strangers_keep_nobody_out() {
        let token = Token::fresh().unwrap();
        let ((low, _), (high, _)) = (door(0, &token), door(1, &token));
        let mut strangers: Vec<TcpStream> =
            (0..MAX_STRANGERS + 20).map(|_| TcpStream::connect(low.address()).unwrap()).collect();
        // Garbage, a huge length, half a frame, a frame out of turn.
        let frame = Frame::Link { index: 1 }.encode().unwrap();
        let out_of_turn = [&[frame.len() as u8, 0][..], &frame].concat();
        let sent: [&[u8]; 4] = [&[7; 300], &[255, 255, 1], &[40, 0, 1], &out_of_turn];
        for (stranger, bytes) in strangers.iter_mut().rev().zip(sent) {
            stranger.write_all(bytes).unwrap();
        }
        high.knock(0, low.address(), &Wait::seconds(10)).unwrap();
        assert!(low.await_peer(1, &Wait::seconds(10)));
    }
}
