//! All-reduce: every rank gets the element-wise reduction of all ranks' inputs.

pub(crate) mod host;

use symmem_hal::types::{Bytes, ReduceOp};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, View};

use crate::call::{Buffer, Call, CallError, Collective, Geometry, Request, faults};

/// Why an all-reduce did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllReduceError {
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
    /// What is to be copied in holds another number of elements than the input.
    #[error("the source holds {source_elements} elements, the input {input}")]
    Source {
        /// Elements of the source.
        source_elements: u64,
        /// Elements of the input.
        input: u64,
    },
}

faults!(AllReduceError);

/// Every rank gets the element-wise reduction of all ranks' inputs; see
/// [`Collectives::all_reduce`](crate::Collectives::all_reduce).
#[derive(Clone, Copy, Debug)]
pub struct AllReduce<'a> {
    input: Buffer<'a>,
    output: Buffer<'a>,
    source: Option<Buffer<'a>>,
    op: ReduceOp,
}

impl<'a> AllReduce<'a> {
    pub(crate) fn new(input: Buffer<'a>, output: Buffer<'a>, op: ReduceOp) -> Self {
        AllReduce { input, output, source: None, op }
    }
}

impl<'a> Call<'a, AllReduce<'a>> {
    /// The operator, instead of the sum.
    #[inline]
    pub fn op(mut self, op: ReduceOp) -> Self {
        self.what.op = op;
        self
    }

    /// What is copied into the input first, as part of the operation: so that data in private memory
    /// is reduced from symmetric memory. Holds as many elements as the input, and is apart from it
    /// and from the output.
    #[inline]
    pub fn copy_from(mut self, source: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.source = Some(Buffer::of(source.as_ref()));
        self
    }

    /// Where the result goes, instead of in place. May be the input itself; may not overlap it
    /// otherwise.
    #[inline]
    pub fn into(mut self, output: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.output = Buffer::of(output.as_ref());
        self
    }
}

impl Collective for AllReduce<'_> {
    type Error = AllReduceError;

    #[inline]
    fn request(&self, _: &Group) -> Result<Request<'_>, AllReduceError> {
        let AllReduce { input, output, source, op } = *self;
        input.same_type(&output)?;
        if input.count() != output.count() {
            let (input, output) = (input.count(), output.count());
            return Err(AllReduceError::Count { input, output });
        }
        input.contiguous()?;
        output.contiguous()?;
        input.same_or_apart(&output)?;
        if let Some(source) = source {
            source.same_type(&input)?;
            if source.count() != input.count() {
                let (source_elements, input) = (source.count(), input.count());
                return Err(AllReduceError::Source { source_elements, input });
            }
            source.contiguous()?;
            source.apart(&input)?;
            source.apart(&output)?;
        }
        let geometry = Geometry::flat(input.bytes(), Bytes::ZERO, Bytes::ZERO);
        let shape = [input.count(), 0, 0];
        let request = Request::new(Operation::AllReduce, input, output, geometry, shape);
        Ok(Request { op: Some(op), source, ..request })
    }
}
