//! A thread that serves until its owner is dropped: the leader's, the door's.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use super::ExchangeError;
use crate::liveness::fork;

/// What tells a service to end. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    asked: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
}

impl Stop {
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Readable once it is asked for.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A running service; stopped and awaited when dropped.
#[derive(Debug)]
pub(super) struct Service {
    name: &'static str,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Runs `serve` in a thread of its own, until it sees that it is to stop.
    pub fn start(
        name: &'static str,
        serve: impl FnOnce(Stop) + Send + 'static,
    ) -> Result<Self, ExchangeError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| ExchangeError::errno("eventfd", e))?;
        let stop = Stop { asked: Arc::default(), bell: Arc::new(bell) };
        let told = stop.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || serve(told))
            .map_err(|e| ExchangeError::system("spawn", e))?;
        Ok(Service { name, stop, thread: Some(thread) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A forked child has the handles and not the thread: its parent's, which goes on.
        if fork::is_child() {
            return;
        }
        self.stop.asked.store(true, Ordering::Release);
        let _ = rustix::io::write(&*self.stop.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(name = self.name, "a thread of this process panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, clippy::unwrap_used, reason = "forks")]

    use std::mem::ManuallyDrop;

    use super::*;
    use crate::liveness::fork::LinkFd;

    #[test]
    fn a_forked_child_stops_nothing_of_its_parent() {
        // Whoever has links sees to forks.
        let _link = LinkFd::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let mut service = ManuallyDrop::new(Service::start("test", |_| {}).unwrap());
        // SAFETY: the child drops the service, which takes no lock, and ends without any destructor.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: once, in this process.
            unsafe {
                ManuallyDrop::drop(&mut service);
                libc::_exit(0);
            }
        }
        // SAFETY: a child of this process, waited for once.
        let ended = unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
        assert_eq!(ended, child);
        let rung = rustix::io::read(service.stop.bell(), &mut [0; 8]);
        assert_eq!(rung, Err(rustix::io::Errno::AGAIN));
        drop(ManuallyDrop::into_inner(service));
    }
}
