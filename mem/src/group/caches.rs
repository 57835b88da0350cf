//! Who caches what a group's rendezvous found, and forgets it when the group ends: an allocation may
//! outlive any number of groups.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use symmem_hal::Memory;
use symmem_hal::types::Scope;

/// Something that caches by group.
pub(crate) trait Forgets: Send + Sync {
    /// The group has ended here.
    fn forget(&self, scope: Scope);

    /// The memory of this rank that it has for the group's members to map, if it is that.
    fn memory(&self) -> Option<Memory> {
        None
    }
}

/// Those who cache something of one group.
#[derive(Default)]
pub(crate) struct Caches(Mutex<State>);

#[derive(Default)]
struct State {
    caches: Vec<Weak<dyn Forgets>>,
    /// How many there may be before those that are gone are looked for.
    sweep: usize,
    ended: bool,
}

impl Caches {
    const FIRST_SWEEP: usize = 64;

    /// To be called once `cache` holds something of the group.
    pub(crate) fn add(&self, scope: Scope, cache: &Arc<dyn Forgets>) {
        let mut state = self.0.lock();
        if state.ended {
            drop(state);
            return cache.forget(scope);
        }
        if state.caches.len() >= state.sweep {
            state.caches.retain(|cache| cache.strong_count() > 0);
            state.sweep = (2 * state.caches.len()).max(Self::FIRST_SWEEP);
        }
        state.caches.push(Arc::downgrade(cache));
    }

    /// The memory of this rank that members of the group have mapped.
    pub(crate) fn memories(&self) -> Vec<Memory> {
        let caches: Vec<_> = self.0.lock().caches.iter().filter_map(Weak::upgrade).collect();
        caches.iter().filter_map(|cache| cache.memory()).collect()
    }

    /// The group has ended.
    pub(crate) fn end(&self, scope: Scope) {
        let caches = {
            let mut state = self.0.lock();
            state.ended = true;
            core::mem::take(&mut state.caches)
        };
        caches.iter().filter_map(Weak::upgrade).for_each(|cache| cache.forget(scope));
    }
}
