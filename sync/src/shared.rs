//! What one rank keeps with a group for the protocols: the layout, the lanes' and channels' order,
//! and how to hear of a failure.

#[cfg(test)]
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use symmem_hal::types::BackendKind;
use symmem_hal::{
    AccessError, AllocError, Capture, Device, DeviceError, Event, Fault, Health, ImportError, Kind,
    LoadError, Memory, Stream, StreamOrder, SyncError, Wait,
};
use symmem_mem::liveness::Status;
use symmem_mem::{Failure, Group, Layer};

use crate::control::{Control, LaneWords};
#[cfg(feature = "cuda")]
use crate::gpu::{Gpu, LaneMemory};
use crate::host::{self, Host};
use crate::lane::LaneState;
use crate::layout::{Capacities, WorkspaceTooSmall};

/// What a kernel on a busy machine may take to report that its time was over: more than it waits
/// itself for another's report.
const DRAIN_GRACE: Duration = Duration::from_secs(4);

const _: () = assert!(DRAIN_GRACE.as_millis() > host::GRACE.as_millis());

#[cfg(test)]
thread_local! {
    /// What happens before this thread next watches a stream.
    pub(crate) static BEFORE_WATCH: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// A group's lanes and channels, on one rank.
pub(crate) struct Shared {
    pub(crate) executor: Executor,
    pub(crate) capacities: Capacities,
    pub(crate) lanes: Vec<LaneState>,
    pub(crate) orders: Mutex<HashMap<OrderKey, StreamOrder>>,
    pub(crate) stream: Stream,
    pub(crate) status: Arc<Status>,
    pub(crate) device: Device,
    control: Control,
    /// Streams on which operations were enqueued.
    used: Arc<Mutex<Vec<Stream>>>,
    /// Kept mapped for whatever follows the addresses that kernels are given.
    regions: Vec<Memory>,
}

/// What calls of a kind on a channel are ordered by. A put must not queue behind a wait of the
/// other direction that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OrderKey {
    Barrier(u32),
    Put(u32, u32),
    Wait(u32, u32),
}

/// What runs the protocols, with what it keeps for them.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one a group, behind an Arc")]
pub(crate) enum Executor {
    /// Loops of this process: on the host and the stub.
    Host(Host),
    /// Kernels on a GPU.
    #[cfg(feature = "cuda")]
    Gpu(Gpu),
}

impl Executor {
    /// What runs in this process.
    pub(crate) fn host(&self) -> Option<&Host> {
        match self {
            Executor::Host(host) => Some(host),
            #[cfg(feature = "cuda")]
            Executor::Gpu(_) => None,
        }
    }

    /// Compares the lanes' last calls, where that takes no other thread; whether it did.
    fn last_look(&self, group: &Group, stream: &Stream) -> Box<dyn Fn() -> bool + Send + Sync> {
        match self {
            Executor::Host(host) => Box::new(host.last_look(group, stream)),
            #[cfg(feature = "cuda")]
            Executor::Gpu(_) => Box::new(|| false),
        }
    }
}

/// A group cannot have lanes and channels.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// Its workspace is too small.
    #[error(transparent)]
    Workspace(#[from] WorkspaceTooSmall),
    /// There is no memory for its tables.
    #[error(transparent)]
    Alloc(#[from] Arc<AllocError>),
    /// Its device has no stream for it.
    #[error(transparent)]
    Device(#[from] Arc<DeviceError>),
    /// The stream on which its lanes are opened did not do so.
    #[error(transparent)]
    Stream(#[from] SyncError),
    /// The stream of the group's first call captures, so that nothing can be loaded.
    #[error("not prepared: call lane.prepare before the capture")]
    Capturing,
    /// Another version of this layer in the process keeps its state with the group.
    #[error("another version of symmem-sync uses this group: build with one (cargo tree -d)")]
    SlotTaken,
    /// A kernel cannot be had on its device.
    #[error(transparent)]
    Load(#[from] Arc<LoadError>),
    /// Its memory cannot be written.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Its device cannot reach memory of the CPU that its kernels are to write.
    #[error(transparent)]
    Import(#[from] Arc<ImportError>),
}

impl Fault for PrepareError {
    fn kind(&self) -> Kind {
        match self {
            PrepareError::Workspace(e) => e.kind(),
            PrepareError::Alloc(e) => e.kind(),
            PrepareError::Device(e) => e.kind(),
            PrepareError::Load(e) => e.kind(),
            PrepareError::SlotTaken => Kind::Unsupported,
            PrepareError::Capturing => Kind::InvalidArgument,
            PrepareError::Stream(e) => e.kind(),
            PrepareError::Access(e) => e.kind(),
            PrepareError::Import(e) => e.kind(),
        }
    }
}

impl From<DeviceError> for PrepareError {
    fn from(error: DeviceError) -> Self {
        PrepareError::Device(Arc::new(error))
    }
}

impl From<AllocError> for PrepareError {
    fn from(error: AllocError) -> Self {
        PrepareError::Alloc(Arc::new(error))
    }
}

impl From<ImportError> for PrepareError {
    fn from(error: ImportError) -> Self {
        PrepareError::Import(Arc::new(error))
    }
}

impl From<LoadError> for PrepareError {
    fn from(error: LoadError) -> Self {
        PrepareError::Load(Arc::new(error))
    }
}

impl Shared {
    /// The group's, made on first use. Local: the memory was mapped when the group was made.
    pub(crate) fn of(group: &Group) -> Result<&Arc<Self>, PrepareError> {
        let slot = group.slot(Layer::Sync, || Self::new(group).map(Arc::new))?;
        slot.ok_or(PrepareError::SlotTaken)
    }

    /// As [`of`](Self::of), for a call on a stream. What is made on first use cannot be made while a
    /// device's stream captures.
    pub(crate) fn of_call<'a>(
        group: &'a Group,
        stream: &Stream,
    ) -> Result<&'a Arc<Self>, PrepareError> {
        let slot = group.slot(Layer::Sync, || {
            if group.device().kind() == BackendKind::Cuda && stream.capture() != Capture::None {
                return Err(PrepareError::Capturing);
            }
            Self::new(group).map(Arc::new)
        })?;
        slot.ok_or(PrepareError::SlotTaken)
    }

    fn new(group: &Group) -> Result<Self, PrepareError> {
        let device = group.device().clone();
        let stream = group.stream()?.clone();
        let (executor, control, capacities) = Self::open(group, &stream)?;
        let told = control.clone();
        group.status().set_probe(move || told.failure());
        let (status, lost) = (Arc::downgrade(group.status()), control.clone());
        group.status().on_change(Arc::new(move || {
            if let Some(status) = status.upgrade() {
                lost.set_lost(&status);
            }
        }));
        let (closing, leaving) = (control.clone(), Arc::downgrade(group.status()));
        let last_look = executor.last_look(group, &stream);
        group.status().set_end(move || {
            // Nobody may follow who would tell that the last calls differ.
            let found = || closing.failure().or_else(|| closing.look_back());
            if last_look()
                && let (Some(failure), Some(status)) = (found(), leaving.upgrade())
            {
                status.fail(failure);
            }
            closing.retire_lanes();
        });
        let used: Arc<Mutex<Vec<Stream>>> = Arc::default();
        let (streams, marking) = (used.clone(), device.clone());
        group.status().set_in_flight(move || mark_all(&streams.lock(), &marking));
        // Who went before the line above is noted now.
        control.set_lost(group.status());
        Ok(Shared {
            executor,
            capacities,
            lanes: (0..group.options().max_lanes).map(|_| LaneState::new(&device)).collect(),
            orders: Mutex::default(),
            stream,
            status: group.status().clone(),
            device,
            control,
            used,
            regions: group.regions().to_vec(),
        })
    }

    /// Opens this rank's lanes, where its group's memory is.
    fn open(
        group: &Group,
        stream: &Stream,
    ) -> Result<(Executor, Control, Capacities), PrepareError> {
        let (rank, scope) = (group.rank().index(), group.scope());
        #[cfg(feature = "cuda")]
        if group.device().kind() == BackendKind::Cuda {
            let gpu = Gpu::new(group)?;
            let (page, capacities) = (gpu.layout.page, gpu.layout.capacities());
            let memory = group.own_control().clone();
            let lanes = LaneWords::Gpu(LaneMemory::new(group, gpu.layout));
            let control = Control { page, rank, memory, start: 0, scope, lanes };
            return Ok((Executor::Gpu(gpu), control, capacities));
        }
        let host = Host::new(group, stream)?;
        let start = group.workspace_ptr(rank).get() - group.pad_ptr(rank).get();
        let (layout, memory) = (host.layout, group.regions()[rank].clone());
        let lanes = LaneWords::Host { layout, regions: group.regions().to_vec() };
        let control = Control { page: layout.page, rank, memory, start, scope, lanes };
        Ok((Executor::Host(host), control, layout.capacities()))
    }

    pub(crate) fn order(&self, key: OrderKey) -> StreamOrder {
        self.orders.lock().entry(key).or_insert_with(|| StreamOrder::new(&self.device)).clone()
    }

    /// An operation was enqueued on `stream`: its outcome is asked for when the stream is
    /// synchronised, and its end awaited when the group is left.
    pub(crate) fn enqueued(self: &Arc<Self>, stream: &Stream) {
        stream.watch_queued(self.health());
        self.remember(stream);
    }

    fn health(self: &Arc<Self>) -> Weak<dyn Health> {
        #[cfg(test)]
        if let Some(meanwhile) = BEFORE_WATCH.take() {
            meanwhile();
        }
        let health: Arc<dyn Health> = self.clone();
        Arc::downgrade(&health)
    }

    /// Lets a stream's `synchronize`, or each launch of the graph that it records, report what became
    /// of the operations on it.
    pub(crate) fn watch(self: &Arc<Self>, stream: &Stream) {
        stream.watch(self.health());
    }

    /// Work was enqueued on `stream` whose end is awaited when the group is left.
    fn remember(&self, stream: &Stream) {
        let mut used = self.used.lock();
        if used.last().is_some_and(|s| s.id() == stream.id()) {
            return;
        }
        // A stream that is idle has nothing to wait for, and is not kept alive for this.
        used.retain(|s| s.id() != stream.id() && !s.is_idle());
        used.push(stream.clone());
    }

    /// That a stream runs the group's kernels.
    pub(crate) fn check_stream(&self, stream: &Stream) -> Result<(), SyncError> {
        if stream.backend() == self.device.kind() { Ok(()) } else { Err(SyncError::OtherBackend) }
    }

    /// Waits until what is enqueued on a stream is done. Unlike `synchronize`, asks nobody how it
    /// went.
    pub(crate) fn drain(&self, stream: &Stream, wait: &Wait) -> Result<(), SyncError> {
        let event = self.device.event();
        let drained = stream.record(&event).and_then(|()| event.synchronize(wait));
        if let Err(SyncError::Device(error)) = &drained
            && error.kind() == Kind::Device
        {
            // What ran there is lost, and what is to come.
            self.status.fail(Failure::Device(error.to_string()));
        }
        drained
    }

    /// For how long to wait for a kernel that ends by its own bound, so that how it ended is told, not
    /// that it was waited for.
    pub(crate) fn patience(&self, wait: &Wait) -> Wait {
        let bound = match &self.executor {
            Executor::Host(_) => wait.duration(),
            #[cfg(feature = "cuda")]
            Executor::Gpu(gpu) => gpu.bound(wait),
        };
        Wait::timeout(bound.saturating_add(DRAIN_GRACE))
    }

    /// Fails the group where the last calls of two ranks on a lane differ. Kernels of the CPU look
    /// themselves, and report it; where they could not, because a rank that reports something does not
    /// come to its end, this finds what they found.
    pub(crate) fn look_back(&self) {
        if let Some(failure) = self.control.failure().or_else(|| self.control.look_back()) {
            self.status.fail(failure);
        }
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared")
            .field("executor", &self.executor)
            .field("regions", &self.regions.len())
            .finish_non_exhaustive()
    }
}

impl Health for Shared {
    fn failure(&self) -> Option<Arc<dyn Fault>> {
        let stale = || self.control.take_stale().then_some(Arc::new(Failure::StaleGraph) as _);
        let fault = || self.control.take_any_fault().map(|e| Arc::new(e) as _);
        self.status.failure().or_else(stale).or_else(fault)
    }

    fn stale(&self) -> Option<Arc<dyn Fault>> {
        self.status.check().is_err().then(|| Arc::new(Failure::StaleGraph) as Arc<dyn Fault>)
    }

    fn launched(self: Arc<Self>, stream: &Stream) {
        if !stream.is_inline() {
            self.remember(stream);
        }
    }
}

/// An event after all work of each stream that is not idle.
fn mark_all(streams: &[Stream], device: &Device) -> Vec<Event> {
    let busy = streams.iter().filter(|stream| !stream.is_idle());
    busy.map(|stream| {
        let event = device.event();
        stream.mark(&event);
        event
    })
    .collect()
}
