//! Lanes: where operations of the layers above run, one at a time, in one order.
#![allow(unsafe_code, reason = "launches kernels")]

mod captures;
mod scope;
#[cfg(feature = "cuda")]
mod steps;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
#[cfg(feature = "cuda")]
use symmem_hal::Grid;
use symmem_hal::types::{BackendKind, RankSet};
use symmem_hal::{
    AllocError, Device, DevicePtr, Fault, Function, KeepAlive, Kind, Launch, Launched, OrderError,
    Stream, StreamOrder, SyncError, Turn, Wait,
};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{Failure, Group, RendezvousError};

#[cfg(feature = "cuda")]
use crate::gpu::{Called, SymmemLane};
use crate::host::LaneArgs;
use crate::layout::Capacities;
use crate::shared::{Executor, PrepareError, Shared};
use captures::{Captures, Place};

pub use scope::LaneScope;
#[cfg(feature = "cuda")]
pub use steps::Steps;

/// What a lane keeps on the host.
#[derive(Debug)]
pub(crate) struct LaneState {
    order: StreamOrder,
    /// Operations issued; changed only by whoever has the turn.
    issued: AtomicU64,
    captures: Mutex<Captures>,
    /// Whether everything that its operations need is loaded.
    prepared: AtomicBool,
}

impl LaneState {
    pub(crate) fn new(device: &Device) -> Self {
        LaneState {
            order: StreamOrder::new(device),
            issued: AtomicU64::new(0),
            captures: Mutex::default(),
            prepared: AtomicBool::new(false),
        }
    }
}

/// One lane of a group on this rank: one independent copy of the group's workspace.
///
/// Operations on a lane run one after the other, in the order in which they were issued, on
/// whatever streams.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'g> {
    shared: &'g Arc<Shared>,
    index: u32,
}

/// Why an operation did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The group has failed, or this rank has left it.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Earlier operations of this process on the lane did not end in time; nothing was launched.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The stream cannot take it.
    #[error(transparent)]
    Stream(#[from] SyncError),
    /// The group cannot have lanes.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// There is no memory for what counts the runs of an operation in a graph.
    #[error(transparent)]
    Alloc(#[from] Arc<AllocError>),
    /// The kernel is for another sort of memory than the group's.
    #[error(
        "the kernel is not for a group on {group}: issue goes to the host's backends, issue_device to GPUs"
    )]
    Backend {
        /// The group's backend.
        group: BackendKind,
    },
}

impl From<AllocError> for LaneError {
    fn from(error: AllocError) -> Self {
        LaneError::Alloc(Arc::new(error))
    }
}

impl Fault for LaneError {
    fn kind(&self) -> Kind {
        match self {
            LaneError::Failed(e) => e.kind(),
            LaneError::Order(e) => e.kind(),
            LaneError::Stream(e) => e.kind(),
            LaneError::Prepare(e) => e.kind(),
            LaneError::Alloc(e) => e.kind(),
            LaneError::Backend { .. } => Kind::Unsupported,
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            LaneError::Failed(e) => e.ranks(),
            LaneError::Order(e) => e.ranks(),
            LaneError::Stream(e) => e.ranks(),
            LaneError::Prepare(_) | LaneError::Alloc(_) | LaneError::Backend { .. } => {
                RankSet::new()
            }
        }
    }
}

/// One operation to be issued.
#[derive(Clone, Copy, Debug)]
pub struct Issue<'a> {
    /// Where it runs.
    pub stream: &'a Stream,
    /// The bound on its waits.
    pub wait: &'a Wait,
    /// Its kernel, which takes the argument struct that is made of the lane's part.
    pub function: Function,
    /// What it is.
    pub operation: Operation,
    /// What must be equal on every rank.
    pub signature: Signature,
}

/// Lanes of a group.
pub trait Lanes {
    /// The default lane, which every group has.
    ///
    /// # Errors
    ///
    /// [`PrepareError`] where the group's workspace is too small for lanes, on first use.
    fn lane(&self) -> Result<Lane<'_>, PrepareError>;

    /// The lanes 0 to `count` - 1, of which 0 is the default lane. Collective: every rank asks for as
    /// many, at most [`Options::max_lanes`](symmem_mem::Options::max_lanes).
    ///
    /// Operations of different lanes run at once; nothing orders them but the streams they are on. A
    /// graph that runs beside other work has a lane of its own.
    ///
    /// # Errors
    ///
    /// [`LanesError`]; a count out of range is found before anybody is spoken to.
    fn lanes(&self, count: u32, wait: &Wait) -> Result<Vec<Lane<'_>>, LanesError>;
}

/// Why a group's lanes cannot be had.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LanesError {
    /// The group was not made with so many.
    #[error("{asked} lanes asked for, the group was made with {max}: see Options::max_lanes")]
    TooMany {
        /// How many were asked for.
        asked: u32,
        /// How many there are.
        max: u32,
    },
    /// The group cannot have lanes.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The ranks did not meet, or ask for different numbers of lanes.
    #[error(transparent)]
    Agree(#[from] RendezvousError),
}

impl Fault for LanesError {
    fn kind(&self) -> Kind {
        match self {
            LanesError::TooMany { .. } => Kind::InvalidArgument,
            LanesError::Prepare(e) => e.kind(),
            LanesError::Agree(e) => e.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            LanesError::Agree(e) => e.ranks(),
            _ => RankSet::new(),
        }
    }
}

impl Lanes for Group {
    fn lane(&self) -> Result<Lane<'_>, PrepareError> {
        Ok(Lane { shared: Shared::of(self)?, index: 0 })
    }

    fn lanes(&self, count: u32, wait: &Wait) -> Result<Vec<Lane<'_>>, LanesError> {
        let max = self.options().max_lanes;
        if count > max {
            return Err(LanesError::TooMany { asked: count, max });
        }
        let shared = Shared::of(self)?;
        self.agree("the number of lanes", u64::from(count), wait)?;
        Ok((0..count).map(|index| Lane { shared, index }).collect())
    }
}

impl<'g> Lane<'g> {
    /// Which lane of the group.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What its workspace holds: what choices of algorithm are made from.
    #[must_use]
    pub fn layout(&self) -> &Capacities {
        &self.shared.capacities
    }

    /// The group's own stream: inline on the host.
    #[must_use]
    pub fn default_stream(&self) -> &Stream {
        &self.shared.stream
    }

    /// Whether it is a lane of this group: of this very membership, on this rank.
    #[must_use]
    pub fn is_of(&self, group: &Group) -> bool {
        Arc::ptr_eq(&self.shared.status, group.status())
    }

    fn state(&self) -> &'g LaneState {
        &self.shared.lanes[self.index as usize]
    }

    /// Loads what the lane's operations need, so that they can be captured. The first operation that
    /// is issued outside of a capture does the same.
    ///
    /// # Errors
    ///
    /// [`LaneError::Failed`] where the group has failed.
    pub fn prepare(&self) -> Result<(), LaneError> {
        self.shared.status.check()?;
        self.state().prepared.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Issues an operation: waits for its turn, launches it. On an inline stream it has happened
    /// when this returns; in a capture it is recorded, after the lane's operations before it in that
    /// capture, and happens whenever the graph is launched.
    ///
    /// `args` makes the kernel's argument struct around the lane's part; `keep` is asked for what
    /// must outlive the call only where the operation is not done at return.
    ///
    /// # Errors
    ///
    /// [`LaneError`]; unless it is `Failed`, nothing was launched and no epoch used. In a capture of a
    /// lane that is not [prepared](Self::prepare) it is [`Failure::NotPrepared`].
    ///
    /// # Safety
    ///
    /// The issue's function takes an `A`. Every address in it is valid until this returns and, in
    /// addition, as long as what `keep` returns lives. The group's
    /// [`default_stream`](Self::default_stream) cannot be captured, so that on it an inline operation
    /// needs the former only.
    pub unsafe fn issue<A: bytemuck::NoUninit>(
        &self,
        issue: Issue<'_>,
        args: impl FnOnce(LaneArgs) -> A,
        keep: impl FnOnce() -> Vec<KeepAlive>,
    ) -> Result<(), LaneError> {
        let Some(host) = self.shared.executor.host() else { return Err(self.other_backend()) };
        let turn = self.enter(&issue)?;
        let args = args(LaneArgs {
            table: host.table.base(),
            signature: turn.signature(&issue).0,
            issue: turn.count,
            runs: turn.runs(),
            lane: self.index,
            operation: issue.operation as u32,
        });
        let keep = keeping(self.shared, turn.place.as_ref(), keep);
        // SAFETY: the caller's promise for its own addresses; the table's live as long as
        // `shared`, which this frame holds for an inline launch and `keep` for any other, and
        // `keep` holds the count of runs, if there is one.
        let launched = unsafe {
            issue.stream.launch(Launch::keeping(issue.function, &args, issue.wait, &keep))
        }?;
        self.launched(turn, &issue, launched)
    }

    /// As [`issue`](Self::issue), of a kernel for a GPU on `grid`, of at most
    /// [`max_grid`](Self::max_grid) blocks.
    ///
    /// # Errors
    ///
    /// As [`issue`](Self::issue).
    ///
    /// # Safety
    ///
    /// As [`issue`](Self::issue).
    #[cfg(feature = "cuda")]
    pub unsafe fn issue_device<A: bytemuck::NoUninit>(
        &self,
        issue: Issue<'_>,
        grid: Grid,
        args: impl FnOnce(SymmemLane) -> A,
        keep: impl FnOnce() -> Vec<KeepAlive>,
    ) -> Result<(), LaneError> {
        let Executor::Gpu(gpu) = &self.shared.executor else { return Err(self.other_backend()) };
        let turn = self.enter(&issue)?;
        let ends = gpu.ends(issue.stream, issue.wait, turn.place.is_some())?;
        let args = args(gpu.lane_args(
            self.index,
            &Called {
                signature: turn.signature(&issue).0,
                issue: turn.count,
                runs: turn.runs(),
                operation: issue.operation as u32,
                ends: &ends,
            },
        ));
        let keep = keeping(self.shared, turn.place.as_ref(), || {
            let mut kept = keep();
            kept.extend(ends.keep());
            kept
        });
        let launch = Launch::keeping(issue.function, &args, issue.wait, &keep).grid(grid);
        // SAFETY: the caller's promise for its own addresses; the lane's live as long as `shared`,
        // which `keep` holds with the counts of runs and the token's word, if there are any.
        let launched = unsafe { issue.stream.launch(launch) }?;
        self.launched(turn, &issue, launched)
    }

    /// Most blocks of a grid on this lane, equal on every rank: as many as the devices can run beside
    /// those of all other lanes and ranks. 1 on backends without blocks.
    #[must_use]
    pub fn max_grid(&self) -> u32 {
        match &self.shared.executor {
            Executor::Host(_) => 1,
            #[cfg(feature = "cuda")]
            Executor::Gpu(gpu) => gpu.grid_cap(),
        }
    }

    /// Blocks that count runs of their own.
    fn blocks(&self) -> u32 {
        match &self.shared.executor {
            Executor::Host(_) => 1,
            #[cfg(feature = "cuda")]
            Executor::Gpu(gpu) => gpu.layout.max_blocks(),
        }
    }

    fn other_backend(&self) -> LaneError {
        LaneError::Backend { group: self.shared.device.kind() }
    }

    /// Waits for the lane's turn.
    fn enter<'a>(&self, issue: &Issue<'a>) -> Result<LaneTurn<'a>, LaneError>
    where
        'g: 'a,
    {
        let state = self.state();
        self.shared.status.check()?;
        self.shared.check_stream(issue.stream)?;
        let turn = state.order.enter(issue.stream, issue.wait)?;
        // Whoever has the turn is alone with the count.
        let count = state.issued.load(Ordering::Relaxed) + 1;
        let place = turn.capture().map(|capture| self.place(capture)).transpose()?;
        Ok(LaneTurn { _turn: turn, count, place })
    }

    /// What follows a launch, and the end of its turn.
    fn launched(
        &self,
        turn: LaneTurn<'_>,
        issue: &Issue<'_>,
        launched: Launched,
    ) -> Result<(), LaneError> {
        let (shared, state) = (self.shared, self.state());
        if launched != Launched::Recorded {
            state.issued.store(turn.count, Ordering::Relaxed);
            state.prepared.store(true, Ordering::Relaxed);
        }
        drop(turn);
        match launched {
            // Others may have failed since in a later operation: this one has not.
            Launched::Finished => Ok(()),
            Launched::Stopped => Err(self.failure().into()),
            Launched::Queued => {
                shared.enqueued(issue.stream);
                Ok(())
            }
            Launched::Recorded => {
                shared.watch(issue.stream);
                Ok(())
            }
        }
    }

    /// Where a capture's next operation on this lane stands.
    fn place(&self, capture: u64) -> Result<Place, LaneError> {
        let state = self.state();
        if !state.prepared.load(Ordering::Relaxed) {
            return Err(Failure::NotPrepared("call lane.prepare before the capture").into());
        }
        let mut captures = state.captures.lock();
        let (device, blocks) = (&self.shared.device, self.blocks());
        Ok(captures.next(capture, blocks, device, |id| state.order.has_capture(id))?)
    }

    /// Waits until what this rank has enqueued on a stream is done, and reports how the group is.
    /// Nothing to wait for on an inline stream.
    ///
    /// # Errors
    ///
    /// [`LaneError::Failed`] with the group's failure, or [`LaneError::Stream`] where the bound ends
    /// the wait.
    pub fn settle(&self, stream: &Stream, wait: &Wait) -> Result<(), LaneError> {
        if stream.is_inline() {
            return Ok(());
        }
        match &self.shared.executor {
            Executor::Host(_) => self.shared.drain(stream, wait)?,
            #[cfg(feature = "cuda")]
            Executor::Gpu(_) => self.shared.drain(stream, &self.shared.patience(wait))?,
        }
        Ok(self.shared.status.check()?)
    }

    #[cold]
    fn failure(&self) -> Failure {
        let shared = self.shared;
        if let Err(failure) = shared.status.check() {
            return failure;
        }
        let dead = shared.control().unfinished(&shared.status);
        shared.status.fail(dead.unwrap_or(Failure::NotPrepared("the lane is closed"))).clone()
    }
}

/// An operation that has the lane's turn, as long as this lives.
struct LaneTurn<'a> {
    _turn: Turn<'a>,
    count: u64,
    /// Where it stands, in a capture.
    place: Option<Place>,
}

impl LaneTurn<'_> {
    fn signature(&self, issue: &Issue<'_>) -> Signature {
        match &self.place {
            None => issue.signature,
            Some(place) => issue.signature.captured(place.capture, place.operation),
        }
    }

    /// Where the runs of an operation in a graph are counted.
    fn runs(&self) -> DevicePtr {
        self.place.as_ref().map_or(DevicePtr::NULL, |place| place.runs)
    }
}

/// What a launch keeps: the group's part, the counts of its runs, and what its caller adds.
fn keeping<'s, K: FnOnce() -> Vec<KeepAlive>>(
    shared: &'s Arc<Shared>,
    place: Option<&Place>,
    more: K,
) -> impl Fn() -> Vec<KeepAlive> + use<'s, K> {
    let counts = place.map(|place| place.keep.clone());
    let more = Cell::new(Some(more));
    move || {
        let mut kept: Vec<KeepAlive> = vec![shared.clone()];
        kept.extend(counts.clone());
        kept.extend(more.take().into_iter().flat_map(|more| more()));
        kept
    }
}
