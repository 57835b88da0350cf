//! Every interleaving of short scripts on a lane.

use super::loom_words::{Loom, block_on, check};
use super::program::{Habits, Step, Stop, run};
use super::world::{Shape, World};
use crate::protocol::Epoch;
use crate::protocol::Placement::{PerReader, Shared};

const ONCE: Habits = Habits { once: true, ..Habits::PLAIN };

/// What runs on every block of every rank.
#[derive(Clone)]
struct Model {
    shape: Shape,
    first: Epoch,
    script: Vec<Step>,
    habits: Habits,
    preemptions: Option<usize>,
    stale: Option<Epoch>,
}

impl Model {
    fn new(shape: Shape, script: &[Step]) -> Self {
        Model {
            shape,
            first: Epoch::FIRST,
            script: script.to_vec(),
            habits: ONCE,
            preemptions: None,
            stale: None,
        }
    }

    fn check(self) {
        let name = format!("{:?} {:?}", self.shape, self.script);
        check(&name, self.preemptions, move || {
            let world = World::<Loom>::new(self.shape);
            if let Some(epoch) = self.stale {
                world.leave_stale(epoch);
            }
            let views = world.open(self.first);
            let mut programs: Vec<_> = views
                .iter()
                .flat_map(|view| (0..self.shape.blocks).map(move |block| (view.clone(), block)))
                .map(|(view, block)| {
                    let Model { script, first, habits, .. } = self.clone();
                    move || block_on(run(view, block, script, first, habits))
                })
                .collect();
            let own = programs.pop().unwrap();
            let others: Vec<_> = programs.into_iter().map(loom::thread::spawn).collect();
            let mut ends = vec![own()];
            ends.extend(others.into_iter().map(|other| other.join().unwrap()));
            ends.into_iter().all(|end| match end {
                Ok(()) => true,
                Err(Stop::Blocked) => false,
                Err(Stop::Failed(record)) => panic!("{record:?}"),
            })
        });
    }
}

#[test]
fn probe() {
    let rooted = Step::rooted(0, 1, 1);
    let ex = Step::exchange(1, 1);
    let run = |s: Shape, script: &[Step]| {
        let m = Model::new(s, script);
        let _ = std::panic::catch_unwind(|| m.check());
    };
    for p in [Shared, PerReader] {
        for a in [ex, ex.staged(), rooted, rooted.staged(), Step::empty()] {
            for b in
                [ex, ex.staged(), rooted, rooted.staged(), Step::rooted(1, 1, 1), Step::empty()]
            {
                run(Shape::new(2, 1, p), &[a, b]);
            }
        }
        for a in [ex.staged(), rooted.staged(), Step::empty()] {
            for b in [ex.staged(), rooted.staged(), Step::rooted(1, 1, 1).staged(), Step::empty()] {
                run(Shape::new(2, 1, p), &[a, b, a]);
                run(Shape::new(3, 1, p), &[a, b]);
            }
        }
        for a in [
            Step::exchange(2, 2),
            Step::exchange(2, 2).staged(),
            Step::rooted(0, 2, 2),
            Step::rooted(0, 2, 2).staged(),
        ] {
            run(Shape::new(2, 2, p), &[a]);
        }
    }
}
