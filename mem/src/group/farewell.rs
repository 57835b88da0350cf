//! How a rank leaves a group.

use std::sync::Arc;

use symmem_hal::Event;
use symmem_hal::types::Scope;

use super::caches::Caches;
use crate::liveness::{Message, Status, Voice, afterwards};

/// Ends a group on this rank once its last operation is done: what the others wait for may be in it,
/// and it may use what the group's rendezvous mapped.
pub(super) struct Farewell {
    pub id: u64,
    pub scope: Scope,
    /// Global ranks.
    pub others: Vec<u32>,
    pub voice: Arc<dyn Voice>,
    pub caches: Arc<Caches>,
    pub status: Arc<Status>,
}

impl Farewell {
    pub(super) fn say_after(self, in_flight: Vec<Event>) {
        afterwards(in_flight, move || self.say());
    }

    pub(super) fn say(self) {
        self.caches.end(self.scope);
        self.status.end();
        for other in &self.others {
            self.voice.send(*other, Message::Leave { group: self.id });
        }
    }
}
