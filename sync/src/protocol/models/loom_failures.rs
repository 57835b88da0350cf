//! Every interleaving of operations that fail: calls that differ, ranks that die, deadlines.
//!
//! A miss has an effect here, the look at the control page. So waits go on after it, and the
//! exploration is bounded in preemptions.

use super::loom_lane::Model;
use super::loom_words::{Loom, block_on, check};
use super::program::{Flaw, Habits, LookBack, Step, Stop, run};
use super::world::World;
use crate::protocol::Placement::{self, PerReader, Shared};
use crate::protocol::control::{Reason, Record};
use crate::protocol::{ControlMemory, Epoch};

const EXCHANGE: Step = Step::exchange(1, 1);
const STAGED: Step = EXCHANGE.staged();
const ROOTED: Step = Step::rooted(0, 1, 1);

/// `scripts` on ranks that watch their control pages.
fn watched(placement: Placement, scripts: &[&[Step]], preemptions: usize) -> Model {
    let mut model = Model::new(scripts.len(), 1, placement, scripts[0]).patient(preemptions);
    model.scripts = scripts.iter().map(|script| script.to_vec()).collect();
    model.shape = model.shape.watched();
    model.shape.packets = 2;
    model.habits = Habits::WATCHFUL;
    model
}

fn failure(end: Result<(), Stop>) -> Option<Record> {
    match end {
        Ok(()) => None,
        Err(Stop::Failed(record)) => Some(record),
        Err(Stop::Blocked) => panic!("a patient program blocked"),
    }
}

/// Every rank reports the mismatch, and all the same.
fn both_report(model: Model) {
    let name = format!("mismatch {:?} {:?}", model.shape.placement, model.scripts);
    check(&name, model.preemptions, move || {
        let reports: Vec<_> = model.execute::<Loom>().into_iter().map(failure).collect();
        let first = reports[0].clone().expect("rank 0 reports");
        assert!(matches!(first.reason, Reason::CallMismatch(d) if d.mine != d.theirs));
        assert!(reports.iter().all(|report| report.as_ref() == Some(&first)), "{reports:?}");
        true
    });
}

#[test]
fn loom_mismatch_is_reported_by_both() {
    let empty = Step::empty();
    for placement in [Shared, PerReader] {
        // Another tag, size, way, operation, root; nothing against something.
        for (mine, theirs) in [
            (EXCHANGE, EXCHANGE.tagged(1)),
            (STAGED, EXCHANGE),
            (STAGED, empty),
            (ROOTED, ROOTED.tagged(1)),
            (ROOTED, Step::rooted(1, 1, 1)),
            (ROOTED.staged(), STAGED),
        ] {
            // A rank that consumed nothing notices in its next operation.
            both_report(watched(placement, &[&[mine, empty], &[theirs, empty]], 2));
        }
    }
}

/// As [`both_report`], where the calls that differ are the last ones, and nobody consumes.
#[test]
fn loom_mismatch_of_the_last_calls_is_found_behind_a_barrier() {
    for placement in [Shared, PerReader] {
        for (mine, theirs) in [(ROOTED, Step::rooted(1, 1, 1)), (Step::empty(), EXCHANGE)] {
            let mut model = watched(placement, &[&[mine], &[theirs]], 2);
            model.habits.look_back = LookBack::Together;
            both_report(model);
        }
    }
}

/// Nothing is found where nothing differs, wherever the others are.
fn nobody_reports(placement: Placement, flaw: Flaw) {
    for script in [[ROOTED, Step::empty(), ROOTED], [EXCHANGE, ROOTED, Step::rooted(1, 1, 1)]] {
        let mut model = watched(placement, &[&script, &script], 2).flawed(flaw);
        model.habits.look_back = LookBack::Alone;
        check(&format!("look back {placement:?} {script:?}"), model.preemptions, move || {
            let reports: Vec<_> = model.execute::<Loom>().into_iter().map(failure).collect();
            assert!(reports.iter().all(Option::is_none), "reported: {reports:?}");
            true
        });
    }
}

#[test]
fn loom_a_look_back_at_equal_calls_finds_nothing() {
    [Shared, PerReader].map(|placement| nobody_reports(placement, Flaw::None));
}

#[test]
#[should_panic(expected = "reported: ")]
fn loom_catches_a_look_back_at_any_epoch() {
    nobody_reports(Shared, Flaw::AnyEpoch);
}

#[test]
fn loom_mismatch_of_three() {
    let (one, other) = (STAGED, STAGED.tagged(1));
    both_report(watched(Shared, &[&[one], &[one], &[other]], 0));
}

#[test]
#[should_panic(expected = "read what was not written")]
fn loom_catches_a_missing_comparison() {
    let model = watched(Shared, &[&[EXCHANGE], &[EXCHANGE.tagged(1)]], 2);
    both_report(model.flawed(Flaw::NoComparison));
}

/// A deadline: the hasty rank fails or not, but all that fail report the same.
#[test]
fn loom_deadline() {
    for placement in [Shared, PerReader] {
        let mut model = watched(placement, &[&[STAGED], &[STAGED]], 2);
        model.habits.patience = 1;
        check(&format!("deadline {placement:?}"), model.preemptions, move || {
            let reports: Vec<_> = model.execute::<Loom>().into_iter().map(failure).collect();
            let mut failures = reports.iter().flatten();
            if let Some(first) = failures.next() {
                assert_eq!(first.reason, Reason::TimedOut);
                assert!(failures.all(|other| other == first), "{reports:?}");
            }
            reports.iter().all(Option::is_none)
        });
    }
}

/// Rank 1 runs `script` and dies; rank 0 wants one operation and learns of the death at any time
/// after it. Returns what rank 0 reports.
fn outlive(placement: Placement, script: &'static [Step], flaw: Flaw) -> Option<Record> {
    let model = watched(placement, &[&[STAGED], script], 2).flawed(flaw);
    let views = World::<Loom>::new(model.shape).open(Epoch::FIRST);
    let (survivor, dying) = (views[0].clone(), views[1].clone());
    let death = loom::thread::spawn(move || {
        let end = block_on(run(dying.clone(), 0, script.to_vec(), Epoch::FIRST, Habits::PLAIN));
        dying.control(0).unwrap().set_lost(1);
        end
    });
    let wanted = model.scripts[0].clone();
    let end = block_on(run(survivor, 0, wanted, Epoch::FIRST, model.habits));
    assert_eq!(death.join().unwrap(), Ok(()));
    failure(end)
}

#[test]
fn loom_a_rank_that_never_comes_is_lost() {
    for placement in [Shared, PerReader] {
        check(&format!("lost {placement:?}"), Some(3), move || {
            let record = outlive(placement, &[], Flaw::None).expect("a report");
            assert_eq!((record.reason, record.culprit), (Reason::PeerLost, Some(1)));
            assert_eq!(record.missing.iter().collect::<Vec<_>>(), [1]);
            true
        });
    }
}

#[test]
fn loom_what_a_rank_stored_before_its_death_counts() {
    for placement in [Shared, PerReader] {
        check(&format!("stored, then lost {placement:?}"), Some(3), move || {
            assert_eq!(outlive(placement, &[STAGED], Flaw::None), None);
            true
        });
    }
}

#[test]
#[should_panic(expected = "left == right")]
fn loom_catches_giving_up_without_one_more_poll() {
    check("stored, then lost, hasty", Some(3), || {
        assert_eq!(outlive(Shared, &[STAGED], Flaw::Hasty), None);
        true
    });
}
