//! A round's meeting at the store, where one member speaks for its host.
//!
//! The store's gather decides: what it gives is the same for all who ask, so a round succeeds on all
//! hosts or on none. Who has waited for long enough covers the slots of those who did not come with the
//! error, which ends the gather for everybody, for those who come too late as well.

use std::time::{Duration, Instant};

use symmem_hal::Wait;

use super::super::ExchangeError;
use super::says::Says;
use crate::store::{Contribution, GatherFault, Missing, Part, Store, StoreError};

/// How long a wait at the store lasts before its caller looks at who has ended; each next one twice as
/// long, so that a long wait is few requests.
const SLICE: Duration = Duration::from_secs(1);

/// A bound for what only hears of a failure that others have told.
const BRIEF: Duration = Duration::from_secs(1);

/// A bound for what only tells others of one.
const TOLD: Wait = Wait::millis(100);

/// A round, as the store sees it.
pub(super) struct Consultation<'a> {
    pub store: &'a dyn Store,
    pub key: &'a str,
    /// How many members the round has.
    pub total: u32,
    /// Where all know who is on which host: the members of each, ascending, the lowest first.
    pub hosts: Option<&'a [Vec<u32>]>,
    /// If a member has ended: as which of those that have.
    pub lost: &'a dyn Fn(u32) -> Option<usize>,
}

impl Consultation<'_> {
    /// Brings what the members of `slots` say, and returns what all do.
    pub fn gather(
        &self,
        slots: &[u32],
        says: &Says,
        wait: &Wait,
    ) -> Result<Vec<Part>, ExchangeError> {
        let value = says.encode();
        let deadline = wait.deadline();
        // Before hosts know each other, nobody hears of another's end.
        let mut most = if self.hosts.is_some() { SLICE } else { Duration::MAX };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_last = left <= most;
            let mut slice = Wait::timeout(left.min(most));
            most = most.saturating_mul(2);
            if let Some(token) = wait.cancel() {
                slice = slice.with_cancel(token.clone());
            }
            match self.bring(slots, &value, &slice) {
                Ok(parts) => return Ok(parts),
                // The store was too busy to say who is missing: it is asked again.
                Err(StoreError::TimedOut { missing, .. })
                    if !is_last && !matches!(missing, Missing::Slots { .. }) => {}
                Err(StoreError::TimedOut {
                    missing: Missing::Slots { slots: named, .. }, ..
                }) => {
                    let missing = self.whole(&named);
                    let ended = missing.iter().filter_map(|i| Some(((self.lost)(*i)?, *i))).min();
                    let error = match ended {
                        Some((_, rank)) => ExchangeError::Lost { rank },
                        None if !is_last => continue,
                        None => ExchangeError::Missing {
                            missing: missing.clone(),
                            allowed: wait.duration(),
                            hosts: Vec::new(),
                        },
                    };
                    return self.end(slots, &value, &missing, error);
                }
                Err(StoreError::Cancelled { .. }) => {
                    let missing: Vec<u32> =
                        (0..self.total).filter(|i| !slots.contains(i)).collect();
                    return self.end(slots, &value, &missing, ExchangeError::Cancelled);
                }
                Err(error) => return Err(told(error)),
            }
        }
    }

    /// Says that a round cannot succeed, for the members of this host. Whether it was not over before.
    pub fn fail(&self, slots: &[u32], error: &ExchangeError) -> bool {
        // The same from all of this host, whatever bound each has: who hears it puts in its own.
        let told = Says::Failed(error.clone().with_allowed(Duration::ZERO)).encode();
        let told = self.bring(slots, &told, &TOLD);
        !matches!(told, Err(StoreError::Gather { fault: GatherFault::Ended { .. }, .. }))
    }

    fn bring(&self, slots: &[u32], value: &[u8], wait: &Wait) -> Result<Vec<Part>, StoreError> {
        let heads: Option<Vec<u32>> = self.hosts.map(|hosts| {
            let mut heads: Vec<u32> =
                hosts.iter().filter_map(|host| host.first().copied()).collect();
            heads.sort_unstable();
            heads
        });
        let mine = Contribution::new(slots, self.total, value);
        let mine = heads.as_deref().map_or(mine, |heads| mine.with_heads(heads));
        self.store.gather(self.key, &mine, wait)
    }

    /// All members of the hosts of these, where hosts are known: a store may tell of one of each.
    fn whole(&self, slots: &[u32]) -> Vec<u32> {
        let Some(hosts) = self.hosts else { return slots.to_vec() };
        let are_among = |host: &&Vec<u32>| host.iter().any(|slot| slots.contains(slot));
        let mut whole: Vec<u32> = hosts.iter().filter(are_among).flatten().copied().collect();
        whole.sort_unstable();
        whole
    }

    /// Ends the gather for everybody, if it has not ended well meanwhile.
    fn end(
        &self,
        slots: &[u32],
        value: &[u8],
        missing: &[u32],
        error: ExchangeError,
    ) -> Result<Vec<Part>, ExchangeError> {
        self.cover(missing, &error);
        self.bring(slots, value, &Wait::timeout(BRIEF)).map_err(|_| error)
    }

    /// Ends the gather for everybody, as far as those who are not of `slots` have not come.
    pub fn call_off(&self, slots: &[u32], error: &ExchangeError) {
        let others: Vec<u32> = (0..self.total).filter(|i| !slots.contains(i)).collect();
        self.cover(&others, error);
    }

    /// Takes the place of those who have not come: of all of them at once, which ends the gather for everybody;
    /// where a host has come meanwhile, of the others.
    fn cover(&self, missing: &[u32], error: &ExchangeError) {
        let value = Says::Failed(error.clone()).encode();
        let mut missing = missing.to_vec();
        let end = Instant::now() + BRIEF;
        while !missing.is_empty() && Instant::now() < end {
            let cover = Contribution::new(&missing, self.total, &value);
            let there = match self.store.gather(self.key, &cover, &TOLD) {
                Err(StoreError::Gather {
                    fault: GatherFault::Overlap { slot } | GatherFault::Ended { slot },
                    ..
                }) => self.whole(&[slot]),
                // Told, or the store is no help.
                _ => return,
            };
            missing.retain(|slot| !there.contains(slot));
        }
    }
}

fn told(error: StoreError) -> ExchangeError {
    match error {
        StoreError::Gather { fault: GatherFault::Ended { slot }, .. } => {
            ExchangeError::Late { rank: slot }
        }
        StoreError::Gather { fault: GatherFault::Overlap { slot }, .. } => {
            ExchangeError::Duplicate { rank: slot }
        }
        error => ExchangeError::Store(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;

    use symmem_hal::CancelToken;

    use super::*;
    use crate::store::LocalStore;

    fn nobody(_: u32) -> Option<usize> {
        None
    }

    fn at(store: &LocalStore) -> Consultation<'_> {
        Consultation { store, key: "k", total: 4, hosts: None, lost: &nobody }
    }

    #[test]
    fn who_waits_in_vain_ends_the_round_for_all() {
        let store = LocalStore::new();
        let found = at(&store).gather(&[0, 2], &Says::Incomplete, &Wait::millis(50)).unwrap();
        let missing = ExchangeError::Missing {
            missing: vec![1, 3],
            allowed: Duration::from_millis(50),
            hosts: Vec::new(),
        };
        assert_eq!(found[1].slots, [1, 3]);
        assert_eq!(found[1].value, Says::Failed(missing).encode());
        // Who comes later learns that it is late, and at once.
        let started = Instant::now();
        let late = at(&store).gather(&[1], &Says::Incomplete, &Wait::seconds(60));
        assert_eq!(late, Err(ExchangeError::Late { rank: 1 }));
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_cancelled_wait_is_everybodys() {
        let store = LocalStore::new();
        let token = CancelToken::new();
        let hosts = [vec![0, 1], vec![2], vec![3]];
        let known = Consultation { hosts: Some(&hosts), ..at(&store) };
        let found = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let known = Consultation { hosts: Some(&hosts), ..at(&store) };
                known.gather(&[3], &Says::Incomplete, &Wait::seconds(60))
            });
            std::thread::sleep(Duration::from_millis(30));
            token.cancel();
            let wait = Wait::seconds(60).with_cancel(token.clone());
            // Before it began it has brought nothing; the rest is covered nevertheless.
            let mine = known.gather(&[0, 1], &Says::Incomplete, &wait);
            (mine, waiting.join().unwrap())
        });
        let told = Says::Failed(ExchangeError::Cancelled).encode();
        let values = |parts: Vec<Part>| parts.into_iter().map(|p| p.value).collect::<Vec<_>>();
        let [mine, theirs] = [found.0, found.1].map(|found| values(found.unwrap()));
        assert_eq!(mine, theirs);
        assert!(mine.contains(&told), "{mine:?}");
    }

    /// However many hosts there are: one that comes meanwhile keeps nobody else from being covered.
    #[test]
    fn those_who_did_not_come_are_covered_around_one_who_did() {
        let store = LocalStore::new();
        let hosts: Vec<Vec<u32>> = (0..100).map(|host| vec![2 * host, 2 * host + 1]).collect();
        let known = Consultation { hosts: Some(&hosts), total: 200, ..at(&store) };
        let said = Says::Incomplete.encode();
        known.bring(&[100, 101], &said, &Wait::millis(0)).unwrap_err();
        let started = Instant::now();
        known.call_off(&[0, 1], &ExchangeError::Cancelled);
        let parts = known.bring(&[0, 1], &said, &Wait::seconds(10)).unwrap();
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        let heads: Vec<u32> = parts.iter().map(|part| part.slots[0]).collect();
        assert_eq!(heads, [0, 2, 100]);
        assert_eq!(parts[1].value, Says::Failed(ExchangeError::Cancelled).encode());
    }

    #[test]
    fn the_end_of_a_member_is_seen_while_it_is_awaited() {
        let store = LocalStore::new();
        let lost = |index: u32| (index == 3).then_some(0);
        let hosts = [vec![0, 1, 2], vec![3]];
        let watching = Consultation { lost: &lost, hosts: Some(&hosts), ..at(&store) };
        let started = Instant::now();
        let found = watching.gather(&[0, 1, 2], &Says::Incomplete, &Wait::seconds(60)).unwrap();
        assert_eq!(found[1].value, Says::Failed(ExchangeError::Lost { rank: 3 }).encode());
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_store_that_fails_is_told() {
        let store: Arc<dyn Store> = Arc::new(LocalStore::new());
        let one = Consultation { store: &*store, key: "k", total: 1, hosts: None, lost: &nobody };
        let found = one.gather(&[1], &Says::Incomplete, &Wait::millis(50));
        assert!(matches!(found, Err(ExchangeError::Store(_))), "{found:?}");
    }
}
