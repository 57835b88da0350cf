//! What one rank keeps with a group for the protocols: the layout, the lanes' and channels' order,
//! and how to hear of a failure.

use std::collections::HashMap;
use std::sync::Arc;

use core::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;
use symmem_hal::types::{Bytes, Rank, RankSet, Scope};
use symmem_hal::{
    AllocError, Device, DeviceError, Event, Fault, Function, Health, KeepAlive, Kind, Launch,
    LoadError, Memory, Module, Stream, StreamOrder, SyncError, Wait,
};
use symmem_mem::call::{Called, Issued, Operation, Signature};
use symmem_mem::liveness::{Gone, Status};
use symmem_mem::{Failure, Group, Layer};

use crate::host::{self, SignalArgs};
use crate::lane::LaneState;
use crate::layout::{ABORT, Bases, CLAIM, Layout, STALE, WorkspaceTooSmall};
use crate::protocol::control::{Reason, Record};
use crate::protocol::{Entry, Epoch, Header, header};
use crate::signals::{Channel, SignalError, fault};

/// A group's lanes and channels, on one rank.
pub(crate) struct Shared {
    pub(crate) layout: Layout,
    /// What kernels find everything by: memory of this process alone, since they follow its addresses.
    pub(crate) table: Memory,
    pub(crate) lanes: Vec<LaneState>,
    pub(crate) orders: Mutex<HashMap<OrderKey, StreamOrder>>,
    pub(crate) stream: Stream,
    pub(crate) functions: Functions,
    pub(crate) status: Arc<Status>,
    pub(crate) device: Device,
    control: Control,
    /// Streams on which operations were enqueued.
    used: Arc<Mutex<Vec<Stream>>>,
    /// Kept mapped for whatever follows the table's addresses.
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

/// The kernels of this crate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    pub barrier: Function,
    pub put: Function,
    pub put_with_signal: Function,
    pub wait: Function,
    pub reset: Function,
    pub look_back: Function,
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
    /// Another version of this layer in the process keeps its state with the group.
    #[error("another version of symmem-sync uses this group")]
    SlotTaken,
    /// A kernel cannot be had on its device.
    #[error(transparent)]
    Load(#[from] Arc<LoadError>),
}

impl Fault for PrepareError {
    fn kind(&self) -> Kind {
        match self {
            PrepareError::Workspace(e) => e.kind(),
            PrepareError::Alloc(e) => e.kind(),
            PrepareError::Device(e) => e.kind(),
            PrepareError::Load(e) => e.kind(),
            PrepareError::SlotTaken => Kind::Unsupported,
            PrepareError::Stream(e) => e.kind(),
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

    fn new(group: &Group) -> Result<Self, PrepareError> {
        let options = group.options();
        let (me, world) = (group.rank().index(), group.size());
        let workspace = group.workspace_bytes();
        let layout =
            Layout::new(me, world, options.pad, workspace, options.max_lanes, options.checked)?
                .with_first_epoch(options.first_epoch);
        let device = group.device().clone();
        let module: Module = device.load(&host::KERNELS)?;
        let functions = Functions {
            barrier: module.function("barrier")?,
            put: module.function("put_signal")?,
            put_with_signal: module.function("put_with_signal")?,
            wait: module.function("wait_signal")?,
            reset: module.function("reset_channel")?,
            look_back: module.function("look_back")?,
        };
        host::wait::register();
        let regions = group.regions().to_vec();
        let start = group.workspace_ptr(me).get() - group.pad_ptr(me).get();
        let mine = &regions[me];
        let table = make_table(group, &layout)?;
        let control = Control { memory: mine.clone(), start, layout, scope: group.scope() };
        let stream = device.default_stream()?;
        let keep: [KeepAlive; 2] = [Arc::new(regions.clone()), Arc::new(table.clone())];
        let wait = group.wait();
        launch_on_lanes(&stream, module.function("open_lanes")?, &table, &wait, &keep)?;
        stream.synchronize(&wait)?;
        let told = control.clone();
        group.status().set_probe(move || told.failure());
        let (status, lost) = (Arc::downgrade(group.status()), control.clone());
        group.status().on_change(Arc::new(move || {
            if let Some(status) = status.upgrade() {
                lost.set_lost(&status);
            }
        }));
        let (closing, leaving) = (control.clone(), Arc::downgrade(group.status()));
        let (last, lanes) = (stream.clone(), table.clone());
        group.status().set_end(move || {
            // Where the kernel runs in this call: nobody waits here for another thread.
            if last.is_inline() {
                // Nobody may follow who would tell that the last calls differ.
                let brief = Wait::millis(0);
                let looked = launch_on_lanes(&last, functions.look_back, &lanes, &brief, &keep);
                let failure = looked.ok().and_then(|()| closing.failure());
                if let (Some(failure), Some(status)) = (failure, leaving.upgrade()) {
                    status.fail(failure);
                }
            }
            closing.retire_lanes();
        });
        let used: Arc<Mutex<Vec<Stream>>> = Arc::default();
        let (streams, marking) = (used.clone(), device.clone());
        group.status().set_in_flight(move || mark_all(&streams.lock(), &marking));
        // Who went before the line above is noted now.
        control.set_lost(group.status());
        Ok(Shared {
            layout,
            table,
            lanes: (0..layout.lanes).map(|_| LaneState::new(&device)).collect(),
            orders: Mutex::default(),
            stream,
            functions,
            status: group.status().clone(),
            device,
            control,
            used,
            regions,
        })
    }

    pub(crate) fn order(&self, key: OrderKey) -> StreamOrder {
        self.orders.lock().entry(key).or_insert_with(|| StreamOrder::new(&self.device)).clone()
    }

    /// An operation was enqueued on `stream`: its outcome is asked for when the stream is
    /// synchronised, and its end awaited when the group is left.
    pub(crate) fn enqueued(self: &Arc<Self>, stream: &Stream) {
        self.watch(stream);
        self.remember(stream);
    }

    /// Lets a stream's `synchronize`, or each launch of the graph that it records, report what became
    /// of the operations on it.
    pub(crate) fn watch(self: &Arc<Self>, stream: &Stream) {
        let health: Arc<dyn Health> = self.clone();
        stream.watch(Arc::downgrade(&health));
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

    /// Waits until what is enqueued on a stream is done. Unlike `synchronize`, asks nobody how it
    /// went.
    pub(crate) fn drain(&self, stream: &Stream, wait: &Wait) -> Result<(), SyncError> {
        let event = self.device.event();
        stream.record(&event)?;
        event.synchronize(wait)
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared")
            .field("layout", &self.layout)
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

/// Launches a kernel that is about all lanes of a group: one that makes them of zeroed words, for
/// which peers wait in their first operation, or one that looks back at their last calls.
#[allow(unsafe_code, reason = "launches a kernel")]
fn launch_on_lanes(
    stream: &Stream,
    function: Function,
    table: &Memory,
    wait: &Wait,
    keep: &[KeepAlive],
) -> Result<(), SyncError> {
    let args = SignalArgs { table: table.base(), channel: 0, peer: 0 };
    // SAFETY: the kernel takes SignalArgs; the table was written when it was made, and the regions it
    // leads to are kept until the launch has run.
    let _ = unsafe { stream.launch(Launch::new(function, &args, wait, keep)) }?;
    Ok(())
}

fn called(header: Header) -> Called {
    Called { signature: Signature(header.signature), issued: Issued(header.issue) }
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

fn make_table(group: &Group, layout: &Layout) -> Result<Memory, PrepareError> {
    let mut table = bytemuck::bytes_of(layout).to_vec();
    for rank in 0..group.size() {
        let bases = Bases { pad: group.pad_ptr(rank), workspace: group.workspace_ptr(rank) };
        table.extend_from_slice(bytemuck::bytes_of(&bases));
    }
    let memory = group.device().allocate_private(Bytes::from(table.len()))?;
    // All of it, so in range.
    let written = memory.write(Bytes::ZERO, &table);
    debug_assert!(written.is_ok());
    Ok(memory)
}

/// This rank's control page, seen from the host beside all streams.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    memory: Memory,
    start: u64,
    layout: Layout,
    scope: Scope,
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
    fn take_stale(&self) -> bool {
        let stale = self.read_word(STALE) != 0;
        if stale {
            self.write_word(STALE, 0);
        }
        stale
    }

    /// Closes the lanes to graphs that are launched later.
    pub(crate) fn retire_lanes(&self) {
        for lane in 0..self.layout.lanes {
            let word = Bytes(self.start + self.layout.entry(lane));
            let written = self.memory.write(word, &(Entry::Retired as u32).to_ne_bytes());
            debug_assert!(written.is_ok());
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
        let world = self.layout.world as usize;
        let words: Vec<AtomicU64> = (0..Record::words(world))
            .map(|i| AtomicU64::new(self.read_word(self.layout.record + 8 * i as u64)))
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
        let layout = &self.layout;
        let lane = layout.entry(lane.min(layout.lanes - 1));
        let front = lane + layout.fronts + epoch.parity().index() as u64 * layout.front_bytes;
        let word = |i: u64| AtomicU64::new(self.read_word(front + 8 * i));
        header::poll(&[0, 1, 2, 3].map(word), epoch)
    }

    fn tell(&self, record: Record) -> Failure {
        let me = self.layout.rank as usize;
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
    fn take_any_fault(&self) -> Option<SignalError> {
        if self.read_word(self.layout.any_fault()) == 0 {
            return None;
        }
        // Never cleared: a fault that came between the look and the clearing would go unseen.
        fence(Ordering::Acquire);
        (0..self.layout.channels).find_map(|c| self.take_fault(Channel(c)))
    }

    /// How the last signal or barrier of a channel that ended early ended, told once.
    pub(crate) fn take_fault(&self, channel: Channel) -> Option<SignalError> {
        let at = self.layout.channel_fault(channel.0);
        let word = self.read_word(at);
        if word == 0 {
            return None;
        }
        fence(Ordering::Acquire);
        let ranks = (0..self.layout.world as usize)
            .filter(|r| self.read_word(at + 8 + 8 * (r / 64) as u64) >> (r % 64) & 1 == 1)
            .collect();
        self.write_word(at, 0);
        let rank = |index: usize| Rank::in_scope(index as u32, self.scope);
        fault::decode(word, ranks, rank)
    }

    /// Copies who is gone, and how, to where kernels look.
    fn set_lost(&self, status: &Status) {
        let gone = status.all_gone();
        let left = gone.iter().filter(|r| status.gone(*r) == Some(Gone::Left)).collect();
        // What a rank stored before its end was told happens before a kernel sees the bit.
        fence(Ordering::Release);
        self.write_mask(self.layout.left, &left);
        fence(Ordering::Release);
        self.write_mask(self.layout.lost, &gone);
    }

    fn write_mask(&self, at: u64, ranks: &RankSet) {
        for word in 0..(self.layout.world as usize).div_ceil(64) {
            let bits =
                (0..64).filter(|b| ranks.contains(word * 64 + b)).fold(0u64, |acc, b| acc | 1 << b);
            self.write_word(at + 8 * word as u64, bits);
        }
    }
}
