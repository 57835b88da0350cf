//! Single paths that schedules seldom or never take, step by step.

use symmem_hal::types::RankSet;

use super::sim::{Sim, schedules};
use super::world::{Channels, Shape, View, World};
use crate::protocol::barrier::{Barrier, Broken, Channel, Reset};
use crate::protocol::control::{self, Reason, Record, Verdict};
use crate::protocol::lane::{BUSY, LookedBack, Phase};
use crate::protocol::{
    Call, ControlMemory, Entry, Epoch, Header, LaneMemory, Peers, Placement, Progress, Refused,
    Seat, Word, lane,
};

/// Runs `test` on simulated words with one actor, which sees its own stores at once.
fn alone(test: impl Fn()) {
    schedules(0, 1, |_| test());
}

fn group(ranks: usize) -> Vec<View<Sim>> {
    World::new(Shape::new(ranks, 2, Placement::PerReader).watched()).open(Epoch::FIRST)
}

const CALL: Call<'static> =
    Call { header: Header { signature: 1, issue: 2 }, feeds: Peers::All, consumes: Peers::All };

const SEAT: Seat = Seat { block: 0, grid: 1, checked: false };

#[test]
fn a_closed_lane_is_not_entered() {
    alone(|| {
        let view = &group(2)[0];
        Entry::retire(view.entry());
        assert_eq!(lane::enter(view, SEAT, CALL).err(), Some(Refused::Retired));
        Entry::fail(view.entry());
        assert_eq!(Entry::look(view.entry()), Entry::Retired, "retired for good");

        let view = &group(2)[1];
        Entry::fail(view.entry());
        assert_eq!(lane::enter(view, SEAT, CALL).err(), Some(Refused::Failed));
    });
}

#[test]
fn an_abort_closes_the_entry_of_a_rank_that_did_not_wait() {
    alone(|| {
        let views = group(2);
        let record = Record {
            reason: Reason::Device,
            reporter: 0,
            culprit: None,
            lane: 0,
            operation: 0,
            epoch: None,
            missing: RankSet::new(),
        };
        assert_eq!(control::give_up(&views[0], &record), Verdict::Failed(record.clone()));
        assert_eq!(Entry::look(views[1].entry()), Entry::Open);
        assert_eq!(lane::enter(&views[1], SEAT, CALL).err(), Some(Refused::Failed));
        assert_eq!(Entry::look(views[1].entry()), Entry::Failed);
        assert_eq!(control::adopt(&views[1]), Some(record));
    });
}

#[test]
fn a_held_or_differing_copy_is_busy() {
    alone(|| {
        let view = &group(2)[0];
        let checked = Seat { checked: true, ..SEAT };
        let first = lane::enter(view, checked, CALL).unwrap();
        let held = Refused::Busy { copy: 0, found: Epoch::FIRST.get() | BUSY };
        for seat in [SEAT, checked] {
            assert_eq!(lane::enter(view, seat, CALL).err(), Some(held));
        }
        drop(first);

        let view = &group(2)[0];
        view.epoch_copy(1).store_release(Epoch::FIRST.next().get());
        let differs = Refused::Busy { copy: 1, found: Epoch::FIRST.next().get() };
        assert_eq!(lane::enter(view, checked, CALL).err(), Some(differs));

        let view = &group(2)[0];
        view.epoch_copy(0).store_release(0);
        let none = Refused::Busy { copy: 0, found: 0 };
        assert_eq!(lane::enter(view, SEAT, CALL).err(), Some(none));
    });
}

#[test]
fn phases_name_who_is_missing() {
    alone(|| {
        let views = group(3);
        let mut arrival = lane::enter(&views[1], SEAT, CALL).unwrap();
        assert!(arrival.missing().is_empty());
        let Ok(Progress::Ready(clear)) = arrival.poll() else { panic!("a fresh lane is clear") };
        let mut operation = arrival.publish(clear);
        assert_eq!(operation.missing(), [0, 2].into_iter().collect());
        assert!(matches!(operation.poll_headers(), Ok(Progress::Pending { writer: 0 })));

        // Rank 2 comes; rank 0 is slow; then rank 2 is gone, which nobody waits for.
        let other = lane::enter(&views[2], SEAT, CALL).map(|mut other| {
            let Ok(Progress::Ready(clear)) = other.poll() else { panic!("a fresh lane is clear") };
            other.publish(clear)
        });
        assert!(other.is_ok());
        assert_eq!(operation.missing(), RankSet::one(0));
        let page = views[1].control(1).unwrap();
        page.set_lost(2);
        assert_eq!(operation.look(0, &page, false, false).unwrap().lost, None);
        page.set_lost(0);
        assert_eq!(operation.look(2, &page, false, false).unwrap().lost, Some(2));
        assert_eq!(operation.look(0, &page, false, false).unwrap().lost, Some(0));
    });
}

#[test]
fn a_group_of_one_waits_for_nobody() {
    alone(|| {
        let view = &group(1)[0];
        let mut arrival = lane::enter(view, SEAT, CALL).unwrap();
        let Ok(Progress::Ready(clear)) = arrival.poll() else { panic!("waits") };
        let mut operation = arrival.publish(clear);
        let Ok(Progress::Ready(agreed)) = operation.poll_headers() else { panic!("waits") };
        assert_eq!(operation.exit(agreed), Epoch::FIRST.next());
    });
}

#[test]
fn a_barrier_given_up_breaks_the_channel_until_a_reset() {
    alone(|| {
        let views = Channels::<Sim>::open(2, Placement::Shared);
        let (mut one, mut other) = (Channel::default(), Channel::default());
        let mut barrier = Barrier::arrive(&views[0], 0, &mut one).unwrap();
        assert_eq!(barrier.poll(), Progress::Pending { writer: 1 });
        assert_eq!(barrier.missing(), RankSet::one(1));
        assert!(one.is_broken());
        assert_eq!(Barrier::arrive(&views[0], 0, &mut one).err(), Some(Broken));
        // The peer finds the arrival and completes.
        let mut barrier = Barrier::arrive(&views[1], 0, &mut other).unwrap();
        assert_eq!(barrier.poll(), Progress::Ready(()));
        assert!(!other.is_broken());
    });
}

/// A rank whose reset was given up resumes it when its peer, which completed it, has broken the
/// channel again and is at the next one: one call brings both to that one.
#[test]
fn a_resumed_reset_joins_a_later_one() {
    alone(|| {
        let views = Channels::<Sim>::open(2, Placement::PerReader);
        let (mut slow, mut fast) = (Channel::default(), Channel::default());
        let mut reset = Reset::begin(&views[0], 0, &mut slow);
        assert_eq!(reset.poll(), Progress::Pending { writer: 1 });
        let mut ahead = Reset::begin(&views[1], 0, &mut fast);
        assert_eq!(ahead.poll(), Progress::Pending { writer: 0 });
        assert_eq!(reset.poll(), Progress::Ready(()));
        // Rank 0 had completed it; rank 1 gave up before it saw that.
        let mut barrier = Barrier::arrive(&views[0], 0, &mut slow).unwrap();
        assert_eq!(barrier.poll(), Progress::Pending { writer: 1 });
        let mut again = Reset::begin(&views[0], 0, &mut slow);
        assert_eq!(again.poll(), Progress::Pending { writer: 1 });

        let mut resumed = Reset::begin(&views[1], 0, &mut fast);
        assert_eq!(resumed.poll(), Progress::Pending { writer: 0 });
        assert_eq!(again.poll(), Progress::Ready(()));
        assert_eq!(resumed.poll(), Progress::Ready(()));
        assert_eq!(slow, fast);
        assert!(!slow.is_broken());
    });
}

/// One operation of a rank that consumes nothing, from its entry to its exit.
fn unread(view: &View<Sim>, signature: u64) {
    let header = Header { signature, issue: 1 };
    let call = Call { header, feeds: Peers::All, consumes: Peers::None };
    let mut arrival = lane::enter(view, SEAT, call).unwrap();
    let Ok(Progress::Ready(clear)) = arrival.poll() else { panic!("not clear") };
    let mut operation = arrival.publish(clear);
    let Ok(Progress::Ready(agreed)) = operation.poll_headers() else { panic!("waits") };
    let _ = operation.exit(agreed);
}

#[test]
fn a_look_back_compares_with_who_has_come_and_waits_for_nobody() {
    alone(|| {
        let views = group(3);
        assert_eq!(lane::look_back(&views[0]), Ok(LookedBack::All), "a fresh lane");
        unread(&views[0], 7);
        assert_eq!(lane::look_back(&views[0]), Ok(LookedBack::Part));
        assert_eq!(lane::look_back(&views[1]), Ok(LookedBack::All), "of its own last call");
        unread(&views[1], 7);
        assert_eq!(lane::look_back(&views[0]), Ok(LookedBack::Part), "rank 2 has not come");
        unread(&views[2], 8);
        for (view, other) in [(&views[0], 2), (&views[1], 2), (&views[2], 0)] {
            let found = lane::look_back(view).unwrap_err();
            assert_eq!((found.rank, found.epoch), (other, Epoch::FIRST));
            assert_ne!(found.difference.mine, found.difference.theirs);
        }
        // In the middle of the next operation, which looks itself.
        let copy = views[0].epoch_copy(0);
        copy.store_release(copy.load_acquire() | BUSY);
        assert_eq!(lane::look_back(&views[0]), Ok(LookedBack::Part));
    });
}
