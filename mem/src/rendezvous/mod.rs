//! Rendezvous: every member's memory, mapped into every member.

pub(crate) mod exchange;
mod mapping;
pub(crate) mod multicast;
pub(crate) mod record;
mod table;

pub(crate) use exchange::{Given, Imports, agree, decline, exchange_memory};
pub(crate) use mapping::{Mapping, Membership, Place};
pub(crate) use multicast::{MulticastMapping, Support, join as join_multicast};
pub use multicast::{MulticastStep, NoMulticast};
pub use record::Mismatch;
pub(crate) use table::Tables;

use std::sync::Arc;

use symmem_hal::types::{Bytes, RankSet};
use symmem_hal::{AccessError, AllocError, DevicePtr, Fault, KeepAlive, Kind, Memory, Wait};

use crate::exchange::ExchangeError;
use crate::failure::Failure;
use crate::group::quarantine;
use crate::group::{Forgets, Group, OptionsError};
use crate::handle::SymmetricMemory;
use crate::launch::NoRoom;
use crate::memory::ledger::Token;
use crate::memory::{Allocation, View};
use crate::stalls;
use record::{About, Step};

/// Why a rendezvous, or the creation of a group, failed. Nothing stays mapped.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The group has failed, or this rank has left it.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Members did not meet.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// Members met and disagree. The same on every rank.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The view is of no allocation of this rank: a peer's memory, say.
    #[error(
        "the view is not of an allocation of this rank, so it cannot be made symmetric: allocate it, or on a GPU take it into an allocation by Allocation::from_raw"
    )]
    NotAllocated,
    /// The allocation lies on another device than the group's.
    #[error("the allocation is on {found}, the group on {expected}: allocate on Group::device")]
    OtherDevice {
        /// The group's device.
        expected: String,
        /// The allocation's device.
        found: String,
    },
    /// A rank that the group's ranks went on without may still write the allocation's memory; nobody
    /// was spoken to. It stays readable by its owner, and becomes free once that rank is known to have
    /// ended.
    #[error(
        "{bytes} may still be written by a rank that is no member any more, until it has ended: use other memory"
    )]
    Quarantined {
        /// Of the allocation's memory, or of its pool's segment.
        bytes: Bytes,
    },
    /// A rank could not export or map memory; the others have let go of it again.
    #[error("ranks {ranks} could not map the group's memory{}", reason.as_ref().map_or("; their errors say why".to_owned(), |r| format!("; this rank: {r}")))]
    Map {
        /// Who could not.
        ranks: RankSet,
        /// Why, if this rank is one of them.
        reason: Option<String>,
        /// What sort of trouble this rank had; [`Kind::System`] if none.
        kind: Kind,
    },
    /// A rank's device cannot reach another's memory. The same on every rank.
    #[error("rank {rank} cannot reach the memory of rank {peer}: {reason}")]
    Unreachable {
        /// Whose device does not.
        rank: usize,
        /// Whose memory.
        peer: usize,
        /// What the device says.
        reason: String,
    },
    /// More ranks of one process share a device than it runs beside each other. The same on every
    /// rank.
    #[error(
        "{ranks} ranks of one process on {device}: it runs the work of {limit} beside each other; CUDA_DEVICE_MAX_CONNECTIONS, set before the process starts, allows more, up to 32"
    )]
    Crowded {
        /// The device.
        device: String,
        /// Ranks on it.
        ranks: usize,
        /// How many it takes.
        limit: u32,
    },
    /// No ranks were asked for.
    #[error("0 ranks: at least one is needed")]
    NoRanks,
    /// More ranks were asked for than a run can have.
    #[error("{ranks} ranks: a run has at most {most}")]
    TooManyRanks {
        /// How many were asked for.
        ranks: usize,
        /// How many there can be.
        most: u32,
    },
    /// The ranks together need more memory than there is; none was started.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// A rank's thread could not be started, so that no group was made.
    #[error("no thread for rank {rank}: {reason}; threads may be limited (ulimit -u)")]
    Thread {
        /// Which.
        rank: u32,
        /// The system's reason.
        reason: String,
    },
    /// An option cannot be; nobody was spoken to.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// This rank lacks the memory for the table of addresses; nobody was spoken to.
    #[error(transparent)]
    Alloc(#[from] Arc<AllocError>),
    /// This rank's device did not take the table of addresses.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// What a member sent is no record of this call.
    #[error(
        "what ranks {ranks} sent is no record of this call: they are in another call, or run another release of symmem"
    )]
    Unreadable {
        /// Whose.
        ranks: RankSet,
    },
}

impl Fault for RendezvousError {
    fn kind(&self) -> Kind {
        match self {
            RendezvousError::Failed(e) => e.kind(),
            RendezvousError::Exchange(e) => e.kind(),
            RendezvousError::Mismatch(_) | RendezvousError::Unreadable { .. } => Kind::Disagreement,
            RendezvousError::NotAllocated
            | RendezvousError::OtherDevice { .. }
            | RendezvousError::NoRanks
            | RendezvousError::TooManyRanks { .. } => Kind::InvalidArgument,
            RendezvousError::Alloc(e) => e.kind(),
            RendezvousError::Access(e) => e.kind(),
            RendezvousError::Options(e) => e.kind(),
            RendezvousError::NoRoom(e) => e.kind(),
            RendezvousError::Thread { .. } | RendezvousError::Crowded { .. } => Kind::Exhausted,
            RendezvousError::Unreachable { .. } => Kind::Unsupported,
            RendezvousError::Quarantined { .. } => Kind::Stale,
            RendezvousError::Map { kind, .. } => *kind,
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            RendezvousError::Failed(e) => e.ranks(),
            RendezvousError::Exchange(e) => e.ranks(),
            RendezvousError::Mismatch(e) => e.ranks(),
            RendezvousError::Map { ranks, .. } | RendezvousError::Unreadable { ranks } => {
                ranks.clone()
            }
            RendezvousError::Unreachable { rank, peer, .. } => [*rank, *peer].into_iter().collect(),
            _ => RankSet::new(),
        }
    }
}

impl RendezvousError {
    /// Whether it tells of other ranks' trouble, which they say more of.
    pub(crate) fn is_of_others(&self) -> bool {
        matches!(
            self,
            RendezvousError::Map { reason: None, .. }
                | RendezvousError::Exchange(_)
                | RendezvousError::Failed(_)
        )
    }
}

impl From<AllocError> for RendezvousError {
    fn from(error: AllocError) -> Self {
        RendezvousError::Alloc(Arc::new(error))
    }
}

impl Group {
    /// Makes a view's allocation symmetric: maps every member's into this rank, and this rank's
    /// into every member.
    ///
    /// Collective the first time that an allocation is passed in this group: every rank must pass
    /// one that is new to the group, of the same bytes, and a view of the same offset, type and
    /// shape; blocks of a pool must lie at the same offset of segments that had the same rendezvous.
    /// After that a local look-up that speaks to nobody; that ranks then use the same memory is
    /// checked by each operation on it. A pool's segment is mapped with its first block; later ones
    /// cost one round.
    ///
    /// Where the group was made with [`Options::multicast`](crate::Options::multicast) and all devices
    /// have it, the memory gets a multicast address as well. That this comes to nothing is no error: see
    /// [`SymmetricMemory::multicast_ptr`].
    ///
    /// # Errors
    ///
    /// [`RendezvousError`]; bad input ([`RendezvousError::NotAllocated`],
    /// [`RendezvousError::OtherDevice`]) is found before anybody is spoken to.
    pub fn rendezvous(
        &self,
        view: impl AsRef<View>,
        wait: &Wait,
    ) -> Result<SymmetricMemory, RendezvousError> {
        let view = view.as_ref();
        let allocation = view.allocation().ok_or(RendezvousError::NotAllocated)?;
        if allocation.device().uuid() != self.device().uuid() {
            return Err(RendezvousError::OtherDevice {
                expected: self.device().name(),
                found: allocation.device().name(),
            });
        }
        self.check()?;
        if let Some(place) = allocation.place(self.scope()) {
            return Ok(SymmetricMemory::new(self.clone(), place, view.clone()));
        }
        let memory = allocation.memory();
        if quarantine::holds(memory) {
            return Err(RendezvousError::Quarantined { bytes: memory.bytes() });
        }
        let place = self.agree_on(view, allocation, wait)?;
        Ok(SymmetricMemory::new(self.clone(), place, view.clone()))
    }

    /// The collective part of a rendezvous.
    fn agree_on(
        &self,
        view: &View,
        allocation: &Allocation,
        wait: &Wait,
    ) -> Result<Arc<Place>, RendezvousError> {
        let (scope, bytes, offset) = (self.scope(), allocation.bytes(), allocation.offset());
        let span = tracing::info_span!("rendezvous", group = self.id(), bytes = bytes.get());
        let _entered = span.enter();
        let wait = &wait.begun();
        let mut turn = self.meeting(wait)?;
        // Another thread of this rank may have come first.
        if let Some(place) = allocation.place(scope) {
            return Ok(place);
        }
        // Counts as begun whatever becomes of it here, so that the next one is the same on all ranks.
        let ordinal = turn.next_ordinal();
        // Made before the meeting: a rank that lacks the memory for it says so before any effect.
        let table = if offset.get() == 0 { None } else { Some(self.tables().take()?) };
        let backing = allocation.backing();
        let known = backing.mapping(scope);
        let segment = known.as_ref().map(|mapping| mapping.ordinal);
        let about =
            About { step: Step::Rendezvous, ordinal, view: Some(view), segment, ..self.about() };
        let mapping = match known {
            Some(mapping) => {
                self.exchange_record(&mut turn, &about, wait)?;
                mapping
            }
            None => {
                let table = self.tables().take()?;
                let fill = |memories: &[Memory]| {
                    let bases: Vec<DevicePtr> = memories.iter().map(Memory::base).collect();
                    table.write(&bases, &self.pad_ptrs(), self.global_ranks())
                };
                let (memories, multicast) =
                    self.exchange_memory(&mut turn, &about, &backing.memory, &fill, wait)?;
                let group = self.membership();
                let mapping = Mapping { group, ordinal, memories, table, multicast };
                let mapping = Arc::new(mapping);
                backing.keep(scope, mapping.clone());
                let cache: Arc<dyn Forgets> = backing.clone();
                self.remember(&cache);
                mapping
            }
        };
        stalls::at(stalls::Step::Keep);
        let token = allocation.is_block().then(|| {
            let (ledger, members) = (self.ledger().clone(), self.members().clone());
            Arc::new(Token { ledger, key: (self.id(), ordinal), members })
        });
        let place = Arc::new(Place { mapping, ordinal, offset, bytes, table, token });
        if let Some(table) = &place.table {
            let bases: Vec<_> = (0..self.size()).map(|index| place.base(index)).collect();
            table.write(&bases, &self.pad_ptrs(), self.global_ranks())?;
        }
        allocation.keep(scope, place.clone());
        self.remember(&allocation.cache());
        Ok(place)
    }

    /// Lets pools use again what all ranks of this group have dropped: blocks that had a rendezvous
    /// in it, or in a group of some of its ranks. Collective. Every rendezvous does the same beside.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] where ranks did not meet.
    pub fn reclaim(&self, wait: &Wait) -> Result<(), RendezvousError> {
        self.check()?;
        let wait = &wait.begun();
        let mut turn = self.meeting(wait)?;
        let about = About { step: Step::Reclaim, ..self.about() };
        self.exchange_record(&mut turn, &about, wait)
    }

    /// As [`symmetric`](Self::symmetric), for operations: the ordinal of a view's rendezvous in this
    /// group, and the device address of the table of every rank's memory, from whose start the
    /// view's [`offset`](View::offset) counts.
    #[must_use]
    pub fn mapping(&self, view: &View) -> Option<(u64, DevicePtr)> {
        let place = view.allocation()?.place(self.scope())?;
        Some((place.ordinal, place.mapping.table.base()))
    }

    /// Where the memory of the member of this index begins here, from which the view's
    /// [`offset`](View::offset) counts: what the table of [`mapping`](Self::mapping) holds.
    #[must_use]
    pub fn peer_base(&self, view: &View, index: usize) -> Option<DevicePtr> {
        let place = view.allocation()?.place(self.scope())?;
        Some(place.mapping.memories.get(index)?.base())
    }

    /// The address that stands for every member's memory, from which the view's
    /// [`offset`](View::offset) counts, or why there is none: for operations, as
    /// [`SymmetricMemory::multicast_ptr`] is for kernels of one's own. `None` where the view has had no
    /// rendezvous in this group.
    #[must_use]
    pub fn multicast_base(&self, view: &View) -> Option<Result<DevicePtr, NoMulticast>> {
        let place = view.allocation()?.place(self.scope())?;
        Some(place.mapping.multicast())
    }

    /// What keeps the peers' memory of a view's rendezvous in this group mapped, for work that outlives
    /// the call that enqueues or captures it.
    #[must_use]
    pub fn keep_mapped(&self, view: &View) -> Option<KeepAlive> {
        let place = view.allocation()?.place(self.scope())?;
        Some(place as KeepAlive)
    }

    /// The symmetric memory that an address of this rank lies in, whatever the offset. Local.
    ///
    /// # Errors
    ///
    /// [`NotSymmetric`] where the address is in no allocation, or in one that has had no
    /// rendezvous in this group.
    pub fn symmetric(&self, view: impl AsRef<View>) -> Result<SymmetricMemory, NotSymmetric> {
        let view = view.as_ref();
        let error = || NotSymmetric { address: view.ptr().get() };
        let allocation = Allocation::containing(view.ptr()).ok_or_else(error)?;
        let place = allocation.place(self.scope()).ok_or_else(error)?;
        Ok(SymmetricMemory::new(self.clone(), place, view.clone()))
    }
}

/// An address that is not of symmetric memory of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "address {address:#x} is not in memory that had a rendezvous in this group: call group.rendezvous first"
)]
pub struct NotSymmetric {
    /// The address.
    pub address: u64,
}

impl Fault for NotSymmetric {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}
