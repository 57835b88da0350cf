//! Where everything lies in a control page: how a group's failure, and the faults of its channels, come
//! to this rank's host.
//!
//! A function of agreed values alone. On backends whose memory a CPU reaches the page begins the
//! workspace; on a GPU there is one in host memory beside it, which kernels store to when something
//! went wrong and the watcher when somebody went.

use crate::protocol::control::Record;

/// What keeps two writers from sharing a line: two lines of 64 bytes, as processors fetch pairs.
pub(crate) const LINE: u64 = 128;

/// Offset of the claim word; the abort word follows.
pub(crate) const CLAIM: u64 = 0;
/// Offset of the abort word.
pub(crate) const ABORT: u64 = 4;
/// Offset of the word that says that a graph found its lane closed.
pub(crate) const STALE: u64 = 8;
/// Offset of what a test says to delay kernels: the step's number + 1 and how often (u32 each), the
/// nanoseconds (u64), then how often a thread came to the step and was delayed (u32 each).
#[cfg(feature = "stalls")]
pub(crate) const STALL: u64 = 16;
/// Offset of the doorbell.
pub(crate) const DOORBELL: u64 = LINE;
const LOST: u64 = 2 * LINE;

/// Offsets in a control page. Plain data that kernels read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Page {
    pub(crate) world: u32,
    pub(crate) channels: u32,
    /// Masks of who is gone, and who of them left in an orderly way.
    pub(crate) lost: u64,
    pub(crate) left: u64,
    /// The group's failure.
    pub(crate) record: u64,
    /// The channels' faults, after a word that is set once there was one.
    pub(crate) fault: u64,
    /// Where the page ends: on a line.
    pub(crate) end: u64,
}

impl Page {
    pub(crate) fn new(world: usize, channels: u32) -> Self {
        let mask = 8 * world.div_ceil(64) as u64;
        let record = LOST + (2 * mask).next_multiple_of(LINE);
        let fault = record + (Record::words(world) as u64 * 8).next_multiple_of(LINE);
        let page = Page {
            world: world as u32,
            channels,
            lost: LOST,
            left: LOST + mask,
            record,
            fault,
            end: 0,
        };
        Page { end: page.channel_fault(channels).next_multiple_of(LINE), ..page }
    }

    /// Words of a mask of ranks.
    pub(crate) fn mask_words(&self) -> usize {
        (self.world as usize).div_ceil(64)
    }

    /// Offset of the word that is set once some channel has had a fault.
    pub(crate) fn any_fault(&self) -> u64 {
        self.fault
    }

    /// Offset of a channel's fault: a word of what, and a mask of whom.
    pub(crate) fn channel_fault(&self, channel: u32) -> u64 {
        self.fault + 8 + u64::from(channel) * 8 * (1 + self.mask_words() as u64)
    }
}
