//! A namespace in a store.

use std::sync::Arc;

use symmem_hal::Wait;

use super::{Contribution, Part, Store, StoreError};

/// A view of a store in which every key begins with `prefix` and a slash.
///
/// The same rule as PyTorch's `PrefixStore`, so both sides agree on a key. PyTorch's `TCPStore`
/// itself puts a slash before every key it sends: the view with an empty prefix sees the keys that
/// Python code names. Errors name the whole key, and [`num_keys`](Store::num_keys) counts those of the
/// whole store.
#[derive(Clone, Debug)]
pub struct PrefixStore {
    store: Arc<dyn Store>,
    prefix: String,
}

impl PrefixStore {
    /// The keys `prefix/...` of `store`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, prefix: impl Into<String>) -> Self {
        PrefixStore { store, prefix: prefix.into() }
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    fn with_keys<R>(&self, keys: &[&str], call: impl FnOnce(&[&str]) -> R) -> R {
        let whole: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        call(&whole.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl Store for PrefixStore {
    fn name(&self) -> Arc<str> {
        self.store.name()
    }

    fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError> {
        self.store.set(&self.key(key), value, wait)
    }

    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>, StoreError> {
        self.store.get(&self.key(key), wait)
    }

    fn multi_set(&self, entries: &[(&str, &[u8])], wait: &Wait) -> Result<(), StoreError> {
        let keys: Vec<&str> = entries.iter().map(|(key, _)| *key).collect();
        self.with_keys(&keys, |keys| {
            let values = entries.iter().map(|(_, value)| *value);
            let entries: Vec<(&str, &[u8])> = keys.iter().copied().zip(values).collect();
            self.store.multi_set(&entries, wait)
        })
    }

    fn append(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError> {
        self.store.append(&self.key(key), value, wait)
    }

    fn delete(&self, key: &str, wait: &Wait) -> Result<bool, StoreError> {
        self.store.delete(&self.key(key), wait)
    }

    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64, StoreError> {
        self.store.add(&self.key(key), amount, wait)
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
        wait: &Wait,
    ) -> Result<Vec<u8>, StoreError> {
        self.store.compare_set(&self.key(key), expected, desired, wait)
    }

    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<(), StoreError> {
        self.with_keys(keys, |keys| self.store.wait(keys, wait))
    }

    fn check(&self, keys: &[&str], wait: &Wait) -> Result<bool, StoreError> {
        self.with_keys(keys, |keys| self.store.check(keys, wait))
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait) -> Result<Vec<Vec<u8>>, StoreError> {
        self.with_keys(keys, |keys| self.store.multi_get(keys, wait))
    }

    fn num_keys(&self, wait: &Wait) -> Result<u64, StoreError> {
        self.store.num_keys(wait)
    }

    fn list_keys(&self, wait: &Wait) -> Result<Vec<String>, StoreError> {
        let prefix = self.key("");
        let within = |key: String| key.strip_prefix(&prefix).map(str::to_owned);
        Ok(self.store.list_keys(wait)?.into_iter().filter_map(within).collect())
    }

    fn queue_push(&self, key: &str, value: &[u8], wait: &Wait) -> Result<(), StoreError> {
        self.store.queue_push(&self.key(key), value, wait)
    }

    fn queue_pop(&self, key: &str, wait: &Wait) -> Result<Vec<u8>, StoreError> {
        self.store.queue_pop(&self.key(key), wait)
    }

    fn queue_try_pop(&self, key: &str, wait: &Wait) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.queue_try_pop(&self.key(key), wait)
    }

    fn queue_len(&self, key: &str, wait: &Wait) -> Result<u64, StoreError> {
        self.store.queue_len(&self.key(key), wait)
    }

    fn barrier(&self, key: &str, count: u64, wait: &Wait) -> Result<(), StoreError> {
        self.store.barrier(&self.key(key), count, wait)
    }

    fn gather(
        &self,
        key: &str,
        mine: &Contribution<'_>,
        wait: &Wait,
    ) -> Result<Vec<Part>, StoreError> {
        self.store.gather(&self.key(key), mine, wait)
    }
}
