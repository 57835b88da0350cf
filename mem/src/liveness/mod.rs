//! Who is alive, who has left, who is lost.
//!
//! There is no heartbeat: slow is not dead. Between two processes of a host there is one link, a socket
//! pair that the kernel closes when either ends, however it ends; of two hosts, a connection, which the
//! kernels end too where one host does not answer any more. Between ranks that are threads, a rank's scope announces its end. Both feed the same [`Status`], one a
//! group, in which every wait looks.

mod afterwards;
pub(crate) mod fork;
pub(crate) mod links;
pub(crate) mod peers;
mod socket;
mod status;

pub(crate) use afterwards::afterwards;
pub use status::{Gone, Status};

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use symmem_hal::Event;
use symmem_hal::types::Scope;

use crate::group::quarantine;
use crate::memory::retire;

/// What members tell each other outside of rounds. `group` is the group's id in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The sender takes no further part in the group.
    Leave { group: u64 },
    /// The sender has unmapped the receiver's memory of this rendezvous.
    Released { group: u64, ordinal: u64 },
}

/// One rank's list of its groups: routes what arrives to the statuses it is about.
#[derive(Debug, Default)]
pub(crate) struct Register {
    groups: Mutex<Vec<Entry>>,
    ended: Mutex<Ended>,
}

/// What is left of ranks and their work.
#[derive(Debug, Default)]
struct Ended {
    /// Global ranks that can write nothing any more.
    gone: BTreeSet<u32>,
    /// This rank's operations in groups that went down with a panic.
    in_flight: Vec<Event>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    scope: Scope,
    members: Arc<[u32]>,
    status: Weak<Status>,
}

impl Register {
    pub(crate) fn add(&self, id: u64, scope: Scope, members: Arc<[u32]>, status: &Arc<Status>) {
        let mut groups = self.groups.lock();
        groups.retain(|g| g.status.strong_count() > 0);
        groups.push(Entry { id, scope, members, status: Arc::downgrade(status) });
    }

    /// A rank is not to be heard of any more: lost to every group that has it.
    pub(crate) fn lost(&self, global: u32) {
        self.each(
            |g| g.members.contains(&global),
            global,
            |_, index, status| {
                status.mark(index, Gone::Lost);
            },
        );
    }

    /// A lost rank is known to write nothing any more: its process has ended, or its streams have.
    pub(crate) fn gone(&self, global: u32) {
        self.ended.lock().gone.insert(global);
        quarantine::gone(self, global);
        retire::forget_rank(|scope| {
            let groups = self.groups.lock();
            let entry = groups.iter().find(|g| g.scope == scope)?;
            entry.members.iter().position(|m| *m == global)
        });
    }

    /// Whether a rank is known to write nothing any more.
    pub(crate) fn is_gone(&self, global: u32) -> bool {
        self.ended.lock().gone.contains(&global)
    }

    /// A group of this rank ends in a panic, with these operations in flight.
    pub(crate) fn leave_behind(&self, in_flight: Vec<Event>) {
        self.ended.lock().in_flight.extend(in_flight);
    }

    /// What marks the end of all operations of this rank that are in flight.
    pub(crate) fn in_flight(&self) -> Vec<Event> {
        let statuses: Vec<_> =
            self.groups.lock().iter().filter_map(|group| group.status.upgrade()).collect();
        let mut events = core::mem::take(&mut self.ended.lock().in_flight);
        events.extend(statuses.iter().flat_map(|status| status.in_flight()));
        events
    }

    pub(crate) fn receive(&self, from: u32, message: Message) {
        match message {
            Message::Leave { group } => self.each(
                |g| g.id == group,
                from,
                |scope, index, status| {
                    status.mark(index, Gone::Left);
                    retire::forget_member(scope, index);
                },
            ),
            Message::Released { group, ordinal } => {
                // The group itself may be gone here while its memory waits to be let go.
                let found = {
                    let groups = self.groups.lock();
                    groups
                        .iter()
                        .find(|g| g.id == group)
                        .and_then(|g| Some((g.scope, g.members.iter().position(|m| *m == from)?)))
                };
                if let Some((scope, index)) = found {
                    retire::released(scope, ordinal, index);
                }
            }
        }
    }

    fn each(
        &self,
        which: impl Fn(&Entry) -> bool,
        global: u32,
        act: impl Fn(Scope, usize, &Status),
    ) {
        // Collected first: marking runs alarms, which must not find the list locked.
        let found: Vec<_> = self
            .groups
            .lock()
            .iter()
            .filter(|g| which(g))
            .filter_map(|g| {
                Some((g.scope, g.members.iter().position(|m| *m == global)?, g.status.upgrade()?))
            })
            .collect();
        for (scope, index, status) in found {
            act(scope, index, &status);
        }
    }
}

/// How one rank speaks to the others. Never blocks.
pub(crate) trait Voice: Send + Sync + core::fmt::Debug {
    fn send(&self, to: u32, message: Message);

    /// Speaks no more to a rank that was left behind, which hears of that; it counts as lost.
    fn exclude(&self, rank: u32);
}
