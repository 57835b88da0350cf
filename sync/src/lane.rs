//! Lanes: where operations of the layers above run, one at a time, in one order.
#![allow(unsafe_code, reason = "launches kernels")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use symmem_hal::types::RankSet;
use symmem_hal::{
    Fault, Function, KeepAlive, Kind, Launch, Launched, OrderError, Stream, SyncError, Wait,
};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{Failure, Group};

use crate::host::LaneArgs;
use crate::layout::Layout;
use crate::shared::{PrepareError, Shared};

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
}

impl Fault for LaneError {
    fn kind(&self) -> Kind {
        match self {
            LaneError::Failed(e) => e.kind(),
            LaneError::Order(e) => e.kind(),
            LaneError::Stream(e) => e.kind(),
            LaneError::Prepare(e) => e.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            LaneError::Failed(e) => e.ranks(),
            LaneError::Order(e) => e.ranks(),
            LaneError::Stream(e) => e.ranks(),
            LaneError::Prepare(_) => RankSet::new(),
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
    /// Its kernel, which takes the argument struct given to [`Lane::issue`].
    pub function: Function,
    /// What it is.
    pub operation: Operation,
    /// What must be equal on every rank.
    pub signature: Signature,
}

/// Lanes of a group.
pub trait Lanes {
    /// The default lane.
    ///
    /// # Errors
    ///
    /// [`PrepareError`] where the group's workspace is too small for lanes, on first use.
    fn lane(&self) -> Result<Lane<'_>, PrepareError>;
}

impl Lanes for Group {
    fn lane(&self) -> Result<Lane<'_>, PrepareError> {
        Ok(Lane { shared: Shared::of(self)?, index: 0 })
    }
}

impl Lane<'_> {
    /// Which lane of the group.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How its workspace is laid out: what choices of algorithm are made from.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// The group's own stream: inline on the host.
    #[must_use]
    pub fn default_stream(&self) -> &Stream {
        &self.shared.stream
    }

    /// Issues an operation: waits for its turn, launches it. On an inline stream it has happened
    /// when this returns.
    ///
    /// `args` makes the kernel's argument struct around the lane's part; `keep` is asked for what
    /// must outlive the operation only where it is not done at return.
    ///
    /// # Errors
    ///
    /// [`LaneError`]; unless it is `Failed`, nothing was launched and no epoch used.
    ///
    /// # Safety
    ///
    /// The issue's function takes an `A`. Every address in it is valid until this returns and, in
    /// addition, as long as what `keep` returns lives.
    pub unsafe fn issue<A: bytemuck::NoUninit>(
        &self,
        issue: Issue<'_>,
        args: impl FnOnce(LaneArgs) -> A,
        keep: impl FnOnce() -> Vec<KeepAlive>,
    ) -> Result<(), LaneError> {
        let shared = self.shared;
        shared.status.check()?;
        let state = &shared.lanes[self.index as usize];
        let turn = state.order.enter(issue.stream, issue.wait)?;
        // Whoever has the turn is alone with the count.
        let count = state.issued.load(Ordering::Relaxed) + 1;
        let args = args(LaneArgs {
            table: shared.table,
            signature: issue.signature.0,
            issue: count,
            lane: self.index,
            operation: issue.operation as u32,
        });
        let kept = if issue.stream.is_inline() {
            Vec::new()
        } else {
            let mut kept = keep();
            kept.push((*shared).clone());
            kept
        };
        // SAFETY: the caller's promise for its own addresses; the table's live as long as
        // `shared`, which this frame holds for an inline launch and `kept` for any other.
        let launched =
            unsafe { issue.stream.launch(Launch::new(issue.function, &args, issue.wait, &kept)) }?;
        state.issued.store(count, Ordering::Relaxed);
        drop(turn);
        match launched {
            // Others may have failed since in a later operation: this one has not.
            Launched::Finished => Ok(()),
            Launched::Stopped => Err(self.failure().into()),
            Launched::Queued => {
                shared.enqueued(issue.stream);
                Ok(())
            }
        }
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
        self.shared.drain(stream, wait)?;
        Ok(self.shared.status.check()?)
    }

    #[cold]
    fn failure(&self) -> Failure {
        let shared = self.shared;
        let told = shared.control().failure().unwrap_or_else(|| {
            let dead = shared.control().unfinished(&shared.status);
            dead.unwrap_or(Failure::NotPrepared("the lane is closed"))
        });
        shared.status.fail(told).clone()
    }
}
