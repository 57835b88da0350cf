//! Where everything lies in a group's pad and workspace.
//!
//! A function of agreed values alone, so that every rank computes the same offsets for its own
//! memory and its peers'. Regions that different ranks write, or that one rank writes and many
//! poll, begin on lines of their own.
//!
//! A workspace holds, in this order: the control page with the doorbell, the states of channels, the
//! barrier words, and the lanes. A lane holds the entry word and the epoch, then for each
//! parity the front (header, then packets, so that a tiny message travels in the header's line) and
//! the flag, then the staging.

use symmem_hal::DevicePtr;
use symmem_hal::types::Bytes;

use crate::page::{LINE, Page};

/// Regions that are used in bulk begin on a page.
const PAGE: u64 = 4096;

/// Most packets for each parity: 16 KiB of payload.
const MAX_PACKETS: u64 = 2048;

/// Bytes of a header.
pub(crate) const HEADER: u64 = 32;

/// Bytes of a packet.
pub(crate) const PACKET: u64 = 16;

/// Offsets in a workspace and sizes of what lies there. Plain data that kernels read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Layout {
    pub(crate) page: Page,
    pub(crate) rank: u32,
    pub(crate) lanes: u32,
    pub(crate) checked: u32,
    pub(crate) packets: u32,
    /// The epoch that fresh lanes count as completed.
    pub(crate) first_epoch: u32,
    pub(crate) reserved: u32,
    pub(crate) channel_states: u64,
    pub(crate) barriers: u64,
    pub(crate) first_lane: u64,
    pub(crate) lane_bytes: u64,
    /// From the start of a lane.
    pub(crate) fronts: u64,
    pub(crate) front_bytes: u64,
    pub(crate) flags: u64,
    pub(crate) staging: u64,
    /// A quarter of the staging: one for each parity of the epoch and of the chunk.
    pub(crate) staging_unit: u64,
}

/// Where one rank's pad and workspace are in the reader's addresses. Never in memory that peers have
/// mapped: kernels follow it.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Bases {
    pub pad: DevicePtr,
    pub workspace: DevicePtr,
}

/// The state of one channel's barrier on this rank, as its kernels keep it.
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct ChannelWords {
    pub generation: u32,
    pub epoch: u32,
    pub state: u32,
    pub reserved: u32,
}

/// The agreed workspace is too small for the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a workspace of {available} is too small for {world} ranks, {channels} channels and {lanes} lanes: at least {needed} are needed (Options::workspace)"
)]
pub struct WorkspaceTooSmall {
    /// Bytes there are.
    pub available: Bytes,
    /// Bytes that would do.
    pub needed: Bytes,
    /// Ranks of the group.
    pub world: usize,
    /// Channels of its pad.
    pub channels: u32,
    /// Its lanes.
    pub lanes: u32,
}

impl symmem_hal::Fault for WorkspaceTooSmall {
    fn kind(&self) -> symmem_hal::Kind {
        symmem_hal::Kind::InvalidArgument
    }
}

/// Least staging with which an operation can move data: a line for each rank's slice, for each of
/// the four units, twice (input and result).
fn least_staging(world: u64) -> u64 {
    4 * 2 * LINE * world
}

impl Layout {
    /// Channels of a pad: words of 4 bytes, one for each sender.
    #[must_use]
    pub fn channels_of(pad: Bytes, world: usize) -> u32 {
        u32::try_from(pad.get() / 4 / (world.max(1) as u64)).unwrap_or(u32::MAX)
    }

    /// Lays out a workspace.
    ///
    /// # Errors
    ///
    /// [`WorkspaceTooSmall`], with what would do.
    pub fn new(
        rank: usize,
        world: usize,
        pad: Bytes,
        workspace: Bytes,
        lanes: u32,
        checked: bool,
    ) -> Result<Self, WorkspaceTooSmall> {
        let channels = Self::channels_of(pad, world);
        let ranks = world as u64;
        let page = Page::new(world, channels);
        let channel_states = page.end;
        let states = u64::from(channels) * size_of::<ChannelWords>() as u64;
        let barriers = channel_states + round(states, LINE);
        let first_lane = round(barriers + u64::from(channels) * LINE, PAGE);
        let fronts = LINE;
        let least_front = round(HEADER + 6 * PACKET, LINE);
        let least_lane =
            round(fronts + 2 * least_front + 2 * LINE, PAGE) + round(least_staging(ranks), PAGE);
        let lanes_u64 = u64::from(lanes.max(1));
        let error = WorkspaceTooSmall {
            available: workspace,
            needed: Bytes(first_lane + lanes_u64 * least_lane),
            world,
            channels,
            lanes,
        };
        let lane_bytes = workspace.get().saturating_sub(first_lane) / lanes_u64 / PAGE * PAGE;
        if lane_bytes < least_lane {
            return Err(error);
        }
        // An eighth of what is left for packets, as far as they are of use.
        let packets = (6 + (lane_bytes - least_lane) / 8 / 2 / PACKET).min(MAX_PACKETS);
        let front_bytes = round(HEADER + packets * PACKET, LINE);
        let flags = fronts + 2 * front_bytes;
        let staging = round(flags + 2 * LINE, PAGE);
        let staging_unit = lane_bytes.saturating_sub(staging) / 4 / LINE * LINE;
        if staging_unit * 4 < least_staging(ranks) {
            return Err(error);
        }
        Ok(Layout {
            page,
            rank: rank as u32,
            lanes: lanes.max(1),
            checked: u32::from(checked),
            packets: packets as u32,
            first_epoch: 0,
            reserved: 0,
            channel_states,
            barriers,
            first_lane,
            lane_bytes,
            fronts,
            front_bytes,
            flags,
            staging,
            staging_unit,
        })
    }

    /// Offset of a lane, which begins with its entry word.
    pub(crate) fn entry(&self, lane: u32) -> u64 {
        self.first_lane + u64::from(lane) * self.lane_bytes
    }

    /// Fresh lanes count this epoch as completed; anything that is no epoch means the usual one.
    pub(crate) fn with_first_epoch(self, first_epoch: u32) -> Self {
        Layout { first_epoch, ..self }
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Ranks of the group.
    #[must_use]
    pub fn world(&self) -> usize {
        self.page.world as usize
    }

    /// What the lanes hold.
    #[must_use]
    pub fn capacities(&self) -> Capacities {
        Capacities {
            world: self.world(),
            packets: Bytes(u64::from(self.packets) * 8),
            lines: 0,
            chunk: Bytes(self.staging_unit / 2 / LINE * LINE),
        }
    }
}

/// What a lane holds: agreed values, from which algorithms are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    pub(crate) world: usize,
    pub(crate) packets: Bytes,
    pub(crate) lines: u32,
    pub(crate) chunk: Bytes,
}

impl Capacities {
    /// Ranks of the group.
    #[must_use]
    pub fn world(&self) -> usize {
        self.world
    }

    /// Bytes that packets carry in one operation, from each rank to each reader.
    #[must_use]
    pub fn packet_capacity(&self) -> Bytes {
        self.packets
    }

    /// Lines of 128 bytes that arrive whole, from each rank to each reader in one operation: on GPUs
    /// whose [lines do](symmem_mem::Group::whole_lines), else none.
    #[must_use]
    pub fn line_count(&self) -> u32 {
        self.lines
    }

    /// Bytes of staging that each rank has for one chunk of input, a multiple of 128. On a GPU each
    /// rank has as many with each reader.
    #[must_use]
    pub fn chunk_capacity(&self) -> Bytes {
        self.chunk
    }
}

const fn round(n: u64, to: u64) -> u64 {
    n.next_multiple_of(to)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;

    #[test]
    fn regions_follow_each_other_within_the_workspace() {
        for world in [1, 2, 3, 8, 40, 72, 300] {
            for lanes in [1, 4] {
                for workspace in [Bytes::mib(2), Bytes::mib(32), Bytes::mib(256)] {
                    let l =
                        Layout::new(0, world, Bytes::new(9216), workspace, lanes, false).unwrap();
                    let page = [l.page.lost, l.page.record, l.page.fault / LINE * LINE];
                    let rest = [l.channel_states, l.barriers, l.first_lane];
                    let order = [page, rest].concat();
                    assert!(order.is_sorted() && order.iter().all(|o| o % LINE == 0), "{l:?}");
                    assert!(l.first_lane + u64::from(lanes) * l.lane_bytes <= workspace.get());
                    assert!(
                        l.fronts + 2 * l.front_bytes <= l.flags && l.flags + 2 * LINE <= l.staging
                    );
                    assert!(l.staging + 4 * l.staging_unit <= l.lane_bytes, "{l:?}");
                    assert!(l.capacities().chunk_capacity().get() >= LINE * world as u64);
                }
            }
        }
    }

    #[test]
    fn too_small_says_what_would_do() {
        for world in [2, 40] {
            let too_small = |w| Layout::new(0, world, Bytes::new(9216), w, 2, false);
            let error = too_small(Bytes::kib(4)).unwrap_err();
            assert!(
                too_small(Bytes(error.needed.get() - 1)).is_err() || error.needed.get() % PAGE != 0
            );
            too_small(error.needed).unwrap();
        }
    }

    #[test]
    fn channels_as_the_pad_allows() {
        for (world, channels) in [(2, 1152), (4, 576), (8, 288), (72, 32)] {
            assert_eq!(Layout::channels_of(Bytes::new(9216), world), channels);
        }
    }
}
