//! What all clones of a stream share: the driver's handle, what its work keeps alive, and how it came
//! into a capture.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use symmem_sys::cuda::CU_STREAM_LEGACY;
use symmem_sys::cuda::bindings::{CUgraph, CUstream, CUstream_st};

use super::capture::{Recorded, State};
use super::context::{Context, Raw};
use super::driver::cu;
use super::event::Point;
use super::keeper::Keeper;
use super::poller;
use crate::driver::DriverError;
use crate::health::{Health, SyncError};
use crate::stream::{KeepAlive, Launched, Role};

/// A queue of work of the driver's.
pub(super) struct Queue {
    pub(super) context: &'static Context,
    raw: Raw<CUstream_st>,
    /// The driver's number of it.
    pub(super) id: u64,
    pub(super) role: Role,
    /// Whether it was made here; else who keeps it alive, if anybody is known to.
    own: bool,
    _keep: Option<KeepAlive>,
    pub(super) watched: Mutex<Vec<Weak<dyn Health>>>,
    pub(super) keeper: Mutex<Keeper<Arc<Point>>>,
    /// The capture that this library last brought it into.
    pub(super) entered: Mutex<Option<Joined>>,
}

/// How a stream came into a capture.
pub(super) struct Joined {
    pub(super) id: u64,
    /// Whether the capture was begun here.
    pub(super) origin: bool,
    /// The work before it, which runs.
    pub(super) before: Arc<Point>,
}

impl core::fmt::Debug for Queue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stream")
            .field("id", &self.id)
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

impl Queue {
    pub(super) fn new(
        context: &'static Context,
        raw: CUstream,
        id: u64,
        role: Role,
        own: bool,
        keep: Option<KeepAlive>,
    ) -> Self {
        Queue {
            context,
            raw: Raw(raw),
            id,
            role,
            own,
            _keep: keep,
            watched: Mutex::default(),
            keeper: Mutex::default(),
            entered: Mutex::default(),
        }
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw.0
    }

    /// What capture it is in. The context is current.
    pub(super) fn state(&self) -> Result<State, DriverError> {
        State::of(self.context, self.raw())
    }

    /// As [`state`](Self::state), in whatever context: only the default stream is another in each.
    pub(super) fn state_apart(&self) -> Result<State, DriverError> {
        if self.raw() != CU_STREAM_LEGACY
            && let Ok(state) = self.state()
        {
            return Ok(state);
        }
        let _entered = self.context.enter()?;
        self.state()
    }

    /// Where work that is enqueued now goes: nowhere yet known to end, or into a capture.
    pub(super) fn recording(&self) -> Result<Option<(u64, CUgraph)>, SyncError> {
        self.state()?.recording()
    }

    /// Keeps what work uses that was enqueued just now. The context is current.
    pub(super) fn keep(
        &self,
        recording: Option<(u64, CUgraph)>,
        objects: &[KeepAlive],
    ) -> Result<Launched, SyncError> {
        if let Some((id, graph)) = recording {
            if !objects.is_empty() {
                // A graph that does not keep what its work uses must never run.
                let recorded = Recorded::of(self.context, id, graph);
                let recorded = recorded.inspect_err(|_| self.invalidate())?;
                objects.iter().for_each(|object| recorded.keep(object));
            }
            return Ok(Launched::Recorded);
        }
        let mut keeper = self.keeper.lock();
        objects.iter().for_each(|object| keeper.add(object));
        if keeper.launched() {
            let closed = self.close(&mut keeper);
            let done = keeper.reap(|point| point.is_over());
            drop(keeper);
            drop(done);
            // What the batch holds stays held; the next launch tries again.
            self.context.complain("marking a stream's work", closed);
        }
        Ok(Launched::Queued)
    }

    /// Marks the work of the open batch. The context is current.
    fn close(&self, keeper: &mut Keeper<Arc<Point>>) -> Result<(), DriverError> {
        let point = Arc::new(self.context.point()?);
        point.record(self.raw())?;
        // Another thread may have begun a capture meanwhile: then this marks a place in that.
        if let State::Runs = self.state()? {
            keeper.close(point);
        }
        Ok(())
    }

    /// Lets go of what finished work kept alive.
    pub(super) fn reap(&self) {
        let done = {
            let mut keeper = self.keeper.lock();
            if keeper.is_open()
                && let Ok(_entered) = self.context.enter()
                && let Ok(State::Runs) = self.state()
            {
                let closed = self.close(&mut keeper);
                self.context.complain("marking a stream's work", closed);
            }
            keeper.reap(|point| point.is_over())
        };
        drop(done);
    }

    /// Whether all of its work is done. The context is current, and the stream in no capture.
    pub(super) fn query(&self) -> Result<bool, DriverError> {
        self.context.is_done(self.raw())
    }

    /// Whether all of its work is done that is not in a capture; a device that does not answer has none.
    pub(super) fn is_idle(&self) -> bool {
        let Ok(_entered) = self.context.enter_aside() else { return true };
        match self.state() {
            Ok(State::Runs) => self.query().unwrap_or(true),
            Ok(State::Records { id, .. }) => self.before(id).is_none_or(|point| point.is_over()),
            Ok(State::Broken) | Err(_) => true,
        }
    }

    /// The work that ran before the capture that it is in, where that is known.
    pub(super) fn before(&self, capture: u64) -> Option<Arc<Point>> {
        let joined = self.entered.lock();
        joined.as_ref().filter(|j| j.id == capture).map(|j| j.before.clone())
    }

    /// Breaks the capture that the stream is in, if it is in one.
    pub(super) fn invalidate(&self) {
        let context = self.context;
        let Ok(_entered) = context.enter() else { return };
        if let Ok(State::Records { .. }) = self.state() {
            // To ask whether recorded work has run is what no capture survives.
            let asked = self.query();
            tracing::debug!(?asked, "a capture was broken");
        }
    }

    /// Ends the capture that was begun here and never will be ended.
    fn abandon(&mut self) {
        let Some(Joined { origin: true, id, .. }) = self.entered.get_mut().take() else { return };
        let context = self.context;
        let Ok(_entered) = context.enter() else { return };
        let in_it = match self.state() {
            Ok(State::Records { id: now, .. }) => now == id,
            Ok(State::Broken) => true,
            _ => false,
        };
        if in_it {
            let mut graph = core::ptr::null_mut();
            // SAFETY: writes one handle, which is destroyed and was given to nobody.
            unsafe {
                let ended = cu!(context, cuStreamEndCapture(self.raw(), &raw mut graph));
                if ended.is_ok() && !graph.is_null() {
                    context.complain("destroying a graph", cu!(context, cuGraphDestroy(graph)));
                }
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.end();
        let mut streams = self.context.streams.lock();
        // Whoever asks whether work runs sees it until here: from now on others know of its work. Or it
        // has been taken up again.
        if streams.get(&self.id).is_some_and(|stream| stream.strong_count() == 0) {
            streams.remove(&self.id);
        }
        drop(streams);
        super::capture::reap();
    }
}

impl Queue {
    fn end(&mut self) {
        let context = self.context;
        if !context.can_tidy() {
            return;
        }
        self.abandon();
        let (closed, open) = self.keeper.get_mut().take();
        for (point, batch) in closed {
            poller::release(point, batch);
        }
        let Ok(_entered) = context.enter_aside() else {
            core::mem::forget(open);
            return;
        };
        if !open.is_empty() {
            let marked = self.state().and_then(|state| {
                let point = context.point()?;
                let State::Runs = state else { return Ok(None) };
                point.record(self.raw())?;
                Ok(Some(Arc::new(point)))
            });
            match marked {
                Ok(Some(point)) => poller::release(point, open),
                // Its work may be under way: better never freed than freed under it.
                unmarked => {
                    let total = LEAKED.fetch_add(open.len() as u64, Ordering::Relaxed);
                    let total = total + open.len() as u64;
                    tracing::error!(?unmarked, total, "what a stream's work uses is never freed");
                    core::mem::forget(open);
                }
            }
        }
        if self.own && self.id != 0 && matches!(self.state(), Ok(State::Runs)) {
            context.spare.leave(self.id, self.role == Role::Urgent, self.raw());
        } else if self.own {
            // SAFETY: made here, and this was its last holder; the driver lets its work end.
            let destroyed = unsafe { cu!(context, cuStreamDestroy_v2(self.raw())) };
            context.complain("destroying a stream", destroyed);
        }
    }
}

/// Objects that are never freed, since nobody can tell when work that uses them ends.
static LEAKED: AtomicU64 = AtomicU64::new(0);
