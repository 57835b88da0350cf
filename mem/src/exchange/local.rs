//! Meeting of ranks that are threads of one process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use symmem_hal::{Shareable, Wait};

use super::{Exchange, ExchangeError, Handle, Part, Round, RoundKey};
use crate::stalls::{self, Step};

/// The meeting point of one process's ranks. Shared by all of them.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The meetings that still wait for members. One that is over is in nobody's way: who comes
    /// later begins a new one.
    open: HashMap<RoundKey, u64>,
    /// Those too whose members have not all had their answer.
    meetings: HashMap<u64, Meeting>,
    next: u64,
    /// Global ranks that have ended, in the order in which they did.
    lost: Vec<u32>,
}

#[derive(Debug)]
struct Meeting {
    parts: Vec<Option<Part>>,
    /// How many members have come and have no answer yet.
    waiting: usize,
    outcome: Option<Result<(), ExchangeError>>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Hub { state: Mutex::default(), changed: Condvar::new() }
    }

    /// A rank has ended without leaving.
    pub(crate) fn mark_lost(&self, global: u32) {
        self.state.lock().lost.push(global);
        self.changed.notify_all();
    }
}

/// One rank's way to the [`Hub`].
#[derive(Debug)]
pub(crate) struct LocalExchange {
    pub hub: Arc<Hub>,
}

impl Exchange for LocalExchange {
    fn succeed(&self, _root: u64, _generation: u32) -> Arc<dyn Exchange> {
        // Nobody leads here, and rounds carry the group and its generation.
        Arc::new(LocalExchange { hub: self.hub.clone() })
    }

    fn gather(&self, round: Round<'_>, wait: &Wait) -> Result<Vec<Part>, ExchangeError> {
        let deadline = wait.deadline();
        let hub = self.hub.clone();
        let _guard = wait.cancel().map(|token| {
            token.on_cancel(Arc::new(move || {
                let _state = hub.state.lock();
                hub.changed.notify_all();
            }))
        });
        let Round { key, members, me, part, .. } = round;
        stalls::at(Step::Come);
        let mut state = self.hub.state.lock();
        let State { open, meetings, next, .. } = &mut *state;
        let id = *open.entry(key).or_insert_with(|| {
            *next += 1;
            *next
        });
        let meeting = meetings.entry(id).or_insert_with(|| Meeting {
            parts: members.iter().map(|_| None).collect(),
            waiting: 0,
            outcome: None,
        });
        meeting.waiting += 1;
        match meeting.parts.get_mut(me) {
            Some(place @ None) => *place = Some(part),
            _ => meeting.outcome = Some(Err(ExchangeError::Duplicate { rank: index(me) })),
        }
        if meeting.outcome.is_none() && meeting.parts.iter().all(Option::is_some) {
            meeting.outcome = Some(Ok(()));
        }
        loop {
            let State { open, meetings, lost, .. } = &mut *state;
            // The entry stays until this member, too, has its answer.
            let Some(meeting) = meetings.get_mut(&id) else {
                return Err(ExchangeError::system("meeting", "forgotten"));
            };
            if meeting.outcome.is_none() {
                meeting.outcome = meeting.ended(members, lost, wait, deadline).map(Err);
            }
            let Some(outcome) = &meeting.outcome else {
                self.hub.changed.wait_until(&mut state, deadline);
                continue;
            };
            if open.get(&key) == Some(&id) {
                open.remove(&key);
                self.hub.changed.notify_all();
            }
            let answer = outcome.clone().map(|()| {
                meeting.parts.iter().enumerate().map(|(i, p)| share(p, i == me)).collect()
            });
            meeting.waiting -= 1;
            if meeting.waiting == 0 {
                meetings.remove(&id);
            }
            return answer;
        }
    }
}

impl Meeting {
    /// Why it ends without all its members, if it does.
    fn ended(
        &self,
        members: &[u32],
        lost: &[u32],
        wait: &Wait,
        deadline: Instant,
    ) -> Option<ExchangeError> {
        let missing = || self.parts.iter().enumerate().filter(|(_, p)| p.is_none()).map(|(i, _)| i);
        // Whoever ended first is the cause; others may have ended because of it.
        let order = |i: usize| lost.iter().position(|rank| *rank == members[i]);
        let ended = missing().filter_map(|i| Some((order(i)?, i))).min();
        if let Some((_, rank)) = ended {
            Some(ExchangeError::Lost { rank: index(rank) })
        } else if wait.is_cancelled() {
            Some(ExchangeError::Cancelled)
        } else if Instant::now() >= deadline {
            let (missing, allowed) = (missing().map(index).collect(), wait.duration());
            Some(ExchangeError::Missing { missing, allowed, hosts: Vec::new() })
        } else {
            None
        }
    }
}

fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap_or(u32::MAX)
}

/// A copy of a part for another member. Threads share the mapping, and each has a descriptor of its own,
/// or none where there are no more: whoever is given it misses it.
fn share(part: &Option<Part>, own: bool) -> Part {
    let Some(part) = part else { return Part::default() };
    let copy = |handle: &Handle| match handle {
        _ if own => None,
        Handle::Local(memory) => Some(Handle::Local(memory.clone())),
        Handle::Shared(Shareable::Fd(fd)) => {
            fd.try_clone().ok().map(|fd| Handle::Shared(Shareable::Fd(fd)))
        }
        Handle::Shared(_) => None,
    };
    let handles = part.handles.iter().filter_map(copy).collect();
    Part { payload: part.payload.clone(), handles, ..Part::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a failed set-up fails the test")]
    use super::*;
    use symmem_hal::CancelToken;

    impl Hub {
        fn is_empty(&self) -> bool {
            let state = self.state.lock();
            state.open.is_empty() && state.meetings.is_empty()
        }
    }

    fn key(sequence: u64) -> RoundKey {
        RoundKey { group: 1, generation: 0, number: sequence, part: 0 }
    }

    fn round(members: &[u32], me: usize, sequence: u64) -> Round<'_> {
        let part = Part::plain(vec![me as u8, sequence as u8]);
        Round { key: key(sequence), members, me, links: true, part }
    }

    #[test]
    fn everybody_gets_everything_and_nothing_is_kept() {
        let hub = Arc::new(Hub::new());
        let members = [3, 0, 4];
        std::thread::scope(|s| {
            for me in 0..3 {
                let exchange = LocalExchange { hub: hub.clone() };
                s.spawn(move || {
                    for n in 0..50 {
                        let parts =
                            exchange.gather(round(&members, me, n), &Wait::seconds(20)).unwrap();
                        let all: Vec<_> = parts.iter().map(|p| p.payload.clone()).collect();
                        assert_eq!(all, [[0, n as u8], [1, n as u8], [2, n as u8]]);
                    }
                });
            }
        });
        assert!(hub.is_empty());
    }

    #[test]
    fn a_missing_rank_is_named_to_all_who_came_and_comes_to_the_next_round() {
        let hub = Arc::new(Hub::new());
        let members = [0, 1, 2];
        let gather =
            |me, wait| LocalExchange { hub: hub.clone() }.gather(round(&members, me, 0), &wait);
        let expected = |e: &ExchangeError| matches!(e, ExchangeError::Missing { missing, .. } if *missing == [1]);
        std::thread::scope(|s| {
            let patient = s.spawn(|| gather(0, Wait::seconds(20)));
            assert!(expected(&gather(2, Wait::millis(30)).unwrap_err()));
            assert!(expected(&patient.join().unwrap().unwrap_err()));
        });
        assert!(hub.is_empty());
        std::thread::scope(|s| {
            let late = s.spawn(|| gather(1, Wait::seconds(20)));
            let others = [0, 2].map(|me| s.spawn(move || gather(me, Wait::seconds(20))));
            late.join().unwrap().unwrap();
            others.into_iter().for_each(|other| drop(other.join().unwrap().unwrap()));
        });
        assert!(hub.is_empty());
    }

    #[test]
    fn a_lost_rank_and_a_cancelled_one_end_the_wait_at_once() {
        let hub = Arc::new(Hub::new());
        let members = [0, 1];
        std::thread::scope(|s| {
            let waiting = s.spawn(|| {
                LocalExchange { hub: hub.clone() }.gather(round(&members, 0, 0), &Wait::seconds(60))
            });
            while hub.is_empty() {
                std::thread::yield_now();
            }
            hub.mark_lost(1);
            assert_eq!(waiting.join().unwrap().unwrap_err(), ExchangeError::Lost { rank: 1 });
        });
        let hub = Arc::new(Hub::new());
        let token = CancelToken::new();
        std::thread::scope(|s| {
            let wait = Wait::seconds(60).with_cancel(token.clone());
            let waiting = s.spawn({
                let hub = hub.clone();
                move || LocalExchange { hub }.gather(round(&members, 0, 0), &wait)
            });
            while hub.is_empty() {
                std::thread::yield_now();
            }
            token.cancel();
            assert_eq!(waiting.join().unwrap().unwrap_err(), ExchangeError::Cancelled);
        });
    }
}
