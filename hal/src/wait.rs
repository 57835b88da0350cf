//! How long a blocking call may wait, and how to end the wait early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A bound on a wait: a time, and optionally a [`CancelToken`].
///
/// Every blocking call takes one. There is no way to wait for ever.
#[derive(Clone, Debug)]
pub struct Wait {
    timeout: Duration,
    /// When it ends, once it has begun.
    until: Option<Instant>,
    cancel: Option<CancelToken>,
}

impl Wait {
    /// Waits at most `timeout`, counted from the start of each call that is given it.
    #[must_use]
    pub const fn timeout(timeout: Duration) -> Self {
        Wait { timeout, until: None, cancel: None }
    }

    /// Waits at most `n` milliseconds.
    #[must_use]
    pub const fn millis(n: u64) -> Self {
        Self::timeout(Duration::from_millis(n))
    }

    /// Waits at most `n` seconds.
    #[must_use]
    pub const fn seconds(n: u64) -> Self {
        Self::timeout(Duration::from_secs(n))
    }

    /// The same bound, ended early by `token`.
    #[must_use]
    pub fn with_cancel(mut self, token: CancelToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// The time bound.
    #[must_use]
    pub const fn duration(&self) -> Duration {
        self.timeout
    }

    /// The token, if any.
    #[must_use]
    pub fn cancel(&self) -> Option<&CancelToken> {
        self.cancel.as_ref()
    }

    /// Whether the token was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    /// The same bound, counted from now whatever is given it: for a call that waits in several steps.
    #[must_use]
    pub fn begun(&self) -> Self {
        Wait { until: Some(self.deadline()), ..self.clone() }
    }

    /// The moment at which a wait that begins now, or has [begun](Self::begun), ends. A bound too large
    /// for the clock counts as a hundred years.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        if let Some(until) = self.until {
            return until;
        }
        let now = Instant::now();
        now.checked_add(self.timeout)
            .unwrap_or_else(|| now + Duration::from_secs(100 * 365 * 24 * 3600))
    }
}

/// Ends waits from another thread.
///
/// Clones are the same token. Cancelling is final: make a new token for the next call.
#[derive(Clone, Default)]
pub struct CancelToken {
    inner: Arc<Inner>,
}

type Waker = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    wakers: Mutex<Vec<(u64, Waker)>>,
    next: std::sync::atomic::AtomicU64,
}

impl CancelToken {
    /// A token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        CancelToken::default()
    }

    /// Ends every wait that was given this token, now and later.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::Release);
        let wakers: Vec<_> = self.inner.wakers.lock().iter().map(|(_, w)| w.clone()).collect();
        for wake in wakers {
            wake();
        }
    }

    /// Whether [`cancel`](Self::cancel) was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::Acquire)
    }

    /// Calls `wake` at each later [`cancel`](Self::cancel) until the guard is dropped.
    ///
    /// For code that sleeps: register, look at [`is_cancelled`](Self::is_cancelled), sleep.
    #[must_use = "dropping the guard takes the waker out again"]
    pub fn on_cancel(&self, wake: Arc<dyn Fn() + Send + Sync>) -> CancelGuard {
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
        self.inner.wakers.lock().push((id, wake));
        CancelGuard { token: self.clone(), id }
    }
}

impl core::fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}

/// Keeps a waker registered with a [`CancelToken`].
#[derive(Debug)]
pub struct CancelGuard {
    token: CancelToken,
    id: u64,
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.token.inner.wakers.lock().retain(|(id, _)| *id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn cancel_wakes_only_while_registered() {
        let token = CancelToken::new();
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let guard = token.on_cancel(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        assert!(!token.is_cancelled());
        token.cancel();
        assert!(token.is_cancelled());
        drop(guard);
        token.cancel();
        assert_eq!(woken.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_huge_timeout_is_a_bound_too() {
        assert!(Wait::timeout(Duration::MAX).deadline() > Instant::now());
    }
}
