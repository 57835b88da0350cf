//! Memory of this process that ranks can still write which are no members any more.
//!
//! A rank that a group's recovery left behind may be stopped and not dead: it has the group's memory
//! mapped, and writes there when it goes on. That memory is neither freed nor made symmetric again
//! before the rank is known to have ended; where nobody can know, it stays for the life of the
//! process. Those who recover together have no part in this: each has drained its work in the old
//! group before it meets the others in the new one.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use symmem_hal::Memory;
use symmem_hal::types::Bytes;

use crate::liveness::Register;

/// Memory of one former group.
#[derive(Debug)]
struct Held {
    /// Whose: it hears of the end of writers.
    owner: Arc<Register>,
    /// Global ranks that may still write.
    writers: BTreeSet<u32>,
    memories: Vec<Memory>,
}

static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// Holds memories until all writers have ended.
pub(super) fn hold(owner: &Arc<Register>, mut writers: BTreeSet<u32>, memories: Vec<Memory>) {
    let mut held = HELD.lock();
    // Under the lock: an end is recorded before `gone` takes it.
    writers.retain(|writer| !owner.is_gone(*writer));
    if !writers.is_empty() && !memories.is_empty() {
        held.push(Held { owner: owner.clone(), writers, memories });
    }
}

/// A rank has ended, to the knowledge of `owner`.
pub(crate) fn gone(owner: &Register, global: u32) {
    let freed: Vec<Held> = {
        let mut held = HELD.lock();
        for held in held.iter_mut().filter(|held| core::ptr::eq(&*held.owner, owner)) {
            held.writers.remove(&global);
        }
        held.extract_if(.., |held| held.writers.is_empty()).collect()
    };
    // Unmapped outside the lock.
    drop(freed);
}

/// Whether this memory is held.
pub(crate) fn holds(memory: &Memory) -> bool {
    let base = memory.base();
    HELD.lock().iter().flat_map(|held| &held.memories).any(|held| held.base() == base)
}

/// Bytes of this process's memory that ranks can still write which its groups went on without. They
/// are neither freed nor made symmetric again until those ranks are known to have ended: at the latest
/// with this process.
#[must_use]
pub fn quarantined() -> Bytes {
    let held = HELD.lock();
    let memories = held.iter().flat_map(|held| &held.memories);
    // Memory of several groups counts once.
    let distinct: std::collections::BTreeMap<u64, u64> =
        memories.map(|memory| (memory.base().get(), memory.bytes().get())).collect();
    Bytes(distinct.values().sum())
}
