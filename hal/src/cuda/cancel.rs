//! How a cancelled token reaches kernels: a word in memory of the CPU that they read, one for each call
//! in flight that was given a token.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE};

use super::context::Context;
use super::driver::cu;
use crate::driver::DriverError;
use crate::types::Bytes;
use crate::{CancelGuard, CancelToken, DevicePtr};

/// Calls with a token that can be in flight at once on a device: what streams queue, and those that are
/// over and not yet released.
const WORDS: u16 = 1024;

/// Written here alone, read by kernels.
#[repr(C, align(4096))]
struct Page([AtomicU32; WORDS as usize]);

/// The words of one device, which it keeps until the process ends.
#[derive(Debug)]
pub(super) struct Cancels {
    page: &'static Page,
    base: DevicePtr,
    free: Mutex<Vec<u16>>,
}

impl core::fmt::Debug for Page {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} words", self.0.len())
    }
}

/// A u32 that kernels of a device can read, not 0 once the token that it was made for is cancelled.
/// Whoever launches a kernel that reads it keeps this until that has ended: see
/// [`Launch`](crate::Launch).
pub struct CancelWord {
    home: &'static Cancels,
    slot: u16,
    /// Dropped before the slot is free, so that a late cancellation hits nobody else.
    guard: Option<CancelGuard>,
}

impl core::fmt::Debug for CancelWord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("CancelWord").field(&self.slot).finish()
    }
}

impl Cancels {
    fn new(page: &'static Page, base: DevicePtr) -> Self {
        Cancels { page, base, free: Mutex::new((0..WORDS).rev().collect()) }
    }

    /// Those of a device.
    pub(super) fn of(context: &'static Context) -> Result<&'static Self, DriverError> {
        let mut cancels = context.cancels.lock();
        if let Some(cancels) = *cancels {
            return Ok(cancels);
        }
        let page = Box::new(Page([const { AtomicU32::new(0) }; WORDS as usize]));
        let start = core::ptr::from_ref::<Page>(&page).cast_mut().cast();
        let _entered = context.enter_aside()?;
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the page is this process's own until here, and from here on never freed.
        unsafe { cu!(context, cuMemHostRegister_v2(start, size_of::<Page>(), flags)) }?;
        let page: &'static Page = Box::leak(page);
        let mut base = 0;
        // SAFETY: writes one address; the page is registered.
        unsafe { cu!(context, cuMemHostGetDevicePointer_v2(&raw mut base, start, 0)) }?;
        let made: &'static Self = Box::leak(Box::new(Cancels::new(page, DevicePtr::new(base))));
        *cancels = Some(made);
        Ok(made)
    }

    /// A word for a call. `None` where all are taken: the call is then ended by its bound alone.
    pub(super) fn take(&'static self, token: &CancelToken) -> Option<CancelWord> {
        let Some(slot) = self.free.lock().pop() else {
            tracing::warn!("{WORDS} calls with cancel tokens in flight: one more goes without");
            return None;
        };
        self.store(slot, 0);
        let guard = token.on_cancel(Arc::new(move || self.store(slot, 1)));
        // It may have been cancelled before the token knew of this.
        if token.is_cancelled() {
            self.store(slot, 1);
        }
        Some(CancelWord { home: self, slot, guard: Some(guard) })
    }

    fn store(&self, slot: u16, value: u32) {
        self.page.0[usize::from(slot)].store(value, Ordering::Release);
    }
}

impl CancelWord {
    /// Where kernels find it.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        let offset = Bytes(size_of::<AtomicU32>() as u64 * u64::from(self.slot));
        self.home.base.checked_add(offset).unwrap_or(DevicePtr::NULL)
    }
}

impl Drop for CancelWord {
    fn drop(&mut self) {
        drop(self.guard.take());
        self.home.free.lock().push(self.slot);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;

    fn word(word: &CancelWord) -> u32 {
        let base = word.home.base.get();
        let slot = (word.ptr().get() - base) as usize / size_of::<AtomicU32>();
        word.home.page.0[slot].load(Ordering::Acquire)
    }

    #[test]
    fn a_token_sets_the_words_of_its_calls_and_no_other() {
        let page = Box::leak(Box::new(Page([const { AtomicU32::new(0) }; WORDS as usize])));
        let cancels = &*Box::leak(Box::new(Cancels::new(page, DevicePtr::new(4096))));
        let (token, other) = (CancelToken::new(), CancelToken::new());
        let calls = [&token, &other, &token].map(|token| cancels.take(token).unwrap());
        token.cancel();
        assert_eq!(calls.each_ref().map(word), [1, 0, 1]);
        // Cancelled before the call.
        assert_eq!(word(&cancels.take(&token).unwrap()), 1);
        drop(calls);
        // Words are used again, from zero, and late cancellations hit nobody.
        let calls: Vec<_> = (0..WORDS).map_while(|_| cancels.take(&other)).collect();
        assert_eq!(calls.len(), usize::from(WORDS));
        assert!(cancels.take(&other).is_none());
        token.cancel();
        assert!(calls.iter().all(|call| word(call) == 0));
    }
}
