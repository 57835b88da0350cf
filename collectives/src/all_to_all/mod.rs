//! All-to-all: every rank sends each rank a block.

pub(crate) mod host;

use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, View};

use crate::call::{Buffer, Call, CallError, Collective, Geometry, Request, faults};

/// Why an all-to-all did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllToAllError {
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
    /// A buffer does not hold one block for each rank.
    #[error("{elements} elements are no {ranks} blocks of equal length")]
    Blocks {
        /// Elements of the buffer.
        elements: u64,
        /// Ranks of the group.
        ranks: usize,
    },
}

faults!(AllToAllError);

/// Every rank sends each rank a block; see
/// [`Collectives::all_to_all`](crate::Collectives::all_to_all).
#[derive(Clone, Copy, Debug)]
pub struct AllToAll<'a> {
    input: Buffer<'a>,
    output: Buffer<'a>,
}

impl<'a> AllToAll<'a> {
    pub(crate) fn new(input: Buffer<'a>, output: Buffer<'a>) -> Self {
        AllToAll { input, output }
    }
}

impl<'a> Call<'a, AllToAll<'a>> {
    /// Where the blocks go, instead of in place. May be the input itself; may not overlap it
    /// otherwise.
    #[inline]
    pub fn into(mut self, output: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.output = Buffer::of(output.as_ref());
        self
    }
}

impl Collective for AllToAll<'_> {
    type Error = AllToAllError;

    #[inline]
    fn request(&self, group: &Group) -> Result<Request<'_>, AllToAllError> {
        let AllToAll { input, output } = *self;
        let ranks = group.size();
        input.same_type(&output)?;
        if input.count() != output.count() {
            let (input, output) = (input.count(), output.count());
            return Err(AllToAllError::Count { input, output });
        }
        let elements = input.count();
        if !elements.is_multiple_of(ranks as u64) {
            return Err(AllToAllError::Blocks { elements, ranks });
        }
        input.contiguous()?;
        output.contiguous()?;
        input.same_or_apart(&output)?;
        let count = elements / ranks as u64;
        let block = input.block(0, count).bytes();
        let geometry = Geometry::flat(block, block, block);
        let request = Request::new(Operation::AllToAll, input, output, geometry, [count, 0, 0]);
        // In place, what a peer would read may have been replaced by what another wrote.
        let in_place = input.ptr() == output.ptr();
        Ok(Request { is_written_by_peers: !in_place, is_staged: in_place, ..request })
    }
}
