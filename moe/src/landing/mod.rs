//! Low latency: dispatch and combine in halves, over landing slots.

mod calls;
pub(crate) mod host;
mod options;
pub(crate) mod plan;

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use symmem_collectives::{CallError, faults};
use symmem_hal::types::DType;
use symmem_hal::{KeepAlive, Wait};
use symmem_mem::{Allocation, Failure, Group, SymmetricMemory, Tensor, View};

pub use calls::{Captured, CapturedResult, ReceiveBack, Received, SendBack, SendCall, Sent};
pub use options::{LandingError, LandingOptions};

use crate::routing::shape::Shape;
use crate::tensors::TensorMismatch;
use crate::verdict::Refusal;

/// Results that may be live at a time.
pub const LANDINGS: usize = 2;

/// Why a half did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HalfError {
    /// The group has failed, or this rank has left it. Outputs are unspecified if the half itself failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It could not be issued.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The tokens' choices were none; nothing has been received, on any rank, and the group goes on.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A tensor is not what the call needs.
    #[error(transparent)]
    Tensor(#[from] TensorMismatch),
    /// The result of the send before the last is still alive: what is sent would overwrite it.
    #[error(
        "the landing of this send still holds a result: drop the one of {LANDINGS} sends ago first"
    )]
    LandingBusy,
    /// Every landing is kept by a captured send.
    #[error("captured sends keep every landing: drop one, and its graph")]
    NoLanding,
    /// The halves of one dispatch and combine follow each other on one lane, which says that rows have come.
    #[error(
        "a half on lane {found} of a landing whose halves are on lane {expected}: all of them are on one lane"
    )]
    Lane {
        /// The lane of the first half.
        expected: u32,
        /// The lane of this one.
        found: u32,
    },
    /// On a stream that captures, [`capture`](SendCall::capture) is the call; on any other it is not.
    #[error("the stream {}", if *.capturing { "captures: call capture()" } else { "does not capture: call on()" })]
    Capture {
        /// Whether the stream captures.
        capturing: bool,
    },
}

faults!(HalfError: Refused, Tensor);

/// Dispatch and combine in halves: a send half that stores rows straight into their ranks' landing slots, and
/// a receive half that says that they have come, with any work between. No counts are exchanged first, and
/// nothing is copied on arrival: a result *is* its landing, until it is dropped.
///
/// Rows lie by rank, one for each token that has chosen any expert of this rank. There are two landings, used in
/// turn, so that two results may be alive; a third send is [`HalfError::LandingBusy`] on this rank, before
/// anything is sent.
///
/// Made by [`Moe::landing`](crate::Moe::landing), with all the memory that it needs. Clones are the same.
#[derive(Clone, Debug)]
pub struct Landing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    group: Group,
    shape: Shape,
    dtype: DType,
    /// Elements of a row.
    row: u64,
    /// The type that rows are quantised from, if they are.
    quantised: bool,
    record_bytes: u64,
    slots: [Slot; LANDINGS],
    turns: Mutex<Turns>,
    /// That of its calls.
    lane: OnceLock<u32>,
}

/// One landing. What is symmetric is written by peers.
#[derive(Debug)]
struct Slot {
    rows: SymmetricMemory,
    scales: Option<SymmetricMemory>,
    records: SymmetricMemory,
    arrivals: SymmetricMemory,
    back: SymmetricMemory,
    places: Tensor<u64>,
    groups: Tensor<i64>,
    tokens: Tensor<u64>,
}

/// Whose turn it is: a function of the sends before and of the captured ones that are kept, which ranks make
/// and drop alike.
#[derive(Debug, Default)]
struct Turns {
    /// The landing of the next send, unless that is kept by a capture.
    next: usize,
    live: [Weak<Live>; LANDINGS],
}

/// A landing that holds a result, until this is dropped: by whoever has the result, and by the graphs that
/// captured it.
#[derive(Debug)]
struct Live {
    index: usize,
    is_captured: bool,
}

impl Landing {
    pub(crate) fn new(
        group: &Group,
        options: &LandingOptions,
        wait: &Wait,
    ) -> Result<Self, LandingError> {
        let shape = options.shape(group.size())?;
        let wait = &wait.begun();
        group.agree("the options of a landing", options.digest(shape), wait)?;
        let slot = || Slot::new(group, options, shape, wait);
        let slots = [slot()?, slot()?];
        Ok(Landing(Arc::new(Inner {
            group: group.clone(),
            shape,
            dtype: options.dtype,
            row: options.row,
            quantised: options.quantised,
            record_bytes: options.record_bytes(),
            slots,
            turns: Mutex::default(),
            lane: OnceLock::new(),
        })))
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.0.group
    }

    /// Rows of a landing: as many for each rank as it may have tokens.
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

    /// Takes the landing whose turn it is, and passes the turn on. It is the caller's until what this returns
    /// is dropped; [`give_back`](Self::give_back) undoes it.
    fn take(&self, is_captured: bool) -> Result<Arc<Live>, HalfError> {
        let mut turns = self.0.turns.lock();
        let kept = |index: &usize| turns.live[*index].upgrade();
        let mut all = (0..LANDINGS).map(|i| (turns.next + i) % LANDINGS);
        let free = all.find(|index| kept(index).is_none_or(|live| !live.is_captured));
        let index = free.ok_or(HalfError::NoLanding)?;
        if kept(&index).is_some() {
            return Err(HalfError::LandingBusy);
        }
        let live = Arc::new(Live { index, is_captured });
        turns.live[index] = Arc::downgrade(&live);
        turns.next = (index + 1) % LANDINGS;
        Ok(live)
    }

    /// A send was not issued: its landing's turn is still to come.
    fn give_back(&self, live: &Live) {
        self.0.turns.lock().next = live.index;
    }

    /// What keeps a landing for a graph that captures a half of it.
    fn live(&self, index: usize) -> Option<Arc<Live>> {
        self.0.turns.lock().live[index].upgrade()
    }

    /// That a half is on the lane of the first one: lanes put halves in order, and tell when rows have come.
    fn check_lane(&self, found: u32) -> Result<(), HalfError> {
        let expected = *self.0.lane.get_or_init(|| found);
        if expected == found { Ok(()) } else { Err(HalfError::Lane { expected, found }) }
    }

    fn slot(&self, index: usize) -> &Slot {
        &self.0.slots[index]
    }

    fn keep_alive(&self) -> KeepAlive {
        self.0.clone()
    }
}

impl Slot {
    fn new(
        group: &Group,
        options: &LandingOptions,
        shape: Shape,
        wait: &Wait,
    ) -> Result<Self, LandingError> {
        let device = group.device();
        let tensor = |dtype: DType, dims: &[u64]| -> Result<View, LandingError> {
            let layout = symmem_hal::types::Layout::contiguous(dims)
                .map_err(symmem_mem::TensorError::from)?;
            let bytes = symmem_hal::types::Bytes::of(layout.count(), dtype.size() as u64)
                .ok_or(symmem_hal::types::LayoutError::Overflow)
                .map_err(symmem_mem::TensorError::from)?;
            let allocation =
                Allocation::new(device, bytes).map_err(symmem_mem::TensorError::from)?;
            let view = View::new(&allocation, symmem_hal::types::Bytes::ZERO, dtype, layout);
            Ok(view.map_err(symmem_mem::TensorError::from)?)
        };
        let symmetric = |dtype, dims: &[u64]| -> Result<SymmetricMemory, LandingError> {
            Ok(group.rendezvous(tensor(dtype, dims)?, wait)?)
        };
        let (capacity, ranks) = (shape.capacity, shape.world as u64);
        let sent = if options.quantised { DType::F8E4M3 } else { options.dtype };
        Ok(Slot {
            rows: symmetric(sent, &[capacity, options.row])?,
            scales: match options.quantised {
                true => Some(symmetric(DType::F32, &[capacity, options.scales()])?),
                false => None,
            },
            records: symmetric(DType::U64, &[capacity, options.record_bytes() / 8])?,
            arrivals: symmetric(DType::U64, &[ranks, size_of::<plan::Arrival>() as u64 / 8])?,
            back: symmetric(options.dtype, &[capacity, options.row])?,
            places: Tensor::zeros(device, &[shape.tokens, shape.choices as u64])?,
            groups: Tensor::zeros(device, &[2, ranks])?,
            tokens: Tensor::zeros(device, &[1])?,
        })
    }
}
