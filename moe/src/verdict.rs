//! What became of a call whose splits the host never saw.
//!
//! A kernel that finds that rows do not fit moves none and writes why into this rank's status record. All
//! ranks have the same splits before a row moves, so that all write the same.

use core::cell::UnsafeCell;
use core::sync::atomic::{Ordering, fence};
use std::sync::Arc;

use parking_lot::Mutex;
use symmem_collectives::CallError;
use symmem_hal::types::{BackendKind, Bytes, Rank, RankSet};
use symmem_hal::{Device, DevicePtr, Fault, KeepAlive, Kind, Memory};
use symmem_mem::Group;

/// Why no row of a call moved. The same on every rank; the group goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused on every rank, with no output: {reason}, on rank {rank}")]
pub struct Refusal {
    /// Whose splits or output it is about.
    pub rank: Rank,
    /// What about them.
    pub reason: Reason,
}

/// What is wrong with a rank's splits, or with the room for what was sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// More rows were sent to the rank than its output has room for.
    #[error(
        "{needed} rows do not fit into an output of {capacity}: make it larger, or pass Overflow::Drop"
    )]
    Overflow {
        /// Rows that its output would need, padding before the last of them included.
        needed: u64,
        /// Rows that it has.
        capacity: u64,
    },
    /// The rank has a negative split.
    #[error("split {index} is {value}: splits count rows")]
    NegativeSplit {
        /// Which of its input splits.
        index: u64,
        /// What it is.
        value: i64,
    },
    /// The rank's splits add up to more than its input has.
    #[error("the input splits add up to {needed} rows, the input has {rows}")]
    PastInput {
        /// What they add up to; `u64::MAX` where that does not fit in 64 bits.
        needed: u64,
        /// Rows of the input.
        rows: u64,
    },
    /// Rows of a split would lie outside of the rank's input.
    #[error("the rows of split {index} end at {end}, the input has {rows}")]
    OutsideInput {
        /// Which of its input splits.
        index: u64,
        /// Where its rows would end; `u64::MAX` for a negative offset.
        end: u64,
        /// Rows of the input.
        rows: u64,
    },
    /// A token has chosen an expert that there is not.
    #[error("choice {index} is expert {value}, of {experts}: -1 says none")]
    NoExpert {
        /// Which choice, of all tokens' choices.
        index: u64,
        /// The expert's number.
        value: i64,
        /// Experts of all ranks.
        experts: u64,
    },
    /// The count of tokens on the device is out of range.
    #[error("the count of tokens is {value}, the input has {rows}")]
    Tokens {
        /// What it says.
        value: i64,
        /// Rows of the input.
        rows: u64,
    },
}

impl Fault for Refusal {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }

    fn ranks(&self) -> RankSet {
        RankSet::one(self.rank.index())
    }
}

/// How a kernel says why: its code, which split, and two numbers. The same words travel between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Finding {
    /// 0: nothing; else [`OVERFLOW`](Self::OVERFLOW) and so on, with the split's index shifted by 8.
    pub what: u64,
    /// What is needed, or the value found.
    pub value: u64,
    /// What there is.
    pub limit: u64,
}

impl Finding {
    pub(crate) const OVERFLOW: u64 = 1;
    pub(crate) const NEGATIVE: u64 = 2;
    pub(crate) const PAST_INPUT: u64 = 3;
    pub(crate) const OUTSIDE_INPUT: u64 = 4;
    pub(crate) const NO_EXPERT: u64 = 5;
    pub(crate) const TOKENS: u64 = 6;

    pub(crate) fn new(code: u64, index: usize, value: u64, limit: u64) -> Self {
        Finding { what: code | (index as u64) << 8, value, limit }
    }

    fn reason(self) -> Option<Reason> {
        let Finding { what, value, limit } = self;
        let index = what >> 8;
        Some(match what & 0xff {
            Self::OVERFLOW => Reason::Overflow { needed: value, capacity: limit },
            Self::NEGATIVE => Reason::NegativeSplit { index, value: value.cast_signed() },
            Self::PAST_INPUT => Reason::PastInput { needed: value, rows: limit },
            Self::OUTSIDE_INPUT => Reason::OutsideInput { index, end: value, rows: limit },
            Self::NO_EXPERT => {
                Reason::NoExpert { index, value: value.cast_signed(), experts: limit }
            }
            Self::TOKENS => Reason::Tokens { value: value.cast_signed(), rows: limit },
            _ => return None,
        })
    }
}

/// A lane's status record, as its kernels write it: one operation at a time.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Record {
    /// 1 + the rank that it is about, written last; 0 once the host has taken it.
    pub rank: u64,
    pub finding: Finding,
    /// Rows dropped so far, of those that were sent to this rank; only its kernels write it.
    pub dropped: u64,
    pub reserved: [u64; 11],
}

/// Offset of the count of dropped rows in a record.
const DROPPED: usize = core::mem::offset_of!(Record, dropped);

/// The record of a call that is over when its launch returns, on the caller's stack.
#[derive(Debug)]
pub(crate) struct OwnRecord(UnsafeCell<Record>);

impl Default for OwnRecord {
    fn default() -> Self {
        OwnRecord(UnsafeCell::new(bytemuck::Zeroable::zeroed()))
    }
}

#[allow(unsafe_code, reason = "reads what a kernel has written")]
impl OwnRecord {
    pub(crate) fn address(&self) -> DevicePtr {
        DevicePtr::new(self.0.get().expose_provenance() as u64)
    }

    fn read(&self) -> Record {
        // SAFETY: this thread's own memory, which the kernel has written that ran in this thread before.
        unsafe { self.0.get().read_volatile() }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.read().dropped
    }

    pub(crate) fn verdict(&self, group: &Group) -> Result<(), Refusal> {
        let Record { rank, finding, .. } = self.read();
        Refusal::told(group, rank, finding)
    }
}

impl Refusal {
    /// Of a record or an arrival: 1 + the rank that it is about, or 0 for none.
    pub(crate) fn told(group: &Group, rank: u64, finding: Finding) -> Result<(), Refusal> {
        let index = usize::try_from(rank).ok().and_then(|rank| rank.checked_sub(1));
        match (index.map(|index| group.rank_at(index)), finding.reason()) {
            (Some(Ok(rank)), Some(reason)) => Err(Refusal { rank, reason }),
            // Kernels of this very library write no others.
            _ => Ok(()),
        }
    }
}

/// The status records of a group's lanes, where kernels write them and the host reads them.
#[derive(Debug)]
pub(crate) struct Status {
    memory: Arc<Memory>,
    /// Where kernels find it.
    at: DevicePtr,
    /// What the host knows of each lane.
    lanes: Mutex<Vec<Known>>,
}

/// What the host knows of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Rows dropped, by the lane's record, that have been told.
    told: u64,
    /// Rows that calls have dropped which had a record of their own, not told yet.
    own: u64,
}

impl Status {
    pub(crate) fn new(group: &Group) -> Result<Self, CallError> {
        let (device, lanes) = (group.device(), group.options().max_lanes.max(1) as usize);
        let bytes = Bytes::from(lanes * size_of::<Record>());
        // A GPU writes into memory of the CPU, so that to look is a load, and no call of the driver.
        let home = if device.kind() == BackendKind::Cuda { &Device::host() } else { device };
        let memory = home.allocate_private(bytes).map_err(Arc::new)?;
        let at = match device.kind() {
            BackendKind::Cuda => {
                device.map_host(&memory).map_err(symmem_sync::PrepareError::from)?
            }
            _ => memory.base(),
        };
        Ok(Status {
            memory: Arc::new(memory),
            at,
            lanes: Mutex::new(vec![Known::default(); lanes]),
        })
    }

    /// Where the kernels of a lane find its record.
    pub(crate) fn record(&self, lane: u32) -> DevicePtr {
        let offset = Bytes(u64::from(lane) * size_of::<Record>() as u64);
        self.at.checked_add(offset).unwrap_or(DevicePtr::NULL)
    }

    /// What must outlive kernels that write there.
    pub(crate) fn keep_alive(&self) -> KeepAlive {
        self.memory.clone()
    }

    fn read(&self, lane: u32, offset: usize) -> u64 {
        let mut word = [0; 8];
        let at = lane as usize * size_of::<Record>() + offset;
        let read = self.memory.read(Bytes::from(at), &mut word);
        debug_assert!(read.is_ok());
        u64::from_ne_bytes(word)
    }

    /// What the kernels of a lane have found, told once.
    pub(crate) fn take(&self, group: &Group, lane: u32) -> Result<(), Refusal> {
        // At every call: a load, as long as there is nothing to tell.
        if self.read(lane, 0) == 0 {
            return Ok(());
        }
        // Of two threads, one is told.
        let _lanes = self.lanes.lock();
        let rank = self.read(lane, 0);
        if rank == 0 {
            return Ok(());
        }
        // What was written before the rank is read after it.
        fence(Ordering::Acquire);
        let word = |i: usize| self.read(lane, 8 + 8 * i);
        let finding = Finding { what: word(0), value: word(1), limit: word(2) };
        let start = Bytes::from(lane as usize * size_of::<Record>());
        let written = self.memory.write(start, &0_u64.to_ne_bytes());
        debug_assert!(written.is_ok());
        Refusal::told(group, rank, finding)
    }

    /// Counts rows that a call on a lane has dropped which had a record of its own.
    pub(crate) fn add_dropped(&self, lane: u32, rows: u64) {
        if rows != 0 {
            let known = &mut self.lanes.lock()[lane as usize];
            known.own = known.own.saturating_add(rows);
        }
    }

    /// Rows that were dropped on a lane since this was last asked.
    pub(crate) fn take_dropped(&self, lane: u32) -> u64 {
        let mut lanes = self.lanes.lock();
        let (now, known) = (self.read(lane, DROPPED), &mut lanes[lane as usize]);
        // The count may have gone round.
        let more = now.wrapping_sub(core::mem::replace(&mut known.told, now));
        core::mem::take(&mut known.own).saturating_add(more)
    }
}
