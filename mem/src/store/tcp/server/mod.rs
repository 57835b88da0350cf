//! The server.
//!
//! Does: serves any number of clients from one thread, within limits that hold whatever they send.
//! A value, a queue or a gather lives until the server ends; of gathers that are complete the last 1024
//! are kept, 64 MiB of them and for 10 minutes, for contributors that ask again; of clients that lost
//! their connection the last 65536, with the answer to what each did last.
//!
//! Does not: look their names up, wait for any of them, or let one see that another misbehaves.

mod event_loop;
mod output;
mod peer;
mod requests;
mod sessions;
mod stats;
mod waits;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use symmem_hal::{Fault, Kind};
use thiserror::Error;

use super::wake::Wake;
use super::wire;
use event_loop::EventLoop;
use stats::Stats;

pub use stats::{ConnectionStats, ServerStats};

/// What a server lets its clients use. Exceeding one closes the connection that did, with a line in
/// the log that has the limit and both numbers: the protocol has no other refusal.
///
/// Bytes under way are taken from who has most of them: a connection that holds less than
/// `buffered / connections` is never closed for the sake of others, and one that has identified itself not
/// for those that have not. Of all else that clients use together, who comes last is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Of single messages.
    pub wire: wire::Limits,
    /// Connections at a time. The process's limit on descriptors may be lower.
    pub connections: usize,
    /// Connections at a time that have not identified themselves: one more takes the place of the
    /// oldest. A quarter of the process's limit on descriptors, if that is less.
    pub unidentified: usize,
    /// Keys that have a value, queues and gathers.
    pub keys: usize,
    /// Bytes of keys, values, queues and gathers, book-keeping included.
    pub stored: usize,
    /// Connections at a time that wait, for keys, at a barrier or in a gather.
    pub waits: usize,
    /// Bytes of messages that are under way, and of keys that are waited for, over all connections.
    /// Over it the connection that has most is closed.
    pub buffered: usize,
    /// How long a new connection may take to identify itself.
    pub handshake: Duration,
}

impl ServerLimits {
    /// 131072 connections, 1024 of them unidentified, 4194304 keys, 1 GiB stored, 131072 waits, 1 GiB
    /// buffered, 30 s for the handshake.
    pub const DEFAULT: ServerLimits = ServerLimits {
        wire: wire::Limits::DEFAULT,
        connections: 128 << 10,
        unidentified: 1 << 10,
        keys: 4 << 20,
        stored: 1 << 30,
        waits: 128 << 10,
        buffered: 1 << 30,
        handshake: Duration::from_secs(30),
    };
}

/// Why a server did not start.
#[derive(Debug, Error)]
#[error("serving a store at {address}: {step}: {cause}{}", remedy(cause))]
pub struct ServeError {
    /// The address that was to be bound.
    pub address: SocketAddr,
    /// What failed.
    pub step: &'static str,
    /// Why; `AddrInUse` where another server is there already.
    pub cause: io::Error,
}

/// What to do about it, where that is known.
fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => {
            ": something serves there already: use that, or take another port"
        }
        io::ErrorKind::AddrNotAvailable => ": give an address of this host, or 0.0.0.0 or ::",
        io::ErrorKind::PermissionDenied => ": take a port from 1024 on",
        _ => match cause.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE | Errno::NFILE) => ": RLIMIT_NOFILE (ulimit -n) has to allow more",
            Some(Errno::AGAIN) => ": threads may be limited (ulimit -u)",
            _ => "",
        },
    }
}

impl Fault for ServeError {
    fn kind(&self) -> Kind {
        Kind::of_io(&self.cause)
    }
}

/// A server of PyTorch's TCPStore protocol, from its start to its drop.
///
/// Dropping it closes the port and every connection, and waits for its thread to end.
#[derive(Debug)]
pub struct StoreServer {
    address: SocketAddr,
    /// Watched by the thread: closed only after it has ended.
    stop: Wake,
    thread: Option<JoinHandle<()>>,
    stats: Arc<Stats>,
}

impl StoreServer {
    /// Serves at `address`, and only there; port 0 picks a free one.
    ///
    /// # Errors
    ///
    /// The address is in use or not this host's, or there is no descriptor or thread.
    pub fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        Self::bind_with(address, ServerLimits::DEFAULT)
    }

    /// [`bind`](Self::bind) with other limits than the default ones.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub fn bind_with(address: SocketAddr, limits: ServerLimits) -> Result<Self, ServeError> {
        let failed = |step| move |cause: io::Error| ServeError { address, step, cause };
        let listener = listen(address).map_err(failed("binding"))?;
        let address = listener.local_addr().map_err(failed("reading the port"))?;
        let stats = Arc::new(Stats::default());
        let stop = Wake::new().map_err(|errno| failed("making a descriptor")(errno.into()))?;
        let mut instance = [0; 4];
        getrandom::fill(&mut instance)
            .map_err(|error| failed("drawing a number")(io::Error::other(error)))?;
        let instance = u32::from_le_bytes(instance);
        let event_loop = EventLoop::new(listener, &stop, limits, instance, stats.clone())
            .map_err(|errno| failed("watching the port")(errno.into()))?;
        let thread = std::thread::Builder::new()
            .name("symmem-store".into())
            .spawn(move || event_loop.run())
            .map_err(failed("starting a thread"))?;
        Ok(StoreServer { address, stop, thread: Some(thread), stats })
    }

    /// Where it serves.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What it did up to now.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.stats.total()
    }

    /// What each open connection did up to now, in no order.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionStats> {
        self.stats.connections()
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.stop.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(address = %self.address, "the store's thread had panicked");
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // A restarted run must get the port while connections of the last one linger. It does not
    // allow a second listener.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // What is accepted has these, too. A client whose host has vanished does not hold its slot for ever.
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    rustix::net::bind(&socket, &address)?;
    // As many as the system allows: all ranks connect at the same moment.
    rustix::net::listen(&socket, i32::MAX)?;
    Ok(socket.into())
}
