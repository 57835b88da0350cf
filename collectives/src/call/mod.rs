//! What every collective shares: how a call is built, checked and launched.

mod buffer;
mod error;
mod launch;
mod plan;

use core::fmt;

use symmem_hal::types::{Bytes, ReduceOp};
use symmem_hal::{Fault, Stream, Wait};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, View};
use symmem_sync::{Lane, LaneError, Lanes as _};

pub use buffer::Buffer;
pub(crate) use error::faults;
pub use error::{CallError, NoMultimem};
#[cfg(feature = "cuda")]
pub(crate) use launch::Symmetric;
pub(crate) use launch::prepare;
pub(crate) use plan::{Access, Block, Geometry, Pitch, Plan};

use crate::choice::Algorithm;

/// A collective about to be issued.
///
/// Collective: every rank of the group must issue the same (operation, shape, type, operator, root,
/// algorithm, tag), in the same order among its operations on the lane. Memory that peers may reach
/// (the input; where that is private, the output; on GPUs both) must be symmetric memory of the same
/// rendezvous and offset on every rank, or on none. What differs is a [`Failure::CallMismatch`] on both sides: in
/// this call where one rank consumes the other's data, else (broadcast, reduce) at the latest two
/// operations later, in a barrier that follows, or in this call where the group has
/// [`Completion::Group`](symmem_mem::Completion).
/// Calls from several threads of a rank run one after the other, in the order in which they were
/// issued.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing happens before run() or on()"]
pub struct Call<'a, O> {
    group: &'a Group,
    lane: Option<Lane<'a>>,
    algorithm: Algorithm,
    tag: u64,
    wait: Option<&'a Wait>,
    pub(crate) what: O,
}

/// What a [`Call`] calls. Sealed: the operations of this crate implement it.
pub trait Collective: Copy + fmt::Debug {
    /// Why a call did not happen, or did not end well.
    type Error: Fault + From<CallError> + From<Failure>;

    /// The call as launches take it, once its shapes have been checked.
    #[doc(hidden)]
    fn request(&self, group: &Group) -> Result<Request<'_>, Self::Error>;
}

/// One call whose shapes fit together.
#[derive(Debug)]
pub struct Request<'a> {
    pub(crate) operation: Operation,
    pub(crate) op: Option<ReduceOp>,
    /// Group rank.
    pub(crate) root: Option<usize>,
    pub(crate) input: Buffer<'a>,
    /// Bytes of the input from the first element to one past the last.
    pub(crate) input_bytes: Bytes,
    /// What is copied over the input first.
    pub(crate) source: Option<Buffer<'a>>,
    /// The input, where this rank gets no result.
    pub(crate) output: Buffer<'a>,
    pub(crate) is_receiver: bool,
    pub(crate) geometry: Geometry,
    /// Numbers that determine the geometry, in elements, equal on every rank.
    pub(crate) shape: [u64; 3],
    /// For an operation that is given blocks instead of parts; `output` is not used then.
    pub(crate) blocks: Vec<Block>,
    /// Where this rank's blocks go.
    pub(crate) outputs: &'a [&'a View],
    /// How many bytes further into symmetric memory each next rank's input begins.
    pub(crate) input_step: u64,
    /// Whether peers may write the output where it lies, should the input be out of their reach.
    pub(crate) is_written_by_peers: bool,
    /// Whether peers may reach neither: since one replaces the other, or would be read too piecemeal.
    pub(crate) is_staged: bool,
}

impl<'a> Request<'a> {
    /// Whether peers can be let to write the output where it lies: of kernels that store results in all
    /// outputs, too.
    #[cfg(feature = "cuda")]
    pub(crate) fn has_reachable_output(&self) -> bool {
        use Operation::{AllGather, AllReduce, AllToAll, AllToAllNd, Broadcast};
        !self.is_staged
            && matches!(self.operation, AllGather | AllReduce | AllToAll | AllToAllNd | Broadcast)
    }

    /// A call in which each of `input` and `output` holds a part for all ranks, or one for each.
    // Inlined, as are the implementations of `Collective::request`, so that it is built in place.
    #[inline]
    pub(crate) fn new(
        operation: Operation,
        input: Buffer<'a>,
        output: Buffer<'a>,
        geometry: Geometry,
        shape: [u64; 3],
    ) -> Self {
        Request {
            operation,
            op: None,
            root: None,
            input_bytes: input.bytes(),
            input,
            source: None,
            output,
            is_receiver: true,
            geometry,
            shape,
            blocks: Vec::new(),
            outputs: &[],
            input_step: 0,
            is_written_by_peers: false,
            is_staged: false,
        }
    }
}

impl<'a, O: Collective> Call<'a, O> {
    pub(crate) fn new(group: &'a Group, what: O) -> Self {
        Call { group, lane: None, algorithm: Algorithm::Auto, tag: 0, wait: None, what }
    }

    /// The lane it runs on, instead of the group's default lane.
    #[inline]
    pub fn lane(self, lane: Lane<'a>) -> Self {
        Call { lane: Some(lane), ..self }
    }

    /// The algorithm, instead of the one that the table gives for the size.
    #[inline]
    pub fn algorithm(self, algorithm: Algorithm) -> Self {
        Call { algorithm, ..self }
    }

    /// A number of the caller's that must be equal on every rank: a layer's index, say.
    #[inline]
    pub fn tag(self, tag: u64) -> Self {
        Call { tag, ..self }
    }

    /// The bound on its waits, instead of the group's. Where it fails while another rank that lives is
    /// writing its own report, it returns at most 2 seconds after the bound: with that report, so that
    /// all tell the same.
    #[inline]
    pub fn wait(self, wait: &'a Wait) -> Self {
        Call { wait: Some(wait), ..self }
    }

    /// Issues it on the group's own stream and waits for it: it has happened at return.
    ///
    /// # Errors
    ///
    /// The operation's own; all but a [`Failure`] are found before anything is sent.
    pub fn run(self) -> Result<(), O::Error> {
        let lane = self.lane_of_group()?;
        let default = self.group.wait();
        let wait = self.wait.unwrap_or(&default);
        self.issue(&lane, lane.default_stream(), wait)?;
        lane.settle(lane.default_stream(), wait).map_err(failed)
    }

    /// Issues it on a stream. On an inline stream it has happened at return; on another,
    /// [`Stream::synchronize`] waits for it and reports how it went.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn on(self, stream: &Stream) -> Result<(), O::Error> {
        let default = self.group.wait();
        self.issue(&self.lane_of_group()?, stream, self.wait.unwrap_or(&default))
    }

    /// What algorithm it will take.
    ///
    /// # Errors
    ///
    /// Where it could not be issued, as [`run`](Self::run).
    pub fn chosen(&self) -> Result<Algorithm, O::Error> {
        let lane = self.lane_of_group()?;
        let (kept, request) = (launch::kept(self.group)?, self.what.request(self.group)?);
        let found = launch::Found::default();
        Ok(launch::choose(kept, self.group, &lane, self.algorithm, &request, &found)?)
    }

    fn lane_of_group(&self) -> Result<Lane<'a>, CallError> {
        let default = self.group.lane()?;
        match self.lane {
            None => Ok(default),
            // Lanes of one group share one layout.
            Some(lane) if core::ptr::eq(lane.layout(), default.layout()) => Ok(lane),
            Some(_) => Err(CallError::Lane),
        }
    }

    fn issue(&self, lane: &Lane<'_>, stream: &Stream, wait: &Wait) -> Result<(), O::Error> {
        let request = self.what.request(self.group)?;
        let kept = launch::kept(self.group)?;
        let found = launch::Found::default();
        let algorithm = launch::choose(kept, self.group, lane, self.algorithm, &request, &found)?;
        launch::launch(kept, self.group, lane, stream, wait, &request, algorithm, &found, self.tag)
            .map_err(failed)
    }
}

/// A failure of the group as the operation's error of that name, all else as a call's.
fn failed<E: From<CallError> + From<Failure>>(error: impl Into<Refused>) -> E {
    match error.into() {
        Refused::Failed(e) => e.into(),
        Refused::Call(e) => e.into(),
    }
}

/// How a launch ends otherwise than well.
pub(crate) enum Refused {
    Failed(Failure),
    Call(CallError),
}

impl From<CallError> for Refused {
    fn from(error: CallError) -> Self {
        Refused::Call(error)
    }
}

impl From<LaneError> for Refused {
    fn from(error: LaneError) -> Self {
        match error {
            LaneError::Failed(e) => Refused::Failed(e),
            LaneError::Order(e) => Refused::Call(e.into()),
            LaneError::Stream(e) => Refused::Call(e.into()),
            LaneError::Prepare(e) => Refused::Call(e.into()),
            other => Refused::Failed(Failure::Device(other.to_string())),
        }
    }
}
