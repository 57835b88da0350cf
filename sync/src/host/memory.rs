//! Where the words of a group are, for code that follows addresses.
#![allow(unsafe_code, reason = "makes atomics of addresses in mapped regions")]

use core::sync::atomic::{AtomicU32, AtomicU64};

use smallvec::SmallVec;
use symmem_hal::types::Bytes;
use symmem_hal::{DevicePtr, LaunchContext};

use crate::layout::{Bases, ChannelWords, HEADER, Layout, PACKET};
use crate::page::{ABORT, CLAIM, DOORBELL, LINE, STALE};
use crate::protocol::control::Record;
use crate::protocol::header::HEADER_WORDS;
use crate::protocol::{ControlMemory, ControlPage, LaneMemory, Parity, Placement, SignalMemory};

/// One lane of a group, its addresses followed for the length of one launch.
#[derive(Debug)]
pub struct HostMemory<'a>(pub(crate) Words<'a>);

impl<'a> HostMemory<'a> {
    /// Follows the addresses that the table of a group's workspace holds. `None` where one of them
    /// means nothing to this launch, or the group has no such lane.
    ///
    /// # Safety
    ///
    /// `table` must be what a [`LaneArgs`](super::LaneArgs) of this launch names, and all the
    /// group's regions must stay mapped during the launch, as [`Lane::issue`](crate::Lane::issue)
    /// sees to.
    #[must_use]
    pub unsafe fn new(context: &'a LaunchContext<'_>, table: DevicePtr, lane: u32) -> Option<Self> {
        // SAFETY: the caller's promise.
        unsafe { Words::new(context, table, lane) }.map(HostMemory)
    }

    /// How the workspace is laid out.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.0.layout()
    }
}

/// One rank's sight of its group's pads and workspaces, for the length of one launch.
///
/// Every access is an atomic on a word of a mapped region, or a raw address for payload.
#[derive(Debug)]
pub(crate) struct Words<'a> {
    layout: Layout,
    lane: u64,
    /// By rank: pad, workspace. Up to 16 ranks without an allocation.
    ranks: SmallVec<[(*mut u8, *mut u8); 16]>,
    /// The regions are mapped for as long as the launch that made this.
    launch: core::marker::PhantomData<&'a ()>,
}

impl<'a> Words<'a> {
    /// Reads the table at `table` and follows its addresses. `None` where one of them means
    /// nothing to this launch.
    ///
    /// # Safety
    ///
    /// `table` must be the table of a group's workspace, written when the group's lanes were made,
    /// and all the group's regions must stay mapped during the launch.
    pub(crate) unsafe fn new(
        context: &'a LaunchContext<'_>,
        table: DevicePtr,
        lane: u32,
    ) -> Option<Self> {
        let size = size_of::<Layout>() as u64;
        let at = context.resolve(table, Bytes(size))?;
        // SAFETY: a table begins with its layout (caller). It lies in memory that no other process has
        // mapped, and nobody writes it after it was made.
        let layout = unsafe { at.cast::<Layout>().read_unaligned() };
        let bases = context.resolve(
            table.checked_add(Bytes(size))?,
            Bytes(u64::from(layout.page.world) * size_of::<Bases>() as u64),
        )?;
        let mut ranks = SmallVec::new();
        let workspace_bytes =
            Bytes(layout.first_lane + u64::from(layout.lanes) * layout.lane_bytes);
        for rank in 0..layout.world() {
            // SAFETY: the layout is followed by one entry a rank (caller).
            let bases = unsafe { bases.cast::<Bases>().add(rank).read_unaligned() };
            let pad = context.resolve(
                bases.pad,
                Bytes(u64::from(layout.page.channels) * 4 * u64::from(layout.page.world)),
            )?;
            ranks.push((pad, context.resolve(bases.workspace, workspace_bytes)?));
        }
        if lane >= layout.lanes {
            return None;
        }
        let lane = layout.entry(lane);
        Some(Words { layout, lane, ranks, launch: core::marker::PhantomData })
    }

    /// Turns to another lane of the same group, below `layout().lanes`: what was looked up is the same.
    pub(crate) fn turn_to(&mut self, lane: u32) {
        self.lane = self.layout.entry(lane.min(self.layout.lanes - 1));
    }

    /// The epoch that this lane's next operation had when the calls before it had been compared with
    /// those of all ranks; this rank's alone, behind the entry word and the epoch.
    pub(crate) fn compared(&self) -> &AtomicU32 {
        self.word32(self.workspace(self.layout.rank as usize, self.lane + 8))
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The address `offset` bytes into a rank's workspace. In range: every caller passes offsets
    /// that the layout computed for a workspace of this size.
    fn workspace(&self, rank: usize, offset: u64) -> *mut u8 {
        // SAFETY: the layout's offsets lie in the region that `new` resolved in full.
        unsafe { self.ranks[rank].1.add(offset as usize) }
    }

    /// The word at an address that [`workspace`](Self::workspace) or a pad gave: private to this
    /// file, whose every caller passes one.
    fn word32(&self, at: *mut u8) -> &AtomicU32 {
        // SAFETY: mapped during the launch, aligned by the layout, and only ever used as an atomic.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    fn word64(&self, at: *mut u8) -> &AtomicU64 {
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    fn words64(&self, at: *mut u8, count: usize) -> &[AtomicU64] {
        // SAFETY: as in `word32`, for each of the words, which follow each other.
        unsafe { core::slice::from_raw_parts(at.cast(), count) }
    }

    /// The doorbell of a rank.
    pub(crate) fn doorbell(&self, rank: usize) -> &AtomicU32 {
        self.word32(self.workspace(rank, DOORBELL))
    }

    /// Set once a graph has found its lane closed; read by this rank's host.
    pub(crate) fn stale(&self) -> &AtomicU64 {
        self.word64(self.workspace(self.layout.rank as usize, STALE))
    }

    /// The state of a channel, private to this rank's kernels.
    pub(crate) fn channel(&self, channel: usize) -> [&AtomicU32; 3] {
        let at = self.workspace(
            self.layout.rank as usize,
            self.layout.channel_states + (channel * size_of::<ChannelWords>()) as u64,
        );
        // SAFETY: three words within one entry of the table.
        let word = |i: usize| self.word32(unsafe { at.add(4 * i) });
        [word(0), word(1), word(2)]
    }

    /// The words in which a signal or barrier of a channel reports that it ended early: the ranks it
    /// missed, what happened, and that some channel has had a fault. Stored in this order.
    pub(crate) fn fault(&self, channel: u32) -> (&[AtomicU64], &AtomicU64, &AtomicU64) {
        let (me, masks) = (self.layout.rank as usize, (self.layout.world()).div_ceil(64));
        let at = self.workspace(me, self.layout.page.channel_fault(channel));
        let words = self.words64(at, 1 + masks);
        (&words[1..], &words[0], self.word64(self.workspace(me, self.layout.page.any_fault())))
    }

    /// This lane's staging of a rank for an epoch's parity and a chunk's: `staging_unit` bytes.
    pub(crate) fn staging(&self, rank: usize, parity: Parity, chunk: usize) -> *mut u8 {
        let unit = (parity.index() * 2 + chunk % 2) as u64;
        self.workspace(rank, self.lane + self.layout.staging + unit * self.layout.staging_unit)
    }
}

impl ControlMemory for Words<'_> {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    fn rank(&self) -> usize {
        self.layout.rank as usize
    }

    fn world(&self) -> usize {
        self.layout.world()
    }

    fn control(&self, rank: usize) -> Option<ControlPage<'_, AtomicU32, AtomicU64>> {
        let world = self.layout.world();
        Some(ControlPage {
            claim: self.word32(self.workspace(rank, CLAIM)),
            abort: self.word32(self.workspace(rank, ABORT)),
            lost: self.words64(self.workspace(rank, self.layout.page.lost), world.div_ceil(64)),
            left: self.words64(self.workspace(rank, self.layout.page.left), world.div_ceil(64)),
            record: self
                .words64(self.workspace(rank, self.layout.page.record), Record::words(world)),
        })
    }
}

impl LaneMemory for Words<'_> {
    fn placement(&self) -> Placement {
        Placement::Shared
    }

    fn max_blocks(&self) -> usize {
        1
    }

    fn packets(&self) -> usize {
        self.layout.packets as usize
    }

    fn header(
        &self,
        parity: Parity,
        _: usize,
        writer: usize,
        _: usize,
    ) -> &[AtomicU64; HEADER_WORDS] {
        let at = self.workspace(
            writer,
            self.lane + self.layout.fronts + parity.index() as u64 * self.layout.front_bytes,
        );
        // SAFETY: the front begins with the header's words; as in `word32`.
        unsafe { &*at.cast() }
    }

    fn packet(&self, parity: Parity, index: usize, writer: usize, _: usize) -> &[AtomicU64; 2] {
        let front =
            self.lane + self.layout.fronts + parity.index() as u64 * self.layout.front_bytes;
        let at = self.workspace(writer, front + HEADER + index as u64 * PACKET);
        // SAFETY: packets follow the header, `index` is below their number (LaneMemory's contract).
        unsafe { &*at.cast() }
    }

    fn flag(&self, parity: Parity, _: usize, writer: usize, _: usize) -> &AtomicU64 {
        self.word64(
            self.workspace(writer, self.lane + self.layout.flags + parity.index() as u64 * LINE),
        )
    }

    fn epoch_copy(&self, block: usize) -> &AtomicU32 {
        self.word32(self.workspace(self.layout.rank as usize, self.lane + 4 + 4 * block as u64))
    }

    fn entry(&self) -> &AtomicU32 {
        self.word32(self.workspace(self.layout.rank as usize, self.lane))
    }
}

impl SignalMemory for Words<'_> {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    fn rank(&self) -> usize {
        self.layout.rank as usize
    }

    fn world(&self) -> usize {
        self.layout.world()
    }

    fn placement(&self) -> Placement {
        Placement::Shared
    }

    fn barrier(&self, channel: usize, writer: usize, _: usize) -> &AtomicU64 {
        self.word64(self.workspace(writer, self.layout.barriers + channel as u64 * LINE))
    }

    fn slot(&self, channel: usize, sender: usize, receiver: usize) -> &AtomicU32 {
        let word = self.layout.world() * channel + sender;
        // SAFETY: channel and sender are below the pad's channels and ranks (checked by Signals
        // before any launch), so the word lies in the pad, which `new` resolved in full.
        self.word32(unsafe { self.ranks[receiver].0.add(4 * word) })
    }
}
