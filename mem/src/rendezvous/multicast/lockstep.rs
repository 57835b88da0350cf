//! Steps that may fail on one rank alone, taken by all ranks together.
//!
//! Each ends in a vote. All go on, or all take it again because it may yet go well on the rank that
//! could not, or all give up for the same reason.

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use symmem_hal::Wait;
use symmem_hal::types::RankSet;

use super::{MulticastStep, NoMulticast};
use crate::exchange::{ExchangeError, Handle, Part};
use crate::rendezvous::RendezvousError;
use crate::rendezvous::exchange::Gather;

/// How long ranks pause before they take a step again. Long enough for a daemon that is just coming
/// up, short enough for a rendezvous on a machine where none ever does.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(40), Duration::from_millis(160)];

/// How often a pause looks at its cancel token.
const TICK: Duration = Duration::from_millis(10);

/// How a rank's part of a step went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Vote {
    Yes,
    /// Not now.
    Again(Refusal),
    No(Refusal),
}

/// What a rank could not do, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub step: MulticastStep,
    pub reason: String,
}

/// What all ranks do after a vote.
#[derive(Debug, PartialEq)]
enum Verdict {
    GoOn,
    TakeAgain,
    GiveUp(NoMulticast),
}

/// Of the votes alone, and of how often there was one: the same on every rank.
fn verdict(votes: &[Vote], may_take_again: bool) -> Verdict {
    let first = |of: fn(&Vote) -> Option<&Refusal>| {
        votes.iter().enumerate().find_map(|(rank, vote)| Some((rank, of(vote)?)))
    };
    let no = first(|vote| match vote {
        Vote::No(refusal) => Some(refusal),
        Vote::Yes | Vote::Again(_) => None,
    });
    let again = first(|vote| match vote {
        Vote::Again(refusal) => Some(refusal),
        Vote::Yes | Vote::No(_) => None,
    });
    match no.or(again) {
        None => Verdict::GoOn,
        Some(_) if no.is_none() && may_take_again => Verdict::TakeAgain,
        Some((rank, Refusal { step, reason })) => {
            Verdict::GiveUp(NoMulticast::Failed { rank, step: *step, reason: reason.clone() })
        }
    }
}

/// Why ranks took no further step.
#[derive(Debug)]
pub(super) enum Stopped {
    /// They agreed to do without.
    Without(NoMulticast),
    /// They did not meet.
    Failed(RendezvousError),
}

impl From<RendezvousError> for Stopped {
    fn from(error: RendezvousError) -> Self {
        Stopped::Failed(error)
    }
}

/// The steps of one rendezvous, all within its caller's bound.
pub(super) struct Lockstep<'a> {
    gather: Gather<'a>,
    wait: &'a Wait,
    end: Instant,
}

impl<'a> Lockstep<'a> {
    pub(super) fn new(gather: Gather<'a>, wait: &'a Wait) -> Self {
        Lockstep { gather, wait, end: wait.deadline() }
    }

    /// Takes a step. `act` is this rank's part, which also gives what it has for the others; it is called
    /// until it succeeds, and not again where others have yet to. Returns what it made, and what came
    /// with the round in which all had.
    pub(super) fn step<T>(
        &mut self,
        mut act: impl FnMut() -> Result<(T, Vec<Handle>), Vote>,
    ) -> Result<(T, Vec<Part>), Stopped> {
        let mut made = None;
        let mut pauses = PAUSES.into_iter();
        loop {
            let pause = pauses.next();
            let mut handles = Vec::new();
            let mut vote = Vote::Yes;
            if made.is_none() {
                match act() {
                    Ok((done, given)) => (made, handles) = (Some(done), given),
                    Err(refused) => vote = self.within_bound(refused, pause),
                }
            }
            // The type has no value that cannot be encoded.
            let payload = postcard::to_stdvec(&vote).unwrap_or_default();
            let parts = (self.gather)(Part { payload, handles, ..Part::default() })
                .map_err(RendezvousError::from)?;
            let votes = read(&parts)?;
            match verdict(&votes, pause.is_some()) {
                Verdict::GoOn => {
                    // It was, or there would be none to go on.
                    let uncounted = || ExchangeError::system("vote", "this rank's was not counted");
                    let made = made.ok_or_else(|| RendezvousError::from(uncounted()))?;
                    return Ok((made, parts));
                }
                Verdict::TakeAgain => self.rest(pause.unwrap_or_default()),
                Verdict::GiveUp(reason) => return Err(Stopped::Without(reason)),
            }
        }
    }

    /// A rank whose caller does not wait for another try does not ask for one.
    fn within_bound(&self, vote: Vote, pause: Option<Duration>) -> Vote {
        let left = self.end.saturating_duration_since(Instant::now());
        match vote {
            Vote::Again(refusal) if pause.is_some_and(|pause| pause >= left) => Vote::No(refusal),
            vote => vote,
        }
    }

    /// One whose token is cancelled goes on at once, to say so where ranks meet.
    fn rest(&self, pause: Duration) {
        let end = Instant::now() + pause;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.wait.is_cancelled() {
                return;
            }
            thread::sleep(left.min(TICK));
        }
    }
}

/// The votes of all ranks; all see the same, so all find the same ones unreadable.
fn read(parts: &[Part]) -> Result<Vec<Vote>, RendezvousError> {
    let votes: Vec<Option<Vote>> =
        parts.iter().map(|part| postcard::from_bytes(&part.payload).ok()).collect();
    let unreadable = votes.iter().enumerate().filter(|(_, vote)| vote.is_none());
    let ranks: RankSet = unreadable.map(|(rank, _)| rank).collect();
    if ranks.is_empty() {
        Ok(votes.into_iter().flatten().collect())
    } else {
        Err(RendezvousError::Unreadable { ranks })
    }
}

/// For fuzzing: any bytes as the votes of a round.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(parts: &[Part]) {
    parts.iter().for_each(|part| drop(crate::fuzzing::round_trip::<Vote>(&part.payload)));
    match read(parts) {
        Ok(votes) => {
            let (first, last) = (verdict(&votes, true), verdict(&votes, false));
            assert!(last != Verdict::TakeAgain, "{votes:?}");
            assert!(first == last || first == Verdict::TakeAgain, "{votes:?}");
        }
        Err(e) => assert!(symmem_hal::Fault::ranks(&e).iter().all(|rank| rank < parts.len())),
    }
}

/// For fuzzing: the bytes of each sort of vote.
#[cfg(any(test, fuzzing))]
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let refusal = || Refusal { step: MulticastStep::Create, reason: "no daemon".to_owned() };
    [Vote::Yes, Vote::Again(refusal()), Vote::No(refusal())]
        .iter()
        .filter_map(|vote| postcard::to_stdvec(vote).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use std::cell::Cell;
    use std::sync::Arc;

    use symmem_hal::CancelToken;

    use super::*;
    use crate::exchange::local::{Hub, LocalExchange};
    use crate::exchange::{Exchange as _, Round, RoundKey};

    const STEP: MulticastStep = MulticastStep::Bind;

    fn refusal(reason: &str) -> Refusal {
        Refusal { step: STEP, reason: reason.to_owned() }
    }

    fn failed(rank: usize, reason: &str) -> NoMulticast {
        NoMulticast::Failed { rank, step: STEP, reason: reason.to_owned() }
    }

    /// What each of three ranks makes of its steps.
    fn ranks<R: Send>(body: impl Fn(usize, &mut Lockstep<'_>) -> R + Sync) -> Vec<R> {
        let (hub, members, wait) = (Arc::new(Hub::new()), [0, 1, 2], Wait::seconds(30));
        let rank = |me: usize| {
            let exchange = LocalExchange { hub: hub.clone() };
            let mut number = 0;
            let mut gather = |part| {
                number += 1;
                let key = RoundKey { group: 1, generation: 0, number, part: 0 };
                exchange.gather(Round { key, members: &members, me, links: true, part }, &wait)
            };
            body(me, &mut Lockstep::new(&mut gather, &wait))
        };
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..3).map(|me| scope.spawn(move || rank(me))).collect();
            started.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_vote_is_for_going_on_again_or_over() {
        let (yes, again, no) = (Vote::Yes, Vote::Again(refusal("later")), Vote::No(refusal("no")));
        let of = |votes: &[&Vote], may_take_again| {
            let votes: Vec<Vote> = votes.iter().map(|vote| (*vote).clone()).collect();
            verdict(&votes, may_take_again)
        };
        for may_take_again in [true, false] {
            assert_eq!(of(&[&yes, &yes], may_take_again), Verdict::GoOn);
            // One that cannot at all is the reason, whoever could later.
            let over = Verdict::GiveUp(failed(1, "no"));
            assert_eq!(of(&[&again, &no, &no], may_take_again), over);
        }
        assert_eq!(of(&[&yes, &again], true), Verdict::TakeAgain);
        assert_eq!(of(&[&yes, &again], false), Verdict::GiveUp(failed(1, "later")));
    }

    #[test]
    fn one_that_cannot_stops_all_for_its_reason() {
        let ends = ranks(|me, lockstep| {
            lockstep.step(|| Ok(((), Vec::new()))).unwrap();
            let act =
                || if me == 1 { Err(Vote::No(refusal("full"))) } else { Ok(((), Vec::new())) };
            match lockstep.step(act) {
                Err(Stopped::Without(reason)) => reason,
                other => unreachable!("{:?}", other.map(|_| ())),
            }
        });
        assert_eq!(ends, vec![failed(1, "full"); 3]);
    }

    #[test]
    fn who_has_succeeded_waits_for_the_others_and_does_it_once() {
        let ends = ranks(|me, lockstep| {
            let calls = Cell::new(0);
            let act = || {
                calls.set(calls.get() + 1);
                let passes = calls.get() > me;
                if passes { Ok((me, Vec::new())) } else { Err(Vote::Again(refusal("soon"))) }
            };
            (lockstep.step(act).unwrap().0, calls.get())
        });
        assert_eq!(ends, [(0, 1), (1, 2), (2, 3)]);
    }

    #[test]
    fn what_never_passes_ends_for_all_after_as_many_tries() {
        let ends = ranks(|me, lockstep| {
            let mut calls = 0;
            let outcome = lockstep.step(|| {
                calls += 1;
                if me == 2 { Err(Vote::Again(refusal("soon"))) } else { Ok(((), Vec::new())) }
            });
            let without = matches!(outcome, Err(Stopped::Without(e)) if e == failed(2, "soon"));
            (without, calls)
        });
        assert_eq!(ends, [(true, 1), (true, 1), (true, 1 + PAUSES.len())]);
    }

    #[test]
    fn nothing_is_tried_again_past_the_callers_bound() {
        let mut gather = |part| Ok(vec![part]);
        let wait = Wait::millis(0);
        let mut calls = 0;
        let outcome = Lockstep::new(&mut gather, &wait).step(|| {
            calls += 1;
            Err::<((), _), _>(Vote::Again(refusal("soon")))
        });
        assert!(matches!(outcome, Err(Stopped::Without(e)) if e == failed(0, "soon")));
        assert_eq!(calls, 1);
    }

    #[test]
    fn a_meeting_that_fails_is_no_vote() {
        let token = CancelToken::new();
        let wait = Wait::seconds(30).with_cancel(token.clone());
        let mut gather = |part| match wait.is_cancelled() {
            true => Err(ExchangeError::Cancelled),
            false => Ok(vec![part]),
        };
        let mut calls = 0;
        let outcome = Lockstep::new(&mut gather, &wait).step(|| {
            calls += 1;
            if calls == 2 {
                token.cancel();
            }
            Err::<((), _), _>(Vote::Again(refusal("soon")))
        });
        let cancelled = RendezvousError::Exchange(ExchangeError::Cancelled).to_string();
        assert!(matches!(outcome, Err(Stopped::Failed(e)) if e.to_string() == cancelled));
        // What is no vote is of another call.
        let mut gather = |part| Ok(vec![part, Part::plain(vec![9])]);
        let outcome = Lockstep::new(&mut gather, &wait).step(|| Ok(((), Vec::new())));
        let other = |ranks: &RankSet| *ranks == RankSet::one(1);
        assert!(
            matches!(outcome, Err(Stopped::Failed(RendezvousError::Unreadable { ranks })) if other(&ranks))
        );
    }
}
