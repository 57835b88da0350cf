//! What happens to a process that forks.
//!
//! A forked child has copies of the parent's links and none of its threads. Were the links left
//! open there, peers would not see the parent's death while the child lives. So the child closes
//! them at once and knows that it is no member.
//!
//! # References
//! - `pthread_atfork(3)`; `signal-safety(7)`, whose rules bind the handler.
#![allow(unsafe_code, reason = "registers a fork handler and closes raw descriptors in it")]

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Most links that the handler can close. Fixed, since the handler may neither lock nor allocate.
const SLOTS: usize = 4096;

static LINKS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
static CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked from one that had links.
pub(crate) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
    for slot in &LINKS {
        let fd = slot.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: `close` is async-signal-safe. The descriptor is this child's copy of a link's;
            // the `OwnedFd` that owns it belongs to threads that do not exist here, and is disowned
            // by `LinkFd::drop` in a child.
            unsafe { libc::close(fd) };
        }
    }
}

/// A descriptor that a forked child must not keep.
#[derive(Debug)]
pub(crate) struct LinkFd {
    fd: ManuallyDrop<OwnedFd>,
    slot: Option<usize>,
}

impl LinkFd {
    /// Takes a descriptor. From the first one on, a forked child knows that it is one.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        static REGISTER: Once = Once::new();
        REGISTER.call_once(|| {
            // SAFETY: the handler is a plain function that stays for the life of the process and
            // does only what a forked child may do (atomics, close).
            if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
                tracing::warn!("no fork handler: a forked child will hold links open");
            }
        });
        let raw: RawFd = fd.as_raw_fd();
        let slot = LINKS.iter().position(|slot| {
            slot.compare_exchange(-1, raw, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        if slot.is_none() {
            tracing::warn!(limit = SLOTS, "more links than a forked child can close");
        }
        LinkFd { fd: ManuallyDrop::new(fd), slot }
    }
}

impl AsFd for LinkFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for LinkFd {
    fn drop(&mut self) {
        if is_child() {
            // Closed by the handler; the number may be somebody else's by now.
            return;
        }
        if let Some(slot) = self.slot {
            LINKS[slot].store(-1, Ordering::Relaxed);
        }
        // SAFETY: dropped here only, once, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}
