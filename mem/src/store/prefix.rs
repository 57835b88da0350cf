//! A namespace in a store.

use std::sync::Arc;

use symmem_hal::Wait;

use super::{Contribution, Part, Store, StoreError};

/// A view of a store in which every key begins with `prefix` and a slash.
///
/// The same rule as PyTorch's `PrefixStore`, so both sides agree on a key. PyTorch's `TCPStore`
/// itself puts a slash before every key it sends: the view with an empty prefix sees the keys that
/// Python code names. Errors name the whole key.
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

    fn gather(
        &self,
        key: &str,
        mine: &Contribution<'_>,
        wait: &Wait,
    ) -> Result<Vec<Part>, StoreError> {
        self.store.gather(&self.key(key), mine, wait)
    }
}
