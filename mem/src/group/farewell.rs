//! How a rank leaves a group.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use symmem_hal::Event;
use symmem_hal::types::Scope;

use super::caches::Caches;
use crate::liveness::{Message, Status, Voice};

/// Ends a group on this rank once its last operation is done: what the others wait for may be in it,
/// and it may use what the group's rendezvous mapped.
pub(super) struct Farewell {
    pub id: u64,
    pub scope: Scope,
    /// Global ranks.
    pub others: Vec<u32>,
    pub voice: Arc<dyn Voice>,
    pub caches: Arc<Caches>,
    pub in_flight: Vec<Event>,
    pub status: Arc<Status>,
    /// Which of them is awaited; one after the other, each wakes once.
    pub awaited: AtomicUsize,
}

impl Farewell {
    pub(super) fn say(self: &Arc<Self>) {
        let next = self.awaited.fetch_add(1, Ordering::AcqRel);
        if let Some(event) = self.in_flight.get(next) {
            return event.on_complete(self.clone().into());
        }
        self.caches.end(self.scope);
        self.status.end();
        for other in &self.others {
            self.voice.send(*other, Message::Leave { group: self.id });
        }
    }
}

impl Wake for Farewell {
    fn wake(self: Arc<Self>) {
        self.say();
    }
}
