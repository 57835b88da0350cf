//! Routed tokens: to the ranks of their experts, one copy for each rank, and back.

mod combine;
mod dispatch;
pub(crate) mod host;
mod options;
pub(crate) mod plan;
pub(crate) mod shape;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use symmem_collectives::{CallError, faults};
use symmem_hal::Wait;
use symmem_hal::types::{BackendKind, Rank, RankSet};
use symmem_hal::{Capture, DevicePtr, Fault, KeepAlive, Kind};
use symmem_mem::{
    Completion, Failure, Group, RendezvousError, SymmetricMemory, Tensor, TensorError, View,
    ViewError,
};

pub use combine::Combine;
pub use dispatch::{Dispatch, Route};
pub use options::{RoutingOptions, RoutingOptionsError};
pub(crate) use plan::{CombinePlan, DispatchPlan, OnHost};
use plan::{Record, Routed};
pub use shape::Layout;
use shape::Shape;

use crate::all_to_all_vdev::Overflow;
use crate::call::At;
use crate::tensors::{Mapped, Named, TensorMismatch};
use crate::verdict::Refusal;

/// Why there is no routing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// The options are none that a routing can have.
    #[error(transparent)]
    Options(#[from] RoutingOptionsError),
    /// There is no memory for what it keeps.
    #[error(transparent)]
    Memory(#[from] TensorError),
    /// The ranks did not meet, or have other options.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
}

impl Fault for RoutingError {
    fn kind(&self) -> Kind {
        match self {
            RoutingError::Options(e) => e.kind(),
            RoutingError::Memory(e) => e.kind(),
            RoutingError::Rendezvous(e) => e.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            RoutingError::Rendezvous(e) => e.ranks(),
            _ => RankSet::new(),
        }
    }
}

/// Why a dispatch or a combine did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoutedError {
    /// The group has failed, or this rank has left it. Outputs are unspecified if the operation itself failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It could not be issued.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The tokens' choices did not fit; no output has changed, on any rank, and the group goes on.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A tensor is not what the call needs.
    #[error(transparent)]
    Tensor(#[from] TensorMismatch),
    /// No dispatch was issued with this routing, so that nothing has been routed.
    #[error(
        "nothing has been dispatched with this routing: there is nothing to send again, nor to combine"
    )]
    NotDispatched,
    /// Who goes where was decided by the dispatch.
    #[error(
        "a resend goes where the dispatch has sent its tokens: it takes no weights, no count, no route"
    )]
    Resend,
    /// Calls of a routing are on one lane, which puts them in order.
    #[error(
        "a call on lane {found} of a routing whose calls are on lane {expected}: all of them are on one lane"
    )]
    Lane {
        /// The lane of the first call.
        expected: u32,
        /// The lane of this one.
        found: u32,
    },
    /// One dispatch carries so many tensors.
    #[error("more than {most} tensors in one dispatch")]
    TooManyPayloads {
        /// How many it carries.
        most: usize,
    },
    /// A lane's staging cannot hold all tokens that a rank may have.
    #[error(
        "Route::Gathered shows {needed} bytes, the lane's staging has room for {room}: make the workspace \
         larger (Options::workspace), or the routing for fewer tokens"
    )]
    TooLargeToGather {
        /// Bytes of the most tokens that a rank may have.
        needed: u64,
        /// Bytes that there is room for.
        room: u64,
    },
    /// On GPUs tokens go straight to their ranks.
    #[error("Route::Gathered is for groups on CPUs: on GPUs pass Route::Auto or Route::Direct")]
    NotGathered,
    /// What a rank tells another has no room in a lane's staging.
    #[error(
        "{experts} experts: the lane's staging has room to tell of {most}; make the workspace larger \
         (Options::workspace)"
    )]
    TooManyExperts {
        /// Experts of all ranks.
        experts: u64,
        /// Experts that there is room for.
        most: u64,
    },
    /// Where rows lie by rank, one holds all choices of a token: who sums them has applied the weights.
    #[error("a combine of rows by rank takes no weights: they were dispatched with the rows")]
    WeightsByRank,
}

faults!(RoutedError: Refused, Tensor);

/// A row that a rank received, and where it came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Origin {
    /// The row, in the outputs of the dispatch.
    pub row: u64,
    /// Whose token it is.
    pub source: Rank,
    /// The token's row there.
    pub token: u64,
    /// Which of the token's choices; where rows lie by rank, the first that this rank has.
    pub choice: u32,
    /// The choice's weight, 1 where the dispatch had none.
    pub weight: f32,
}

/// Where the tokens of one dispatch went, on this rank and on all others: what a combine goes back by, and
/// what further tensors of the same tokens are sent by.
///
/// Made once by [`Moe::routing`](crate::Moe::routing), with memory for any dispatch within its options; each
/// [`dispatch`](Self::dispatch) replaces what the one before has routed. Routings are independent of each
/// other: any number of them may be in use at a time. Clones are the same routing.
#[derive(Clone, Debug)]
pub struct Routing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    group: Group,
    shape: Shape,
    overflow: Overflow,
    /// [`Record`]s of received rows, which peers write.
    records: SymmetricMemory,
    record_bytes: u64,
    places: Tensor<u64>,
    groups: Tensor<i64>,
    tokens: Tensor<u64>,
    /// Where kernels count this rank's rows for each bin, on GPUs.
    counts: Option<Tensor<u64>>,
    /// 1 + rows of the tensors of the last dispatch that was issued; 0 before any.
    rows: AtomicU64,
    /// Whether a dispatch was captured.
    captured: AtomicBool,
    /// That of its calls.
    lane: OnceLock<u32>,
}

impl Routing {
    pub(crate) fn new(
        group: &Group,
        options: &RoutingOptions,
        wait: &Wait,
    ) -> Result<Self, RoutingError> {
        let shape = options.shape(group.size())?;
        let wait = &wait.begun();
        group.agree("the options of a routing", options.digest(shape), wait)?;
        let device = group.device();
        let chosen = if shape.is_by_rank() { shape.choices } else { 0 };
        let record_bytes = (size_of::<Record>() + chosen * size_of::<plan::Chosen>()) as u64;
        let choices = shape.choices as u64;
        let records = Tensor::<u64>::zeros(device, &[shape.capacity, record_bytes / 8])?;
        let places = Tensor::zeros(device, &[shape.tokens, choices])?;
        let groups = Tensor::zeros(device, &[2, shape.groups() as u64])?;
        let tokens = Tensor::zeros(device, &[1])?;
        let counts = match device.kind() {
            BackendKind::Cuda => Some(Tensor::zeros(device, &[shape.bins() as u64])?),
            _ => None,
        };
        let records = group.rendezvous(&records, wait)?;
        Ok(Routing(Arc::new(Inner {
            group: group.clone(),
            shape,
            overflow: options.overflow,
            records,
            record_bytes,
            places,
            groups,
            tokens,
            counts,
            rows: AtomicU64::new(0),
            captured: AtomicBool::new(false),
            lane: OnceLock::new(),
        })))
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.0.group
    }

    /// How received rows lie.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.0.shape.layout
    }

    /// Rows that every output of a dispatch has, and every input of a combine.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.0.shape.capacity
    }

    /// The experts of this rank, of those of all ranks: as evenly as it goes, in rank order.
    #[must_use]
    pub fn local_experts(&self) -> core::ops::Range<usize> {
        let me = self.0.group.rank().index();
        self.0.shape.first(me)..self.0.shape.first(me + 1)
    }

    /// `[2, n]` of i64 on the device, as the last dispatch that completed left it: rows received, then where
    /// those begin in the outputs, for each local expert; where rows lie by rank, for each source rank. `n`
    /// is the same on every rank: the most experts that one has, or the number of ranks.
    #[must_use]
    pub fn groups(&self) -> &Tensor<i64> {
        &self.0.groups
    }

    /// Where each received row came from, of the last dispatch that completed, in the order of
    /// [`groups`](Self::groups). Copies from the device: for tests and for looking into things.
    ///
    /// # Errors
    ///
    /// [`ViewError`] where the device refuses to copy.
    pub fn origins(&self) -> Result<Vec<Origin>, ViewError> {
        let Inner { group, records, groups, record_bytes, .. } = &*self.0;
        origins(group, records.view(), *record_bytes, groups)
    }

    /// Of rows that lie by rank, `[capacity, choices]`: which of this rank's experts each choice of the row's
    /// token is, with its weight; `None` for another rank's, or none. Copies from the device. Rows that hold
    /// no token are `None` throughout. Empty for other layouts.
    ///
    /// # Errors
    ///
    /// [`ViewError`] where the device refuses to copy.
    pub fn chosen(&self) -> Result<Vec<Vec<Chosen>>, ViewError> {
        let Inner { shape, records, record_bytes, .. } = &*self.0;
        if !shape.is_by_rank() {
            return Ok(Vec::new());
        }
        chosen(shape, records.view(), *record_bytes, &self.origins()?)
    }

    /// What every kernel is given of it.
    fn routed(&self, at: &At<'_>) -> Routed {
        let Inner { shape, places, groups, tokens, counts, .. } = &*self.0;
        let counts = counts.as_ref().map_or(DevicePtr::NULL, |counts| counts.ptr());
        routed(at, shape, [places.ptr(), groups.ptr(), tokens.ptr(), counts])
    }

    /// Rows of the last dispatch that was issued.
    ///
    /// Where graphs have a part in it, nobody here knows which dispatch will have been the last: then as many as
    /// there can be.
    fn rows(&self, at: &At<'_>) -> Result<u64, RoutedError> {
        let is_captured = at.stream.capture() != Capture::None;
        if is_captured || self.0.captured.load(Ordering::Acquire) {
            return Ok(self.0.shape.tokens);
        }
        let rows = self.0.rows.load(Ordering::Acquire);
        rows.checked_sub(1).ok_or(RoutedError::NotDispatched)
    }

    /// A dispatch of so many rows was issued.
    fn dispatched(&self, at: &At<'_>, rows: u64) {
        match at.stream.capture() {
            Capture::None => self.0.rows.store(1 + rows, Ordering::Release),
            _ => self.0.captured.store(true, Ordering::Release),
        }
    }

    /// That a call is on the lane of the first one: which of several lanes was last, nobody would know.
    fn check_lane(&self, at: &At<'_>) -> Result<(), RoutedError> {
        let found = at.lane.index();
        let expected = *self.0.lane.get_or_init(|| found);
        if expected == found { Ok(()) } else { Err(RoutedError::Lane { expected, found }) }
    }

    fn mapped(&self) -> Result<Mapped, TensorMismatch> {
        Named::new("routing", self.0.records.view()).mapped(&self.0.group)
    }

    /// What must stay while a kernel of it may run.
    fn keep_alive(&self) -> KeepAlive {
        self.0.clone()
    }
}

/// One of a token's choices, to the rank of its expert: which of that rank's experts, and its weight. `None` for
/// another rank's, or none.
pub type Chosen = Option<(usize, f32)>;

/// What every kernel is given of where tokens went.
pub(crate) fn routed(
    at: &At<'_>,
    shape: &Shape,
    [places, groups, tokens, counts]: [DevicePtr; 4],
) -> Routed {
    let (layout, rows) = shape.layout.code();
    Routed {
        places,
        groups,
        tokens,
        counts,
        status: at.status,
        experts: shape.experts as u64,
        max_tokens: shape.tokens,
        capacity: shape.capacity,
        rows,
        choices: shape.choices as u32,
        layout,
        group_completion: (at.group.options().completion == Completion::Group).into(),
        reserved: [0; 3],
    }
}

/// All words of a tensor of records.
fn words(records: &View) -> Result<Vec<u64>, ViewError> {
    let mut words = vec![0_u64; records.count() as usize];
    records.read(&mut words)?;
    Ok(words)
}

/// Where the rows of `groups` came from, by their records.
pub(crate) fn origins(
    group: &Group,
    records: &View,
    record_bytes: u64,
    groups: &Tensor<i64>,
) -> Result<Vec<Origin>, ViewError> {
    let (raw, groups) = (words(records)?, groups.to_vec()?);
    let (counts, starts) = groups.split_at(groups.len() / 2);
    let stride = record_bytes as usize / 8;
    let mut origins = Vec::new();
    for (count, start) in counts.iter().zip(starts) {
        let [start, count] = [start, count].map(|n| usize::try_from(*n).unwrap_or(0));
        for row in start..start.saturating_add(count) {
            // In the middle of a dispatch the numbers may be of two.
            let all =
                row.checked_mul(stride).and_then(|at| raw.get(at..at + size_of::<Record>() / 8));
            let Some(words) = all else { break };
            let record: Record = bytemuck::pod_read_unaligned(bytemuck::cast_slice(words));
            // A row in the middle of a dispatch may have any record.
            let Ok(source) = group.rank_at(record.source as usize) else { continue };
            origins.push(Origin {
                row: row as u64,
                source,
                token: record.token.into(),
                choice: record.choice,
                weight: record.weight,
            });
        }
    }
    Ok(origins)
}

/// The choices of the tokens of these rows, by row.
pub(crate) fn chosen(
    shape: &Shape,
    records: &View,
    record_bytes: u64,
    origins: &[Origin],
) -> Result<Vec<Vec<Chosen>>, ViewError> {
    let raw = words(records)?;
    let mut rows = vec![vec![None; shape.choices]; shape.capacity as usize];
    let stride = record_bytes as usize / 8;
    for origin in origins {
        let words = &raw[origin.row as usize * stride + size_of::<Record>() / 8..];
        for (choice, word) in rows[origin.row as usize].iter_mut().zip(words) {
            let plan::Chosen { expert, weight } = bytemuck::cast(*word);
            *choice = usize::try_from(expert).ok().map(|expert| (expert, weight));
        }
    }
    Ok(rows)
}

/// Views that a kernel reads or writes, and their peers' mappings.
pub(crate) fn keep(at: &At<'_>, views: &[&View]) -> Vec<KeepAlive> {
    let each = views.iter().flat_map(|view| [Some(view.keep_alive()), at.group.keep_mapped(view)]);
    each.flatten().chain([at.kept.status.keep_alive()]).collect()
}
