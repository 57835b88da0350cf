//! All-to-all-v whose splits are on the device: flat, by expert, and back.

pub(crate) mod host;
mod plan;
mod shape;

use symmem_collectives::CallError;
use symmem_hal::types::{Bytes, DType};
use symmem_hal::{DevicePtr, KeepAlive};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{Completion, Failure, Group, View};
use symmem_sync::Issue;

pub(crate) use plan::{HostPlan, Vdev};
#[cfg(feature = "cuda")]
pub(crate) use shape::HEAD;

use crate::call::{At, Call, Exchange, failed};
#[cfg(feature = "cuda")]
use crate::gpu;
#[cfg(feature = "cuda")]
use crate::kept::Kernels;
use crate::tensors::{Named, TensorMismatch, apart};
use crate::verdict::Refusal;

/// What happens to rows for which an output has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// The call is refused on every rank: nothing moves, the output splits are zero everywhere, and every
    /// rank is told which rank's output was too small.
    #[default]
    Error,
    /// Rows whose place in the output, in its order, is past its end are dropped and
    /// [counted](crate::Moe::take_dropped); the output splits count what was kept.
    Drop,
}

/// Why an all-to-all-v did not happen, or did not end well.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllToAllVdevError {
    /// The group has failed, or this rank has left it. The output is unspecified if the operation itself
    /// failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It could not be issued.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The splits did not fit; nothing has moved, on any rank, and the group goes on.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A tensor is not what the call needs.
    #[error(transparent)]
    Tensor(#[from] TensorMismatch),
    /// Each rank has as many splits as the others: one for each bin of each rank.
    #[error("{found} input splits for {world} ranks: as many for each rank are needed")]
    Splits {
        /// How many there are.
        found: u64,
        /// Ranks of the group.
        world: usize,
    },
    /// Of a tensor with a row of splits and a row of offsets, the number of elements is another.
    #[error(
        "the {what} have {found} elements, of {splits} splits and as many offsets {expected} are needed"
    )]
    SplitCount {
        /// Which splits.
        what: &'static str,
        /// How many splits there are.
        splits: u64,
        /// Elements needed.
        expected: u64,
        /// Elements there are.
        found: u64,
    },
    /// A rank's splits do not fit into the lane's workspace, on GPUs.
    #[error(
        "{splits} splits, the lane's workspace has room for {most}: make Options::workspace larger, or max_lanes less"
    )]
    TooManySplits {
        /// How many there are.
        splits: u64,
        /// How many there may be.
        most: u64,
    },
}

symmem_collectives::faults!(AllToAllVdevError: Refused, Tensor);

/// How rows travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One split for each rank.
    Flat,
    /// A split for each expert of each rank, by rank; the output is by expert.
    Dispatch,
    /// A split for each expert of each rank, by expert, with where its rows begin; the output is by rank.
    Combine,
}

/// Rows go to the ranks and bins that splits on the device name; see
/// [`Moe::all_to_all_vdev`](crate::Moe::all_to_all_vdev) and the two after it.
#[derive(Clone, Copy, Debug)]
pub struct AllToAllVdev<'a> {
    form: Form,
    input: &'a View,
    in_splits: &'a View,
    output: &'a View,
    out_splits: &'a View,
    align: u64,
    overflow: Overflow,
}

impl<'a> AllToAllVdev<'a> {
    pub(crate) fn flat(views: [&'a View; 4]) -> Self {
        Self::new(Form::Flat, views)
    }

    pub(crate) fn dispatch(views: [&'a View; 4]) -> Self {
        AllToAllVdev { align: 1, ..Self::new(Form::Dispatch, views) }
    }

    pub(crate) fn combine(views: [&'a View; 4]) -> Self {
        Self::new(Form::Combine, views)
    }

    fn new(form: Form, [input, in_splits, output, out_splits]: [&'a View; 4]) -> Self {
        let overflow = Overflow::Error;
        AllToAllVdev { form, input, in_splits, output, out_splits, align: 0, overflow }
    }

    fn operation(&self) -> Operation {
        match self.form {
            Form::Flat => Operation::AllToAllVdev,
            Form::Dispatch => Operation::AllToAllVdev2d,
            Form::Combine => Operation::AllToAllVdev2dOffset,
        }
    }

    /// Input, input splits, output, output splits.
    fn tensors(&self) -> [Named<'a>; 4] {
        [
            Named::new("input", self.input),
            Named::new("input splits", self.in_splits),
            Named::new("output", self.output),
            Named::new("output splits", self.out_splits),
        ]
    }

    /// The plan, but for where the output's peers are and the status record.
    fn plan(&self, group: &Group) -> Result<Vdev, AllToAllVdevError> {
        let tensors = self.tensors();
        let [input, _, output, _] = tensors;
        let ((input_rows, row), (capacity, _)) = (input.rows()?, output.rows()?);
        if self.input.dtype() != self.output.dtype() {
            let (input, output) = (self.input.dtype(), self.output.dtype());
            return Err(CallError::DType { input, output }.into());
        }
        output.shaped(capacity, row)?;
        tensors.iter().try_for_each(|tensor| tensor.check(group))?;
        let (splits, minor) = self.splits(group.size())?;
        apart(&tensors, &[])?;
        let offsets = match self.form {
            Form::Combine => self.in_splits.ptr().checked_add(Bytes(8 * splits)),
            _ => None,
        };
        Ok(Vdev {
            input: self.input.ptr(),
            output: self.output.ptr(),
            in_splits: self.in_splits.ptr(),
            in_offsets: offsets.unwrap_or(DevicePtr::NULL),
            out_splits: self.out_splits.ptr(),
            status: DevicePtr::NULL,
            peers: DevicePtr::NULL,
            peer_offset: self.output.offset().get(),
            row: row * self.input.dtype().size() as u64,
            input_rows,
            capacity,
            align: self.align,
            minor,
            by_bin: (self.form == Form::Combine).into(),
            drop: (self.overflow == Overflow::Drop).into(),
            group_completion: (group.options().completion == Completion::Group).into(),
        })
    }

    /// How many splits a rank has, and for how many bins of each rank.
    fn splits(&self, world: usize) -> Result<(u64, u32), AllToAllVdevError> {
        let [_, input, _, output] = self.tensors();
        input.of(&[DType::I64], "i64")?;
        output.of(&[DType::I64], "i64")?;
        let found = self.in_splits.count();
        let splits = match self.form {
            Form::Combine => found / 2,
            _ => found,
        };
        let count = |what, found| {
            let expected = 2 * splits;
            let wrong = AllToAllVdevError::SplitCount { what, splits, expected, found };
            if found == expected { Ok(()) } else { Err(wrong) }
        };
        if self.form == Form::Combine {
            count(input.what, found)?;
        }
        count(output.what, self.out_splits.count())?;
        let bins = splits / world as u64;
        let is_even = splits > 0 && splits.is_multiple_of(world as u64);
        match u32::try_from(bins) {
            Ok(minor) if is_even && (self.form != Form::Flat || minor == 1) => Ok((splits, minor)),
            _ => Err(AllToAllVdevError::Splits { found: splits, world }),
        }
    }

    fn sign(&self, plan: &Vdev, at: &At<'_>, ordinal: u64) -> Signature {
        let rest = [
            plan.row,
            u64::from(plan.minor),
            plan.align,
            u64::from(at.lane.index()) << 32 | u64::from(plan.drop),
            at.tag,
            ordinal,
            plan.peer_offset,
        ];
        Signature::new(self.operation(), Some(self.input.dtype()), None, &rest)
    }
}

impl<'a> Call<'a, AllToAllVdev<'a>> {
    /// What the rows of each major bin of the output begin at a multiple of, instead of 1; at least as many
    /// rows are counted for a bin that has none, since a grouped matrix product takes no empty ones. 0 for
    /// neither. The major bins of a dispatch are experts, of a combine the ranks that rows come from.
    #[inline]
    pub fn major_align(mut self, rows: u64) -> Self {
        self.what.align = rows;
        self
    }

    /// What happens to rows that do not fit.
    #[inline]
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.what.overflow = overflow;
        self
    }
}

impl Exchange for AllToAllVdev<'_> {
    type Error = AllToAllVdevError;

    #[allow(unsafe_code, reason = "launches a kernel")]
    fn launch(&self, at: &At<'_>) -> Result<(), AllToAllVdevError> {
        at.check_stream()?;
        let mut plan = self.plan(at.group)?;
        let [.., output, _] = self.tensors();
        let mapped = output.mapped(at.group)?;
        plan.peers = mapped.peers;
        plan.status = at.status;
        let signature = self.sign(&plan, at, mapped.ordinal);
        let keep = || -> Vec<KeepAlive> {
            let views = self.tensors().map(|tensor| Some(tensor.view.keep_alive()));
            let mapped = [at.group.keep_mapped(self.output), Some(at.kept.status.keep_alive())];
            views.into_iter().chain(mapped).flatten().collect()
        };
        #[cfg(feature = "cuda")]
        if let Kernels::Gpu(kernels) = &at.kept.kernels {
            let allocation = self.output.allocation();
            let allocation =
                allocation.ok_or(TensorMismatch::NotSymmetric { what: output.what })?;
            let end = allocation.offset().get() + allocation.bytes().get();
            let call = gpu::Launching {
                kernels,
                at,
                operation: self.operation(),
                signature,
                plan: &plan,
                room: Bytes(end.saturating_sub(plan.peer_offset)),
            };
            return gpu::launch(&call, keep);
        }
        let function = at.kept.kernels.function(self.operation())?;
        let (stream, wait, operation) = (at.stream, at.wait, self.operation());
        let issue = Issue { stream, wait, function, operation, signature };
        // SAFETY: the kernel takes a HostPlan. Its addresses are of the caller's views, of as many bytes as
        // it says, which `keep` holds for a queued or captured launch and the caller for any other; of the
        // mappings of peers' memory, which the same hold; and of the status record, which lives as long as
        // the group.
        unsafe { at.lane.issue(issue, |lane| HostPlan { lane, vdev: plan }, keep) }.map_err(failed)
    }
}
