//! The memory of a whole group, in one place.

use std::sync::Arc;

use crate::protocol::header::HEADER_WORDS;
use crate::protocol::{
    ControlMemory, ControlPage, Epoch, Header, LaneMemory, Parity, Placement, SignalMemory, Word,
    Word32, Word64, control::Record, header, lane, packet,
};

/// The kind of words a model runs on.
pub(super) trait Machine: 'static {
    /// 32-bit words.
    type Word32: Word32;
    /// 64-bit words.
    type Word64: Word64;
    /// Memory for payload, which the protocol must protect: not a word that anybody polls.
    type Cell;

    /// Whether another thread may run between two steps of a program, not only where one waits.
    const PREEMPT: bool;

    fn word32() -> Self::Word32;
    fn word64() -> Self::Word64;
    fn cell() -> Self::Cell;
    fn write(cell: &Self::Cell, value: u64);
    fn read(cell: &Self::Cell) -> u64;
}

/// The size of a group's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub ranks: usize,
    pub blocks: usize,
    pub packets: usize,
    pub placement: Placement,
    /// Whether there are control pages.
    pub control: bool,
    /// Whether the scrub is told of the packets and blocks there are.
    pub scrubs: bool,
}

impl Shape {
    pub const fn new(ranks: usize, blocks: usize, placement: Placement) -> Self {
        Shape { ranks, blocks, packets: blocks, placement, control: false, scrubs: true }
    }

    /// The same with control pages.
    pub const fn watched(self) -> Self {
        Shape { control: true, ..self }
    }

    fn readers(&self) -> usize {
        match self.placement {
            Placement::Shared => 1,
            Placement::PerReader => self.ranks,
        }
    }

    /// The index of item `item` of `items` that `writer` has for `reader`.
    fn at(&self, parity: Parity, items: usize, item: usize, writer: usize, reader: usize) -> usize {
        let place = match self.placement {
            Placement::Shared => 0,
            Placement::PerReader => reader,
        };
        assert!(item < items && writer < self.ranks && reader < self.ranks);
        ((parity.index() * items + item) * self.ranks + writer) * self.readers() + place
    }
}

/// The memory of a group.
pub(super) struct World<M: Machine> {
    pub shape: Shape,
    headers: Vec<[M::Word64; HEADER_WORDS]>,
    packets: Vec<[M::Word64; 2]>,
    flags: Vec<M::Word64>,
    cells: Vec<M::Cell>,
    epochs: Vec<Vec<M::Word32>>,
    entries: Vec<M::Word32>,
    pages: Vec<Page<M>>,
    /// How many operations each block of each rank has left: what stream order is in production.
    pub left: Vec<Vec<M::Word32>>,
}

struct Page<M: Machine> {
    claim: M::Word32,
    abort: M::Word32,
    lost: Vec<M::Word64>,
    left: Vec<M::Word64>,
    record: Vec<M::Word64>,
}

fn make<T>(n: usize, one: impl Fn() -> T) -> Vec<T> {
    (0..n).map(|_| one()).collect()
}

impl<M: Machine> World<M> {
    /// Zeroed memory of this shape.
    pub fn new(shape: Shape) -> Self {
        let pairs = 2 * shape.ranks * shape.readers();
        let pages = if shape.control { shape.ranks } else { 0 };
        World {
            shape,
            headers: make(pairs * shape.blocks, || std::array::from_fn(|_| M::word64())),
            packets: make(pairs * shape.packets, || std::array::from_fn(|_| M::word64())),
            flags: make(pairs * shape.blocks, M::word64),
            cells: make(pairs * shape.packets, M::cell),
            epochs: make(shape.ranks, || make(shape.blocks, M::word32)),
            entries: make(shape.ranks, M::word32),
            pages: make(pages, || Page {
                claim: M::word32(),
                abort: M::word32(),
                lost: make(1, M::word64),
                left: make(1, M::word64),
                record: make(Record::words(shape.ranks), M::word64),
            }),
            left: make(shape.ranks, || make(shape.blocks, M::word32)),
        }
    }

    /// Leaves words of `epoch` where an operation a whole cycle ago may have left them: in every
    /// packet, flag and header, except the headers of block 0, which every operation writes.
    pub fn leave_stale(&self, epoch: Epoch) {
        let parity = epoch.parity();
        let readers = self.shape.readers();
        for (writer, reader) in
            (0..self.shape.ranks).flat_map(|w| (0..readers).map(move |r| (w, r)))
        {
            for block in 0..self.shape.blocks {
                let at = self.shape.at(parity, self.shape.blocks, block, writer, reader);
                self.flags[at].store_relaxed(packet::stamp(u32::MAX, epoch));
                if block != 0 {
                    header::publish(&self.headers[at], Header { signature: 9, issue: 9 }, epoch);
                }
            }
            for index in 0..self.shape.packets {
                let at = self.shape.at(parity, self.shape.packets, index, writer, reader);
                packet::put(&self.packets[at], 0x5ca1_ab1e, epoch);
            }
        }
    }

    /// Makes lanes of it whose next operation is of `first`, and returns each rank's sight.
    pub fn open(self, first: Epoch) -> Vec<View<M>> {
        let world = Arc::new(self);
        let views: Vec<_> =
            (0..world.shape.ranks).map(|rank| View { world: world.clone(), rank }).collect();
        views.iter().for_each(|view| lane::initialise(view, first.previous()));
        views
    }
}

/// One rank's sight of a [`World`].
pub(super) struct View<M: Machine> {
    pub world: Arc<World<M>>,
    pub rank: usize,
}

impl<M: Machine> Clone for View<M> {
    fn clone(&self) -> Self {
        View { world: self.world.clone(), rank: self.rank }
    }
}

impl<M: Machine> View<M> {
    fn cell(&self, parity: Parity, index: usize, writer: usize, reader: usize) -> &M::Cell {
        let shape = &self.world.shape;
        &self.world.cells[shape.at(parity, shape.packets, index, writer, reader)]
    }

    /// Writes raw staging memory for every reader.
    pub fn stage(&self, parity: Parity, index: usize, value: u64) {
        match self.world.shape.placement {
            Placement::Shared => M::write(self.cell(parity, index, self.rank, self.rank), value),
            Placement::PerReader => (0..self.world.shape.ranks)
                .filter(|&reader| reader != self.rank)
                .for_each(|reader| M::write(self.cell(parity, index, self.rank, reader), value)),
        }
    }

    /// Reads raw staging memory of a writer.
    pub fn staged(&self, parity: Parity, index: usize, writer: usize) -> u64 {
        M::read(self.cell(parity, index, writer, self.rank))
    }
}

impl<M: Machine> ControlMemory for View<M> {
    type Word32 = M::Word32;
    type Word64 = M::Word64;

    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world.shape.ranks
    }

    fn control(&self, rank: usize) -> Option<ControlPage<'_, M::Word32, M::Word64>> {
        self.world.pages.get(rank).map(|page| ControlPage {
            claim: &page.claim,
            abort: &page.abort,
            lost: &page.lost,
            left: &page.left,
            record: &page.record,
        })
    }
}

impl<M: Machine> LaneMemory for View<M> {
    fn placement(&self) -> Placement {
        self.world.shape.placement
    }

    fn max_blocks(&self) -> usize {
        self.world.shape.blocks
    }

    fn packets(&self) -> usize {
        if self.world.shape.scrubs { self.world.shape.packets } else { 0 }
    }

    fn header(
        &self,
        parity: Parity,
        block: usize,
        writer: usize,
        reader: usize,
    ) -> &[M::Word64; HEADER_WORDS] {
        let shape = &self.world.shape;
        &self.world.headers[shape.at(parity, shape.blocks, block, writer, reader)]
    }

    fn packet(
        &self,
        parity: Parity,
        index: usize,
        writer: usize,
        reader: usize,
    ) -> &[M::Word64; 2] {
        let shape = &self.world.shape;
        &self.world.packets[shape.at(parity, shape.packets, index, writer, reader)]
    }

    fn flag(&self, parity: Parity, block: usize, writer: usize, reader: usize) -> &M::Word64 {
        let shape = &self.world.shape;
        &self.world.flags[shape.at(parity, shape.blocks, block, writer, reader)]
    }

    fn epoch_copy(&self, block: usize) -> &M::Word32 {
        &self.world.epochs[self.rank][block]
    }

    fn entry(&self) -> &M::Word32 {
        &self.world.entries[self.rank]
    }
}

/// The words of a barrier channel and its user slots, for a whole group.
pub(super) struct Channels<M: Machine> {
    ranks: usize,
    placement: Placement,
    words: Vec<M::Word64>,
    slots: Vec<M::Word32>,
    /// Payload of each rank.
    cells: Vec<M::Cell>,
}

/// One rank's sight of [`Channels`].
pub(super) struct ChannelView<M: Machine> {
    channels: Arc<Channels<M>>,
    pub rank: usize,
}

impl<M: Machine> Channels<M> {
    /// One zeroed channel, as each rank sees it.
    pub fn open(ranks: usize, placement: Placement) -> Vec<ChannelView<M>> {
        let channels = Arc::new(Channels {
            ranks,
            placement,
            words: make(ranks * ranks, M::word64),
            slots: make(ranks * ranks, M::word32),
            cells: make(ranks, M::cell),
        });
        (0..ranks).map(|rank| ChannelView { channels: channels.clone(), rank }).collect()
    }
}

impl<M: Machine> ChannelView<M> {
    pub fn write(&self, value: u64) {
        M::write(&self.channels.cells[self.rank], value);
    }

    pub fn read(&self, rank: usize) -> u64 {
        M::read(&self.channels.cells[rank])
    }
}

impl<M: Machine> SignalMemory for ChannelView<M> {
    type Word32 = M::Word32;
    type Word64 = M::Word64;

    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.channels.ranks
    }

    fn placement(&self) -> Placement {
        self.channels.placement
    }

    fn barrier(&self, _channel: usize, writer: usize, reader: usize) -> &M::Word64 {
        let place = match self.channels.placement {
            Placement::Shared => 0,
            Placement::PerReader => reader,
        };
        &self.channels.words[writer * self.channels.ranks + place]
    }

    fn slot(&self, _channel: usize, sender: usize, receiver: usize) -> &M::Word32 {
        &self.channels.slots[receiver * self.channels.ranks + sender]
    }
}
