//! All-gather: every rank gets the blocks of all ranks, in rank order.

pub(crate) mod host;

use symmem_hal::types::Bytes;
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, View};

use crate::call::{Buffer, Call, CallError, Collective, Geometry, Request, faults};

/// Why an all-gather did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllGatherError {
    /// The group has failed, or this rank has left it. The output is unspecified if the operation
    /// itself failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It could not be issued.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The output does not hold one block of the input's length for each rank.
    #[error(
        "the output holds {output} elements, not a block of the input's {input} for each of {ranks} ranks"
    )]
    Count {
        /// Elements of the input.
        input: u64,
        /// Elements of the output.
        output: u64,
        /// Ranks of the group.
        ranks: usize,
    },
    /// In place: the buffer does not hold one block for each rank.
    #[error("{elements} elements are no {ranks} blocks of equal length")]
    Blocks {
        /// Elements of the buffer.
        elements: u64,
        /// Ranks of the group.
        ranks: usize,
    },
}

faults!(AllGatherError);

/// Every rank gets the blocks of all ranks; see
/// [`Collectives::all_gather`](crate::Collectives::all_gather).
#[derive(Clone, Copy, Debug)]
pub struct AllGather<'a> {
    /// This rank's block; all blocks where there is no output.
    input: Buffer<'a>,
    output: Option<Buffer<'a>>,
}

impl<'a> AllGather<'a> {
    pub(crate) fn new(input: Buffer<'a>, output: Option<Buffer<'a>>) -> Self {
        AllGather { input, output }
    }
}

impl<'a> Call<'a, AllGather<'a>> {
    /// Where the blocks go; then the input is this rank's block alone. It may be the very block of
    /// the output that it goes to, and may not overlap the output otherwise.
    #[inline]
    pub fn into(mut self, output: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.output = Some(Buffer::of(output.as_ref()));
        self
    }
}

impl Collective for AllGather<'_> {
    type Error = AllGatherError;

    #[inline]
    fn request(&self, group: &Group) -> Result<Request<'_>, AllGatherError> {
        let (me, ranks) = (group.rank().index(), group.size());
        let (input, output) = match self.output {
            Some(output) => (self.input, output),
            None => {
                let elements = self.input.count();
                if !elements.is_multiple_of(ranks as u64) {
                    return Err(AllGatherError::Blocks { elements, ranks });
                }
                (self.input.block(me, elements / ranks as u64), self.input)
            }
        };
        input.same_type(&output)?;
        let count = input.count();
        if count.checked_mul(ranks as u64) != Some(output.count()) {
            return Err(AllGatherError::Count { input: count, output: output.count(), ranks });
        }
        input.contiguous()?;
        output.contiguous()?;
        let in_place = input.ptr() == output.block(me, count).ptr();
        if !in_place {
            input.apart(&output)?;
        }
        let block = input.bytes();
        let geometry = Geometry::flat(block, Bytes::ZERO, block);
        let request = Request::new(Operation::AllGather, input, output, geometry, [count, 0, 0]);
        Ok(Request {
            input_step: if in_place { block.get() } else { 0 },
            is_written_by_peers: !in_place,
            ..request
        })
    }
}
