//! Seeded random schedules of long scripts on a lane.

use std::collections::BTreeSet;

use super::program::{Flaw, Habits, LookBack, Step, Stop, run};
use super::sim::{Random, Scheduler, Sim, schedules};
use super::world::{Shape, View, World};
use crate::protocol::control::{Reason, Record};
use crate::protocol::{ControlMemory, Epoch, LaneMemory, Placement, Word};

/// What goes wrong in a schedule.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// One rank issues something else at one place.
    Mismatch {
        rank: usize,
        at: usize,
        step: Step,
    },
    /// One rank launches a graph once more than the others, after it did as they do.
    Extra {
        rank: usize,
        at: usize,
    },
    /// A rank dies at its n-th turn, and the others learn of it later.
    Death {
        rank: usize,
        turn: usize,
    },
    /// A rank's deadline is short.
    Hurry {
        rank: usize,
        patience: u32,
    },
}

#[derive(Clone, Debug)]
struct Scenario {
    shape: Shape,
    first: Epoch,
    script: Vec<Step>,
    stale: Option<Epoch>,
    checked: bool,
    period: u32,
    fault: Fault,
    look_back: LookBack,
    flaw: Flaw,
}

fn random_step(random: &mut Random, ranks: usize, blocks: usize) -> Step {
    let (size, grid) = (random.below(5), 1 + random.below(blocks));
    let step = match random.below(8) {
        0 => Step::empty(),
        1..4 => Step::rooted(random.below(ranks), size, grid),
        _ => Step::exchange(size, grid),
    };
    let step = if random.once_in(2) { step.staged() } else { step };
    if random.once_in(2) { step.replayed(random.below(2)) } else { step }
}

impl Scenario {
    fn random(random: &mut Random) -> Self {
        let (ranks, blocks) = (2 + random.below(3), 1 + random.below(3));
        let placement = random.pick(&[Placement::Shared, Placement::PerReader]);
        let shape = Shape { packets: 4, ..Shape::new(ranks, blocks, placement).watched() };
        let length = 3 + random.below(5);
        let script: Vec<_> = (0..length).map(|_| random_step(random, ranks, blocks)).collect();
        // Up to four operations before a scrub, which clears what the two behind it would meet.
        let before = |epoch: Epoch, n| (0..n).fold(epoch, |epoch, _| epoch.previous());
        let (first, scrub) = match random.below(3) {
            0 => (Epoch::FIRST, None),
            1 => (before(Epoch::MIDDLE, random.below(5)), Some(Epoch::MIDDLE)),
            _ => (before(Epoch::MIN, random.below(5)), Some(Epoch::MIN)),
        };
        let stale = scrub.map(|scrub| {
            let second = scrub.next().next();
            if random.once_in(2) { second } else { second.next() }
        });
        let fault = match random.below(8) {
            0 | 1 => {
                let (rank, at) = (random.below(ranks), random.below(length));
                let step = loop {
                    let step = random_step(random, ranks, blocks);
                    if step != script[at] {
                        break step;
                    }
                };
                Fault::Mismatch { rank, at, step }
            }
            4 => Fault::Extra { rank: random.below(ranks), at: random.below(length) },
            2 => Fault::Death { rank: random.below(ranks), turn: random.below(60 * length) },
            3 => {
                Fault::Hurry { rank: random.below(ranks), patience: 10 + random.below(200) as u32 }
            }
            _ => Fault::None,
        };
        let (checked, period) = (random.once_in(2), 1 + random.below(4) as u32);
        let (look_back, flaw) = (LookBack::Never, Flaw::None);
        Scenario { shape, first, script, stale, checked, period, fault, look_back, flaw }
    }

    fn script_of(&self, rank: usize) -> Vec<Step> {
        let mut script = self.script.clone();
        if let Fault::Mismatch { rank: other, at, step } = self.fault {
            if rank == other {
                script[at] = step;
            }
            // A rank that consumed nothing notices in its next operation, or when it looks back.
            if self.look_back == LookBack::Never {
                script.push(Step::empty());
            }
        }
        if let Fault::Extra { rank: other, at } = self.fault {
            let again = script[at].replayed(script[at].node.unwrap_or(0));
            script[at] = again;
            // The same of the same graph, or something else: it is told either way.
            if rank == other {
                script.insert(at + 1, again);
            } else {
                script.push(Step::empty());
            }
            script.push(Step::empty());
        }
        script
    }

    fn habits_of(&self, rank: usize) -> Habits {
        let patience = match self.fault {
            Fault::Hurry { rank: hurried, patience } if hurried == rank => patience,
            _ => u32::MAX,
        };
        Habits {
            checked: self.checked,
            period: self.period,
            patience,
            look_back: self.look_back,
            flaw: self.flaw,
            ..Habits::PLAIN
        }
    }

    /// Runs it and returns what each rank reports.
    fn run(&self, random: &mut Random) -> (Vec<View<Sim>>, Vec<Option<Record>>) {
        let world = World::<Sim>::new(self.shape);
        if let Some(epoch) = self.stale {
            world.leave_stale(epoch);
        }
        let views = world.open(self.first);
        let blocks = self.shape.blocks;
        let mut scheduler = Scheduler::new(random);
        for view in &views {
            for block in 0..blocks {
                let (script, habits) = (self.script_of(view.rank), self.habits_of(view.rank));
                scheduler.spawn(run(view.clone(), block, script, self.first, habits));
            }
        }
        let mut turn = 0;
        let mut to_tell: Vec<_> = (0..self.shape.ranks).collect();
        let ends = scheduler.run(|scheduler, random| {
            let Fault::Death { rank, turn: last } = self.fault else { return };
            turn += 1;
            if turn == last {
                (0..blocks).for_each(|block| scheduler.kill(rank * blocks + block));
            }
            if turn > last && !to_tell.is_empty() && random.once_in(40) {
                let told = to_tell.swap_remove(random.below(to_tell.len()));
                views[told].control(told).unwrap().set_lost(rank);
            }
        });
        let reports = ends
            .chunks(blocks)
            .map(|blocks| {
                blocks.iter().find_map(|end| match end {
                    Some(Err(Stop::Failed(record))) => Some(record.clone()),
                    _ => None,
                })
            })
            .collect();
        (views, reports)
    }

    fn check(&self, views: &[View<Sim>], reports: &[Option<Record>]) {
        let distinct: BTreeSet<String> =
            reports.iter().flatten().map(|record| format!("{record:?}")).collect();
        assert!(distinct.len() <= 1, "ranks report different failures: {distinct:?}");
        let report = reports.iter().flatten().next();
        match (self.fault, report) {
            (Fault::None, report) => {
                assert_eq!(report, None);
                self.check_epochs(views);
            }
            (Fault::Mismatch { rank, .. } | Fault::Extra { rank, .. }, report) => {
                let record = report.expect("a mismatch is reported");
                assert!(reports.iter().all(Option::is_some), "by every rank: {reports:?}");
                assert!(matches!(record.reason, Reason::CallMismatch(_)), "{record:?}");
                let sides = [Some(record.reporter), record.culprit];
                assert!(sides.contains(&Some(rank)), "{record:?}");
            }
            (Fault::Death { rank, .. }, Some(record)) => {
                assert_eq!((record.reason, record.culprit), (Reason::PeerLost, Some(rank)));
            }
            (Fault::Hurry { rank, .. }, Some(record)) => {
                assert_eq!((record.reason, record.reporter), (Reason::TimedOut, rank));
            }
            (_, None) => {}
        }
    }

    /// After a run without failures all copies of all ranks are at the same next epoch.
    fn check_epochs(&self, views: &[View<Sim>]) {
        let next = self.script.iter().fold(self.first, |epoch, _| epoch.next());
        for view in views {
            for copy in 0..self.shape.blocks {
                assert_eq!(view.epoch_copy(copy).load_acquire(), next.get());
            }
        }
    }
}

fn lanes(first: u64, count: u64, change: impl Fn(&mut Scenario)) {
    schedules(first, count, |mut random| {
        let mut scenario = Scenario::random(&mut random);
        change(&mut scenario);
        if std::env::var_os("SYMMEM_SEED").is_some() {
            eprintln!("{scenario:#?}");
        }
        let (views, reports) = scenario.run(&mut random);
        scenario.check(&views, &reports);
    });
}

#[test]
fn random_schedules_of_lanes() {
    lanes(0, 80_000, |_| {});
}

#[test]
#[should_panic(expected = "read what was not written")]
fn random_schedules_catch_a_missing_scrub() {
    lanes(10_000_000, 2_000, |scenario| {
        scenario.fault = Fault::None;
        scenario.shape.scrubs = false;
    });
}

#[test]
#[should_panic(expected = "read what was not written")]
fn random_schedules_catch_a_missing_comparison() {
    lanes(11_000_000, 2_000, |scenario| {
        let Fault::Mismatch { rank, at, .. } = scenario.fault else { return };
        let step = scenario.script[at].tagged(1);
        scenario.fault = Fault::Mismatch { rank, at, step };
        scenario.period = u32::MAX;
        scenario.flaw = Flaw::NoComparison;
    });
}

#[test]
#[should_panic(expected = "a program does not end")]
fn random_schedules_catch_a_missing_wait_for_leave() {
    lanes(12_000_000, 2_000, |scenario| {
        scenario.fault = Fault::None;
        scenario.flaw = Flaw::NoLeave;
    });
}

/// Whoever has no next operation finds behind a barrier what it would find in one.
#[test]
fn random_schedules_look_back_together() {
    lanes(13_000_000, 15_000, |scenario| {
        if !matches!(scenario.fault, Fault::Mismatch { .. }) {
            scenario.fault = Fault::None;
        }
        scenario.look_back = LookBack::Together;
    });
}

/// Whoever looks back while others are behind or ahead of it finds nothing where nothing differs.
#[test]
fn random_schedules_look_back_alone() {
    lanes(14_000_000, 5_000, |scenario| {
        scenario.fault = Fault::None;
        scenario.look_back = LookBack::Alone;
    });
}

#[test]
#[should_panic(expected = "left == right")]
fn random_schedules_catch_looking_back_at_any_epoch() {
    lanes(14_000_000, 5_000, |scenario| {
        scenario.fault = Fault::None;
        scenario.look_back = LookBack::Alone;
        scenario.flaw = Flaw::AnyEpoch;
    });
}

#[test]
#[should_panic(expected = "by every rank")]
fn random_schedules_catch_looking_back_without_a_barrier() {
    lanes(15_000_000, 2_000, |scenario| {
        let Fault::Mismatch { rank, step, .. } = scenario.fault else { return };
        let at = scenario.script.len() - 1;
        scenario.script[at] = Step::rooted(0, 1, 1);
        let step = if step == scenario.script[at] { Step::rooted(1, 1, 1) } else { step };
        scenario.fault = Fault::Mismatch { rank, at, step };
        scenario.look_back = LookBack::Alone;
    });
}
