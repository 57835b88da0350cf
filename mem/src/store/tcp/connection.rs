//! One connection of a client: bytes out, answers in, in step whatever ends a call early.
//!
//! A call that gives up (deadline, cancellation) leaves what it sent unanswered. The connection
//! keeps the list of answers due; the next call finishes sending and skips those answers first. So
//! only a broken socket or a server that breaks the protocol ends a connection.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::PollFlags;

use super::wake::{Polled, Wake, poll_until};
use super::wire::{Answer, Decoded, Limits, Request};
use crate::store::LostCause;

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    wake: Arc<Wake>,
    limits: Limits,
    output: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// Bytes the input must hold before the next answer can be whole.
    needed: usize,
    due: VecDeque<Due>,
    /// The mark of the last request that was answered.
    confirmed: u64,
    /// Bytes of requests put in line up to now, and how many of them the system has taken.
    queued: u64,
    written: u64,
    server: Server,
    moved: Moved,
}

/// An answer that is to come.
#[derive(Clone, Copy, Debug)]
struct Due {
    shape: Answer,
    mark: u64,
}

/// Whose server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// One of this crate, and which.
    Ours { instance: u32 },
    /// Another one that speaks the protocol.
    Foreign,
}

/// Bytes that crossed a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    pub sent: u64,
    pub received: u64,
}

/// How an exchange ended.
#[derive(Debug)]
pub(super) enum Outcome<T> {
    Done(T),
    Deadline,
    /// The `stop` condition held after a wake-up.
    Stopped,
}

impl Connection {
    /// Takes over a connected, non-blocking socket.
    pub fn new(stream: TcpStream, peer: SocketAddr, wake: Arc<Wake>, limits: Limits) -> Self {
        Connection {
            stream,
            peer,
            wake,
            limits,
            output: Vec::new(),
            sent: 0,
            input: Vec::new(),
            needed: 0,
            due: VecDeque::new(),
            confirmed: 0,
            queued: 0,
            written: 0,
            server: Server::Foreign,
            moved: Moved::default(),
        }
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What ends a sleep in this connection's calls early.
    pub fn wake(&self) -> &Arc<Wake> {
        &self.wake
    }

    /// The bytes moved since the last time this was asked.
    pub fn take_moved(&mut self) -> Moved {
        std::mem::take(&mut self.moved)
    }

    pub fn server(&self) -> Server {
        self.server
    }

    pub fn set_server(&mut self, server: Server) {
        self.server = server;
    }

    /// Puts a request in line. Once it is answered, so are all with a lower `mark`, or have none.
    pub fn queue(&mut self, request: &Request<'_>, mark: u64) {
        let before = self.output.len();
        request.encode(&mut self.output);
        self.queued += (self.output.len() - before) as u64;
        self.due.extend(request.answer().map(|shape| Due { shape, mark }));
    }

    /// Puts a request in line that was encoded before.
    pub fn queue_bytes(&mut self, request: &[u8], answer: Option<Answer>, mark: u64) {
        self.output.extend_from_slice(request);
        self.queued += request.len() as u64;
        self.due.extend(answer.map(|shape| Due { shape, mark }));
    }

    /// Where the next request begins, in bytes since the connection began.
    pub fn position(&self) -> u64 {
        self.queued
    }

    /// How many bytes have left.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The mark up to which requests are known to be done.
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Ends the WAIT, BARRIER or GATHER that was sent last, whether or not the server has answered it by
    /// now. A GATHER's answer comes nevertheless.
    pub fn cancel_wait(&mut self) -> Result<(), LostCause> {
        let last = self.due.back().copied();
        let mark = last.map_or(self.confirmed, |due| due.mark);
        let mut bytes = Vec::new();
        Request::CancelWait.encode(&mut bytes);
        let shape = match last {
            Some(Due { shape: Answer::Wait, .. }) => {
                self.due.pop_back();
                Answer::CancelledWait
            }
            _ => Answer::Cancelled,
        };
        self.queue_bytes(&bytes, Some(shape), mark);
        self.flush()
    }

    /// Sends all that is queued and skips all answers due.
    pub fn settle(
        &mut self,
        deadline: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<Outcome<()>, LostCause> {
        // A server that is gone shows here, before the next request is written into the void.
        while self.fill()? {}
        while !self.due.is_empty() {
            match self.answer(deadline, stop)? {
                Outcome::Done(_) => {}
                Outcome::Deadline => return Ok(Outcome::Deadline),
                Outcome::Stopped => return Ok(Outcome::Stopped),
            }
        }
        self.send(deadline, stop)
    }

    /// Sends all that is queued.
    pub fn send(
        &mut self,
        deadline: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<Outcome<()>, LostCause> {
        self.pump(deadline, stop, |connection| Ok(connection.output.is_empty().then_some(())))
    }

    /// The next answer due, whole.
    pub fn answer(
        &mut self,
        deadline: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<Outcome<Vec<u8>>, LostCause> {
        self.pump(deadline, stop, Self::take_answer)
    }

    /// Moves bytes both ways until `ready` gives something. Both ways, because a server that waits
    /// for its answers to be read may not read the rest of the requests.
    fn pump<T>(
        &mut self,
        deadline: Instant,
        stop: &dyn Fn() -> bool,
        ready: impl Fn(&mut Self) -> Result<Option<T>, LostCause>,
    ) -> Result<Outcome<T>, LostCause> {
        loop {
            self.flush()?;
            if let Some(result) = ready(self)? {
                return Ok(Outcome::Done(result));
            }
            if self.fill()? {
                continue;
            }
            if stop() {
                return Ok(Outcome::Stopped);
            }
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, !self.output.is_empty());
            let socket = Some((self.stream.as_fd(), events));
            if poll_until(socket, &self.wake, deadline)? == Polled::Deadline {
                return Ok(Outcome::Deadline);
            }
        }
    }

    fn flush(&mut self) -> Result<(), LostCause> {
        while self.sent < self.output.len() {
            match (&self.stream).write(&self.output[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    self.written += n as u64;
                    self.moved.sent += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
        self.output.clear();
        self.output.shrink_to(KEPT);
        self.sent = 0;
        Ok(())
    }

    /// Reads what has come; whether there was anything.
    fn fill(&mut self) -> Result<bool, LostCause> {
        let mut block = [0; 16 << 10];
        match (&self.stream).read(&mut block) {
            Ok(0) => Err(LostCause::Closed),
            Ok(bytes) if self.due.is_empty() => Err(LostCause::Unasked { bytes }),
            Ok(n) => {
                self.input.extend_from_slice(&block[..n]);
                self.moved.received += n as u64;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(broken(error)),
        }
    }

    fn take_answer(&mut self) -> Result<Option<Vec<u8>>, LostCause> {
        let Some(due) = self.due.front().filter(|_| self.input.len() >= self.needed) else {
            return Ok(None);
        };
        match due.shape.decode(&self.input, &self.limits)? {
            Decoded::Whole { message, length } => {
                let answer = message.to_vec();
                self.confirmed = self.confirmed.max(due.mark);
                self.input.drain(..length);
                self.due.pop_front();
                self.needed = 0;
                if self.due.is_empty() {
                    if !self.input.is_empty() {
                        return Err(LostCause::Unasked { bytes: self.input.len() });
                    }
                    self.input.shrink_to(KEPT);
                }
                Ok(Some(answer))
            }
            Decoded::Partial { needed } => {
                self.needed = needed;
                Ok(None)
            }
        }
    }
}

/// Buffers keep this much between calls.
const KEPT: usize = 64 << 10;

/// Resets are how a server's close shows while bytes are under way.
fn broken(error: io::Error) -> LostCause {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => LostCause::Closed,
        _ => error.into(),
    }
}
