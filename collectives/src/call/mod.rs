//! What every collective shares: how a call is built, checked and launched.

mod buffer;
mod error;
mod launch;
mod plan;
mod site;
mod tiles;

use core::fmt;

use symmem_hal::types::{Bytes, ReduceOp};
use symmem_hal::{Fault, Stream, Wait};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, View};
use symmem_sync::{Lane, LaneError};

pub use buffer::Buffer;
pub(crate) use error::faults;
pub use error::{CallError, NoMultimem};
#[cfg(feature = "cuda")]
pub(crate) use launch::Symmetric;
pub(crate) use launch::prepare;
pub(crate) use plan::{Access, Block, Geometry, Pitch, Plan};
pub use site::Site;
pub use tiles::{Rows, Tile, TileReduction};

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
    site: Site<'a>,
    algorithm: Algorithm,
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
    /// What blocks lie in beside `input`.
    pub(crate) inputs: &'a [Tile<'a>],
    /// Whether those are of several allocations, so that the place of one says nothing of the others'.
    pub(crate) is_scattered: bool,
    /// A digest of where blocks lie in the input, which ranks compare along with its own place, where it is
    /// symmetric.
    pub(crate) places: u64,
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
    /// Whether it is given blocks, if maybe none.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_of_blocks(&self) -> bool {
        use Operation::{MultiRootTileReduce, ReduceScatterOffset, TileReduce};
        matches!(self.operation, ReduceScatterOffset | TileReduce | MultiRootTileReduce)
    }

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
            inputs: &[],
            is_scattered: false,
            places: 0,
            outputs: &[],
            input_step: 0,
            is_written_by_peers: false,
            is_staged: false,
        }
    }
}

impl<'a, O: Collective> Call<'a, O> {
    pub(crate) fn new(group: &'a Group, what: O) -> Self {
        Call { site: Site::new(group), algorithm: Algorithm::Auto, what }
    }

    /// The lane it runs on, instead of the group's default lane.
    #[inline]
    pub fn lane(self, lane: Lane<'a>) -> Self {
        Call { site: Site { lane: Some(lane), ..self.site }, ..self }
    }

    /// The algorithm, instead of the one that the table gives for the size.
    #[inline]
    pub fn algorithm(self, algorithm: Algorithm) -> Self {
        Call { algorithm, ..self }
    }

    /// A number of the caller's that must be equal on every rank: a layer's index, say.
    #[inline]
    pub fn tag(self, tag: u64) -> Self {
        Call { site: Site { tag, ..self.site }, ..self }
    }

    /// The bound on its waits, instead of the group's. Where it fails while another rank that lives is
    /// writing its own report, it returns at most 2 seconds after the bound: with that report, so that
    /// all tell the same.
    #[inline]
    pub fn wait(self, wait: &'a Wait) -> Self {
        Call { site: Site { wait: Some(wait), ..self.site }, ..self }
    }

    /// Issues it on the group's own stream and waits for it: it has happened at return.
    ///
    /// # Errors
    ///
    /// The operation's own; all but a [`Failure`] are found before anything is sent.
    pub fn run(self) -> Result<(), O::Error> {
        self.site.run(|lane, stream, wait| self.issue(lane, stream, wait), failed)
    }

    /// Issues it on a stream. On an inline stream it has happened at return; on another,
    /// [`Stream::synchronize`] waits for it and reports how it went.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn on(self, stream: &Stream) -> Result<(), O::Error> {
        self.site.on(stream, |lane, stream, wait| self.issue(lane, stream, wait))
    }

    /// What algorithm it will take.
    ///
    /// # Errors
    ///
    /// Where it could not be issued, as [`run`](Self::run).
    pub fn chosen(&self) -> Result<Algorithm, O::Error> {
        let (group, lane) = (self.site.group, self.site.lane()?);
        let (kept, request) = (launch::kept(group)?, self.what.request(group)?);
        let found = launch::Found::default();
        Ok(launch::choose(kept, group, &lane, self.algorithm, &request, &found)?)
    }

    fn issue(&self, lane: &Lane<'_>, stream: &Stream, wait: &Wait) -> Result<(), O::Error> {
        let Site { group, tag, .. } = self.site;
        let request = self.what.request(group)?;
        let kept = launch::kept(group)?;
        let found = launch::Found::default();
        let algorithm = launch::choose(kept, group, lane, self.algorithm, &request, &found)?;
        launch::launch(kept, group, lane, stream, wait, &request, algorithm, &found, tag)
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
#[doc(hidden)]
#[derive(Debug)]
pub enum Refused {
    /// The group has failed.
    Failed(Failure),
    /// It could not be issued.
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
