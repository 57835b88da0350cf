//! What several tests need.

#[cfg(feature = "mem")]
pub(crate) mod observe;
#[cfg(feature = "sync")]
pub(crate) mod random;
#[cfg(feature = "sync")]
pub(crate) mod tombstone;

use std::time::{Duration, Instant};

/// Whether a condition comes to hold. Asked again and again for as long as a busy machine may need;
/// for what another thread or process does in its own time.
pub(crate) fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
