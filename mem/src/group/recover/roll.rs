//! Who goes on: one value of the store, changed by comparing and setting it.
//!
//! Each rank that recovers writes itself into the roll while it is open. It is sealed by the lowest
//! rank in it, once all have come who are expected; by any, once its patience is over. After that it
//! never changes: who stands in it goes on, who does not is excluded. Every step is a function of what
//! stands in the store and of what this rank knows of the others, so that any rank can die or be
//! stopped between any two.

use serde::{Deserialize, Serialize};

/// The value: global ranks, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Roll {
    pub sealed: bool,
    pub ranks: Vec<u32>,
}

/// What a rank knows beside the roll.
pub(super) trait View {
    /// Whether a rank has ended, or was never heard to go on after it had left.
    fn is_expected(&self, rank: u32) -> bool;

    /// Whether a rank has ended.
    fn is_lost(&self, rank: u32) -> bool;
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Put this where the roll that was found stands, if it still does, and look at what then stands.
    Propose(Roll),
    /// Look again.
    Watch,
    /// Go on with these.
    Enter(Vec<u32>),
    /// They went on without this rank.
    Excluded(Vec<u32>),
}

impl Roll {
    pub(super) fn encode(&self) -> Vec<u8> {
        // The type has no value that cannot be encoded.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let roll: Self = postcard::from_bytes(bytes).ok()?;
        // What no rank has written counts as nothing, which the next one replaces.
        roll.ranks.is_sorted_by(|a, b| a < b).then_some(roll)
    }

    fn with(&self, rank: u32) -> Self {
        let mut ranks = self.ranks.clone();
        ranks.push(rank);
        ranks.sort_unstable();
        Roll { sealed: false, ranks }
    }

    /// The next step of rank `me` of those who were members. `overdue` says that its patience is over.
    pub(super) fn next(&self, me: u32, members: &[u32], view: &impl View, overdue: bool) -> Step {
        let present = self.ranks.contains(&me);
        if self.sealed {
            let ranks = self.ranks.clone();
            return if present { Step::Enter(ranks) } else { Step::Excluded(ranks) };
        }
        if !present {
            return Step::Propose(self.with(me));
        }
        let living = |rank: &u32| *rank == me || !view.is_lost(*rank);
        let living: Vec<u32> = self.ranks.iter().copied().filter(living).collect();
        let come = |rank: &u32| self.ranks.contains(rank) || !view.is_expected(*rank);
        let complete = members.iter().all(come);
        if overdue || complete && living.first() == Some(&me) {
            return Step::Propose(Roll { sealed: true, ranks: living });
        }
        Step::Watch
    }
}

/// For fuzzing: one rank's next steps from any bytes, of four members of which the third has ended.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    struct Third;
    impl View for Third {
        fn is_expected(&self, rank: u32) -> bool {
            !self.is_lost(rank)
        }

        fn is_lost(&self, rank: u32) -> bool {
            rank == 2
        }
    }
    let Some(roll) = Roll::decode(bytes) else { return };
    assert_eq!(Roll::decode(&roll.encode()).as_ref(), Some(&roll));
    for overdue in [false, true] {
        match roll.next(1, &[0, 1, 2, 3], &Third, overdue) {
            Step::Propose(next) => {
                assert!(!roll.sealed && next != roll, "{next:?} after {roll:?}");
                assert_eq!(Roll::decode(&next.encode()).as_ref(), Some(&next));
            }
            Step::Watch => assert!(!roll.sealed && !overdue),
            Step::Enter(ranks) => assert!(roll.sealed && ranks.contains(&1)),
            Step::Excluded(ranks) => assert!(roll.sealed && !ranks.contains(&1)),
        }
    }
}

/// For fuzzing: the bytes of a roll.
#[cfg(any(test, fuzzing))]
pub(crate) fn seed(sealed: bool, ranks: &[u32]) -> Vec<u8> {
    Roll { sealed, ranks: ranks.to_vec() }.encode()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_no_rank_writes_is_nothing() {
        assert!(Roll::decode(&seed(true, &[0, 1, 7])).is_some());
        for ranks in [&[1, 1][..], &[2, 1], &[0, 5, 3]] {
            assert_eq!(Roll::decode(&seed(true, ranks)), None, "{ranks:?}");
        }
    }

    /// What one rank of a model knows.
    #[derive(Clone, Debug, Default)]
    struct Known {
        left: BTreeSet<u32>,
        lost: BTreeSet<u32>,
    }

    impl View for Known {
        fn is_expected(&self, rank: u32) -> bool {
            !self.left.contains(&rank) && !self.lost.contains(&rank)
        }

        fn is_lost(&self, rank: u32) -> bool {
            self.lost.contains(&rank)
        }
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Phase {
        /// Has not called yet.
        Away,
        /// Holds what it found last, and what it will do because of it.
        Acts(Roll, Step),
        Entered(Vec<u32>),
        Excluded(Vec<u32>),
        Dead,
    }

    /// A pseudo-random number below n.
    fn below(state: &mut u64, n: usize) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state % n as u64) as usize
    }

    struct World {
        members: Vec<u32>,
        /// The store.
        roll: Roll,
        ranks: Vec<Phase>,
        known: Vec<Known>,
        patient: Vec<bool>,
        /// Whether some patience has ever been over: then living members may be left behind.
        hurried: bool,
    }

    impl World {
        fn new(n: usize) -> Self {
            World {
                members: (0..n as u32).map(|i| 10 * i).collect(),
                roll: Roll::default(),
                ranks: vec![Phase::Away; n],
                known: vec![Known::default(); n],
                patient: vec![true; n],
                hurried: false,
            }
        }

        fn look(&mut self, i: usize) {
            let me = self.members[i];
            let step = self.roll.next(me, &self.members, &self.known[i], !self.patient[i]);
            if let Step::Propose(Roll { sealed: true, ranks }) = &step {
                let lost = |rank: &u32| self.known[i].lost.contains(rank);
                assert!(!ranks.iter().any(lost), "a rank known to be lost goes on");
            }
            self.ranks[i] = match step {
                Step::Enter(ranks) => Phase::Entered(ranks),
                Step::Excluded(ranks) => Phase::Excluded(ranks),
                step => Phase::Acts(self.roll.clone(), step),
            };
        }

        /// One step of a rank: what it decided before is done now, on whatever has become of the roll.
        fn step(&mut self, i: usize) {
            if let Phase::Acts(found, Step::Propose(roll)) = self.ranks[i].clone()
                && self.roll == found
            {
                assert!(!self.roll.sealed, "a sealed roll has changed");
                self.roll = roll;
            }
            self.look(i);
        }

        fn is_live(&self, i: usize) -> bool {
            matches!(self.ranks[i], Phase::Away | Phase::Acts(..))
        }
    }

    /// One run of ranks that come, die, stop for a while and lose patience at random moments.
    fn run(seed: u64) {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let n = 1 + below(&mut random, 5);
        let mut world = World::new(n);
        // Stopped ranks do nothing before the others have ended.
        let stopped: Vec<bool> = (0..n).map(|_| below(&mut random, 6) == 0).collect();
        for turn in 0..10_000 {
            let acting = |i: &usize| world.is_live(*i) && (!stopped[*i] || turn > 5000);
            let live: Vec<usize> = (0..n).filter(acting).collect();
            let Some(&i) = live.get(below(&mut random, live.len().max(1))) else {
                if turn > 5000 {
                    break;
                }
                continue;
            };
            match below(&mut random, 40) {
                0 if turn < 300 => {
                    world.ranks[i] = Phase::Dead;
                    continue;
                }
                1 => {
                    // Hears of a death.
                    let dead = below(&mut random, n);
                    if world.ranks[dead] == Phase::Dead {
                        world.known[i].lost.insert(world.members[dead]);
                    }
                }
                2 if turn > 500 => {
                    world.patient[i] = false;
                    world.hurried = true;
                }
                _ => world.step(i),
            }
        }
        let entered: Vec<_> = (0..n)
            .filter_map(|i| match &world.ranks[i] {
                Phase::Entered(ranks) => Some((world.members[i], ranks.clone())),
                _ => None,
            })
            .collect();
        for (rank, ranks) in &entered {
            assert_eq!(ranks, &world.roll.ranks, "seed {seed}: two rolls");
            assert!(ranks.contains(rank), "seed {seed}: {rank} goes on without itself");
        }
        for (i, phase) in world.ranks.iter().enumerate() {
            let rank = world.members[i];
            assert!(!world.is_live(i), "seed {seed}: rank {rank} is still at it: {phase:?}");
            if let Phase::Excluded(ranks) = phase {
                assert!(!ranks.contains(&rank), "seed {seed}: {rank} is in and out");
                assert!(world.hurried, "seed {seed}: {rank} was left behind without haste");
            }
        }
        if world.ranks.iter().any(|phase| *phase != Phase::Dead) {
            assert!(world.roll.sealed, "seed {seed}: nobody sealed the roll");
        }
    }

    #[test]
    fn all_who_go_on_agree_on_who_they_are() {
        (1..20_000).for_each(run);
    }

    fn roll(sealed: bool, ranks: &[u32]) -> Roll {
        Roll { sealed, ranks: ranks.to_vec() }
    }

    #[test]
    fn the_lowest_who_lives_seals_once_all_have_come() {
        let (members, mut known) = ([0, 3, 7], Known::default());
        let next = |me, found: &Roll, known: &Known| found.next(me, &members, known, false);
        let found = Roll::default();
        assert_eq!(next(3, &found, &known), Step::Propose(roll(false, &[3])));
        assert_eq!(next(0, &roll(false, &[3]), &known), Step::Propose(roll(false, &[0, 3])));
        assert_eq!(next(0, &roll(false, &[0, 3]), &known), Step::Watch);
        let all = roll(false, &[0, 3, 7]);
        assert_eq!(next(0, &all, &known), Step::Propose(roll(true, &[0, 3, 7])));
        assert_eq!(next(3, &all, &known), Step::Watch);
        // The lowest dies before it has.
        known.lost.insert(0);
        assert_eq!(next(3, &all, &known), Step::Propose(roll(true, &[3, 7])));
        assert_eq!(next(7, &all, &known), Step::Watch);
        // Who has left is not waited for, but goes on if it has come.
        let known = Known { left: [0].into(), ..Known::default() };
        assert_eq!(next(3, &roll(false, &[3, 7]), &known), Step::Propose(roll(true, &[3, 7])));
        assert_eq!(next(0, &all, &known), Step::Propose(roll(true, &[0, 3, 7])));
    }

    #[test]
    fn whose_patience_is_over_seals_who_has_come_and_who_comes_later_is_excluded() {
        let (members, known) = ([0, 3, 7], Known::default());
        let found = roll(false, &[3, 7]);
        assert_eq!(found.next(7, &members, &known, true), Step::Propose(roll(true, &[3, 7])));
        let sealed = roll(true, &[3, 7]);
        assert_eq!(sealed.next(7, &members, &known, true), Step::Enter(vec![3, 7]));
        assert_eq!(sealed.next(0, &members, &known, true), Step::Excluded(vec![3, 7]));
        assert_eq!(Roll::decode(&sealed.encode()), Some(sealed));
    }
}
