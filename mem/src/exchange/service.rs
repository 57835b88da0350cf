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
        self.stop.asked.store(true, Ordering::Release);
        let _ = rustix::io::write(&*self.stop.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            // A forked child has the handle and not the thread.
            && !fork::is_child()
            && thread.join().is_err()
        {
            tracing::error!(name = self.name, "a thread of this process panicked");
        }
    }
}
