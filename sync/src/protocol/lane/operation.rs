//! From the header to the next epoch.

use symmem_hal::types::RankSet;

use super::{Call, Mismatch, Seat};
use crate::protocol::progress::{Cursor, Progress};
use crate::protocol::scrub::scrub;
use crate::protocol::{Epoch, LaneMemory, Placement, Word, header, packet};

/// An operation under way: its header is published, its payload may be stored.
#[derive(Debug)]
#[must_use = "an operation that does not exit leaves the lane dead"]
pub struct Operation<'m, M> {
    memory: &'m M,
    seat: Seat,
    call: Call<'m>,
    epoch: Epoch,
    cursor: Cursor,
}

/// The proof that every rank whose data was consumed issued the same call.
#[derive(Debug)]
pub struct Agreed(());

impl<'m, M: LaneMemory> Operation<'m, M> {
    pub(super) fn new(memory: &'m M, seat: Seat, call: Call<'m>, epoch: Epoch) -> Self {
        Operation { memory, seat, call, epoch, cursor: Cursor::START }
    }

    /// The epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Stores a packet for every rank that this block feeds.
    pub fn put(&self, index: usize, data: u64) {
        self.for_readers(|memory, reader| {
            let slot = memory.packet(self.epoch.parity(), index, memory.rank(), reader);
            packet::put(slot, data, self.epoch);
        });
    }

    /// The packet of `writer`, once it is there.
    #[must_use]
    pub fn poll_packet(&self, index: usize, writer: usize) -> Option<u64> {
        let me = self.memory.rank();
        packet::poll(self.memory.packet(self.epoch.parity(), index, writer, me), self.epoch)
    }

    /// Tells every rank that this block feeds that all stores up to `step` are made. Steps of an
    /// operation ascend from 1.
    pub fn raise(&self, step: u32) {
        let value = packet::stamp(step, self.epoch);
        self.for_readers(|memory, reader| {
            memory
                .flag(self.epoch.parity(), self.seat.block, memory.rank(), reader)
                .store_release(value);
        });
    }

    /// Whether the block of equal index of `writer` has reached `step`; what it stored before its
    /// [`raise`](Self::raise) happens before this.
    ///
    /// Steps have an order within an epoch. Its flag is not written for the next epoch of equal
    /// parity before this rank's next header, so no other epoch can stand here in its place.
    #[must_use]
    pub fn poll_flag(&self, writer: usize, step: u32) -> bool {
        let (parity, me) = (self.epoch.parity(), self.memory.rank());
        let word = self.memory.flag(parity, self.seat.block, writer, me).load_acquire();
        packet::unstamp(word, self.epoch).is_some_and(|reached| reached >= step)
    }

    /// Looks for the headers of the ranks whose data this block consumes.
    ///
    /// # Errors
    ///
    /// [`Mismatch`] when a rank issued another call: what was read of it means nothing.
    pub fn poll_headers(&mut self) -> Result<Progress<Agreed>, Mismatch> {
        let (memory, block, epoch, mine) =
            (self.memory, self.seat.block, self.epoch, self.call.header);
        let (me, world) = (memory.rank(), memory.world());
        let progress = self.cursor.advance(me, world, self.call.consumes, |writer| {
            let slot = memory.header(epoch.parity(), block, writer, me);
            let Some(theirs) = header::poll(slot, epoch) else { return Ok(false) };
            mine.compare(theirs).map_err(|difference| Mismatch {
                rank: writer,
                epoch,
                difference,
            })?;
            Ok(true)
        })?;
        Ok(progress.map(Agreed))
    }

    /// The ranks whose data this block consumes and whose header is missing.
    #[must_use]
    pub fn missing(&self) -> RankSet {
        let (memory, epoch, block) = (self.memory, self.epoch, self.seat.block);
        let me = memory.rank();
        self.cursor.missing(me, memory.world(), self.call.consumes, |writer| {
            header::poll(memory.header(epoch.parity(), block, writer, me), epoch).is_some()
        })
    }

    /// Ends the operation on this block, after its last read of what peers wrote: scrubs where
    /// that is due and advances the copies of the epoch that the block owns. Returns the next
    /// epoch.
    pub fn exit(self, _: Agreed) -> Epoch {
        if self.epoch.scrub_due() {
            scrub(self.memory, self.seat, self.epoch);
        }
        let next = self.epoch.next();
        for copy in self.seat.share(self.memory.max_blocks()) {
            self.memory.epoch_copy(copy).store_release(next.get());
        }
        next
    }

    fn for_readers(&self, store: impl Fn(&M, usize)) {
        let (memory, me) = (self.memory, self.memory.rank());
        match memory.placement() {
            Placement::Shared => store(memory, me),
            Placement::PerReader => (0..memory.world())
                .filter(|&reader| reader != me && self.call.feeds.contains(reader))
                .for_each(|reader| store(memory, reader)),
        }
    }
}
