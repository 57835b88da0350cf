//! Seeded random schedules of a channel: barriers, user slots, resets.

use super::program::Stop;
use super::signals::{Patience, hand_over, meet, repair};
use super::sim::{Random, Scheduler, Sim, schedules};
use super::world::{ChannelView, Channels};
use crate::protocol::Placement;
use crate::protocol::barrier::Channel;

fn channel(random: &mut Random) -> (usize, Vec<ChannelView<Sim>>) {
    let ranks = 2 + random.below(3);
    (ranks, Channels::open(ranks, random.pick(&[Placement::Shared, Placement::PerReader])))
}

fn all_end(scheduler: Scheduler<'_, Result<(), Stop>>) {
    for end in scheduler.run(|_, _| {}) {
        assert_eq!(end, Some(Ok(())));
    }
}

#[test]
fn random_schedules_of_barriers() {
    schedules(1_000_000, 5_000, |mut random| {
        let (_, views) = channel(&mut random);
        let mut scheduler = Scheduler::new(&mut random);
        let rounds = 1 + random.below(4) as u64;
        for view in views {
            scheduler.spawn(meet(view, Channel::default(), rounds, Patience::Endless));
        }
        all_end(scheduler);
    });
}

#[test]
fn random_schedules_of_slots() {
    schedules(2_000_000, 5_000, |mut random| {
        let mut scheduler = Scheduler::new(&mut random);
        for view in Channels::<Sim>::open(2, Placement::Shared) {
            scheduler.spawn(hand_over(view, 5, Patience::Endless));
        }
        all_end(scheduler);
    });
}

#[test]
fn random_schedules_of_resets() {
    schedules(3_000_000, 10_000, |mut random| {
        let (_, views) = channel(&mut random);
        let mut scheduler = Scheduler::new(&mut random);
        for view in views {
            let first = Patience::Polls(1 + random.below(20) as u32);
            let retries = Patience::Polls(1 + random.below(30) as u32);
            let last = Patience::Endless;
            scheduler.spawn(repair(view, Channel::default(), first, retries, last));
        }
        all_end(scheduler);
    });
}
