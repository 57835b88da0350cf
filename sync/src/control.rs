//! This rank's control page and lanes, seen from the host beside all streams.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use symmem_hal::Memory;
use symmem_hal::types::{Bytes, Rank, RankSet, Scope};
use symmem_mem::Failure;
use symmem_mem::call::{Called, Issued, Operation, Signature};
use symmem_mem::liveness::{Gone, Status};

use crate::layout::Layout;
#[cfg(feature = "stalls")]
use crate::page::STALL;
use crate::page::{ABORT, CLAIM, Page, STALE};
use crate::protocol::control::{Reason, Record};
use crate::protocol::header::HEADER_WORDS;
use crate::protocol::{Entry, Epoch, Header, Mismatch, header};
use crate::signals::{Channel, SignalError, fault};
#[cfg(feature = "stalls")]
use crate::stalls::Step;

fn called(header: Header) -> Called {
    Called { signature: Signature(header.signature), issued: Issued(header.issue) }
}

/// What became of this rank's operations, and how its lanes are closed.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub page: Page,
    pub rank: usize,
    /// Where the page is, from `start` on.
    pub memory: Memory,
    pub start: u64,
    pub scope: Scope,
    pub lanes: LaneWords,
}

/// Where the words of the lanes are.
#[derive(Clone, Debug)]
pub(crate) enum LaneWords {
    /// In the workspaces that the pages begin: this is each rank's pad and workspace.
    Host { layout: Layout, regions: Vec<Memory> },
    /// In device memory.
    #[cfg(feature = "cuda")]
    Gpu(crate::gpu::LaneMemory),
}

impl Control {
    fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let read = self.memory.read(Bytes(self.start + offset), &mut bytes);
        debug_assert!(read.is_ok());
        bytes
    }

    pub(crate) fn read_word(&self, offset: u64) -> u64 {
        u64::from_ne_bytes(self.read(offset))
    }

    pub(crate) fn write_word(&self, offset: u64, value: u64) {
        let written = self.memory.write(Bytes(self.start + offset), &value.to_ne_bytes());
        debug_assert!(written.is_ok());
    }

    /// Whether a graph was launched on a lane that was closed, told once.
    pub(crate) fn take_stale(&self) -> bool {
        let stale = self.read_word(STALE) != 0;
        if stale {
            self.write_word(STALE, 0);
        }
        stale
    }

    /// Closes the lanes to graphs that are launched later.
    pub(crate) fn retire_lanes(&self) {
        match &self.lanes {
            LaneWords::Host { layout, .. } => {
                for lane in 0..layout.lanes {
                    let word = Bytes(self.start + layout.entry(lane));
                    let written = self.memory.write(word, &(Entry::Retired as u32).to_ne_bytes());
                    debug_assert!(written.is_ok());
                }
            }
            #[cfg(feature = "cuda")]
            LaneWords::Gpu(lanes) => lanes.retire(),
        }
    }

    /// Whether the abort word is set. One load on the host.
    pub(crate) fn is_aborted(&self) -> bool {
        let aborted = u32::from_ne_bytes(self.read(ABORT)) != 0;
        // What the reporter wrote before the abort word is read after this.
        fence(Ordering::Acquire);
        aborted
    }

    /// The failure that a kernel of this rank or of another has recorded.
    pub(crate) fn failure(&self) -> Option<Failure> {
        if !self.is_aborted() {
            return None;
        }
        let world = self.page.world as usize;
        let words: Vec<AtomicU64> = (0..Record::words(world))
            .map(|i| AtomicU64::new(self.read_word(self.page.record + 8 * i as u64)))
            .collect();
        Record::load(&words, world).map(|record| self.tell(record))
    }

    /// The loss of the rank that began to write a failure here and ended before it had.
    pub(crate) fn unfinished(&self, status: &Status) -> Option<Failure> {
        let claim = u32::from_ne_bytes(self.read(CLAIM));
        let writer = (claim as usize).checked_sub(1)?;
        status.gone(writer).map(|gone| status.peer_lost(writer, gone))
    }

    /// The call that this rank issued on a lane in an epoch, if it did and has not gone on.
    fn call(&self, lane: u32, epoch: Epoch) -> Option<Header> {
        let words = match &self.lanes {
            LaneWords::Host { layout, .. } => {
                let lane = layout.entry(lane.min(layout.lanes - 1));
                let parity = epoch.parity().index() as u64;
                let front = lane + layout.fronts + parity * layout.front_bytes;
                [0, 1, 2, 3].map(|i| self.read_word(front + 8 * i))
            }
            #[cfg(feature = "cuda")]
            LaneWords::Gpu(lanes) => lanes.header(lane, epoch)?,
        };
        header::poll(&words.map(AtomicU64::new), epoch)
    }

    /// What the last calls on the lanes tell: that two ranks' differ.
    pub(crate) fn look_back(&self) -> Option<Failure> {
        let (lane, Mismatch { rank, epoch, difference }) = match &self.lanes {
            LaneWords::Host { layout, regions } => (0..layout.lanes)
                .find_map(|lane| Some((lane, self.look_back_on(layout, regions, lane)?)))?,
            #[cfg(feature = "cuda")]
            LaneWords::Gpu(lanes) => lanes.look_back()?,
        };
        Some(self.tell(Record {
            reason: Reason::CallMismatch(difference),
            reporter: self.rank,
            culprit: Some(rank),
            lane,
            // The operation's code is in the calls.
            operation: 0,
            epoch: Some(epoch),
            missing: RankSet::new(),
        }))
    }

    /// As [`lane::look_back`](crate::protocol::lane::look_back), beside all kernels.
    fn look_back_on(&self, layout: &Layout, regions: &[Memory], lane: u32) -> Option<Mismatch> {
        let at = self.start + layout.entry(lane);
        let mut next = [0; 4];
        self.memory.read(Bytes(at + 4), &mut next).ok()?;
        let epoch = Epoch::new(u32::from_ne_bytes(next))?.previous();
        let front = at + layout.fronts + epoch.parity().index() as u64 * layout.front_bytes;
        let of = |region: &Memory| {
            let mut words = [0u64; HEADER_WORDS];
            region.read(Bytes(front), bytemuck::bytes_of_mut(&mut words)).ok()?;
            header::poll(&words.map(AtomicU64::new), epoch)
        };
        let mine = of(&self.memory)?;
        regions.iter().enumerate().find_map(|(rank, region)| {
            let difference = mine.compare(of(region)?).err()?;
            Some(Mismatch { rank, epoch, difference })
        })
    }

    fn tell(&self, record: Record) -> Failure {
        let me = self.rank;
        let call = record.epoch.and_then(|epoch| self.call(record.lane, epoch));
        let record = record.seen_by(me, call);
        let rank = |index: usize| Rank::in_scope(index as u32, self.scope);
        let epoch = record.epoch.map_or(0, Epoch::get);
        let operation = u8::try_from(record.operation).ok().and_then(Operation::from_code);
        let culprit = rank(record.culprit.unwrap_or(record.reporter));
        match record.reason {
            Reason::TimedOut => Failure::TimedOut {
                operation,
                epoch,
                ranks: record.missing,
                reporter: rank(record.reporter),
            },
            Reason::PeerLost => Failure::PeerLost { rank: culprit, left: false },
            Reason::PeerLeft => Failure::PeerLost { rank: culprit, left: true },
            Reason::CallMismatch(difference) => Failure::CallMismatch {
                rank: culprit,
                reporter: rank(record.reporter),
                epoch,
                mine: called(difference.mine),
                theirs: called(difference.theirs),
            },
            Reason::LaneBusy => Failure::LaneBusy { lane: record.lane },
            Reason::StaleGraph => Failure::StaleGraph,
            Reason::Cancelled => {
                Failure::Cancelled { operation, epoch, rank: rank(record.reporter) }
            }
            Reason::Device => Failure::Device("reported by a kernel".to_owned()),
        }
    }

    /// How the last signal or barrier of some channel that ended early ended, told once.
    pub(crate) fn take_any_fault(&self) -> Option<SignalError> {
        if self.read_word(self.page.any_fault()) == 0 {
            return None;
        }
        // Never cleared: a fault that came between the look and the clearing would go unseen.
        fence(Ordering::Acquire);
        (0..self.page.channels).find_map(|c| self.take_fault(Channel(c)))
    }

    /// How the last signal or barrier of a channel that ended early ended, told once.
    pub(crate) fn take_fault(&self, channel: Channel) -> Option<SignalError> {
        let at = self.page.channel_fault(channel.0);
        let word = self.read_word(at);
        if word == 0 {
            return None;
        }
        fence(Ordering::Acquire);
        let ranks = (0..self.page.world as usize)
            .filter(|r| self.read_word(at + 8 + 8 * (r / 64) as u64) >> (r % 64) & 1 == 1)
            .collect();
        self.write_word(at, 0);
        let rank = |index: usize| Rank::in_scope(index as u32, self.scope);
        fault::decode(word, ranks, rank)
    }

    /// Copies who is gone, and how, to where kernels look.
    pub(crate) fn set_lost(&self, status: &Status) {
        let gone = status.all_gone();
        let left = gone.iter().filter(|r| status.gone(*r) == Some(Gone::Left)).collect();
        // What a rank stored before its end was told happens before a kernel sees the bit.
        fence(Ordering::Release);
        self.write_mask(self.page.left, &left);
        fence(Ordering::Release);
        self.write_mask(self.page.lost, &gone);
    }

    /// Delays this rank's kernels, of those that were compiled for it.
    #[cfg(feature = "stalls")]
    pub(crate) fn set_stall(&self, step: Step, time: core::time::Duration, every: u64) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.write_word(STALL + 8, nanoseconds);
        self.write_word(STALL + 16, 0);
        fence(Ordering::Release);
        let every = every.min(u64::from(u32::MAX));
        self.write_word(STALL, every << 32 | (step as u64 + 1));
    }

    #[cfg(feature = "stalls")]
    pub(crate) fn end_stall(&self) {
        self.write_word(STALL, 0);
    }

    /// How often a thread of this rank's kernels came to the step, and was delayed there.
    #[cfg(feature = "stalls")]
    pub(crate) fn stalls(&self) -> (u64, u64) {
        let counts = self.read_word(STALL + 16);
        (counts & u64::from(u32::MAX), counts >> 32)
    }

    fn write_mask(&self, at: u64, ranks: &RankSet) {
        for word in 0..self.page.mask_words() {
            let bits =
                (0..64).filter(|b| ranks.contains(word * 64 + b)).fold(0u64, |acc, b| acc | 1 << b);
            self.write_word(at + 8 * word as u64, bits);
        }
    }
}
