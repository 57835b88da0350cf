//! A comparison after the last operation.

use super::Mismatch;
use crate::protocol::{Epoch, LaneMemory, Word, header};

/// Compares this rank's header of its last operation on the lane with those that are there of other
/// ranks: what its next operation would find, for when there may be none. Never waits. A header of
/// that epoch stays until this rank's next one, so that it is found whatever its writer did since.
///
/// # Errors
///
/// [`Mismatch`] when a rank's last call was not this rank's.
pub fn look_back<M: LaneMemory>(memory: &M) -> Result<(), Mismatch> {
    // In the middle of an operation, that looks itself.
    let Some(next) = Epoch::new(memory.epoch_copy(0).load_acquire()) else { return Ok(()) };
    let (me, epoch) = (memory.rank(), next.previous());
    let of = |writer| header::poll(memory.header(epoch.parity(), 0, writer, me), epoch);
    let Some(mine) = of(me) else { return Ok(()) };
    (0..memory.world()).filter_map(|rank| Some((rank, of(rank)?))).try_for_each(|(rank, theirs)| {
        mine.compare(theirs).map_err(|difference| Mismatch { rank, epoch, difference })
    })
}
