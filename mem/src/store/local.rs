//! The store of one process, for ranks that are threads.

use std::sync::Arc;

use symmem_hal::Wait;

use super::call::{Call, Ended};
use super::monitor::Monitor;
use super::table::{Brought, Table, TableError};
use super::tcp::wire::{Answer, Gathered, Limits};
use super::{Contribution, Missing, Part, Store, StoreError};

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
            TableError::Gather(fault) => StoreError::Gather { store, key, fault },
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

    fn multi_set(&self, entries: &[(&str, &[u8])], wait: &Wait) -> Result<(), StoreError> {
        let keys: Vec<&str> = entries.iter().map(|(key, _)| *key).collect();
        let call = self.begin("multi_set", &keys, wait)?;
        call.fit_together(entries, &Limits::DEFAULT)?;
        let entries: Vec<(&[u8], &[u8])> =
            entries.iter().map(|(key, value)| (key.as_bytes(), *value)).collect();
        self.change(keys.first().unwrap_or(&""), |table| table.set_all(&entries))
    }

    fn append(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError> {
        self.begin("append", &[key], wait)?.fits("a value", value.len(), Limits::DEFAULT.value)?;
        self.change(key, |table| table.append(key.as_bytes(), value))
    }

    fn delete(&self, key: &str, wait: &Wait) -> Result<bool, StoreError> {
        self.begin("delete", &[key], wait)?;
        self.change(key, |table| Ok(table.delete(key.as_bytes())))
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
        let since = self.table.lock().begin();
        let there = |table: &mut Table| {
            keys.iter().all(|key| table.seen(key.as_bytes(), since)).then_some(())
        };
        let result = self.table.wait(&call, there);
        self.table.lock().end(since);
        result.map_err(|ended| self.unmet(&call, ended))
    }

    fn check(&self, keys: &[&str], wait: &Wait) -> Result<bool, StoreError> {
        self.begin("check", keys, wait)?;
        let table = self.table.lock();
        Ok(keys.iter().all(|key| table.contains(key.as_bytes())))
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait) -> Result<Vec<Vec<u8>>, StoreError> {
        self.values(&self.begin("multi_get", keys, wait)?)
    }

    fn num_keys(&self, wait: &Wait) -> Result<u64, StoreError> {
        self.begin("num_keys", &[], wait)?;
        Ok(self.table.lock().len() as u64)
    }

    fn list_keys(&self, wait: &Wait) -> Result<Vec<String>, StoreError> {
        self.begin("list_keys", &[], wait)?;
        let table = self.table.lock();
        Ok(table.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect())
    }

    fn queue_push(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError> {
        let call = [key];
        let call = self.begin("queue_push", &call, wait)?;
        call.fits("a value", value.len(), Limits::DEFAULT.value)?;
        self.change(key, |table| table.push(key.as_bytes(), value))
    }

    fn queue_pop(&self, key: &str, wait: &Wait) -> Result<Vec<u8>, StoreError> {
        let keys = [key];
        let call = self.begin("queue_pop", &keys, wait)?;
        let take = |table: &mut Table| table.pop(key.as_bytes()).map(Vec::from);
        self.table.wait(&call, take).map_err(|ended| self.unmet(&call, ended))
    }

    fn queue_try_pop(&self, key: &str, wait: &Wait) -> Result<Option<Vec<u8>>, StoreError> {
        self.begin("queue_try_pop", &[key], wait)?;
        self.change(key, |table| Ok(table.pop(key.as_bytes()).map(Vec::from)))
    }

    fn queue_len(&self, key: &str, wait: &Wait) -> Result<u64, StoreError> {
        self.begin("queue_len", &[key], wait)?;
        Ok(self.table.lock().queue_len(key.as_bytes()) as u64)
    }

    fn barrier(&self, key: &str, count: u64, wait: &Wait) -> Result<(), StoreError> {
        let keys = [key];
        let call = self.begin("barrier", &keys, wait)?;
        self.change(key, |table| table.add(key.as_bytes(), 1))?;
        let number = |table: &mut Table| table.number(key.as_bytes()).ok();
        let reached = |n: i64| i64::try_from(count).is_ok_and(|count| n >= count);
        let passed = |table: &mut Table| number(table).filter(|n| reached(*n)).map(drop);
        self.table.wait(&call, passed).map_err(|ended| match ended {
            Ended::Cancelled => call.ended(ended),
            Ended::Deadline => {
                let arrived = number(&mut self.table.lock()).and_then(|n| u32::try_from(n).ok());
                call.timed_out(Missing::Arrivals { key: key.to_owned(), arrived, count })
            }
        })
    }

    fn gather(
        &self,
        key: &str,
        mine: &Contribution<'_>,
        wait: &Wait,
    ) -> Result<Vec<Part>, StoreError> {
        let keys = [key];
        let call = self.begin("gather", &keys, wait)?;
        call.fits("a value", mine.value.len(), Limits::DEFAULT.value)?;
        let mut brought = self.change(key, |table| table.bring(key.as_bytes(), mine))?;
        // Brought again at each look: the same contribution, which gives the result once there is one.
        let complete = |table: &mut Table| {
            if brought == Brought::Waits {
                brought = table.bring(key.as_bytes(), mine).ok()?;
            }
            match &brought {
                Brought::Complete { result, .. } => Some(result.clone()),
                Brought::Waits => None,
            }
        };
        let result = self.table.wait(&call, complete).map_err(|ended| match ended {
            Ended::Cancelled => call.ended(ended),
            Ended::Deadline => {
                let slots = self.table.lock().missing(key.as_bytes()).into();
                call.timed_out(Missing::Slots { key: key.to_owned(), slots })
            }
        })?;
        match Answer::gathered(&result) {
            Some(Gathered::Complete(parts)) => Ok(parts),
            _ => Ok(Vec::new()),
        }
    }
}
