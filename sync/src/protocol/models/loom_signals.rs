//! Every interleaving of a channel's barriers, user slots and resets.

use super::loom_words::{Loom, Relaxed, block_on, check};
use super::program::Stop;
use super::signals::{Patience, hand_over, meet, repair};
use super::world::{ChannelView, Channels, Machine};
use crate::protocol::Placement::{self, PerReader, Shared};
use crate::protocol::barrier::Channel;

/// Runs `program` on every rank; true if all came to their end.
fn run<M: Machine, F>(
    ranks: usize,
    placement: Placement,
    program: impl Fn(ChannelView<M>) -> F + Clone + 'static,
) -> bool
where
    F: Future<Output = Result<(), Stop>>,
{
    let mut views = Channels::<M>::open(ranks, placement);
    let first = views.remove(0);
    let others: Vec<_> = views
        .into_iter()
        .map(|view| {
            let program = program.clone();
            loom::thread::spawn(move || block_on(program(view)))
        })
        .collect();
    let own = block_on(program(first)).is_ok();
    others.into_iter().fold(own, |all, other| other.join().unwrap().is_ok() && all)
}

#[test]
fn loom_barrier() {
    for placement in [Shared, PerReader] {
        check(&format!("barrier 2 {placement:?}"), None, move || {
            run::<Loom, _>(2, placement, |view| meet(view, Channel::default(), 2, Patience::Once))
        });
        check(&format!("barrier 3 {placement:?}"), Some(4), move || {
            run::<Loom, _>(3, placement, |view| meet(view, Channel::default(), 1, Patience::Once))
        });
        check(&format!("barrier 2 {placement:?} endless"), Some(3), move || {
            run::<Loom, _>(2, placement, |v| meet(v, Channel::default(), 2, Patience::Endless))
        });
    }
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_catches_a_relaxed_barrier() {
    check("barrier relaxed", None, || {
        run::<Relaxed, _>(2, Shared, |view| meet(view, Channel::default(), 1, Patience::Once))
    });
}

#[test]
fn loom_slots() {
    check("slots", None, || {
        run::<Loom, _>(2, Shared, |view| hand_over(view, 2, Patience::Endless))
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_catches_a_relaxed_slot() {
    check("slots relaxed", None, || {
        run::<Relaxed, _>(2, Shared, |view| hand_over(view, 1, Patience::Endless))
    });
}

#[test]
fn loom_reset() {
    for placement in [Shared, PerReader] {
        check(&format!("reset {placement:?}"), None, move || {
            run::<Loom, _>(2, placement, |view| {
                repair(view, Channel::default(), Patience::Polls(1), Patience::Once, Patience::Once)
            })
        });
        check(&format!("reset {placement:?} retried"), Some(3), move || {
            run::<Loom, _>(2, placement, |view| {
                let (short, endless) = (Patience::Polls(1), Patience::Endless);
                repair(view, Channel::default(), short, short, endless)
            })
        });
    }
}
