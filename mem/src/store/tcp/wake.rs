//! A descriptor that ends a poll from another thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

#[derive(Debug)]
pub(super) struct Wake(OwnedFd);

impl Wake {
    pub fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Wake)
    }

    /// Ends the poll in progress, or the next one.
    pub fn wake(&self) {
        // The one failure is a counter that is full, which wakes just as well.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Forgets wake-ups up to now.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What ended a [`poll_until`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    Ready,
    /// Woken, or a signal came: look and poll again.
    Woken,
    Deadline,
}

/// Sleeps until `socket` (with the events wanted of it) is ready, `wake` is woken, or `deadline`.
pub(super) fn poll_until(
    socket: Option<(BorrowedFd<'_>, PollFlags)>,
    wake: &Wake,
    deadline: Instant,
) -> Result<Polled, Errno> {
    let timeout = timespec(deadline.saturating_duration_since(Instant::now()));
    let (fd, events) = socket.unwrap_or((wake.as_fd(), PollFlags::IN));
    let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::from_borrowed_fd(fd, events)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) => Ok(Polled::Deadline),
        Ok(_) if fds[0].revents().is_empty() => Ok(Polled::Ready),
        Ok(_) => {
            wake.drain();
            Ok(Polled::Woken)
        }
        Err(Errno::INTR) => Ok(Polled::Woken),
        Err(error) => Err(error),
    }
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
