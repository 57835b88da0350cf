//! What a rank does with a channel in a model: barriers, user slots, resets, checked.

use super::program::{Stop, tick};
use super::world::{ChannelView, Machine};
use crate::protocol::barrier::{Barrier, Channel, Reset};
use crate::protocol::{Progress, SignalMemory, slot};

/// How often a program polls before it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// One poll: the program ends as [`Stop::Blocked`].
    Once,
    Polls(u32),
    Endless,
}

/// Polls until ready; false when patience is over.
async fn wait(patience: Patience, mut poll: impl FnMut() -> bool) -> Result<bool, Stop> {
    let mut polls = 0;
    while !poll() {
        polls += 1;
        match patience {
            Patience::Once => return Err(Stop::Blocked),
            Patience::Polls(most) if polls >= most => return Ok(false),
            _ => tick().await,
        }
    }
    Ok(true)
}

/// A barrier; false when it was given up.
async fn barrier<M: Machine>(
    view: &ChannelView<M>,
    channel: &mut Channel,
    patience: Patience,
) -> Result<bool, Stop> {
    let mut barrier = Barrier::arrive(view, 0, channel).expect("an open channel");
    wait(patience, || barrier.poll() == Progress::Ready(())).await
}

/// Writes payload, meets, reads everybody's, meets, and again.
pub(super) async fn meet<M: Machine>(
    view: ChannelView<M>,
    mut channel: Channel,
    rounds: u64,
    patience: Patience,
) -> Result<(), Stop> {
    for round in 1..=rounds {
        view.write(round);
        assert!(barrier(&view, &mut channel, patience).await?);
        for rank in 0..view.world() {
            assert_eq!(view.read(rank), round, "of rank {rank}");
        }
        // The next round overwrites what was read.
        assert!(barrier(&view, &mut channel, patience).await?);
    }
    Ok(())
}

/// Rank 0 hands payload to rank 1 through one slot and gets the receipt through another.
pub(super) async fn hand_over<M: Machine>(
    view: ChannelView<M>,
    rounds: u64,
    patience: Patience,
) -> Result<(), Stop> {
    let (there, back) = (view.slot(0, 0, 1), view.slot(0, 1, 0));
    for round in 1..=rounds {
        if view.rank == 0 {
            view.write(round);
            wait(patience, || slot::poll_put(there)).await?;
            wait(patience, || slot::poll_wait(back)).await?;
        } else {
            wait(patience, || slot::poll_wait(there)).await?;
            assert_eq!(view.read(0), round);
            wait(patience, || slot::poll_put(back)).await?;
        }
    }
    Ok(())
}

/// A barrier that may be given up, a reset of all ranks that is retried until it succeeds, and
/// then a channel that works: a signal around the ring and a barrier.
pub(super) async fn repair<M: Machine>(
    view: ChannelView<M>,
    mut channel: Channel,
    first: Patience,
    retries: Patience,
    last: Patience,
) -> Result<(), Stop> {
    let (me, world) = (view.rank, view.world());
    let (next, previous) = ((me + 1) % world, (me + world - 1) % world);
    // A signal nobody takes, and a barrier that not all complete.
    let _ = slot::poll_put(view.slot(0, me, next));
    barrier(&view, &mut channel, first).await?;

    loop {
        let mut reset = Reset::begin(&view, 0, &mut channel);
        if wait(retries, || reset.poll() == Progress::Ready(())).await? {
            break;
        }
        assert!(channel.is_broken());
        tick().await;
    }
    assert!(!channel.is_broken());

    view.write(7);
    assert!(slot::poll_put(view.slot(0, me, next)), "a slot that the reset left full");
    wait(last, || slot::poll_wait(view.slot(0, previous, me))).await?;
    assert_eq!(view.read(previous), 7);
    assert!(barrier(&view, &mut channel, last).await?);
    // After the barrier all signals were taken, and none came twice.
    assert!((0..world).all(|sender| !slot::poll_wait(view.slot(0, sender, me))));
    Ok(())
}
