//! Kernels that a test can delay at each step of their protocols.

use std::sync::atomic::{AtomicUsize, Ordering};

static HELD: AtomicUsize = AtomicUsize::new(0);

/// What makes a kernel look whether it is to wait.
pub(crate) const DEFINE: (&str, &str) = ("SYMMEM_STALLS", "1");

/// While one lives, the process compiles such kernels, beside those that cannot be delayed.
#[derive(Debug)]
#[must_use = "ends when dropped"]
pub struct Stalled(());

impl Stalled {
    /// Begins.
    pub fn compile() -> Self {
        HELD.fetch_add(1, Ordering::SeqCst);
        Stalled(())
    }

    pub(crate) fn is_held() -> bool {
        HELD.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::SeqCst);
    }
}
