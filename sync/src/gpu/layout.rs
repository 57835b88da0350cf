//! Where everything lies in a workspace in device memory.
//!
//! A function of agreed values alone. What a rank polls lies in its own memory: every word that peers
//! write for it has a place of its own for each writer.
//!
//! A workspace holds, in this order: the control page, the states of channels, the barrier words, the
//! arrivals of puts, and the lanes. A lane holds the records (each block's epoch and entry word), the
//! headers, the flags, the packets, the lines and the staging.

use symmem_hal::types::Bytes;

use crate::layout::{Capacities, ChannelWords, HEADER, Layout, PACKET, WorkspaceTooSmall};
use crate::page::{LINE, Page};
use crate::protocol::Epoch;

/// Regions that are used in bulk begin on a page.
const PAGE: u64 = 4096;

/// Bytes of a block's record.
const RECORD: u64 = 16;

/// Most packets of a writer for a reader and a parity: 512 KiB of payload. Past that, staging moves the
/// same bytes in half the traffic.
const MAX_PACKETS: u64 = 1 << 16;

/// Lines that a warp stores at a time.
pub const WARP_LINES: u64 = 16;

/// Vectors of 16 bytes in the lines that a warp stores at a time.
pub const WARP_VECTORS: u64 = 124;

/// Most lines of a writer for a reader and a parity: 8 MiB of payload.
const MAX_LINES: u64 = (8_u64 << 20).div_ceil(WARP_VECTORS * 16) * WARP_LINES;

/// Least packets, of which there are multiples so that two warps' stores fill them, and least staging,
/// of a writer for a reader and a parity.
const LEAST_PACKETS: u64 = 64;
const LEAST_STAGING: u64 = 8 * LINE;

/// Offsets in a workspace and sizes of what lies there, equal on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuLayout {
    pub(crate) page: Page,
    pub(crate) lanes: u32,
    pub(crate) max_blocks: u32,
    pub(crate) checked: bool,
    pub(crate) channel_states: u64,
    /// `[channel][writer]`: u64.
    pub(crate) barriers: u64,
    /// `[channel][reader]`: u32, how many blocks of a put have stored their part.
    pub(crate) arrivals: u64,
    pub(crate) first_lane: u64,
    pub(crate) lane_bytes: u64,
    /// From the start of a lane, which begins with the records; `[parity][writer][block]` of 32 bytes.
    pub(crate) headers: u64,
    /// `[parity][writer][block]`: u64.
    pub(crate) flags: u64,
    /// `[parity][writer][index]` of 16 bytes.
    pub(crate) packets: u64,
    pub(crate) packet_count: u32,
    /// `[parity][writer][index]` of 128 bytes.
    pub(crate) lines: u64,
    pub(crate) line_count: u32,
    /// `[parity][writer]` of `staging_unit` bytes.
    pub(crate) staging: u64,
    pub(crate) staging_unit: u64,
}

/// A block's record in a lane, as its kernels keep it: one load of 16 bytes at entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct BlockRecord {
    /// The epoch of the next operation; bit 31 is the busy bit of checked mode.
    pub epoch: u32,
    /// Whether the operation that stored it had consumed a word of every peer, so that the next may
    /// store at once.
    pub settled: u32,
    /// The lane's entry word.
    pub entry: u32,
    pub reserved: u32,
}

/// Where the entry word is in a record.
pub(crate) const ENTRY: u64 = core::mem::offset_of!(BlockRecord, entry) as u64;

/// What the layout is made for: agreed values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub world: usize,
    pub pad: Bytes,
    pub workspace: Bytes,
    pub lanes: u32,
    pub max_blocks: u32,
    pub checked: bool,
    /// Whether lines arrive whole.
    pub lines: bool,
}

impl GpuLayout {
    /// Lays out a workspace.
    pub(crate) fn new(agreed: &Agreed) -> Result<Self, WorkspaceTooSmall> {
        let Agreed { world, pad, workspace, lanes, max_blocks, checked, lines: has_lines } =
            *agreed;
        let channels = Layout::channels_of(pad, world);
        let page = Page::new(world, channels);
        let (ranks, blocks) = (world as u64, u64::from(max_blocks));
        let words = u64::from(channels) * ranks;
        let channel_states = page.end;
        let states = u64::from(channels) * size_of::<ChannelWords>() as u64;
        let barriers = channel_states + line(states);
        let arrivals = barriers + line(8 * words);
        let first_lane = (arrivals + 4 * words).next_multiple_of(PAGE);
        // A writer's places for both parities; of packets and staging a rank has none in its own memory.
        let (pairs, peers) = (2 * ranks, 2 * (ranks - 1).max(1));
        let headers = line(RECORD * blocks);
        let flags = headers + line(pairs * blocks * HEADER);
        let packets = (flags + pairs * blocks * 8).next_multiple_of(PAGE);
        let least_data = peers * (LEAST_PACKETS * PACKET + LEAST_STAGING);
        let least_lane = (packets + least_data).next_multiple_of(PAGE) + PAGE;
        let lanes = lanes.max(1);
        let error = WorkspaceTooSmall {
            available: workspace,
            needed: Bytes(first_lane + u64::from(lanes) * least_lane),
            world,
            channels,
            lanes,
        };
        let room = workspace.get().saturating_sub(first_lane);
        let lane_bytes = room / u64::from(lanes) / PAGE * PAGE;
        if lane_bytes < least_lane {
            return Err(error);
        }
        // An eighth of what is left for packets and a third for lines, as far as they are of use.
        let left = (lane_bytes - packets) / peers;
        let packet_count =
            (left / 8 / PACKET / LEAST_PACKETS * LEAST_PACKETS).clamp(LEAST_PACKETS, MAX_PACKETS);
        let line_count = match has_lines {
            true => (left / 3 / LINE / WARP_LINES * WARP_LINES).min(MAX_LINES),
            false => 0,
        };
        let first_line = (packets + peers * packet_count * PACKET).next_multiple_of(PAGE);
        let staging = (first_line + peers * line_count * LINE).next_multiple_of(PAGE);
        let staging_unit = lane_bytes.saturating_sub(staging) / peers / LINE * LINE;
        if staging_unit < LEAST_STAGING {
            return Err(error);
        }
        Ok(GpuLayout {
            page,
            lanes,
            max_blocks,
            checked,
            channel_states,
            barriers,
            arrivals,
            first_lane,
            lane_bytes,
            headers,
            flags,
            packets,
            packet_count: packet_count as u32,
            lines: first_line,
            line_count: line_count as u32,
            staging,
            staging_unit,
        })
    }

    /// Offset of a lane in a workspace.
    pub(crate) fn lane(&self, lane: u32) -> u64 {
        self.first_lane + u64::from(lane) * self.lane_bytes
    }

    /// Ranks of the group.
    #[must_use]
    pub fn world(&self) -> usize {
        self.page.world as usize
    }

    /// Blocks for which a lane keeps an epoch: the upper bound of every grid.
    #[must_use]
    pub fn max_blocks(&self) -> u32 {
        self.max_blocks
    }

    /// Bytes of staging that a rank has with each reader for one parity, a multiple of 128.
    #[must_use]
    pub fn staging_unit(&self) -> Bytes {
        Bytes(self.staging_unit)
    }

    /// What the lanes hold.
    #[must_use]
    pub fn capacities(&self) -> Capacities {
        Capacities {
            world: self.world(),
            packets: Bytes(u64::from(self.packet_count) * 8),
            lines: self.line_count,
            chunk: Bytes(self.staging_unit),
        }
    }

    /// The records of a fresh lane, which counts an epoch as completed: the usual one, where the number
    /// is none. Nobody reads anything of its words, so that its first operation may store at once.
    pub(crate) fn records(&self, completed: u32) -> Vec<BlockRecord> {
        let epoch = Epoch::new(completed).unwrap_or(Epoch::FRESH).next().get();
        vec![BlockRecord { epoch, settled: 1, entry: 0, reserved: 0 }; self.max_blocks as usize]
    }
}

const fn line(bytes: u64) -> u64 {
    bytes.next_multiple_of(LINE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;

    fn agreed(world: usize) -> Agreed {
        Agreed {
            world,
            pad: Bytes::new(9216),
            workspace: Bytes::mib(56),
            lanes: 1,
            max_blocks: 128,
            checked: false,
            lines: true,
        }
    }

    /// The end of what begins at each offset is at most the next one's.
    fn check(l: &GpuLayout, workspace: Bytes) {
        let (ranks, blocks) = (l.world() as u64, u64::from(l.max_blocks));
        let (words, pairs) = (u64::from(l.page.channels) * ranks, 2 * ranks);
        let peers = 2 * (ranks - 1).max(1);
        let regions = [
            (0, l.page.end, LINE),
            (l.channel_states, 16 * u64::from(l.page.channels), 16),
            (l.barriers, 8 * words, 8),
            (l.arrivals, 4 * words, 4),
            (l.first_lane, u64::from(l.lanes) * l.lane_bytes, PAGE),
        ];
        let lane = [
            (0, RECORD * blocks, RECORD),
            (l.headers, pairs * blocks * HEADER, HEADER),
            (l.flags, pairs * blocks * 8, LINE),
            (l.packets, peers * u64::from(l.packet_count) * PACKET, PAGE),
            (l.lines, peers * u64::from(l.line_count) * LINE, PAGE),
            (l.staging, peers * l.staging_unit, PAGE),
        ];
        for (regions, end) in [(&regions[..], workspace.get()), (&lane[..], l.lane_bytes)] {
            for (i, (start, bytes, align)) in regions.iter().enumerate() {
                let next = regions.get(i + 1).map_or(end, |next| next.0);
                assert!(start + bytes <= next && start.is_multiple_of(*align), "{i}: {l:?}");
            }
        }
        assert!(l.staging_unit.is_multiple_of(LINE) && l.staging_unit >= LEAST_STAGING);
        assert!(u64::from(l.packet_count) >= LEAST_PACKETS);
        assert!(u64::from(l.line_count).is_multiple_of(WARP_LINES));
    }

    #[test]
    fn regions_follow_each_other_within_the_workspace() {
        for world in 1..=72 {
            for (lanes, max_blocks) in [(1, 128), (1, 1), (3, 24), (4, 132)] {
                for workspace in [Bytes::mib(16), Bytes::mib(56), Bytes::mib(256)] {
                    for lines in [true, false] {
                        let agreed =
                            Agreed { lanes, max_blocks, workspace, lines, ..agreed(world) };
                        let layout = GpuLayout::new(&agreed).unwrap();
                        check(&layout, workspace);
                        assert!(lines || layout.line_count == 0);
                    }
                }
            }
        }
    }

    #[test]
    fn too_small_says_what_would_do() {
        for world in [1, 2, 8, 72] {
            let of = |workspace| GpuLayout::new(&Agreed { workspace, lanes: 2, ..agreed(world) });
            let error = of(Bytes::kib(4)).unwrap_err();
            for more in 0..40 {
                let workspace = Bytes(error.needed.get() + more * PAGE);
                check(&of(workspace).unwrap(), workspace);
            }
            assert!(of(Bytes(error.needed.get() - 1)).is_err());
        }
    }

    #[test]
    fn capacities_are_what_the_places_hold() {
        let l = GpuLayout::new(&agreed(2)).unwrap();
        let held = l.capacities();
        assert_eq!((held.world(), held.packet_capacity()), (2, Bytes::kib(512)));
        assert_eq!(held.line_count(), 16 * (8_u32 << 20).div_ceil(1984));
        assert_eq!(held.chunk_capacity(), l.staging_unit());
        // The rings of four chunks of 32 KiB of each of 128 blocks.
        assert!(held.chunk_capacity() >= Bytes::mib(16), "{held:?}");
        // 72 ranks share the same workspace.
        let held = GpuLayout::new(&agreed(72)).unwrap().capacities();
        assert!(held.packet_capacity() >= Bytes::kib(16), "{held:?}");
    }

    #[test]
    fn fresh_records_hold_the_epoch_asked_for() {
        let l = GpuLayout::new(&agreed(2)).unwrap();
        let last = Epoch::MAX.get();
        for (completed, next) in
            [(0, Epoch::FIRST), (77, Epoch::new(78).unwrap()), (last, Epoch::MIN)]
        {
            let records = l.records(completed);
            assert_eq!(records.len(), 128);
            assert!(records.iter().all(|r| (r.epoch, r.entry, r.settled) == (next.get(), 0, 1)));
        }
        assert_eq!((size_of::<BlockRecord>() as u64, ENTRY), (RECORD, 8));
    }
}
