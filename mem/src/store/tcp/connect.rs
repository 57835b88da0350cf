//! From a host name to a connection that answers.

use core::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use symmem_hal::{Fault, Kind, Wait};
use thiserror::Error;

use super::connection::{Connection, Outcome, Server};
use super::wake::{Polled, Wake, poll_until};
use super::wire::{Answer, HELLO, Limits, Request, welcomed};
use crate::store::LostCause;

/// Why there is no connection to a store.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nothing answered in time.
    #[error(
        "no store at {address} after {elapsed:.3?} of {allowed:.3?} and {attempts} attempts; \
         the last failed: {last}: see that it runs there and can be reached, or allow more time"
    )]
    TimedOut {
        /// Host and port.
        address: String,
        /// How long it was tried.
        elapsed: Duration,
        /// How long it was allowed to take.
        allowed: Duration,
        /// How often it was tried.
        attempts: u32,
        /// How the last attempt failed.
        last: String,
    },
    /// The caller's token was cancelled.
    #[error(
        "connecting to the store at {address} was cancelled by the caller after {elapsed:.3?}: it can be tried again"
    )]
    Cancelled {
        /// Host and port.
        address: String,
        /// How long it was tried.
        elapsed: Duration,
    },
    /// What answers there does not follow the protocol.
    #[error(
        "what answers at {address} is not a store: {cause}: give the address and port of one (MASTER_ADDR, MASTER_PORT)"
    )]
    NotAStore {
        /// Host and port.
        address: String,
        /// What it did.
        cause: LostCause,
    },
    /// The operating system gave no descriptor.
    #[error("connecting to the store at {address}: {cause}")]
    System {
        /// Host and port.
        address: String,
        /// The error.
        cause: Arc<io::Error>,
    },
}

impl Fault for ConnectError {
    fn kind(&self) -> Kind {
        match self {
            ConnectError::TimedOut { .. } => Kind::TimedOut,
            ConnectError::Cancelled { .. } => Kind::Cancelled,
            ConnectError::NotAStore { .. } => Kind::System,
            ConnectError::System { cause, .. } => Kind::of_io(cause),
        }
    }
}

/// The pause after the first failed round of attempts; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How long one attempt may take, so that one dead address does not use up the whole bound.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(15);

/// How one attempt failed.
enum Failed {
    /// The deadline passed or the token was cancelled.
    Ended,
    /// Another attempt may succeed: the server is not there yet, or full.
    Again(String),
    /// No attempt will succeed.
    NotAStore(LostCause),
    System(Errno),
}

/// What to connect to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// A host, by name or address, whose server may come later.
    Name(&'a str, u16),
    /// A server that was there: a refused connection means that it is gone.
    Known(SocketAddr),
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Name(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Target::Name(host, port) => write!(f, "{host}:{port}"),
            Target::Known(peer) => write!(f, "{peer}"),
        }
    }
}

/// Connects and proves by a handshake that a store answers there. Tries again, with all the host's
/// addresses, until one does. Begins after a `rest`.
pub(super) fn connect(
    target: &Target<'_>,
    limits: &Limits,
    wait: &Wait,
    deadline: Instant,
    rest: Duration,
) -> Result<Connection, ConnectError> {
    let mut last = "nothing was tried".to_owned();
    let mut pause = FIRST_PAUSE;
    let mut attempts = 0;
    let started = Instant::now();
    let system = |errno: Errno| ConnectError::System {
        address: target.to_string(),
        cause: Arc::new(errno.into()),
    };
    let wake = Arc::new(Wake::new().map_err(system)?);
    let waker = wake.clone();
    let _guard = wait.cancel().map(|token| token.on_cancel(Arc::new(move || waker.wake())));
    let attempt = Attempt { target, limits, wait, deadline, wake };
    attempt.pause(rest).map_err(system)?;
    while !attempt.is_over() {
        match attempt.resolve() {
            Ok(peers) => {
                for peer in peers {
                    attempts += 1;
                    match attempt.open(peer) {
                        Ok(connection) => return Ok(connection),
                        Err(Failed::Ended) => break,
                        Err(Failed::Again(reason)) => last = format!("{peer}: {reason}"),
                        Err(Failed::NotAStore(cause)) => {
                            return Err(ConnectError::NotAStore {
                                address: target.to_string(),
                                cause,
                            });
                        }
                        Err(Failed::System(errno)) => return Err(system(errno)),
                    }
                }
            }
            Err(Failed::Again(reason)) => last = reason,
            Err(_) => break,
        }
        attempt.pause(pause).map_err(system)?;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
    let (address, elapsed) = (target.to_string(), started.elapsed());
    if wait.is_cancelled() {
        return Err(ConnectError::Cancelled { address, elapsed });
    }
    Err(ConnectError::TimedOut { address, elapsed, allowed: wait.duration(), attempts, last })
}

struct Attempt<'a> {
    target: &'a Target<'a>,
    limits: &'a Limits,
    wait: &'a Wait,
    deadline: Instant,
    wake: Arc<Wake>,
}

impl Attempt<'_> {
    fn is_over(&self) -> bool {
        self.wait.is_cancelled() || Instant::now() >= self.deadline
    }

    /// The end of an attempt that did not finish by its own deadline.
    fn unfinished(&self) -> Failed {
        if self.is_over() {
            return Failed::Ended;
        }
        Failed::Again(format!("no answer within {LONGEST_ATTEMPT:?}"))
    }

    fn pause(&self, pause: Duration) -> Result<(), Errno> {
        if pause.is_zero() {
            return Ok(());
        }
        let until = self.deadline.min(Instant::now() + pause);
        while !self.is_over() && poll_until(None, &self.wake, until)? != Polled::Deadline {}
        Ok(())
    }

    /// The target's addresses. A name is looked up by a thread of its own, because the system's
    /// look-up has no bound: the thread outlives a look-up that was given up.
    fn resolve(&self) -> Result<Vec<SocketAddr>, Failed> {
        let (host, port) = match *self.target {
            Target::Known(peer) => return Ok(vec![peer]),
            Target::Name(host, port) => (host, port),
        };
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let (answer, answers) = mpsc::channel();
        let woken = answer.clone();
        let _guard = self.wait.cancel().map(|token| {
            token.on_cancel(Arc::new(move || {
                let _ = woken.send(None);
            }))
        });
        if self.wait.is_cancelled() {
            return Err(Failed::Ended);
        }
        let name = host.to_owned();
        let spawned = std::thread::Builder::new().name("symmem-resolve".into()).spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            let _ = answer.send(Some(found));
        });
        if let Err(error) = spawned {
            return Err(Failed::Again(format!("no thread to look {host} up: {error}")));
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        match answers.recv_timeout(left) {
            Ok(Some(Ok(found))) if !found.is_empty() => Ok(found),
            Ok(Some(Ok(_))) => Err(Failed::Again(format!("{host} has no address"))),
            Ok(Some(Err(error))) => Err(Failed::Again(format!("looking {host} up: {error}"))),
            Ok(None) | Err(_) => Err(Failed::Ended),
        }
    }

    fn open(&self, peer: SocketAddr) -> Result<Connection, Failed> {
        let until = self.deadline.min(Instant::now() + LONGEST_ATTEMPT);
        let stream = TcpStream::from(self.connect_socket(peer, until)?);
        // With nobody listening, a connection to a port of this host that the system may also give
        // out as a source port can reach itself.
        if stream.local_addr().is_ok_and(|local| local == peer) {
            return Err(Failed::Again("it reached itself".into()));
        }
        let mut connection = Connection::new(stream, peer, self.wake.clone(), *self.limits);
        connection.queue(&Request::Validate, 0);
        connection.queue(&Request::Ping { nonce: HELLO }, 0);
        match connection.answer(until, &|| self.wait.is_cancelled()) {
            Ok(Outcome::Done(answer)) => {
                let nonce = Answer::nonce(&answer);
                let server = match nonce.and_then(welcomed) {
                    Some(instance) => Server::Ours { instance },
                    None if nonce == Some(HELLO) => Server::Foreign,
                    None => {
                        let bytes = answer.len();
                        return Err(Failed::NotAStore(LostCause::Unasked { bytes }));
                    }
                };
                connection.set_server(server);
                connection.take_moved();
                Ok(connection)
            }
            Ok(Outcome::Deadline | Outcome::Stopped) => Err(self.unfinished()),
            // A server that is full, ending, or not a store at all.
            Err(LostCause::Closed | LostCause::Io(_)) => {
                Err(Failed::Again("it closed the connection during the handshake".into()))
            }
            Err(cause) => Err(Failed::NotAStore(cause)),
        }
    }

    fn connect_socket(&self, peer: SocketAddr, until: Instant) -> Result<OwnedFd, Failed> {
        let family = match peer {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
            .map_err(Failed::System)?;
        sockopt::set_tcp_nodelay(&socket, true).map_err(Failed::System)?;
        let failed = |errno| match (errno, self.target) {
            (Errno::CONNREFUSED, Target::Known(_)) => Failed::System(errno),
            _ => Failed::Again(io::Error::from(errno).to_string()),
        };
        match rustix::net::connect(&socket, &peer) {
            Ok(()) => return Ok(socket),
            Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let wanted = (socket.as_fd(), PollFlags::OUT);
        while !self.is_over() {
            match poll_until(Some(wanted), &self.wake, until).map_err(Failed::System)? {
                Polled::Ready => {
                    let result = sockopt::socket_error(&socket).map_err(Failed::System)?;
                    return result.map(|()| socket).map_err(failed);
                }
                Polled::Woken => {}
                Polled::Deadline => break,
            }
        }
        Err(self.unfinished())
    }
}
