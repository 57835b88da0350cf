//! How a rank leaves a group.

use std::sync::Arc;

use crate::liveness::{Message, Status, Voice};

/// Ends a group for its other members, once this rank's last operation is done: what they wait for may
/// be in it.
pub(super) struct Farewell {
    pub id: u64,
    /// Global ranks.
    pub others: Vec<u32>,
    pub voice: Arc<dyn Voice>,
    pub status: Arc<Status>,
}

impl Farewell {
    pub(super) fn say(self) {
        self.status.end();
        for other in &self.others {
            self.voice.send(*other, Message::Leave { group: self.id });
        }
    }
}
