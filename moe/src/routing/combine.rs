//! Experts' rows back to their tokens.

use symmem_collectives::CallError;
use symmem_collectives::numerics::WeightedSum;
use symmem_hal::types::DType;
use symmem_hal::{DevicePtr, KeepAlive};
use symmem_mem::View;
use symmem_mem::call::{Operation, Signature};
use symmem_sync::Issue;

use super::plan::{CombinePlan, OnHost};
use super::{RoutedError, Routing, keep};
use crate::call::{At, Call, Exchange, failed};
#[cfg(feature = "cuda")]
use crate::gpu;
#[cfg(feature = "cuda")]
use crate::kept::Kernels;
use crate::tensors::{Named, TensorMismatch, apart};

/// Experts' rows come back to the ranks of their tokens and are summed there; see [`Routing::combine`].
#[derive(Clone, Copy, Debug)]
pub struct Combine<'a> {
    routing: &'a Routing,
    rows: &'a View,
    output: &'a View,
    weights: Option<&'a View>,
}

impl Routing {
    /// Combine: each token of the last dispatch gets the sum of its rows, in the order of its choices; a token
    /// without any gets zeros.
    ///
    /// `rows` `[capacity, ...]`, symmetric, of f32, f16, bf16 or f8: what this rank has made of the rows that it
    /// received, at the same places; `output` `[tokens, ...]` of the same type and row, with at least as many
    /// rows as that dispatch had. Rows of the output past its tokens stay as they are. Choices of no expert,
    /// and those that were dropped, add nothing.
    ///
    /// The sum is `w_0 * x_0`, then `+ (w_k * x_k)` in ascending order of choices, each operation rounded in
    /// f32, and one conversion at the end; without [`weights`](Call::weights) the same with weights of 1. Where
    /// rows lie by rank, `rows` hold this rank's sum of each token, and those are added in rank order.
    ///
    /// `rows` may be overwritten once the call has completed.
    pub fn combine<'a>(
        &'a self,
        rows: &'a (impl AsRef<View> + ?Sized),
        output: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, Combine<'a>> {
        let (rows, output) = (rows.as_ref(), output.as_ref());
        Call::new(self.group(), Combine { routing: self, rows, output, weights: None })
    }
}

impl<'a> Call<'a, Combine<'a>> {
    /// `[tokens, choices]` of f32: the weight of each choice, of as many tokens as the output has rows.
    #[inline]
    pub fn weights(mut self, weights: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.weights = Some(weights.as_ref());
        self
    }
}

impl<'a> Combine<'a> {
    fn read(&self) -> impl Iterator<Item = Named<'a>> + use<'a> {
        let weights = self.weights.map(|view| Named::new("weights", view));
        [Named::new("rows", self.rows)].into_iter().chain(weights)
    }

    fn plan(&self, at: &At<'_>) -> Result<(CombinePlan, Signature), RoutedError> {
        let shape = &self.routing.0.shape;
        let (rows, output) = (Named::new("rows", self.rows), Named::new("output", self.output));
        self.read().chain([output]).try_for_each(|tensor| tensor.check(at.group))?;
        let (found, row) = output.rows()?;
        let least = self.routing.rows(at)?;
        if found < least {
            return Err(TensorMismatch::TooFewRows { what: "output", least, found }.into());
        }
        rows.shaped(shape.capacity, row)?;
        rows.of(WeightedSum::TYPES, "f32, f16, bf16 or f8")?;
        if rows.view.dtype() != output.view.dtype() {
            let (input, output) = (rows.view.dtype(), output.view.dtype());
            return Err(CallError::DType { input, output }.into());
        }
        if let Some(weights) = self.weights {
            if shape.is_by_rank() {
                return Err(RoutedError::WeightsByRank);
            }
            let weights = Named::new("weights", weights);
            weights.counts(found.saturating_mul(shape.choices as u64))?;
            weights.of(&[DType::F32], "f32")?;
        }
        let read: arrayvec::ArrayVec<_, 2> = self.read().collect();
        apart(&[output], &read)?;
        let (mapped, records) = (rows.mapped(at.group)?, self.routing.mapped()?);
        let plan = CombinePlan {
            routed: self.routing.routed(at),
            peers: mapped.peers,
            offset: mapped.offset,
            count: row,
            output: output.view.ptr(),
            output_rows: found,
            weights: self.weights.map_or(DevicePtr::NULL, View::ptr),
            dtype: rows.view.dtype().code().into(),
            reserved: [0; 3],
        };
        let words =
            [at.tag, at.lane.index().into(), records.ordinal, mapped.ordinal, mapped.offset, row];
        let signature = Signature::new(Operation::Combine, Some(rows.view.dtype()), None, &words);
        Ok((plan, signature))
    }
}

impl Exchange for Combine<'_> {
    type Error = RoutedError;

    #[allow(unsafe_code, reason = "launches a kernel")]
    fn launch(&self, at: &At<'_>) -> Result<(), RoutedError> {
        at.check_stream()?;
        self.routing.check_lane(at)?;
        let (plan, signature) = self.plan(at)?;
        let keep = || -> Vec<KeepAlive> {
            let views: Vec<_> = self.read().map(|named| named.view).chain([self.output]).collect();
            let mut kept = keep(at, &views);
            kept.push(self.routing.keep_alive());
            kept
        };
        #[cfg(feature = "cuda")]
        if let Kernels::Gpu(kernels) = &at.kept.kernels {
            return gpu::combine(&gpu::Calling { kernels, at, signature }, &plan, keep);
        }
        let operation = Operation::Combine;
        let function = at.kept.kernels.function(operation)?;
        let (stream, wait) = (at.stream, at.wait);
        let issue = Issue { stream, wait, function, operation, signature };
        // SAFETY: the kernel takes an OnHost<CombinePlan>. Its addresses are of the caller's views and of the
        // routing's own, of as many bytes as it says, which `keep` holds for a queued or captured launch and
        // this call for any other, with the mappings of peers' memory.
        unsafe { at.lane.issue(issue, |lane| OnHost { lane, plan }, keep) }.map_err(failed)
    }
}
