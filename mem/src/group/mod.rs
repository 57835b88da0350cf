//! Groups: ranks that share memory.

pub(crate) mod agree;
mod caches;
mod choices;
mod controls;
mod farewell;
mod meeting;
mod options;
pub(crate) mod quarantine;
pub(crate) mod recover;
mod residents;
mod subgroup;
pub(crate) mod world;

pub(crate) use caches::Forgets;
pub use choices::Choices;
pub use options::{Completion, Determinism, Options, OptionsError};
pub use quarantine::quarantined;
pub use recover::RecoverError;
pub use subgroup::{Subgroup, SubgroupError};

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use symmem_hal::types::{Bytes, Rank, RankSet, Scope};
use symmem_hal::{Device, DeviceError, DevicePtr, Fault, Kind, Memory, Stream, Wait};

use crate::exchange::{Round, RoundKey};
use crate::failure::Failure;
use crate::liveness::{Status, afterwards};
use crate::memory::ledger::Ledger;
use crate::memory::retire;
use crate::rendezvous::record::{About, Record, Reported, Step};
use crate::rendezvous::{self, Given, Imports, Membership, RendezvousError, Tables};
use crate::stalls;
use caches::Caches;
use controls::{Controls, allocate};
use farewell::Farewell;
use meeting::Sequence;
use residents::Shares;
use world::World;

/// A set of ranks that share memory, as one of them sees it.
///
/// Clones are the same membership. It ends with [`leave`](Group::leave), or when the last clone
/// and the last handle made from it are dropped.
#[derive(Clone)]
pub struct Group(Arc<Inner>);

impl core::fmt::Debug for Group {
    /// One line: which group, who this is, who is gone, what failed.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Group")
            .field("id", &format_args!("{:016x}", self.0.id))
            .field("rank", &self.0.me)
            .field("members", &self.0.members)
            .field("device", &self.0.device)
            .field("status", &self.0.status)
            .finish_non_exhaustive()
    }
}

struct Inner {
    world: Arc<World>,
    id: u64,
    /// The id of the group that it goes back to by recoveries: its own if there was none.
    root: u64,
    recovery: Mutex<recover::Attempts>,
    scope: Scope,
    members: Arc<[u32]>,
    me: usize,
    device: Device,
    options: Options,
    meeting: Mutex<Sequence>,
    status: Arc<Status>,
    regions: Vec<Memory>,
    controls: Controls,
    shares: Shares,
    reported: Vec<Reported>,
    tables: Arc<Tables>,
    caches: Arc<Caches>,
    stream: OnceLock<Stream>,
    /// What each layer above keeps with the group; see [`Layer`].
    slots: [OnceLock<Box<dyn Any + Send + Sync>>; Layer::COUNT],
    making: [Mutex<()>; Layer::COUNT],
}

/// A rank that is none of the group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// The index is not below the group's size.
    #[error("rank {index} is out of range: the group has ranks 0 to {}", size - 1)]
    OutOfRange {
        /// The index asked for.
        index: usize,
        /// The group's size.
        size: usize,
    },
    /// The rank counts in another group: a global rank in a sub-group, say.
    #[error("rank {rank} counts in another group; get ranks from the group they are used with")]
    OtherGroup {
        /// The rank.
        rank: Rank,
    },
}

impl Fault for RankError {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}

/// The layers that may keep something with a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layer {
    /// Lanes and channels.
    Sync = 0,
    /// Kernels of collectives.
    Collectives = 1,
    /// Kernels of routed rows, and what became of calls.
    Moe = 2,
}

impl Layer {
    const COUNT: usize = 3;
}

/// What a group is about to be made of.
pub(crate) struct Plan {
    pub id: u64,
    /// The group that it goes back to by recoveries, if there was one.
    pub root: Option<u64>,
    pub members: Arc<[u32]>,
    pub me: usize,
    pub device: Device,
    pub options: Options,
    pub step: Step,
}

impl Group {
    /// Makes the group of all ranks of a run; collective among them.
    pub(crate) fn of_all(
        world: &Arc<World>,
        device: &Device,
        options: &Options,
        wait: &Wait,
    ) -> Result<Self, RendezvousError> {
        let members: Arc<[u32]> = (0..world.size).collect();
        let plan = Plan {
            id: world.next_group_id(&members),
            root: None,
            me: world.rank as usize,
            members,
            device: device.clone(),
            options: options.clone(),
            step: Step::CreateGroup,
        };
        Self::create(world, plan, wait)
    }

    /// Makes a group; collective among its members.
    pub(crate) fn create(
        world: &Arc<World>,
        plan: Plan,
        wait: &Wait,
    ) -> Result<Self, RendezvousError> {
        static NEXT_SCOPE: AtomicU32 = AtomicU32::new(1);
        let Plan { id, root, members, me, device, options, step } = plan;
        let wait = &wait.begun();
        options.check(members.len())?;
        let options = options.on(device.kind());
        // Sub-groups keep what their group has found.
        let options = Options { choices: options.choices.resolve()?, ..options };
        let span = tracing::info_span!("create group", id, size = members.len());
        let _entered = span.enter();
        let scope = Scope(NEXT_SCOPE.fetch_add(1, Ordering::Relaxed));
        let about = About {
            step,
            run: &world.run,
            group: id,
            members: &members,
            generation: world.generation,
            ordinal: 0,
            view: None,
            segment: None,
        };
        let mut record = Record::new(&about, &options, &device);
        let bytes = options.region().unwrap_or(Bytes(u64::MAX));
        // Known before anybody can be done here: a member may leave, or die, as soon as its own
        // creation has ended, and must not do so unheard.
        let status = Arc::new(Status::new(scope, members.len()));
        world.register.add(id, scope, members.clone(), &status);
        let mut sequence = Sequence::default();
        let mut gather = |part| {
            let key = RoundKey {
                group: id,
                generation: world.generation,
                number: sequence.next_round(),
                part: 0,
            };
            world.exchange.gather(Round { key, members: &members, me, links: true, part }, wait)
        };
        let control = options.control_bytes(members.len()).unwrap_or(Bytes(u64::MAX));
        stalls::at(stalls::Step::Allocate);
        // A rank without the memory still comes, so that the others need not wait for it.
        let memories = match allocate(&device, bytes, control) {
            Ok(memories) => memories,
            Err(e) => {
                let ranks = rendezvous::decline(&mut gather, &record)?;
                let (reason, kind) = (Some(e.to_string()), e.kind());
                return Err(RendezvousError::Map { ranks, reason, kind });
            }
        };
        let (region, control) = &memories;
        let exchange = &*world.exchange;
        let imports = Imports { device: &device, threads: world.threads, me, exchange };
        let exchanged = rendezvous::exchange_memory(
            &mut gather,
            &world.ledger,
            &mut record,
            &Given { memory: region, beside: control.as_ref() },
            &imports,
            &|_| Ok(()),
        )?;
        stalls::at(stalls::Step::Keep);
        let reported: Vec<Reported> = exchanged.records.into_iter().map(|r| r.reported).collect();
        let shares = Shares::of(&reported, options.max_lanes)?;
        let regions = exchanged.memories;
        let controls = Controls::open(&device, exchanged.beside).map_err(|e| {
            let (ranks, reason) = (RankSet::one(me), Some(e.to_string()));
            RendezvousError::Map { ranks, reason, kind: e.kind() }
        })?;
        let tables = Tables::new(&device, members.len());
        let inner = Inner {
            world: world.clone(),
            id,
            root: root.unwrap_or(id),
            recovery: Mutex::new(recover::Attempts::new(world.generation, &members)),
            scope,
            members,
            me,
            device,
            options,
            meeting: Mutex::new(sequence),
            status,
            regions,
            controls,
            shares,
            reported,
            tables,
            caches: Arc::default(),
            stream: OnceLock::new(),
            slots: Default::default(),
            making: Default::default(),
        };
        Ok(Group(Arc::new(inner)))
    }

    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        Rank::in_scope(self.0.me as u32, self.0.scope)
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.members.len()
    }

    /// The rank of an index.
    ///
    /// # Errors
    ///
    /// [`RankError::OutOfRange`].
    pub fn rank_at(&self, index: usize) -> Result<Rank, RankError> {
        if index < self.size() {
            Ok(Rank::in_scope(index as u32, self.0.scope))
        } else {
            Err(RankError::OutOfRange { index, size: self.size() })
        }
    }

    /// All ranks, ascending.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = Rank> + use<> {
        let scope = self.0.scope;
        (0..self.size()).map(move |i| Rank::in_scope(i as u32, scope))
    }

    /// The index of one of this group's ranks.
    ///
    /// # Errors
    ///
    /// [`RankError::OtherGroup`]; [`RankError::OutOfRange`] for a rank that the group never gave.
    pub fn index_of(&self, rank: Rank) -> Result<usize, RankError> {
        let (index, size) = (rank.index(), self.size());
        if rank.scope() != self.0.scope {
            Err(RankError::OtherGroup { rank })
        } else if index >= size {
            Err(RankError::OutOfRange { index, size })
        } else {
            Ok(index)
        }
    }

    /// The global rank of each member, by group rank.
    #[must_use]
    pub fn global_ranks(&self) -> &[u32] {
        &self.0.members
    }

    /// The group's identity in its run: equal on every member.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// What its ranks count in, in this process.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.0.scope
    }

    /// The device its memory is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// By how much longer everything may take than callers say: as many times as ranks share a device
    /// that runs the work of one process at a time, and 1 where none is shared so. Kernels' bounds are
    /// stretched by it.
    #[must_use]
    pub fn deadline_scale(&self) -> u32 {
        self.0.shares.deadline_scale
    }

    /// How many blocks each rank can have running at once on each of its lanes, the same on all: those
    /// of all ranks and lanes of a device run beside each other. 1 on backends without blocks.
    #[must_use]
    pub fn blocks_per_lane(&self) -> u32 {
        self.0.shares.blocks_per_lane
    }

    /// Whether what eight threads of a warp store at once, 128 bytes at a multiple of as many, arrives
    /// whole on every rank: the [capability](symmem_hal::Capabilities::whole_lines) of all devices.
    #[must_use]
    pub fn whole_lines(&self) -> bool {
        self.0.shares.whole_lines
    }

    /// The bound that calls use where the caller gives none.
    #[must_use]
    pub fn wait(&self) -> Wait {
        Wait::timeout(self.0.options.deadline)
    }

    /// Which generation of the run it belongs to; `recover` makes the next.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.0.world.generation
    }

    /// The bytes of shared memory that the group itself takes on this rank: pad and workspace.
    #[must_use]
    pub fn region_bytes(&self) -> Bytes {
        self.0.regions.first().map_or(Bytes::ZERO, Memory::bytes)
    }

    /// The name of the host and the process id of each member, as it reported them, by group rank.
    #[must_use]
    pub fn member_processes(&self) -> Vec<(String, u32)> {
        self.0.reported.iter().map(|r| (r.host.clone(), r.process)).collect()
    }

    /// What each member runs, as it reported it, by group rank: names and versions of libraries, and as
    /// `kernels` where the code of its kernels comes from that no cache has.
    #[must_use]
    pub fn member_software(&self) -> Vec<Vec<(String, String)>> {
        let of = |rank: &Reported| {
            let kernels = ("kernels".to_owned(), rank.kernels.clone());
            rank.versions.iter().cloned().chain([kernels]).collect()
        };
        self.0.reported.iter().map(of).collect()
    }

    /// Who is gone and what failed: for the layers above, whose waits look here.
    #[must_use]
    pub fn status(&self) -> &Arc<Status> {
        &self.0.status
    }

    /// Whether all is well.
    ///
    /// # Errors
    ///
    /// The group's first [`Failure`], the same on every member; [`Failure::Left`] after
    /// [`leave`](Self::leave) of a group without one.
    pub fn check(&self) -> Result<(), Failure> {
        self.0.status.check()
    }

    /// Takes no more operations and tells the others, for whom this is an orderly end. Memory
    /// stays mapped while the group or a handle of it is held. Further calls do nothing.
    ///
    /// On the host, a last operation that differs from another rank's which is there by now is this
    /// rank's failure: [`check`](Self::check) tells of it instead of [`Failure::Left`].
    pub fn leave(&self) {
        self.0.leave();
    }

    /// The address, on this rank, of the signal pad of the member of this index.
    #[must_use]
    pub fn pad_ptr(&self, index: usize) -> DevicePtr {
        self.0.regions.get(index).map_or(DevicePtr::NULL, Memory::base)
    }

    /// The address, on this rank, of the workspace of the member of this index. Its meaning is the
    /// business of the layer above.
    #[must_use]
    pub fn workspace_ptr(&self, index: usize) -> DevicePtr {
        let Some(region) = self.0.regions.get(index) else { return DevicePtr::NULL };
        let pad = self.0.options.pad.round_up(4096).unwrap_or_default();
        region.base().checked_add(pad).unwrap_or(DevicePtr::NULL)
    }

    /// Bytes of a workspace.
    #[must_use]
    pub fn workspace_bytes(&self) -> Bytes {
        let pad = self.0.options.pad.round_up(4096).unwrap_or_default();
        Bytes(self.region_bytes().get().saturating_sub(pad.get()))
    }

    /// The memory of all members' regions: whoever follows the addresses above holds these.
    #[must_use]
    pub fn regions(&self) -> &[Memory] {
        &self.0.regions
    }

    /// Of members, their control pages in host memory: where kernels tell a host what went wrong, and the
    /// host tells them. None where hosts reach regions themselves, nor of members on other hosts.
    pub fn control_regions(&self) -> impl Iterator<Item = &Memory> {
        self.0.controls.memories.iter().flatten()
    }

    /// This rank's control page: in its region, where the host reaches that.
    #[must_use]
    pub fn own_control(&self) -> &Memory {
        let own = self.0.controls.memories.get(self.0.me).and_then(Option::as_ref);
        own.unwrap_or(&self.0.regions[self.0.me])
    }

    /// The address, for kernels of this rank's device, of the control page of the member of this index;
    /// null of one on another host, whose own kernels tell it.
    #[must_use]
    pub fn control_ptr(&self, index: usize) -> DevicePtr {
        self.0.controls.addresses.get(index).copied().unwrap_or(DevicePtr::NULL)
    }

    /// What a layer above keeps with this group, made on first use: after that a load, no lock.
    ///
    /// # Errors
    ///
    /// What `make` returns; the next call tries again.
    pub fn slot<T: Any + Send + Sync, E>(
        &self,
        layer: Layer,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Option<&T>, E> {
        let slot = &self.0.slots[layer as usize];
        if slot.get().is_none() {
            self.fill(layer, make)?;
        }
        Ok(slot.get().and_then(|kept| kept.downcast_ref()))
    }

    /// Out of line: every call of every layer comes by the slot, and what is made can be large.
    #[cold]
    #[inline(never)]
    fn fill<T: Any + Send + Sync, E>(
        &self,
        layer: Layer,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(), E> {
        // A lock for each layer: making one's may use the layers below, never itself.
        let _making = self.0.making[layer as usize].lock();
        let slot = &self.0.slots[layer as usize];
        if slot.get().is_none() {
            let _ = slot.set(Box::new(make()?));
        }
        Ok(())
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.0.world
    }

    pub(crate) fn membership(&self) -> Membership {
        Membership {
            scope: self.0.scope,
            id: self.0.id,
            me: self.0.me,
            members: self.0.members.clone(),
            device: self.0.device.clone(),
            voice: self.0.world.voice.clone(),
            status: Arc::downgrade(&self.0.status),
        }
    }

    pub(crate) fn members(&self) -> &Arc<[u32]> {
        &self.0.members
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.0.world.ledger
    }

    pub(crate) fn tables(&self) -> &Arc<Tables> {
        &self.0.tables
    }

    /// The addresses of all pads, by group rank.
    pub(crate) fn pad_ptrs(&self) -> Vec<DevicePtr> {
        (0..self.size()).map(|index| self.pad_ptr(index)).collect()
    }

    /// `cache` holds something of this group, to be forgotten when it ends.
    pub(crate) fn remember(&self, cache: &Arc<dyn Forgets>) {
        self.0.caches.add(self.0.scope, cache);
    }

    /// The group's own stream, for calls that name none: made on first use, and only then, since a device
    /// that ranks share has few queues for all of their streams. Inline on the host.
    ///
    /// # Errors
    ///
    /// As [`Device::default_stream`].
    pub fn stream(&self) -> Result<&Stream, DeviceError> {
        if let Some(stream) = self.0.stream.get() {
            return Ok(stream);
        }
        let stream = self.0.device.default_stream()?;
        Ok(self.0.stream.get_or_init(|| stream))
    }
}

impl Inner {
    /// Never blocks: operations still in flight are waited for by whoever completes them.
    fn leave(&self) {
        if !self.status.close() {
            return;
        }
        retire::forget_group(self.scope);
        let farewell = self.farewell();
        afterwards(self.status.in_flight(), move || farewell.say());
    }

    /// What the group's rendezvous found is of no use any more. Not before the last holder is gone: an
    /// operation that runs in its caller's thread, which borrows the group, may be at it.
    fn forget(&self) {
        let (caches, scope) = (self.caches.clone(), self.scope);
        afterwards(self.status.in_flight(), move || caches.end(scope));
    }

    fn farewell(&self) -> Farewell {
        let others = self.members.iter().copied().enumerate().filter(|(i, _)| *i != self.me);
        Farewell {
            id: self.id,
            others: others.map(|(_, member)| member).collect(),
            voice: self.world.voice.clone(),
            status: self.status.clone(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A rank that unwinds has not ended in an orderly way: its scope says so, or its process.
        if std::thread::panicking() {
            self.world.register.leave_behind(self.status.in_flight());
        } else {
            self.forget();
            self.leave();
        }
    }
}
