//! Broadcast: every rank gets what one rank, the root, has.

pub(crate) mod host;

use symmem_hal::types::{Bytes, Rank};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, View};

use crate::call::{Buffer, Call, CallError, Collective, Geometry, Request, faults};

/// Why a broadcast did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BroadcastError {
    /// The group has failed, or this rank has left it. The output is unspecified if the operation
    /// itself failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It could not be issued.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Input and output hold different numbers of elements.
    #[error("the input holds {input} elements, the output {output}")]
    Count {
        /// Elements of the input.
        input: u64,
        /// Elements of the output.
        output: u64,
    },
}

faults!(BroadcastError);

/// Every rank gets what the root has; see
/// [`Collectives::broadcast`](crate::Collectives::broadcast).
#[derive(Clone, Copy, Debug)]
pub struct Broadcast<'a> {
    input: Buffer<'a>,
    output: Buffer<'a>,
    root: Rank,
}

impl<'a> Broadcast<'a> {
    pub(crate) fn new(input: Buffer<'a>, output: Buffer<'a>, root: Rank) -> Self {
        Broadcast { input, output, root }
    }
}

impl<'a> Call<'a, Broadcast<'a>> {
    /// Where the data goes, on the root too, instead of in place. May be the input itself; may not
    /// overlap it otherwise. Only the root's input is read.
    #[inline]
    pub fn into(mut self, output: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.output = Buffer::of(output.as_ref());
        self
    }
}

impl Collective for Broadcast<'_> {
    type Error = BroadcastError;

    #[inline]
    fn request(&self, group: &Group) -> Result<Request<'_>, BroadcastError> {
        let Broadcast { input, output, root } = *self;
        let root = group.index_of(root).map_err(CallError::from)?;
        input.same_type(&output)?;
        if input.count() != output.count() {
            let (input, output) = (input.count(), output.count());
            return Err(BroadcastError::Count { input, output });
        }
        input.contiguous()?;
        output.contiguous()?;
        input.same_or_apart(&output)?;
        let geometry = Geometry::flat(input.bytes(), Bytes::ZERO, Bytes::ZERO);
        let shape = [input.count(), 0, 0];
        let request = Request::new(Operation::Broadcast, input, output, geometry, shape);
        Ok(Request { root: Some(root), ..request })
    }
}
