//! The handle: what rendezvous returns.

use std::sync::Arc;

use symmem_hal::types::{Bytes, DType, Layout, Rank, RankSet};
use symmem_hal::{Device, DevicePtr, Fault, Kind};

use crate::group::{Group, RankError};
use crate::memory::{View, ViewError};
use crate::rendezvous::{NoMulticast, Place};

/// A view, made symmetric in a group: the same range of every member's allocation.
///
/// Every operation honours the view's offset. Clones are the same handle. Holds the group, the
/// allocation and all mappings.
#[derive(Clone, Debug)]
pub struct SymmetricMemory {
    group: Group,
    place: Arc<Place>,
    view: View,
}

/// Why a peer's memory cannot be viewed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The rank is none of the group's.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// The range is not in the peer's allocation, or pad.
    #[error("rank {rank}: {cause}")]
    View {
        /// Whose memory.
        rank: Rank,
        /// What is wrong with the range.
        cause: ViewError,
    },
}

impl Fault for PeerError {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }

    fn ranks(&self) -> RankSet {
        match self {
            PeerError::View { rank, .. } => RankSet::one(rank.index()),
            // It counts in another group.
            PeerError::Rank(_) => RankSet::new(),
        }
    }
}

impl SymmetricMemory {
    pub(crate) fn new(group: Group, place: Arc<Place>, view: View) -> Self {
        SymmetricMemory { group, place, view }
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// This rank's view.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.group.rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.group.size()
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.group.device()
    }

    /// The group's name, equal on every rank: its id in hexadecimal.
    #[must_use]
    pub fn group_name(&self) -> String {
        format!("{:016x}", self.group.id())
    }

    /// The rank that each member has in the run, by group rank.
    #[must_use]
    pub fn global_ranks(&self) -> &[u32] {
        self.group.global_ranks()
    }

    /// The address of the array of [`global_ranks`](Self::global_ranks) in the device's memory, for
    /// kernels: 4 bytes a rank.
    #[must_use]
    pub fn global_ranks_dev(&self) -> DevicePtr {
        self.place.table().at(16 * self.world_size() as u64)
    }

    /// Bytes of each member's allocation, as asked for: what lies at each of
    /// [`buffer_ptrs`](Self::buffer_ptrs).
    #[must_use]
    pub fn buffer_size(&self) -> Bytes {
        self.place.bytes
    }

    /// Where the view begins in the allocation.
    #[must_use]
    pub fn offset(&self) -> Bytes {
        Bytes(self.view.offset().get() - self.place.offset.get())
    }

    /// Which rendezvous of the group made it: equal on every rank.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.place.ordinal
    }

    /// The address of each member's *allocation*, by group rank, for kernels on this device; add
    /// [`offset`](Self::offset) for the view. Of a pool's block it is the block's address, not its
    /// segment's. Valid while a clone of this handle lives.
    ///
    /// On the host these are addresses in this process: memory that peers may write, to be followed
    /// by atomics, or by plain accesses that signals or a barrier order.
    #[must_use]
    pub fn buffer_ptrs(&self) -> Vec<DevicePtr> {
        (0..self.world_size()).map(|index| self.place.base(index)).collect()
    }

    /// The address of the array of [`buffer_ptrs`](Self::buffer_ptrs) in the device's memory: one
    /// address a rank, for kernels.
    #[must_use]
    pub fn buffer_ptrs_dev(&self) -> DevicePtr {
        self.place.table().base()
    }

    /// The address of a member's view.
    ///
    /// # Errors
    ///
    /// [`RankError`] for a rank of another group.
    pub fn peer_ptr(&self, rank: Rank) -> Result<DevicePtr, RankError> {
        let base = self.place.base(self.group.index_of(rank)?);
        Ok(base.checked_add(self.offset()).unwrap_or(DevicePtr::NULL))
    }

    /// The multicast address of the view: what kernels of this device store there (`multimem.st`,
    /// `multimem.red`) reaches the view of every member, and what they load (`multimem.ld_reduce`) is the
    /// reduction of all of them. For these instructions alone; from the host it cannot be followed. Valid
    /// while every member holds a clone of its handle.
    ///
    /// # Errors
    ///
    /// [`NoMulticast`] says why there is none: the same on every member. Whether a device has it at all:
    /// [`Capabilities::multicast`](symmem_hal::Capabilities::multicast).
    pub fn multicast_ptr(&self) -> Result<DevicePtr, NoMulticast> {
        let base = self.place.multicast()?;
        Ok(base.checked_add(self.offset()).unwrap_or(DevicePtr::NULL))
    }

    /// The address of each member's signal pad, by group rank.
    ///
    /// A pad is an array of u32. The slot by which the rank `sender` signals on channel `c` is word
    /// `world_size * c + sender` of the *receiver's* pad: 0 is empty, 1 is full. A sender polls the
    /// word until it is 0, then stores 1 with release at system scope; the receiver polls it with
    /// acquire until it is 1, then stores 0. At most one put and one wait of a slot may be in flight.
    /// Barriers do not use the pad.
    #[must_use]
    pub fn signal_pad_ptrs(&self) -> Vec<DevicePtr> {
        self.group.pad_ptrs()
    }

    /// The address of the array of [`signal_pad_ptrs`](Self::signal_pad_ptrs) in the device's
    /// memory.
    #[must_use]
    pub fn signal_pad_ptrs_dev(&self) -> DevicePtr {
        self.place.table().at(8 * self.world_size() as u64)
    }

    /// Bytes of a signal pad.
    #[must_use]
    pub fn signal_pad_size(&self) -> Bytes {
        self.group.options().pad
    }

    /// Whether a member's memory can be read and written by load and store. On backends whose memory
    /// is mapped it can: where it could not, there is no handle.
    ///
    /// # Errors
    ///
    /// [`RankError`] for a rank of another group.
    pub fn can_access(&self, rank: Rank) -> Result<bool, RankError> {
        let index = self.group.index_of(rank)?;
        Ok(self.place.mapping.memories.get(index).is_some())
    }

    /// Whether every member's memory can be read and written by load and store.
    #[must_use]
    pub fn world_within_direct_access(&self) -> bool {
        self.place.mapping.memories.len() == self.group.size()
    }

    /// A member's memory, `offset` bytes from where the handle's view begins there, up to the end of
    /// the member's allocation.
    ///
    /// # Errors
    ///
    /// [`PeerError`] names the rank; nothing is touched.
    pub fn peer(
        &self,
        rank: Rank,
        offset: Bytes,
        dtype: DType,
        layout: Layout,
    ) -> Result<View, PeerError> {
        self.group.index_of(rank)?;
        let past = |start| {
            let length = Bytes::of(layout.extent(), dtype.size() as u64).unwrap_or(Bytes(u64::MAX));
            ViewError::PastEnd { offset: start, length, size: self.buffer_size() }
        };
        // As in `buffer`, the error counts from the allocation's start; what 64 bits do not count is
        // past every end.
        let Some(start) = self.offset().checked_add(offset) else {
            return Err(PeerError::View { rank, cause: past(Bytes(u64::MAX)) });
        };
        self.buffer(rank, start, dtype, layout)
    }

    /// A member's memory, `offset` bytes from the start of its allocation, wherever the handle's view
    /// begins there.
    ///
    /// # Errors
    ///
    /// [`PeerError`] names the rank; nothing is touched.
    pub fn buffer(
        &self,
        rank: Rank,
        offset: Bytes,
        dtype: DType,
        layout: Layout,
    ) -> Result<View, PeerError> {
        let index = self.group.index_of(rank)?;
        View::of_peer(&self.place, index, offset, dtype, layout)
            .map_err(|cause| PeerError::View { rank, cause })
    }

    /// A member's counterpart of the handle's view.
    ///
    /// # Errors
    ///
    /// [`RankError`] for a rank of another group.
    pub fn remote(&self, rank: Rank) -> Result<View, PeerError> {
        self.peer(rank, Bytes::ZERO, self.view.dtype(), self.view.layout().clone())
    }

    /// Every member's counterpart of the handle's view, by group rank, this rank's own included.
    ///
    /// # Errors
    ///
    /// As [`remote`](Self::remote).
    pub fn remotes(&self) -> Result<Vec<View>, PeerError> {
        self.group.ranks().map(|rank| self.remote(rank)).collect()
    }

    /// A member's signal pad, as 32-bit words.
    ///
    /// The words are [`signal_pad_ptrs`](Self::signal_pad_ptrs)' slots: to write one is to signal.
    ///
    /// # Errors
    ///
    /// [`RankError`] for a rank of another group.
    pub fn signal_pad(&self, rank: Rank) -> Result<View, PeerError> {
        let words = Layout::flat(self.signal_pad_size().get() / 4);
        self.signal_pad_part(rank, Bytes::ZERO, DType::U32, words)
    }

    /// Part of a member's signal pad, `offset` bytes from its start, as any type and shape.
    ///
    /// # Errors
    ///
    /// [`PeerError`] names the rank; nothing is touched.
    pub fn signal_pad_part(
        &self,
        rank: Rank,
        offset: Bytes,
        dtype: DType,
        layout: Layout,
    ) -> Result<View, PeerError> {
        let memory = self.group.regions()[self.group.index_of(rank)?].clone();
        let size = self.signal_pad_size();
        View::of_group(self.device(), memory, size, offset, dtype, layout)
            .map_err(|cause| PeerError::View { rank, cause })
    }
}

impl AsRef<View> for SymmetricMemory {
    /// This rank's view, so that operations take the handle.
    fn as_ref(&self) -> &View {
        &self.view
    }
}
