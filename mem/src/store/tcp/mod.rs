//! The store over TCP, in the protocol of PyTorch's TCPStore.
//!
//! Does: [`TcpStore`], a client of any server of the protocol, and [`StoreServer`], a server for
//! any client of it; both served by this crate and by PyTorch 2.5 or later (which brought PING).
//! Requests served and sent: set, compare_set, get, add, check, wait, multi_get and the handshake.
//!
//! Does not: encrypt or authenticate, look names up on the server, or reconnect. A request that a
//! server does not serve, or that exceeds its limits, closes the connection (the protocol knows no
//! other refusal) and the server's log says why.
//!
//! Choices:
//! - One server thread with level-triggered epoll: a turn reads one block from one connection, so
//!   no peer, however fast, slow or malicious, holds up the others.
//! - Client sockets do not block; a call sleeps in poll on its socket and a wake-up descriptor, so
//!   that deadline and cancellation end it at once, without ticks.

mod client;
mod connect;
mod connection;
mod links;
mod server;
mod wake;
pub mod wire;

#[cfg(test)]
mod tests;

pub use client::TcpStore;
pub use connect::ConnectError;
pub use links::{GRACE, Traffic};
pub use server::{ConnectionStats, ServeError, ServerLimits, ServerStats, StoreServer};
