//! Every interleaving of short scripts on a lane.
//!
//! Where nothing fails a poll that misses has no effect, so programs end at their first miss
//! ([`Stop::Blocked`]) and the exploration needs no bound. That every run ends is for the models
//! that go on after a miss, which are bounded in preemptions.

use super::loom_words::{Loom, Relaxed, block_on, check};
use super::program::{Flaw, Habits, Step, Stop, run};
use super::world::{Machine, Shape, World};
use crate::protocol::Epoch;
use crate::protocol::Placement::{self, PerReader, Shared};

const ONCE: Habits = Habits { once: true, ..Habits::PLAIN };

const EXCHANGE: Step = Step::exchange(1, 1);
const ROOTED: Step = Step::rooted(0, 1, 1);
const OTHER_ROOT: Step = Step::rooted(1, 1, 1);
const EMPTY: Step = Step::empty();

/// What runs on every block of every rank.
#[derive(Clone)]
pub(super) struct Model {
    pub shape: Shape,
    pub first: Epoch,
    /// The scripts of the ranks.
    pub scripts: Vec<Vec<Step>>,
    pub habits: Habits,
    pub preemptions: Option<usize>,
    pub stale: Option<Epoch>,
}

impl Model {
    /// The same script on every rank, explored without bound.
    pub fn new(ranks: usize, blocks: usize, placement: Placement, script: &[Step]) -> Self {
        let packets = script.iter().map(|step| step.size).max().unwrap_or(0).max(1);
        Model {
            shape: Shape { packets, ..Shape::new(ranks, blocks, placement) },
            first: Epoch::FIRST,
            scripts: vec![script.to_vec(); ranks],
            habits: ONCE,
            preemptions: None,
            stale: None,
        }
    }

    /// Waits go on after a miss.
    pub fn patient(self, preemptions: usize) -> Self {
        Model { habits: Habits::PLAIN, preemptions: Some(preemptions), ..self }
    }

    pub fn flawed(mut self, flaw: Flaw) -> Self {
        self.habits.flaw = flaw;
        self
    }

    /// Runs one execution and returns how each block of each rank ended.
    pub fn execute<M: Machine>(&self) -> Vec<Result<(), Stop>> {
        let world = World::<M>::new(self.shape);
        if let Some(epoch) = self.stale {
            world.leave_stale(epoch);
        }
        let views = world.open(self.first);
        let mut programs: Vec<_> = views
            .iter()
            .flat_map(|view| (0..self.shape.blocks).map(move |block| (view.clone(), block)))
            .map(|(view, block)| {
                let Model { scripts, first, habits, .. } = self.clone();
                move || {
                    block_on(run(view.clone(), block, scripts[view.rank].clone(), first, habits))
                }
            })
            .collect();
        let first = programs.remove(0);
        let others: Vec<_> = programs.into_iter().map(loom::thread::spawn).collect();
        let mut ends = vec![first()];
        ends.extend(others.into_iter().map(|other| other.join().unwrap()));
        ends
    }

    fn name(&self) -> String {
        let Shape { ranks, blocks, placement, .. } = self.shape;
        let bound = self.preemptions.map_or("unbounded".to_owned(), |n| format!("bound {n}"));
        format!("{ranks}x{blocks} {placement:?} {bound} {:?}", self.scripts)
    }

    /// No run may fail.
    fn check_on<M: Machine>(self) {
        check(&self.name(), self.preemptions, move || {
            self.execute::<M>().into_iter().all(|end| match end {
                Ok(()) => true,
                Err(Stop::Blocked) => false,
                Err(Stop::Failed(record)) => panic!("{record:?}"),
            })
        });
    }

    fn check(self) {
        self.check_on::<Loom>();
    }
}

#[test]
fn loom_pairs_of_two_ranks() {
    let steps = [EXCHANGE, EXCHANGE.staged(), ROOTED, ROOTED.staged(), OTHER_ROOT, EMPTY];
    for placement in [Shared, PerReader] {
        for one in steps {
            for other in steps {
                Model::new(2, 1, placement, &[one, other, one]).check();
            }
        }
    }
}

#[test]
fn loom_sizes_of_two_ranks() {
    let (exchange, rooted) = (Step::exchange(2, 1).staged(), Step::rooted(0, 2, 1));
    for placement in [Shared, PerReader] {
        for (long, short) in
            [(exchange, EXCHANGE.staged()), (rooted, EXCHANGE.staged()), (rooted, ROOTED)]
        {
            Model::new(2, 1, placement, &[short, long, short]).check();
            Model::new(2, 1, placement, &[long, short]).check();
        }
        Model::new(2, 1, placement, &[rooted, EMPTY, rooted]).check();
    }
}

/// Unbounded, but for pairs that end in an exchange, whose executions are too many.
#[test]
fn loom_pairs_of_three_ranks() {
    let steps = [EXCHANGE.staged(), ROOTED.staged(), OTHER_ROOT.staged(), EMPTY];
    for placement in [Shared, PerReader] {
        for (one, other) in steps.into_iter().flat_map(|one| steps.map(|other| (one, other))) {
            let preemptions = (other == EXCHANGE.staged()).then_some(4);
            Model { preemptions, ..Model::new(3, 1, placement, &[one, other]) }.check();
        }
    }
}

/// Operations of two blocks and of one: single ones without bound, pairs without preemption other
/// than where a program waits.
#[test]
fn loom_blocks() {
    let (two, one) = (Step::exchange(2, 2).staged(), Step::exchange(2, 1).staged());
    let (root_of_two, root_of_one) =
        (Step::rooted(0, 2, 2).staged(), Step::rooted(1, 2, 1).staged());
    for placement in [Shared, PerReader] {
        for step in [two, root_of_two, one, root_of_one] {
            Model::new(2, 2, placement, &[step]).check();
        }
        Model::new(2, 2, placement, &[Step::rooted(0, 2, 2)]).check();
        for pair in
            [[root_of_two, one], [root_of_one, root_of_two], [two, root_of_one], [EMPTY, two]]
        {
            Model::new(2, 2, placement, &pair).patient(0).check();
        }
    }
}

#[test]
fn loom_every_run_ends() {
    for placement in [Shared, PerReader] {
        for one in [EXCHANGE, EXCHANGE.staged(), ROOTED, EMPTY] {
            for other in [EXCHANGE.staged(), ROOTED.staged(), OTHER_ROOT, EMPTY] {
                Model::new(2, 1, placement, &[one, other]).patient(2).check();
            }
        }
        Model::new(2, 2, placement, &[Step::rooted(0, 2, 2).staged()]).patient(1).check();
    }
}

/// Two operations before a scrub and two behind it: the fourth meets what a whole cycle ago was
/// written in its own epoch, unless the scrub cleared it.
fn across(scrub: Epoch, last: Step, blocks: usize, placement: Placement) -> Model {
    let script = [EMPTY, EMPTY, EMPTY, last];
    let model = Model::new(2, blocks, placement, &script);
    Model { first: scrub.previous(), stale: Some(scrub.next().next()), ..model }
}

#[test]
fn loom_scrub_and_wrap() {
    for placement in [Shared, PerReader] {
        for scrub in [Epoch::MIDDLE, Epoch::MIN] {
            for last in [EXCHANGE, ROOTED.staged()] {
                across(scrub, last, 1, placement).check();
            }
        }
        across(Epoch::MIN, Step::rooted(0, 2, 2).staged(), 2, placement).patient(0).check();
    }
}

#[test]
#[should_panic(expected = "read what was not written")]
fn loom_catches_a_missing_scrub() {
    let mut model = across(Epoch::MIDDLE, EXCHANGE, 1, Shared);
    model.shape.scrubs = false;
    model.check();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_catches_a_missing_wait_for_leave() {
    let script = [EXCHANGE.staged(), EMPTY, EXCHANGE.staged()];
    Model::new(2, 1, Shared, &script).flawed(Flaw::NoLeave).check();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_catches_relaxed_stores() {
    Model::new(2, 1, Shared, &[EXCHANGE.staged()]).check_on::<Relaxed>();
}
