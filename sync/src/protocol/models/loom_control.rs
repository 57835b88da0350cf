//! Every interleaving of reports, overlapping entries and doorbells.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use symmem_hal::types::RankSet;

use super::loom_words::{Loom, Relaxed, check};
use super::world::{Machine, Shape, View, World};
use crate::protocol::control::{self, Reason, Record, Verdict};
use crate::protocol::doorbell::{Doorbell, Fence};
use crate::protocol::{
    Call, ControlMemory, Epoch, Header, Peers, Placement, Progress, Refused, Seat, Word, lane,
};

fn record(reporter: usize) -> Record {
    Record {
        reason: Reason::TimedOut,
        reporter,
        culprit: Some(1 - reporter.min(1)),
        lane: 3,
        operation: 7,
        epoch: Some(Epoch::MAX),
        missing: RankSet::one(1 - reporter.min(1)),
    }
}

fn group<M: Machine>(ranks: usize) -> Vec<View<M>> {
    World::<M>::new(Shape::new(ranks, 1, Placement::Shared).watched()).open(Epoch::FIRST)
}

/// Gives up and returns what the rank reports; `None` where that is still to come.
fn report<M: Machine>(view: &View<M>) -> Option<Record> {
    match control::give_up(view, &record(view.rank)) {
        Verdict::Failed(reported) => Some(reported),
        Verdict::Adopting => control::adopt(view),
    }
}

fn all_report_the_same<M: Machine>(ranks: usize) -> bool {
    let mut views = group::<M>(ranks);
    let first = views.remove(0);
    let others: Vec<_> =
        views.into_iter().map(|view| loom::thread::spawn(move || report(&view))).collect();
    let mut reports = vec![report(&first)];
    reports.extend(others.into_iter().map(|other| other.join().unwrap()));
    // When all have given up, every page has the record.
    let reported = control::adopt(&first).expect("somebody won");
    assert!((0..ranks).any(|rank| reported == record(rank)), "torn: {reported:?}");
    assert!(reports.iter().flatten().all(|report| *report == reported), "torn: {reports:?}");
    for rank in 0..ranks {
        assert_eq!(first.control(rank).unwrap().failure(ranks), Some(reported.clone()));
    }
    reports.iter().all(Option::is_some)
}

#[test]
fn loom_all_report_the_same() {
    check("2 ranks give up", None, || all_report_the_same::<Loom>(2));
    check("3 ranks give up", Some(3), || all_report_the_same::<Loom>(3));
}

#[test]
#[should_panic(expected = "torn")]
fn loom_catches_a_relaxed_record() {
    check("2 ranks give up, relaxed", None, || all_report_the_same::<Relaxed>(2));
}

/// A rank that does not wait for the winner settles: its page is never torn, and keeps what came
/// first.
#[test]
fn loom_settle() {
    check("settle", None, || {
        let views = group::<Loom>(2);
        let (winner, loser) = (views[0].clone(), views[1].clone());
        let other = loom::thread::spawn(move || match control::give_up(&loser, &record(1)) {
            Verdict::Failed(reported) => reported,
            Verdict::Adopting => control::settle(&loser, &record(1)),
        });
        let won = match control::give_up(&winner, &record(0)) {
            Verdict::Failed(reported) => reported,
            Verdict::Adopting => control::settle(&winner, &record(0)),
        };
        let lost = other.join().unwrap();
        for (rank, reported) in [(0, won), (1, lost)] {
            assert!([record(0), record(1)].contains(&reported), "torn: {reported:?}");
            let page = winner.control(rank).unwrap().failure(2).expect("both pages are written");
            assert!([record(0), record(1)].contains(&page), "torn: {page:?}");
        }
        true
    });
}

/// A winner that dies after its claim: the loser reports its own failure, and so does its next
/// block.
#[test]
fn loom_settle_after_a_death() {
    check("settle after a death", None, || {
        let views = group::<Loom>(2);
        views[0].control(0).unwrap().claim.store_release(1);
        let blocks = [views[1].clone(), views[1].clone()].map(|view| {
            loom::thread::spawn(move || match control::give_up(&view, &record(1)) {
                Verdict::Failed(reported) => reported,
                Verdict::Adopting => control::settle(&view, &record(1)),
            })
        });
        for block in blocks {
            assert_eq!(block.join().unwrap(), record(1));
        }
        assert_eq!(control::adopt(&views[1]), Some(record(1)));
        true
    });
}

/// One operation of a group of one.
fn alone(view: &View<Loom>, block: usize, grid: usize, checked: bool) -> Result<Epoch, Refused> {
    let seat = Seat { block, grid, checked };
    let call = Call { header: Header::default(), feeds: Peers::None, consumes: Peers::None };
    let mut arrival = lane::enter(view, seat, call)?;
    let epoch = arrival.epoch();
    let Ok(Progress::Ready(clear)) = arrival.poll() else { panic!("waits for itself") };
    let mut operation = arrival.publish(clear);
    let Ok(Progress::Ready(agreed)) = operation.poll_headers() else { panic!("waits for itself") };
    operation.exit(agreed);
    Ok(epoch)
}

/// Two operations of one rank on one lane at once, of one block and of two.
fn overlap(checked: bool) -> bool {
    let shape = Shape::new(1, 2, Placement::Shared);
    let view = World::<Loom>::new(shape).open(Epoch::FIRST).remove(0);
    let blocks = [0, 1].map(|block| {
        let view = view.clone();
        loom::thread::spawn(move || alone(&view, block, 2, checked))
    });
    let one = alone(&view, 0, 1, checked);
    for other in blocks.map(|block| block.join().unwrap()) {
        if let (Ok(one), Ok(other)) = (one, other) {
            assert_ne!(one, other, "two operations had one epoch");
        }
    }
    one.is_ok()
}

#[test]
fn loom_checked_entries_never_share_an_epoch() {
    check("overlap, checked", None, || overlap(true));
}

#[test]
#[should_panic(expected = "two operations had one epoch")]
fn loom_catches_unchecked_overlap() {
    check("overlap, unchecked", None, || overlap(false));
}

/// What membarrier on one side and a compiler fence on the other amount to.
struct Full;

impl Fence for Full {
    fn heavy(&self) {
        fence(Ordering::SeqCst);
    }

    fn light(&self) {
        fence(Ordering::SeqCst);
    }
}

struct Absent;

impl Fence for Absent {
    fn heavy(&self) {}
    fn light(&self) {}
}

/// A receiver with a word for each of its waiters, and a futex.
struct Receiver {
    bell: AtomicU32,
    words: [AtomicU32; 2],
    queue: Mutex<()>,
    wake: Condvar,
}

impl Receiver {
    /// Sleeps until the word is there; a wake-up that is lost is a deadlock, which loom reports.
    fn wait(&self, word: usize, fence: &impl Fence) {
        let bell = Doorbell::new(&self.bell);
        let missing = || self.words[word].load_acquire() == 0;
        while missing() {
            let awaited = bell.announce(fence);
            if !missing() {
                break;
            }
            let queue = self.queue.lock().unwrap();
            if self.bell.load_relaxed() == awaited {
                drop(self.wake.wait(queue).unwrap());
            }
        }
    }

    fn write(&self, word: usize, fence: &impl Fence) {
        self.words[word].store_release(1);
        if Doorbell::new(&self.bell).ring(fence) {
            drop(self.queue.lock().unwrap());
            self.wake.notify_all();
        }
    }
}

/// One waiter and one writer for each of `words` words.
fn ring<F: Fence + Send + Sync + 'static>(
    words: usize,
    make: fn() -> F,
    preemptions: Option<usize>,
) {
    check(&format!("doorbell, {words} waiters"), preemptions, move || {
        let receiver = Arc::new(Receiver {
            bell: AtomicU32::new(0),
            words: [AtomicU32::new(0), AtomicU32::new(0)],
            queue: Mutex::new(()),
            wake: Condvar::new(),
        });
        let threads: Vec<_> = (0..words)
            .flat_map(|word| {
                let (waiter, writer) = (receiver.clone(), receiver.clone());
                [
                    loom::thread::spawn(move || waiter.wait(word, &make())),
                    loom::thread::spawn(move || writer.write(word, &make())),
                ]
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        true
    });
}

#[test]
fn loom_doorbell() {
    ring(1, || Full, None);
    ring(2, || Full, Some(2));
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_catches_a_doorbell_without_fences() {
    ring(1, || Absent, None);
}
