//! Where a process lets members on other hosts in, and how it goes to theirs.
//!
//! A link between hosts is a TCP connection, whose two ends prove to each other that they know the run's
//! token, as a member and a leader of one host do. Its address travels with the first round.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use symmem_hal::Wait;

use super::ExchangeError;
use super::frame::{self, Frame, WIRE_VERSION};
use super::token::{Side, Token, random};
use crate::liveness::fork::{self, LinkFd};
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
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
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
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(|e| ExchangeError::errno("eventfd", e))?;
        let (bell, stop) = (Arc::new(bell), Arc::new(AtomicBool::new(false)));
        let mut porter = Porter {
            listener: LinkFd::new(listener.into()),
            token: token.clone(),
            rank,
            links: links.clone(),
            stop: stop.clone(),
            bell: bell.clone(),
            guests: BTreeMap::new(),
            next: 0,
        };
        let thread = std::thread::Builder::new()
            .name("symmem-door".to_owned())
            .spawn(move || porter.run())
            .map_err(|e| ExchangeError::system("spawn", e))?;
        Ok(Door { address, token, rank, links, stop, bell, thread: Some(thread) })
    }

    /// Where others knock.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a link to the process of another rank by its door: again and again, since many come there at once.
    pub(crate) fn knock(&self, rank: u32, door: SocketAddr, wait: &Wait) -> Result<(), String> {
        let deadline = wait.deadline();
        loop {
            let found = self.knock_once(rank, door, deadline, wait);
            let Err((reason, is_final)) = found else { return Ok(()) };
            if is_final || wait.is_cancelled() || Instant::now() + TICK >= deadline {
                return Err(reason);
            }
            std::thread::sleep(TICK);
        }
    }

    /// Why not, and whether that will stay so.
    fn knock_once(
        &self,
        rank: u32,
        door: SocketAddr,
        deadline: Instant,
        wait: &Wait,
    ) -> Result<(), (String, bool)> {
        let passing = |reason: String| (reason, false);
        let stream = self.greet(door, deadline, wait)?;
        self.links.add_far(rank, stream).map_err(|e| passing(e.to_string()))
    }

    /// A connection whose two ends have proven themselves.
    fn greet(
        &self,
        door: SocketAddr,
        deadline: Instant,
        wait: &Wait,
    ) -> Result<TcpStream, (String, bool)> {
        let left = || {
            let left = deadline.saturating_duration_since(Instant::now()).min(GREETING);
            if left.is_zero() || wait.is_cancelled() {
                return Err(("there was no time left".to_owned(), true));
            }
            Ok(left)
        };
        let text = |error: std::io::Error| (error.to_string(), false);
        let last = |reason: String| (reason, true);
        let stream = TcpStream::connect_timeout(&door, left()?).map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        let receive = || {
            stream.set_read_timeout(Some(left()?)).map_err(text)?;
            read_frame(&stream).map_err(|reason| (reason, false))
        };
        let send = |frame: &Frame| {
            stream.set_write_timeout(Some(left()?)).map_err(text)?;
            (&stream).write_all(&bytes_of(frame).map_err(last)?).map_err(text)
        };
        let Frame::Challenge { version, nonce: theirs } = receive()? else {
            return Err(last(out_of_turn()));
        };
        if version != WIRE_VERSION {
            let reason = format!("it speaks wire version {version}, this rank {WIRE_VERSION}");
            return Err(last(reason));
        }
        let nonce = random::<16>().map_err(|e| last(e.to_string()))?;
        let proof = self.token.prove(Side::Member, &theirs, &nonce);
        send(&Frame::Hello { nonce, proof })?;
        match receive()? {
            Frame::Welcome { proof }
                if self.token.verify(Side::Leader, &theirs, &nonce, &proof) => {}
            Frame::Failed(error) => return Err(last(error.to_string())),
            _ => return Err(last("it does not know this run's token".to_owned())),
        }
        send(&Frame::Link { index: self.rank })?;
        let Frame::Done = receive()? else { return Err(last(out_of_turn())) };
        Ok(stream)
    }

    /// Waits until the process of another rank has come to this door, if only to end.
    /// `false` if the wait ends first.
    pub(crate) fn await_peer(&self, rank: u32, wait: &Wait) -> bool {
        let deadline = wait.deadline();
        let has_come =
            || self.links.peers().contains(&rank) || self.links.lost_order(rank).is_some();
        while !has_come() {
            if wait.is_cancelled() || Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            // A forked child has the handle and not the thread.
            && !fork::is_child()
            && thread.join().is_err()
        {
            tracing::error!("the thread at the door panicked");
        }
    }
}

fn of_io(call: &str, error: &std::io::Error) -> ExchangeError {
    match Errno::from_io_error(error) {
        Some(errno) => ExchangeError::errno(call, errno),
        None => ExchangeError::system(call, error),
    }
}

fn out_of_turn() -> String {
    "it sent a frame out of turn".to_owned()
}

/// A frame as a stream carries it: its length, then itself.
fn bytes_of(frame: &Frame) -> Result<Vec<u8>, String> {
    let body = frame.encode().map_err(|e| e.to_string())?;
    let length = u16::try_from(body.len()).map_err(|_| "a frame is too long".to_owned())?;
    Ok([&length.to_le_bytes()[..], &body].concat())
}

/// Reads one frame of a greeting from a stream that blocks.
fn read_frame(mut stream: &TcpStream) -> Result<Frame, String> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).map_err(|e| e.to_string())?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > MAX_GREETING {
        return Err(format!("it sent {length} bytes where at most {MAX_GREETING} belong"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).map_err(|e| e.to_string())?;
    frame::decode(&body).map_err(|e| e.to_string())
}

/// The thread at the door.
struct Porter {
    listener: LinkFd,
    token: Token,
    rank: u32,
    links: Arc<Links>,
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    /// In the order in which they came.
    guests: BTreeMap<u64, Guest>,
    next: u64,
}

/// Who is in the doorway.
struct Guest {
    stream: TcpStream,
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
        while !self.stop.load(Ordering::Acquire) {
            let mut fds = vec![
                PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
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
            Ok(stream) => TcpStream::from(stream),
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
        if guest.stream.set_nodelay(true).is_ok() && guest.send(&challenge) {
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
    /// A greeting's frame, which fits in any new connection's buffer.
    fn send(&self, frame: &Frame) -> bool {
        bytes_of(frame).is_ok_and(
            |bytes| matches!((&self.stream).write(&bytes), Ok(sent) if sent == bytes.len()),
        )
    }

    fn hear(&mut self, token: &Token, rank: u32) -> Next {
        let mut block = [0; MAX_GREETING];
        match (&self.stream).read(&mut block) {
            Ok(0) => return Next::Goes,
            Ok(n) => self.input.extend_from_slice(&block[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Next::Stays;
            }
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
        let out_of_turn = bytes_of(&Frame::Link { index: 1 }).unwrap();
        let sent: [&[u8]; 4] = [&[7; 300], &[255, 255, 1], &[40, 0, 1], &out_of_turn];
        for (stranger, bytes) in strangers.iter_mut().rev().zip(sent) {
            stranger.write_all(bytes).unwrap();
        }
        high.knock(0, low.address(), &Wait::seconds(10)).unwrap();
        assert!(low.await_peer(1, &Wait::seconds(10)));
    }
}
