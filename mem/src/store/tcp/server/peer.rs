//! One connection as the server sees it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use thiserror::Error;

use super::output::Output;
use super::stats::Moved;
use crate::store::table::TableError;
use crate::store::tcp::wire::WireError;

/// Answers beyond this many bytes keep further requests of the connection waiting.
const HIGH_WATER: usize = 256 << 10;

/// Buffers keep this much between requests: little, since most connections idle.
const KEPT: usize = 1 << 10;

/// Why a connection is closed.
#[derive(Debug, Error)]
pub(super) enum Closing {
    #[error("the client closed it")]
    Done,
    #[error("the client closed it within a request")]
    Cut,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("its first request is not VALIDATE, as those of a TCPStore's clients are")]
    NotValidated,
    #[error("no handshake within the limit (ServerLimits::handshake)")]
    Silent,
    #[error(
        "it makes room: {unidentified} connections without a handshake, at most {limit} (ServerLimits::unidentified)"
    )]
    Crowded { unidentified: usize, limit: usize },
    #[error("a WAIT, BARRIER or GATHER while another is in progress")]
    SecondWait,
    #[error("a session is not what its client says: it is open, or the numbers do not fit")]
    Session,
    #[error("its session goes on over another connection")]
    Moved,
    #[error(
        "a WAIT, BARRIER or GATHER beside the {limit} in progress is over the limit of {limit} (ServerLimits::waits)"
    )]
    Waits { limit: usize },
    #[error(
        "messages under way of {needed} bytes are over the limit of {limit} (ServerLimits::buffered)"
    )]
    Buffered { needed: usize, limit: usize },
    #[error(
        "an answer of {needed} bytes is over the limit of {limit}: ask for fewer keys at a time"
    )]
    Answer { needed: usize, limit: usize },
}

impl Closing {
    /// Whether the client did what no honest client does.
    pub fn is_violation(&self) -> bool {
        !matches!(self, Closing::Done | Closing::Io(_) | Closing::Moved)
    }

    /// Whether the server would not do what was asked, and would not if it were asked again.
    pub fn is_refusal(&self) -> bool {
        self.is_violation() && !matches!(self, Closing::Cut)
    }
}

/// The request of a connection that is answered later.
#[derive(Debug)]
pub(super) enum Pending {
    Nothing,
    Wait {
        /// The keys that it has not seen yet. The server wakes it for the last one only and then looks
        /// at the others: memory is linear in the request, and no key is looked at again once it was
        /// there.
        awaited: Vec<Box<[u8]>>,
        /// Its place among those that wait.
        ticket: u64,
        /// The table's time when it began.
        since: u64,
    },
    Barrier(Box<[u8]>),
    Gather(Box<[u8]>),
}

#[derive(Debug)]
pub(super) struct Peer {
    stream: TcpStream,
    pub address: SocketAddr,
    pub validated: bool,
    /// Whether it asked for the requests that only this crate knows.
    pub extended: bool,
    /// The session that it has opened, and the number of its next request that changes something.
    pub session: Option<(u64, u64)>,
    /// Bytes of the answer kept for its session.
    pub recorded: usize,
    pub input: Vec<u8>,
    /// Bytes the input must hold before the next request can be whole.
    pub needed: usize,
    pub output: Output,
    pub pending: Pending,
    /// What the pending request took when it came.
    pub pending_bytes: usize,
    /// The queue for which its wait was ended, until it has taken a value or done something else.
    pub called: Option<Box<[u8]>>,
    /// What epoll was told to watch.
    pub watched: EventFlags,
    /// The bytes that the server's account holds for this connection.
    pub accounted: usize,
    pub moved: Arc<Moved>,
}

impl Peer {
    pub fn new(stream: TcpStream, address: SocketAddr, moved: Arc<Moved>) -> Self {
        Peer {
            stream,
            address,
            validated: false,
            extended: false,
            session: None,
            recorded: 0,
            input: Vec::new(),
            needed: 0,
            output: Output::default(),
            pending: Pending::Nothing,
            pending_bytes: 0,
            called: None,
            watched: EventFlags::IN,
            accounted: 0,
            moved,
        }
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether the client takes its answers too slowly to be served now.
    pub fn is_clogged(&self) -> bool {
        self.output.unwritten() > HIGH_WATER
    }

    /// Whether the input may hold a whole request.
    pub fn has_request(&self) -> bool {
        !self.input.is_empty() && self.input.len() >= self.needed
    }

    /// Memory held for this connection.
    pub fn held(&self) -> usize {
        self.input.capacity() + self.output.held() + self.pending_bytes + self.recorded
    }

    /// The events that let this connection go on: input unless it is clogged, output while there is
    /// some. One that has requests left to serve asks for output too, which is ready at once: its
    /// next turn comes after everybody else's.
    pub fn wants(&self) -> EventFlags {
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, !self.is_clogged());
        let more = self.has_request() && !self.is_clogged();
        events.set(EventFlags::OUT, self.output.next().is_some() || more);
        events
    }

    /// Reads one block at most, so that no connection takes more than its turn.
    pub fn read(&mut self, block: &mut [u8]) -> Result<usize, Closing> {
        match (&self.stream).read(block) {
            Ok(0) if self.input.is_empty() => Err(Closing::Done),
            Ok(0) => Err(Closing::Cut),
            Ok(n) => {
                self.input.extend_from_slice(&block[..n]);
                self.moved.received.add(n as u64);
                Ok(n)
            }
            Err(error) => later(error).map(|()| 0),
        }
    }

    /// Writes what the client takes now.
    pub fn write(&mut self) -> Result<usize, Closing> {
        let mut total = 0;
        while let Some(next) = self.output.next() {
            match (&self.stream).write(next) {
                Ok(n) => {
                    self.output.advance(n, KEPT);
                    total += n;
                }
                Err(error) => {
                    later(error)?;
                    break;
                }
            }
        }
        self.moved.sent.add(total as u64);
        Ok(total)
    }

    /// Drops the requests that were served.
    pub fn consume(&mut self, served: usize) {
        self.input.drain(..served);
        if self.input.is_empty() {
            self.input.shrink_to(KEPT);
        }
    }
}

/// `Ok` for the errors that mean "not now".
fn later(error: io::Error) -> Result<(), Closing> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error.into()),
    }
}
