//! A comparison after the last operation.

use super::Mismatch;
use crate::protocol::{Epoch, LaneMemory, Word, header};

/// With whom [`look_back`] has compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookedBack {
    /// With every rank: until this rank's next operation on the lane there is nothing to be found.
    All,
    /// Not with all: a rank has not come to that operation yet, or this one is in the middle of its
    /// next, which looks itself.
    Part,
}

/// Compares this rank's header of its last operation on the lane with those that are there of other
/// ranks: what its next operation would find, for when there may be none. Never waits. A header of
/// that epoch stays until this rank's next one, so that it is found whatever its writer did since.
///
/// # Errors
///
/// [`Mismatch`] when a rank's last call was not this rank's.
pub fn look_back<M: LaneMemory>(memory: &M) -> Result<LookedBack, Mismatch> {
    let Some(next) = Epoch::new(memory.epoch_copy(0).load_acquire()) else {
        return Ok(LookedBack::Part);
    };
    let (me, epoch) = (memory.rank(), next.previous());
    let of = |writer| header::poll(memory.header(epoch.parity(), 0, writer, me), epoch);
    let Some(mine) = of(me) else { return Ok(LookedBack::Part) };
    let mut seen = LookedBack::All;
    for rank in (0..memory.world()).filter(|rank| *rank != me) {
        match of(rank).map(|theirs| mine.compare(theirs)) {
            Some(Ok(())) => {}
            Some(Err(difference)) => return Err(Mismatch { rank, epoch, difference }),
            None => seen = LookedBack::Part,
        }
    }
    Ok(seen)
}
