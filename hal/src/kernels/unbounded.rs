//! For measuring what the bounds on kernels' waits cost: kernels without them.
#![allow(unsafe_code, reason = "gives up what makes waits safe")]

use std::sync::atomic::{AtomicUsize, Ordering};

static HELD: AtomicUsize = AtomicUsize::new(0);

/// What takes the bounds out of a kernel.
pub(crate) const DEFINE: (&str, &str) = ("SYMMEM_UNBOUNDED", "1");

/// While one lives, the process compiles kernels without bounds, beside those with.
#[derive(Debug)]
#[must_use = "ends when dropped"]
pub struct Unbounded(());

impl Unbounded {
    /// Begins.
    ///
    /// # Safety
    ///
    /// Nobody launches what is compiled meanwhile where a peer may not come: such a wait ends with the
    /// device's.
    pub unsafe fn compile() -> Self {
        HELD.fetch_add(1, Ordering::SeqCst);
        Unbounded(())
    }

    pub(crate) fn is_held() -> bool {
        HELD.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Unbounded {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::SeqCst);
    }
}
