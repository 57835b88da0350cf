//! Where the words are.

use super::{ControlMemory, Parity, Word32, Word64, header::HEADER_WORDS};

/// Where a word that one rank writes and others read lies.
///
/// The machines give the same results in both; the models run both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// In the writer's memory, one copy that all readers poll: the host, where a line that nobody
    /// writes is in every reader's cache. Accessors return the same word for every reader.
    Shared,
    /// A copy in each reader's memory; the writer stores to each: GPUs, where a poll must not
    /// cross the link.
    PerReader,
}

/// One rank's sight of a lane: its own words and, where the placement puts them there, those in
/// its peers' memory.
///
/// Arguments are in range: ranks below [`world`](ControlMemory::world), blocks below
/// [`max_blocks`](Self::max_blocks), packet indices below [`packets`](Self::packets). Words start
/// as zeros; [`initialise`](super::lane::initialise) makes a lane of them.
pub trait LaneMemory: ControlMemory {
    /// Where headers, packets and flags lie.
    fn placement(&self) -> Placement;

    /// How many copies of the epoch there are, the upper bound of every grid.
    fn max_blocks(&self) -> usize;

    /// How many packet slots each (parity, writer, reader) has.
    fn packets(&self) -> usize;

    /// The header that `block` of `writer` shows to `reader`.
    fn header(
        &self,
        parity: Parity,
        block: usize,
        writer: usize,
        reader: usize,
    ) -> &[Self::Word64; HEADER_WORDS];

    /// A packet slot.
    fn packet(
        &self,
        parity: Parity,
        index: usize,
        writer: usize,
        reader: usize,
    ) -> &[Self::Word64; 2];

    /// How far `block` of `writer` has come in storing what `reader` waits for.
    fn flag(&self, parity: Parity, block: usize, writer: usize, reader: usize) -> &Self::Word64;

    /// This rank's epoch, the copy that a block of this index reads.
    fn epoch_copy(&self, block: usize) -> &Self::Word32;

    /// This rank's entry word of this lane, beside the epoch copies.
    fn entry(&self) -> &Self::Word32;
}

/// The words of barriers and of user signals.
pub trait SignalMemory {
    /// Its 32-bit words.
    type Word32: Word32;
    /// Its 64-bit words.
    type Word64: Word64;

    /// This rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn world(&self) -> usize;

    /// Where barrier words lie.
    fn placement(&self) -> Placement;

    /// The word by which `writer` tells `reader` that it arrived at a barrier of `channel`.
    fn barrier(&self, channel: usize, writer: usize, reader: usize) -> &Self::Word64;

    /// The user slot of `channel` by which `sender` signals `receiver`, in the receiver's pad.
    fn slot(&self, channel: usize, sender: usize, receiver: usize) -> &Self::Word32;
}
