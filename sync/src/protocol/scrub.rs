//! Clears words so old that their epoch is about to come again.
//!
//! Epochs repeat after 2^31 - 2 operations, and a slot that only large calls use may not be
//! written in between. So twice a cycle two operations, one of each parity, clear the buffers of
//! their parity. The criterion is the word itself: what does not carry the scrubbing operation's
//! epoch is old, whatever the ranges and ranks of that operation are. A word that its own epoch
//! spares here, since it was written a whole cycle ago, was cleared by the scrub half a cycle
//! ago.
//!
//! A peer may be storing this operation's words meanwhile. So an old word is cleared by
//! compare-exchange, which leaves a new one alone. No peer stores later words yet: for that it
//! needs this rank's next header.

use super::{Epoch, LaneMemory, Placement, Seat, Word64};

/// Clears this block's share of what this rank answers for: under [`Placement::Shared`] the words
/// it writes, under [`Placement::PerReader`] those its peers write for it.
///
/// The caller has every rank's header of the epoch before, and ends its operation afterwards.
/// Headers of block 0 need no scrub: every operation writes them.
pub(super) fn scrub<M: LaneMemory>(memory: &M, seat: Seat, epoch: Epoch) {
    let (me, parity) = (memory.rank(), epoch.parity());
    let writers = match memory.placement() {
        Placement::Shared => me..me + 1,
        Placement::PerReader => 0..memory.world(),
    };
    for writer in writers {
        for block in seat.share(memory.max_blocks()) {
            clear(memory.flag(parity, block, writer, me), epoch);
            if block != 0 {
                memory.header(parity, block, writer, me).iter().for_each(|w| clear(w, epoch));
            }
        }
        for index in seat.share(memory.packets()) {
            memory.packet(parity, index, writer, me).iter().for_each(|w| clear(w, epoch));
        }
    }
}

fn clear<W: Word64>(word: &W, epoch: Epoch) {
    let found = word.load_relaxed();
    if found != 0 && (found >> 32) as u32 != epoch.get() {
        // Another value found is this operation's, just stored.
        let _ = word.compare_exchange(found, 0);
    }
}
