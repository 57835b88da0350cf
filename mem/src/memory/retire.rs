//! Memory that its owner has dropped and somebody may still have mapped.
//!
//! Dropping the last handle of an allocation does not free it. It waits here until every member
//! that mapped it has said that it unmapped it, or has left or died. Freed by the next allocation
//! of the process, or by [`collect`]. Blocks of a pool, whose segment stays, go another way: see
//! [`ledger`](super::ledger).

use parking_lot::Mutex;
use symmem_hal::Memory;
use symmem_hal::types::{Bytes, RankSet, Scope};

/// Who still has one rendezvous of an allocation mapped.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub scope: Scope,
    pub ordinal: u64,
    pub members: RankSet,
}

#[derive(Debug)]
struct Retired {
    memory: Memory,
    mapped: Vec<Mapped>,
}

/// What is retired, and what was released before its owner dropped it.
#[derive(Debug)]
struct List {
    retired: Vec<Retired>,
    /// Members that unmapped memory which its owner still holds.
    early: Vec<Mapped>,
}

static LIST: Mutex<List> = Mutex::new(List { retired: Vec::new(), early: Vec::new() });

/// Takes over dropped memory.
pub(crate) fn retire(memory: Memory, mut mapped: Vec<Mapped>) {
    let mut list = LIST.lock();
    for m in &mut mapped {
        list.early.retain(|early| {
            let same = early.scope == m.scope && early.ordinal == m.ordinal;
            if same {
                early.members.iter().for_each(|i| m.members.remove(i));
            }
            !same
        });
    }
    list.retired.push(Retired { memory, mapped });
}

/// The memory of this group's rendezvous that its owner has dropped.
pub(crate) fn of_group(scope: Scope) -> Vec<Memory> {
    let list = LIST.lock();
    let of = |retired: &&Retired| retired.mapped.iter().any(|m| m.scope == scope);
    list.retired.iter().filter(of).map(|retired| retired.memory.clone()).collect()
}

/// A member has unmapped the memory of one rendezvous.
pub(crate) fn released(scope: Scope, ordinal: u64, member: usize) {
    let mut list = LIST.lock();
    let List { retired, early } = &mut *list;
    let waiting = retired
        .iter_mut()
        .flat_map(|r| &mut r.mapped)
        .find(|m| m.scope == scope && m.ordinal == ordinal);
    if let Some(m) = waiting {
        m.members.remove(member);
    } else if let Some(m) = early.iter_mut().find(|m| m.scope == scope && m.ordinal == ordinal) {
        m.members.insert(member);
    } else {
        early.push(Mapped { scope, ordinal, members: RankSet::one(member) });
    }
}

/// A member has left a group: it has nothing of the group mapped any more.
pub(crate) fn forget_member(scope: Scope, member: usize) {
    let mut list = LIST.lock();
    for m in list.retired.iter_mut().flat_map(|r| &mut r.mapped).filter(|m| m.scope == scope) {
        m.members.remove(member);
    }
}

/// A rank has died: `index_in` tells its index in a group, if it was a member.
pub(crate) fn forget_rank(index_in: impl Fn(Scope) -> Option<usize>) {
    let mut list = LIST.lock();
    for m in list.retired.iter_mut().flat_map(|r| &mut r.mapped) {
        if let Some(index) = index_in(m.scope) {
            m.members.remove(index);
        }
    }
}

/// This process has closed a group: nobody will tell it anything about the group's memory. What
/// peers have mapped stays theirs (the pages live as long as any mapping), so nothing waits on.
pub(crate) fn forget_group(scope: Scope) {
    let mut list = LIST.lock();
    list.early.retain(|m| m.scope != scope);
    for r in &mut list.retired {
        r.mapped.retain(|m| m.scope != scope);
    }
}

/// Frees retired memory that nobody has mapped any more; returns what remains.
///
/// Called by every allocation; call it to see memory go at a moment of your choice.
pub fn collect() -> Bytes {
    // Work that is done, and graphs that are gone, may have been the last to use some.
    symmem_hal::reap();
    let (freed, kept) = {
        let mut list = LIST.lock();
        let (kept, freed): (Vec<_>, Vec<_>) =
            list.retired.drain(..).partition(|r| r.mapped.iter().any(|m| !m.members.is_empty()));
        let bytes = kept.iter().map(|r| r.memory.bytes().get()).sum();
        list.retired = kept;
        (freed, Bytes(bytes))
    };
    // Unmapped outside the lock.
    drop(freed);
    kept
}
