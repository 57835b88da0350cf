//! What every stream whose work the CPU runs has, whoever runs it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::Device;
use crate::capture::{Capture, CaptureError};
use crate::health::{Health, SyncError};
use crate::queue::{Event, Mark};
use crate::recording::{Graph, Recording};
use crate::stream::{Role, StreamId};

/// A stream's identity, who watches it, and the capture that it is in.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) id: StreamId,
    role: Role,
    watched: Mutex<Watched>,
    /// Whether `recording` holds one: all that an eager launch looks at.
    records: AtomicBool,
    recording: Mutex<Option<Arc<Recording>>>,
}

#[derive(Default)]
struct Watched(Vec<Weak<dyn Health>>);

impl core::fmt::Debug for Watched {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} watched", self.0.len())
    }
}

impl Common {
    pub(crate) fn new(role: Role) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Common {
            id: StreamId(NEXT.fetch_add(1, Ordering::Relaxed)),
            role,
            watched: Mutex::default(),
            records: AtomicBool::new(false),
            recording: Mutex::default(),
        }
    }

    pub(crate) fn can_be_captured(&self) -> bool {
        self.role != Role::Default
    }

    /// The capture that the stream is in, valid or not.
    pub(crate) fn recording(&self) -> Option<Arc<Recording>> {
        if !self.records.load(Ordering::Acquire) {
            return None;
        }
        let mut recording = self.recording.lock();
        // The origin has ended it, perhaps: then this stream is out of it, too.
        if recording.as_ref().is_some_and(|r| r.capture() == Capture::None) {
            *recording = None;
            self.records.store(false, Ordering::Release);
        }
        recording.clone()
    }

    fn enter(&self, recording: Arc<Recording>) {
        *self.recording.lock() = Some(recording);
        self.records.store(true, Ordering::Release);
    }

    pub(crate) fn capture(&self) -> Capture {
        self.recording().map_or(Capture::None, |recording| recording.capture())
    }

    pub(crate) fn begin_capture(&self) -> Result<(), CaptureError> {
        if !self.can_be_captured() {
            return Err(CaptureError::DefaultStream);
        }
        // Of two threads that begin at once, one finds the other's.
        let mut recording = self.recording.lock();
        if recording.as_ref().is_some_and(|r| r.capture() != Capture::None) {
            return Err(CaptureError::Active);
        }
        *recording = Some(Recording::begin(self.id));
        self.records.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn end_capture(&self, device: &Device) -> Result<Graph, CaptureError> {
        self.recording().ok_or(CaptureError::NotActive)?.end(self.id, device)
    }

    pub(crate) fn invalidate(&self) {
        if let Some(recording) = self.recording() {
            recording.invalidate();
        }
    }

    /// That work enqueued so far can be waited for.
    pub(crate) fn synchronizable(&self) -> Result<(), SyncError> {
        match self.recording() {
            None => Ok(()),
            Some(recording) => {
                recording.invalidate();
                Err(CaptureError::NotCapturable { call: "Stream::synchronize" }.into())
            }
        }
    }

    /// Records an event in the stream's capture; `false` if it is in none.
    pub(crate) fn record(&self, event: &Event) -> Result<bool, SyncError> {
        let Some(recording) = self.recording() else { return Ok(false) };
        let nodes = recording.mark(self.id)?;
        event.set(Mark::Nodes(recording, nodes));
        Ok(true)
    }

    /// Waits for an event where that is a matter of captures; what is left to do otherwise.
    pub(crate) fn wait(&self, event: &Event) -> Result<Mark, SyncError> {
        let mark = event.mark();
        let own = self.recording();
        match (&own, &mark) {
            (None, Mark::Never | Mark::Work(_)) => return Ok(mark),
            (Some(_), Mark::Never) => {}
            (Some(own), Mark::Work(_)) => {
                own.invalidate();
                return Err(CaptureError::Isolation.into());
            }
            (Some(own), Mark::Nodes(theirs, _)) if !Arc::ptr_eq(own, theirs) => {
                own.invalidate();
                theirs.invalidate();
                return Err(CaptureError::Isolation.into());
            }
            (None, Mark::Nodes(theirs, _)) if !self.can_be_captured() => {
                theirs.invalidate();
                return Err(CaptureError::DefaultStream.into());
            }
            (_, Mark::Nodes(theirs, nodes)) => {
                theirs.follow(self.id, nodes)?;
                if own.is_none() {
                    self.enter(theirs.clone());
                }
            }
        }
        Ok(Mark::Never)
    }

    pub(crate) fn watch(&self, health: Weak<dyn Health>) {
        if let Some(recording) = self.recording() {
            return recording.watch(health);
        }
        let mut watched = self.watched.lock();
        watched.0.retain(|h| h.strong_count() > 0 && !Weak::ptr_eq(h, &health));
        watched.0.push(health);
    }

    pub(crate) fn watched(&self) -> Vec<Arc<dyn Health>> {
        self.watched.lock().0.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Common {
    fn drop(&mut self) {
        if let Some(recording) = self.recording.get_mut() {
            recording.abandon(self.id);
        }
    }
}
