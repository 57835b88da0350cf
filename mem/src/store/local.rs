//! The store of one process, for ranks that are threads.

use std::sync::Arc;

use symmem_hal::Wait;

use super::call::{Call, Ended};
use super::monitor::Monitor;
use super::table::{Table, TableError};
use super::tcp::wire::Limits;
use super::{Missing, Store, StoreError};

/// A store in memory, shared by the threads that hold a clone.
///
/// Keys and values have the limits of the TCP store, so that what works here works there.
#[derive(Clone, Debug)]
pub struct LocalStore {
    name: Arc<str>,
    table: Arc<Monitor<Table>>,
}

impl LocalStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        let table = Arc::new(Monitor::new(Table::new(usize::MAX, usize::MAX)));
        LocalStore { name: "the in-process store".into(), table }
    }

    fn begin<'a>(
        &'a self,
        operation: &'static str,
        keys: &'a [&'a str],
        wait: &'a Wait,
    ) -> Result<Call<'a>, StoreError> {
        Call::begin(&self.name, operation, keys, wait, &Limits::DEFAULT)
    }

    /// Changes the table and wakes those who wait for keys.
    fn change<R>(
        &self,
        key: &str,
        change: impl FnOnce(&mut Table) -> Result<R, TableError>,
    ) -> Result<R, StoreError> {
        let result = change(&mut self.table.lock());
        self.table.notify();
        let (store, key) = (self.name.clone(), key.to_owned());
        result.map_err(|error| match error {
            TableError::NotANumber { found } => StoreError::NotANumber { store, key, found },
            TableError::Overflow { stored, amount } => {
                StoreError::Overflow { store, key, stored, amount }
            }
            TableError::Full { needed, used, capacity } => StoreError::TooLarge {
                store,
                operation: "set",
                keys: vec![key],
                what: "the store",
                found: used.saturating_add(needed),
                limit: capacity,
            },
            TableError::Keys { limit } => StoreError::TooLarge {
                store,
                operation: "set",
                keys: vec![key],
                what: "the number of keys",
                found: limit.saturating_add(1),
                limit,
            },
        })
    }

    /// The values of the call's keys once all are there.
    fn values(&self, call: &Call<'_>) -> Result<Vec<Vec<u8>>, StoreError> {
        let read = |table: &mut Table| {
            call.keys.iter().map(|key| table.get(key.as_bytes()).map(<[u8]>::to_vec)).collect()
        };
        self.table.wait(call, read).map_err(|ended| self.unmet(call, ended))
    }

    fn unmet(&self, call: &Call<'_>, ended: Ended) -> StoreError {
        if ended == Ended::Cancelled {
            return call.ended(ended);
        }
        let table = self.table.lock();
        let missing = call.keys.iter().filter(|key| !table.contains(key.as_bytes()));
        call.timed_out(Missing::Keys(missing.map(|&key| key.to_owned()).collect()))
    }
}

impl Default for LocalStore {
    fn default() -> Self {
        LocalStore::new()
    }
}

impl Store for LocalStore {
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError> {
        self.begin("set", &[key], wait)?.fits("a value", value.len(), Limits::DEFAULT.value)?;
        self.change(key, |table| table.set(key.as_bytes(), value))
    }

    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>, StoreError> {
        let keys = [key];
        let call = self.begin("get", &keys, wait)?;
        let read = |table: &mut Table| table.get(key.as_bytes()).map(<[u8]>::to_vec);
        self.table.wait(&call, read).map_err(|ended| self.unmet(&call, ended))
    }

    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64, StoreError> {
        self.begin("add", &[key], wait)?;
        self.change(key, |table| table.add(key.as_bytes(), amount))
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
        call.fits("a value", expected.len().max(desired.len()), Limits::DEFAULT.value)?;
        self.change(key, |table| {
            let now = table.compare_set(key.as_bytes(), expected, desired)?;
            Ok(now.unwrap_or(expected).to_vec())
        })
    }

    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<(), StoreError> {
        let call = self.begin("wait", keys, wait)?;
        let there =
            |table: &mut Table| keys.iter().all(|key| table.contains(key.as_bytes())).then_some(());
        self.table.wait(&call, there).map_err(|ended| self.unmet(&call, ended))
    }

    fn check(&self, keys: &[&str], wait: &Wait) -> Result<bool, StoreError> {
        self.begin("check", keys, wait)?;
        let table = self.table.lock();
        Ok(keys.iter().all(|key| table.contains(key.as_bytes())))
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait) -> Result<Vec<Vec<u8>>, StoreError> {
        self.values(&self.begin("multi_get", keys, wait)?)
    }
}
