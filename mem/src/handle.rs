//! The handle: what rendezvous returns.

use std::sync::Arc;

use symmem_hal::types::{Bytes, DType, Layout, Rank};
use symmem_hal::{DevicePtr, Memory};

use crate::group::{Group, RankError};
use crate::memory::{View, ViewError};
use crate::rendezvous::Mapping;

/// A view, made symmetric in a group: the same range of every member's allocation.
///
/// Every operation honours the view's offset. Clones are the same handle. Holds the group, the
/// allocation and all mappings.
#[derive(Clone, Debug)]
pub struct SymmetricMemory {
    group: Group,
    mapping: Arc<Mapping>,
    view: View,
}

/// Why a peer's memory cannot be viewed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The rank is none of the group's.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// The range is not in the peer's allocation.
    #[error("rank {rank}: {cause}")]
    View {
        /// Whose memory.
        rank: Rank,
        /// What is wrong with the range.
        cause: ViewError,
    },
}

impl symmem_hal::Fault for PeerError {
    fn kind(&self) -> symmem_hal::Kind {
        symmem_hal::Kind::InvalidArgument
    }
}

impl SymmetricMemory {
    pub(crate) fn new(group: Group, mapping: Arc<Mapping>, view: View) -> Self {
        SymmetricMemory { group, mapping, view }
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

    /// Bytes of each member's allocation, as asked for.
    #[must_use]
    pub fn buffer_size(&self) -> Bytes {
        self.mapping.memories.first().map_or(Bytes::ZERO, Memory::bytes)
    }

    /// Where the view begins in the allocation.
    #[must_use]
    pub fn offset(&self) -> Bytes {
        self.view.offset()
    }

    /// Which rendezvous of the group made it: equal on every rank.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.mapping.ordinal
    }

    /// The address of each member's *allocation*, by group rank, for kernels on this device; add
    /// [`offset`](Self::offset) for the view. Valid while a clone of this handle lives.
    ///
    /// On the host these are addresses in this process: memory that peers may write, to be followed
    /// by atomics, or by plain accesses that signals or a barrier order.
    #[must_use]
    pub fn buffer_ptrs(&self) -> Vec<DevicePtr> {
        self.mapping.memories.iter().map(Memory::base).collect()
    }

    /// The address of the array of [`buffer_ptrs`](Self::buffer_ptrs) in the device's memory: one
    /// address a rank, for kernels.
    #[must_use]
    pub fn buffer_ptrs_dev(&self) -> DevicePtr {
        self.mapping.table.base()
    }

    /// The address of a member's view.
    ///
    /// # Errors
    ///
    /// [`RankError`] for a rank of another group.
    pub fn peer_ptr(&self, rank: Rank) -> Result<DevicePtr, RankError> {
        let index = self.group.index_of(rank)?;
        let base = self.mapping.memories[index].base();
        Ok(base.checked_add(self.view.offset()).unwrap_or(DevicePtr::NULL))
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
        (0..self.world_size()).map(|i| self.group.pad_ptr(i)).collect()
    }

    /// The address of the array of [`signal_pad_ptrs`](Self::signal_pad_ptrs) in the device's
    /// memory.
    #[must_use]
    pub fn signal_pad_ptrs_dev(&self) -> DevicePtr {
        let pads = Bytes(8 * self.world_size() as u64);
        self.mapping.table.base().checked_add(pads).unwrap_or(DevicePtr::NULL)
    }

    /// Bytes of a signal pad.
    #[must_use]
    pub fn signal_pad_size(&self) -> Bytes {
        self.group.options().pad
    }

    /// Whether every member's memory can be read and written by load and store.
    #[must_use]
    pub fn world_within_direct_access(&self) -> bool {
        self.mapping.memories.len() == self.group.size()
    }

    /// A member's memory, `offset` bytes from where the handle's view begins there.
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
        let index = self.group.index_of(rank)?;
        let memory = self.mapping.memories[index].clone();
        let start = self.view.offset().checked_add(offset).unwrap_or(Bytes(u64::MAX));
        View::of_peer(memory, start, dtype, layout).map_err(|cause| PeerError::View { rank, cause })
    }

    /// A member's counterpart of the handle's view.
    ///
    /// # Errors
    ///
    /// [`RankError`] for a rank of another group.
    pub fn remote(&self, rank: Rank) -> Result<View, PeerError> {
        self.peer(rank, Bytes::ZERO, self.view.dtype(), self.view.layout().clone())
    }
}

impl AsRef<View> for SymmetricMemory {
    /// This rank's view, so that operations take the handle.
    fn as_ref(&self) -> &View {
        &self.view
    }
}
