//! From the header to the next epoch.

use super::{Call, Mismatch, Phase, Seat};
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

#[cfg(test)]
impl Agreed {
    /// For models of what happens without the comparison.
    pub(in crate::protocol) fn forged() -> Self {
        Agreed(())
    }
}

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

    /// Looks for a packet of `writer`.
    pub fn poll_packet(&self, index: usize, writer: usize) -> Progress<u64> {
        let slot = self.memory.packet(self.epoch.parity(), index, writer, self.memory.rank());
        packet::poll(slot, self.epoch).map_or(Progress::Pending { writer }, Progress::Ready)
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

    /// Looks whether the block of equal index of `writer` has reached `step`; what it stored
    /// before its [`raise`](Self::raise) happens before this is ready.
    ///
    /// Steps have an order within an epoch. The flag is not written for the next epoch of equal
    /// parity before this rank's next header, so no other epoch can stand in its place.
    pub fn poll_flag(&self, writer: usize, step: u32) -> Progress<()> {
        let (parity, me) = (self.epoch.parity(), self.memory.rank());
        let word = self.memory.flag(parity, self.seat.block, writer, me).load_acquire();
        match packet::unstamp(word, self.epoch) {
            Some(reached) if reached >= step => Progress::Ready(()),
            _ => Progress::Pending { writer },
        }
    }

    /// Compares with the header of a block of `writer`; false if it is not there.
    fn compare(&self, block: usize, writer: usize) -> Result<bool, Mismatch> {
        let slot = self.memory.header(self.epoch.parity(), block, writer, self.memory.rank());
        let Some(theirs) = header::poll(slot, self.epoch) else { return Ok(false) };
        self.call.header.compare(theirs).map_err(|difference| Mismatch {
            rank: writer,
            epoch: self.epoch,
            difference,
        })?;
        Ok(true)
    }

    /// Looks for the headers of the ranks whose data this block consumes.
    ///
    /// # Errors
    ///
    /// [`Mismatch`] when a rank issued another call: what was read of it means nothing.
    pub fn poll_headers(&mut self) -> Result<Progress<Agreed>, Mismatch> {
        let (me, world) = (self.memory.rank(), self.memory.world());
        let mut cursor = self.cursor;
        let progress = cursor
            .advance(me, world, self.call.consumes, |writer| self.compare(self.seat.block, writer));
        self.cursor = cursor;
        Ok(progress?.map(Agreed))
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

impl<M: LaneMemory> Phase for Operation<'_, M> {
    /// A rank whose data this block consumes, until its block 0, which publishes in every
    /// operation, has come to this one. The payload of a rank that has come is for its own wait.
    fn awaits(&self, rank: usize) -> bool {
        let me = self.memory.rank();
        let slot = self.memory.header(self.epoch.parity(), 0, rank, me);
        rank != me && self.call.consumes.contains(rank) && header::poll(slot, self.epoch).is_none()
    }

    /// Two calls may wait for different words of each other, so that neither comes. The header
    /// of block 0, which every operation publishes, tells.
    fn check(&self, writer: usize) -> Result<(), Mismatch> {
        self.compare(0, writer).map(|_| ())
    }

    fn world(&self) -> usize {
        self.memory.world()
    }
}
