//! When a range of a pool's segment may be used again.
//!
//! Peers reach a block through the segment that they have mapped, so that its bytes must not be given
//! to a new block while a peer can still read or write the old one. A message of each peer, as whole
//! memory has it, would say so at a moment that differs from rank to rank; and ranks that take the
//! same bytes back at different moments would place their next blocks differently. So ranks say what
//! they have let go of where they meet anyhow: each record carries the list, all ranks see all lists,
//! and what every rank of a block's group has let go of returns to its pool on all of them in the same
//! meeting. A meeting of any group that has all those ranks will do, so that blocks of a group that
//! has ended are not stuck.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::pool::Home;

/// One rendezvous of a block: the group's id in the run, and its ordinal there. Travels.
pub(crate) type Key = (u64, u64);

/// What one rank of a run has let go of, and which of its ranges wait for others to do so.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// With the global ranks of the group.
    let_go: BTreeMap<Key, Arc<[u32]>>,
    waiting: BTreeMap<Key, Arc<Returning>>,
}

/// A range on its way back to its pool, where it arrives when the last clone is dropped: there is
/// one for each group in which peers had it mapped.
#[derive(Debug)]
pub(crate) struct Returning(pub Home);

impl Drop for Returning {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// This rank's hold on one rendezvous of a block. Whoever can reach the block of a peer has a clone,
/// and so has this rank's own block. With the last, the rank has let go.
#[derive(Debug)]
pub(crate) struct Token {
    pub ledger: Arc<Ledger>,
    pub key: Key,
    pub members: Arc<[u32]>,
}

impl Token {
    /// This rank's own block has ended: its range returns once all have let go.
    pub(crate) fn returns(&self, range: &Arc<Returning>) {
        self.ledger.0.lock().waiting.insert(self.key, range.clone());
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        let mut state = self.ledger.0.lock();
        // A rank alone has nobody to hear of.
        let settled = if self.members.len() == 1 {
            state.waiting.remove(&self.key)
        } else {
            state.let_go.insert(self.key, self.members.clone());
            None
        };
        drop(state);
        drop(settled);
    }
}

impl Ledger {
    /// What a meeting of these global ranks can settle: ascending.
    pub(crate) fn report(&self, members: &[u32]) -> Vec<Key> {
        let state = self.0.lock();
        let inside = |ranks: &Arc<[u32]>| ranks.iter().all(|rank| members.contains(rank));
        state.let_go.iter().filter(|(_, ranks)| inside(ranks)).map(|(key, _)| *key).collect()
    }

    /// Gives back what all have let go of, by the reports of a meeting: one a member.
    pub(crate) fn settle(&self, members: &[u32], reports: &[Vec<Key>]) {
        let mut state = self.0.lock();
        let has = |rank: &u32, key: &Key| {
            let report =
                members.iter().position(|member| member == rank).and_then(|i| reports.get(i));
            report.is_some_and(|report| report.binary_search(key).is_ok())
        };
        let State { let_go, waiting } = &mut *state;
        let settled: Vec<Key> = let_go
            .extract_if(.., |key, ranks| ranks.iter().all(|r| has(r, key)))
            .map(|(k, _)| k)
            .collect();
        let returning: Vec<_> = settled.iter().filter_map(|key| waiting.remove(key)).collect();
        // A pool's lock is not taken under this one.
        drop(state);
        drop(returning);
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // This rank meets nobody any more, so it never learns whether others still reach these
        // ranges: they stay out of use until their pool ends.
        for (_, range) in core::mem::take(&mut self.0.get_mut().waiting) {
            core::mem::forget(range);
        }
    }
}
