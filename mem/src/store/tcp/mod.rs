//! The store over TCP, in the protocol of PyTorch's TCPStore.
//!
//! Does: [`TcpStore`], a client of any server of the protocol, and [`StoreServer`], a server for
//! any client of it; both served by this crate and by PyTorch 2.5 or later (which brought PING). The
//! server serves every request of PyTorch 2.15: VALIDATE, PING, SET, COMPARE_SET, GET, ADD, CHECK,
//! WAIT, CANCEL_WAIT, GETNUMKEYS, DELETE_KEY, APPEND, MULTI_GET, MULTI_SET, QUEUE_PUSH, QUEUE_POP,
//! QUEUE_LEN, LIST_KEYS and BARRIER, as its libuv server does. Between this crate's own ends there are
//! three more ([`wire`]): gathers, and sessions that go on over a new connection.
//!
//! Does not: encrypt or authenticate, or look names up on the server. A request that exceeds the
//! server's limits closes the connection (the protocol knows no other refusal) and the server's log
//! says why; a client of this crate is told when it comes back. PyTorch's older server
//! (`use_libuv=False`) has no queues, closes the connection at a GET of many keys of which one is not
//! there, and wakes nobody by COMPARE_SET.
//!
//! Choices:
//! - One server thread with level-triggered epoll: a turn reads one block from one connection, so
//!   no peer, however fast, slow or malicious, holds up the others.
//! - Client sockets do not block; a call sleeps in poll on its socket and a wake-up descriptor, so
//!   that deadline and cancellation end it at once, without ticks.
//! - A lost connection is replaced within the call's bound. What only asks is asked again. What
//!   changes something is sent again where the server numbers it, so that it is done once; elsewhere
//!   only if nothing of it had left, and else the error names the keys
//!   ([`StoreError::Doubtful`](super::StoreError::Doubtful)).
//! - Where nobody listens any more the store is lost at once: a server keeps nothing, and one that
//!   takes its place is another store. That is known by a number in the handshake of this crate's
//!   servers; of others a key that this client has seen there must still be there. One that has not
//!   that key is taken for a new one, also where somebody has deleted it; one that was started again
//!   and has it is not told from the old one.
//! - A value that is pushed ends the wait of one, who waits longest, as PyTorch's clients need; if that
//!   one is gone or does something else it is the next one's turn. Nothing is kept for who was called:
//!   PyTorch's client, which waits and takes in two requests, may find that somebody else was faster,
//!   as on its own server (`QueueEmptyError`). This crate's waits again.

mod client;
mod connect;
mod connection;
mod links;
mod server;
mod wake;
pub mod wire;

#[cfg(test)]
pub(crate) mod tests;

pub use client::TcpStore;
pub use connect::ConnectError;
pub use links::{GRACE, Traffic};
pub use server::{ConnectionStats, ServeError, ServerLimits, ServerStats, StoreServer};
