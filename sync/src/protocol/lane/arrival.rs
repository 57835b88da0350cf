//! From the entry to the right to store.

use super::{BUSY, Call, Mismatch, Operation, Phase, Refused, Seat};
use crate::protocol::progress::{Cursor, Peers, Progress};
use crate::protocol::{Entry, Epoch, Header, LaneMemory, Placement, Word, header};

/// Begins an operation on this rank: looks at the entry word and reads the epoch.
///
/// # Errors
///
/// [`Refused`]; nothing was stored where a peer reads. After [`Refused::Busy`] in checked mode the
/// lane is dead.
pub fn enter<'m, M: LaneMemory>(
    memory: &'m M,
    seat: Seat,
    call: Call<'m>,
) -> Result<Arrival<'m, M>, Refused> {
    match Entry::look(memory.entry()) {
        Entry::Open => {}
        Entry::Failed => return Err(Refused::Failed),
        Entry::Retired => return Err(Refused::Retired),
    }
    // An abort reaches the page, which all lanes share; each lane closes its own entry word.
    if memory.control(memory.rank()).is_some_and(|page| page.is_aborted()) {
        Entry::fail(memory.entry());
        return Err(Refused::Failed);
    }
    let epoch = if seat.checked { take(memory, seat)? } else { look(memory, seat)? };
    Ok(Arrival { memory, seat, call, epoch, cursor: Cursor::START })
}

/// The epoch of the block's first copy; all agree between operations.
fn look<M: LaneMemory>(memory: &M, seat: Seat) -> Result<Epoch, Refused> {
    let found = memory.epoch_copy(seat.block).load_acquire();
    Epoch::new(found).ok_or(Refused::Busy { copy: seat.block, found })
}

/// Takes the busy bit of every copy the block owns; all must have been free and equal.
fn take<M: LaneMemory>(memory: &M, seat: Seat) -> Result<Epoch, Refused> {
    let mut epoch = None;
    for copy in seat.share(memory.max_blocks()) {
        let found = memory.epoch_copy(copy).fetch_or(BUSY);
        let read = Epoch::new(found).ok_or(Refused::Busy { copy, found })?;
        if *epoch.get_or_insert(read) != read {
            return Err(Refused::Busy { copy, found });
        }
    }
    epoch.ok_or(Refused::Busy { copy: seat.block, found: 0 })
}

/// An operation that has its epoch e and waits for every rank's header of e - 1.
///
/// A rank's header of e - 1 was stored after that rank finished its reads of e - 2, the epoch that
/// used the buffers of e before. It is the leave to store into them, and also what the header of
/// this epoch waits for, so no rank is ever more than one operation ahead of another.
///
/// Block 0 compares these headers with this rank's of e - 1. So a rank whose data an operation
/// does not consume is compared too, one operation later.
#[derive(Debug)]
#[must_use]
pub struct Arrival<'m, M> {
    memory: &'m M,
    seat: Seat,
    call: Call<'m>,
    epoch: Epoch,
    cursor: Cursor,
}

/// The proof that every rank finished its reads of e - 2.
#[derive(Debug)]
pub struct Clear(());

#[cfg(test)]
impl Clear {
    /// For models of what happens without the wait.
    pub(in crate::protocol) fn forged() -> Self {
        Clear(())
    }
}

impl<'m, M: LaneMemory> Arrival<'m, M> {
    /// The epoch of this operation.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Looks for the headers of e - 1 that are still missing.
    ///
    /// # Errors
    ///
    /// [`Mismatch`] when a rank's call of e - 1 was not this rank's.
    pub fn poll(&mut self) -> Result<Progress<Clear>, Mismatch> {
        let (memory, seat, previous) = (self.memory, self.seat, self.epoch.previous());
        let (me, world) = (memory.rank(), memory.world());
        let progress = self.cursor.advance(me, world, Peers::All, |writer| {
            let slot = memory.header(previous.parity(), 0, writer, me);
            if seat.block != 0 {
                // The writer may have overwritten it: block 0 of this rank has published, which
                // is all that its header of e + 1 waits for. Block 0 has also compared it.
                return Ok(header::reached(slot, previous));
            }
            let Some(theirs) = header::poll(slot, previous) else { return Ok(false) };
            // This rank's own copy is there until its own e + 1.
            let mine = header::poll(memory.header(previous.parity(), 0, me, me), previous);
            mine.unwrap_or_default().compare(theirs).map_err(|difference| Mismatch {
                rank: writer,
                epoch: previous,
                difference,
            })?;
            Ok(true)
        })?;
        Ok(progress.map(Clear))
    }

    /// Publishes this block's header: from block 0 to every rank, from others to those they feed.
    pub fn publish(self, _: Clear) -> Operation<'m, M> {
        let Arrival { memory, seat, call, epoch, .. } = self;
        let (me, world) = (memory.rank(), memory.world());
        let put = |reader| publish_to(memory, seat, call.header, epoch, reader);
        // Block 0 keeps a copy for itself, for the comparison of the next operation.
        let reads =
            |reader: usize| seat.block == 0 || (reader != me && call.feeds.contains(reader));
        match memory.placement() {
            Placement::Shared => {
                if (0..world).any(reads) {
                    put(me);
                }
            }
            Placement::PerReader => (0..world).filter(|&reader| reads(reader)).for_each(put),
        }
        Operation::new(memory, seat, call, epoch)
    }
}

impl<M: LaneMemory> Phase for Arrival<'_, M> {
    /// Every rank, until its header of e - 1 is there.
    fn awaits(&self, rank: usize) -> bool {
        let (previous, me) = (self.epoch.previous(), self.memory.rank());
        let slot = self.memory.header(previous.parity(), 0, rank, me);
        rank != me && !header::reached(slot, previous)
    }

    /// A header of e - 1 comes whatever the call was.
    fn check(&self, _writer: usize) -> Result<(), Mismatch> {
        Ok(())
    }

    fn world(&self) -> usize {
        self.memory.world()
    }
}

fn publish_to<M: LaneMemory>(memory: &M, seat: Seat, header: Header, epoch: Epoch, reader: usize) {
    let slot = memory.header(epoch.parity(), seat.block, memory.rank(), reader);
    header::publish(slot, header, epoch);
}
