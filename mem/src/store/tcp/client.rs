//! The client.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use symmem_hal::Wait;

use super::connect::{Target, connect};
use super::links::Links;
use super::wire::{Answer, Gathered, Limits, Request};
use super::{ConnectError, StoreServer, Traffic};
use crate::store::call::Call;
use crate::store::gather::over_keys;
use crate::store::{Contribution, LostCause, Missing, Part, Store, StoreError};

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
/// A connection that ends is replaced within the call that needs it. Where the server is gone, has been
/// started again, refuses a request or breaks the protocol, every call fails with the same [`LostCause`]
/// from then on. On a server of another make a call fails with
/// [`Doubtful`](StoreError::Doubtful) where it is not known whether something was changed, by it or by a
/// call before it that has no answer; later calls go on. What a call has sent that is given up may be done
/// at any time until the next one ends. Besides a call's own bound, [`GRACE`](super::GRACE) applies.
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
        let primary = connect(&target, limits, wait, wait.deadline(), Duration::ZERO)?;
        let mut session = [0; 8];
        getrandom::fill(&mut session).map_err(|error| ConnectError::System {
            address: target.to_string(),
            cause: Arc::new(io::Error::other(error)),
        })?;
        let links = Arc::new(Links::new(primary, *limits, u64::from_le_bytes(session)));
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

impl TcpStore {
    /// The first of the values in an answer.
    fn value(answer: &[u8]) -> Vec<u8> {
        Answer::values(answer).pop().unwrap_or_default()
    }

    fn integer(call: &Call<'_>, answer: &[u8]) -> Result<i64, StoreError> {
        let bytes = answer.len();
        Answer::integer(answer).ok_or_else(|| call.lost(LostCause::Unasked { bytes }))
    }

    fn count(call: &Call<'_>, answer: &[u8]) -> Result<u64, StoreError> {
        Self::integer(call, answer).map(i64::unsigned_abs)
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
        self.links.saw(key);
        Ok(Self::value(&answer))
    }

    fn multi_set(&self, entries: &[(&str, &[u8])], wait: &Wait) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let keys: Vec<&str> = entries.iter().map(|(key, _)| *key).collect();
        let call = self.begin("multi_set", &keys, wait)?;
        call.fit_together(entries, self.links.limits())?;
        let entries = entries.iter().map(|(key, value)| (key.as_bytes(), *value)).collect();
        self.links.send(&call, &Request::MultiSet { entries })
    }

    fn append(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError> {
        let keys = [key];
        let call = self.begin("append", &keys, wait)?;
        call.fits("a value", value.len(), self.links.limits().value)?;
        self.links.send(&call, &Request::Append { key: key.as_bytes(), value })
    }

    fn delete(&self, key: &str, wait: &Wait) -> Result<bool, StoreError> {
        let keys = [key];
        let call = self.begin("delete", &keys, wait)?;
        // Before it is sent: where the connection is lost on the way it must not be asked for.
        self.links.gone(key);
        let answer = self.links.exchange(&call, &Request::DeleteKey { key: key.as_bytes() })?;
        self.links.gone(key);
        Ok(Self::integer(&call, &answer)? != 0)
    }

    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64, StoreError> {
        let keys = [key];
        let call = self.begin("add", &keys, wait)?;
        let answer = self.links.exchange(&call, &Request::Add { key: key.as_bytes(), amount })?;
        Self::integer(&call, &answer)
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
        Ok(Self::value(&self.links.exchange(&call, &request)?))
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
        let &[first, ..] = keys else { return Ok(Vec::new()) };
        let call = self.begin("multi_get", keys, wait)?;
        self.links.await_keys(&call)?;
        let request = Request::MultiGet { keys: call.key_bytes() };
        let answer = self.links.exchange(&call, &request)?;
        self.links.saw(first);
        Ok(Answer::values(&answer))
    }

    fn num_keys(&self, wait: &Wait) -> Result<u64, StoreError> {
        let call = self.begin("num_keys", &[], wait)?;
        Self::count(&call, &self.links.exchange(&call, &Request::GetNumKeys)?)
    }

    fn list_keys(&self, wait: &Wait) -> Result<Vec<String>, StoreError> {
        let call = self.begin("list_keys", &[], wait)?;
        let keys = Answer::keys(&self.links.exchange(&call, &Request::ListKeys)?);
        Ok(keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect())
    }

    fn queue_push(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError> {
        let keys = [key];
        let call = self.begin("queue_push", &keys, wait)?;
        call.fits("a value", value.len(), self.links.limits().value)?;
        self.links.send(&call, &Request::QueuePush { key: key.as_bytes(), value })
    }

    fn queue_pop(&self, key: &str, wait: &Wait) -> Result<Vec<u8>, StoreError> {
        let keys = [key];
        let call = self.begin("queue_pop", &keys, wait)?;
        loop {
            self.links.await_keys(&call)?;
            let answer = self.links.exchange(&call, &Request::QueuePop { key: key.as_bytes() })?;
            // Somebody else may have been faster.
            if let Some(value) = Answer::popped(&answer) {
                return Ok(value);
            }
        }
    }

    fn queue_try_pop(&self, key: &str, wait: &Wait) -> Result<Option<Vec<u8>>, StoreError> {
        let keys = [key];
        let call = self.begin("queue_try_pop", &keys, wait)?;
        let answer = self.links.exchange(&call, &Request::QueuePop { key: key.as_bytes() })?;
        Ok(Answer::popped(&answer))
    }

    fn queue_len(&self, key: &str, wait: &Wait) -> Result<u64, StoreError> {
        let keys = [key];
        let call = self.begin("queue_len", &keys, wait)?;
        Self::count(&call, &self.links.exchange(&call, &Request::QueueLen { key: key.as_bytes() })?)
    }

    fn barrier(&self, key: &str, count: u64, wait: &Wait) -> Result<(), StoreError> {
        let keys = [key];
        let call = self.begin("barrier", &keys, wait)?;
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.links.barrier(&call, &Request::Barrier { key: key.as_bytes(), count })
    }

    fn gather(
        &self,
        key: &str,
        mine: &Contribution<'_>,
        wait: &Wait,
    ) -> Result<Vec<Part>, StoreError> {
        if !self.links.is_ours() {
            return over_keys::gather(self, key, mine, wait);
        }
        let bad = |fault| StoreError::Gather { store: self.name(), key: key.to_owned(), fault };
        mine.check().map_err(bad)?;
        let keys = [key];
        let call = self.begin("gather", &keys, wait)?;
        call.fits("a value", mine.value.len(), self.links.limits().value)?;
        let slots: Vec<u8> = mine.slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
        let (total, value) = (mine.total, mine.value);
        let request = Request::Gather { key: key.as_bytes(), total, slots: &slots, value };
        match self.links.gather(&call, &request)? {
            Gathered::Complete(parts) => Ok(parts),
            Gathered::Missing(slots) => {
                let slots = slots.into();
                Err(call.timed_out(Missing::Slots { key: key.to_owned(), slots }))
            }
            Gathered::Fault(fault) => Err(bad(fault)),
            Gathered::Refused(reason) => Err(call.refused(reason)),
        }
    }
}
