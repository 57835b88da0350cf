//! The client.

use std::net::SocketAddr;
use std::sync::Arc;

use symmem_hal::Wait;

use super::connect::{Target, connect};
use super::links::Links;
use super::wire::{Answer, Limits, Request};
use super::{ConnectError, StoreServer, Traffic};
use crate::store::call::Call;
use crate::store::{LostCause, Store, StoreError};

/// A store behind a TCP server of PyTorch's TCPStore protocol.
///
/// A clone shares the connection. Requests travel over one connection in the order of the calls; a
/// call that waits for keys lets others pass, and then uses a second connection.
///
/// `get` and `multi_get` are two requests each, a wait and the fetch: a server answers a fetch at
/// once, there or not.
///
/// # Errors
///
/// Once a connection is lost every call fails with the same [`LostCause`], at once. Requests are
/// not repeated on a new connection: one that was lost may have had its effect. Besides a call's
/// own bound, [`GRACE`](super::GRACE) applies.
#[derive(Clone, Debug)]
pub struct TcpStore {
    name: Arc<str>,
    // Before the server: a store that hosts its server leaves before it ends.
    links: Arc<Links>,
    server: Option<Arc<StoreServer>>,
}

impl TcpStore {
    /// Connects to the server at `host`, a name or an address; tries again until it answers.
    ///
    /// # Errors
    ///
    /// No answer within `wait`, or an answer that is not the protocol's.
    pub fn connect(host: &str, port: u16, wait: &Wait) -> Result<Self, ConnectError> {
        Self::connect_with(host, port, &Limits::DEFAULT, wait)
    }

    /// [`connect`](Self::connect), for a server with other limits than the default ones.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_with(
        host: &str,
        port: u16,
        limits: &Limits,
        wait: &Wait,
    ) -> Result<Self, ConnectError> {
        let target = Target::Name(host, port);
        let primary = connect(&target, limits, wait, wait.deadline())?;
        let links = Arc::new(Links::new(primary, *limits));
        Ok(TcpStore { name: format!("store at {target}").into(), links, server: None })
    }

    /// Keeps `server`, which this store is connected to, alive as long as any clone of the store.
    #[must_use]
    pub fn hosting(mut self, server: StoreServer) -> Self {
        self.server = Some(Arc::new(server));
        self
    }

    /// The server that this store hosts, if it does.
    #[must_use]
    pub fn server(&self) -> Option<&StoreServer> {
        self.server.as_deref()
    }

    /// The server's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.links.peer()
    }

    /// What was exchanged up to now, by all clones.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.links.traffic()
    }

    fn begin<'a>(
        &'a self,
        operation: &'static str,
        keys: &'a [&'a str],
        wait: &'a Wait,
    ) -> Result<Call<'a>, StoreError> {
        let call = Call::begin(&self.name, operation, keys, wait, self.links.limits())?;
        self.links.count_call();
        Ok(call)
    }
}

impl Store for TcpStore {
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError> {
        let keys = [key];
        let call = self.begin("set", &keys, wait)?;
        call.fits("a value", value.len(), self.links.limits().value)?;
        self.links.send(&call, &Request::Set { key: key.as_bytes(), value })
    }

    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>, StoreError> {
        let keys = [key];
        let call = self.begin("get", &keys, wait)?;
        self.links.await_keys(&call)?;
        let answer = self.links.exchange(&call, &Request::Get { key: key.as_bytes() })?;
        Ok(Answer::values(&answer).pop().unwrap_or_default())
    }

    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64, StoreError> {
        let keys = [key];
        let call = self.begin("add", &keys, wait)?;
        let answer = self.links.exchange(&call, &Request::Add { key: key.as_bytes(), amount })?;
        let bytes = answer.len();
        Answer::integer(&answer).ok_or_else(|| call.lost(LostCause::Unasked { bytes }))
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
        wait: &Wait,
    ) -> Result<Vec<u8>, StoreError> {
        let keys = [key];
        let call = self.begin("compare_set", &keys, wait)?;
        call.fits("a value", expected.len().max(desired.len()), self.links.limits().value)?;
        let request = Request::CompareSet { key: key.as_bytes(), expected, desired };
        let answer = self.links.exchange(&call, &request)?;
        Ok(Answer::values(&answer).pop().unwrap_or_default())
    }

    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<(), StoreError> {
        // Some servers do not expect an empty list, and its answer is known.
        if keys.is_empty() {
            return Ok(());
        }
        self.links.await_keys(&self.begin("wait", keys, wait)?)
    }

    fn check(&self, keys: &[&str], wait: &Wait) -> Result<bool, StoreError> {
        if keys.is_empty() {
            return Ok(true);
        }
        let call = self.begin("check", keys, wait)?;
        let request = Request::Check { keys: call.key_bytes() };
        Ok(Answer::is_ready(&self.links.exchange(&call, &request)?))
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait) -> Result<Vec<Vec<u8>>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let call = self.begin("multi_get", keys, wait)?;
        self.links.await_keys(&call)?;
        let request = Request::MultiGet { keys: call.key_bytes() };
        Ok(Answer::values(&self.links.exchange(&call, &request)?))
    }
}
