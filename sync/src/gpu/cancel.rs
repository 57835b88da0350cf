//! How a cancelled token reaches a kernel: a word in the control page in host memory, one for each call
//! in flight that was given a token.

use std::sync::Arc;

use parking_lot::Mutex;
use symmem_hal::types::Bytes;
use symmem_hal::{CancelGuard, CancelToken, Memory};

/// Calls with a token that can be in flight at once: what streams queue, and those that are over and
/// not yet released.
pub(super) const SLOTS: u32 = 1024;

/// The words of one rank's control page.
#[derive(Debug)]
pub(super) struct Cancels {
    memory: Memory,
    /// Of the first word.
    offset: u64,
    free: Mutex<Vec<u32>>,
}

/// One call's word, watched for by its token until this is dropped: after the call's end.
pub(crate) struct Cancel {
    home: Arc<Cancels>,
    slot: u32,
    /// Dropped before the slot is free, so that a late cancellation hits nobody else.
    guard: Option<CancelGuard>,
}

impl core::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Cancel").field(&self.slot).finish()
    }
}

impl Cancels {
    /// `SLOTS` words of a page, which are zero.
    pub(super) fn new(memory: Memory, offset: u64) -> Arc<Self> {
        Arc::new(Cancels { memory, offset, free: Mutex::new((0..SLOTS).rev().collect()) })
    }

    /// A word for a call. `None` where all are taken: the call is then ended by its deadline alone.
    pub(super) fn take(self: &Arc<Self>, token: &CancelToken) -> Option<Cancel> {
        let Some(slot) = self.free.lock().pop() else {
            tracing::warn!("{SLOTS} calls with cancel tokens in flight: one more goes without");
            return None;
        };
        self.store(slot, 0);
        let (home, word) = (self.clone(), slot);
        let guard = token.on_cancel(Arc::new(move || home.store(word, 1)));
        // It may have been cancelled before the token knew of this.
        if token.is_cancelled() {
            self.store(slot, 1);
        }
        Some(Cancel { home: self.clone(), slot, guard: Some(guard) })
    }

    fn at(&self, slot: u32) -> u64 {
        self.offset + 4 * u64::from(slot)
    }

    fn store(&self, slot: u32, value: u32) {
        let written = self.memory.write(Bytes(self.at(slot)), &value.to_ne_bytes());
        debug_assert!(written.is_ok());
    }
}

impl Cancel {
    /// Where the word is in the page.
    pub(super) fn offset(&self) -> u64 {
        self.home.at(self.slot)
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        drop(self.guard.take());
        self.home.free.lock().push(self.slot);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use symmem_hal::Device;

    use super::*;

    fn word(memory: &Memory, cancel: &Cancel) -> u32 {
        let mut bytes = [0; 4];
        memory.read(Bytes(cancel.offset()), &mut bytes).unwrap();
        u32::from_ne_bytes(bytes)
    }

    #[test]
    fn a_token_sets_the_words_of_its_calls_and_no_other() {
        let memory = Device::host().allocate(Bytes::kib(8)).unwrap();
        let cancels = Cancels::new(memory.clone(), 64);
        let (token, other) = (CancelToken::new(), CancelToken::new());
        let calls = [&token, &other, &token].map(|token| cancels.take(token).unwrap());
        token.cancel();
        assert_eq!(calls.each_ref().map(|call| word(&memory, call)), [1, 0, 1]);
        // Cancelled before the call.
        assert_eq!(word(&memory, &cancels.take(&token).unwrap()), 1);
        drop(calls);
        // Words are used again, from zero, and late cancellations hit nobody.
        let calls: Vec<_> = (0..SLOTS).map_while(|_| cancels.take(&other)).collect();
        assert_eq!(calls.len(), SLOTS as usize);
        assert!(cancels.take(&other).is_none());
        token.cancel();
        assert!(calls.iter().all(|call| word(&memory, call) == 0));
    }
}
