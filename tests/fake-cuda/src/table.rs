//! Objects behind the driver's opaque handles.

use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::CUresult as Code;

use crate::entry::Outcome;

/// Never reused, and never the address of anything: a handle after its end, or of another kind, is
/// found out.
static NEXT: AtomicU64 = AtomicU64::new(0x5fac_0000_0001);

pub(crate) fn fresh() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Objects of one kind.
pub(crate) struct Table<T>(Mutex<Option<HashMap<u64, Arc<T>>>>);

impl<T> Table<T> {
    pub const fn new() -> Self {
        Table(Mutex::new(None))
    }

    pub fn add(&self, object: Arc<T>) -> u64 {
        let handle = fresh();
        self.0.lock().get_or_insert_default().insert(handle, object);
        handle
    }

    /// # Errors
    ///
    /// An invalid handle where there is no such object.
    pub fn get(&self, handle: u64) -> Outcome<Arc<T>> {
        let objects = self.0.lock();
        let found = objects.as_ref().and_then(|objects| objects.get(&handle).cloned());
        found.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Takes an object out, after which its handle is invalid.
    pub fn remove(&self, handle: u64) -> Outcome<Arc<T>> {
        let mut objects = self.0.lock();
        let found = objects.as_mut().and_then(|objects| objects.remove(&handle));
        found.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().iter().flat_map(HashMap::values).cloned().collect()
    }

    pub fn live(&self) -> usize {
        self.0.lock().as_ref().map_or(0, HashMap::len)
    }
}

/// A handle as the pointer that the driver's interface makes of it.
pub(crate) fn pointer<T>(handle: u64) -> *mut T {
    ptr::without_provenance_mut(usize::try_from(handle).unwrap_or(0))
}

/// The handle that such a pointer is.
pub(crate) fn handle<T>(pointer: *mut T) -> u64 {
    pointer.addr() as u64
}
