//! Tokens to the ranks of their experts.

use arrayvec::ArrayVec;
use smallvec::{SmallVec, smallvec};
use symmem_collectives::CallError;
use symmem_collectives::numerics::BlockQuantiser;
use symmem_hal::types::{BackendKind, DType};
use symmem_hal::{DevicePtr, KeepAlive};
use symmem_mem::View;
use symmem_mem::call::{Operation, Signature};
use symmem_sync::Issue;

use super::plan::{DispatchPlan, OnHost, PAYLOADS, Payload};
use super::{RoutedError, Routing, keep};
use crate::all_to_all_vdev::Overflow;
use crate::call::{At, Call, Exchange, failed};
#[cfg(feature = "cuda")]
use crate::gpu;
#[cfg(feature = "cuda")]
use crate::kept::Kernels;
use crate::tensors::{Named, TensorMismatch, apart};

/// How rows come to their ranks. All have the same result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// What is faster, by a table for the number of ranks and the most bytes of their tokens.
    #[default]
    Auto,
    /// All ranks tell each other how many rows each has for whom; then each token is stored once in every rank
    /// that it goes to.
    Direct,
    /// All ranks show each other all their tokens, and each takes what is for its experts: one exchange instead
    /// of two, of more bytes. On CPUs alone.
    Gathered,
}

/// For each number of ranks, the most bytes of what a rank shows of its tokens that are faster gathered.
///
/// Measured on two virtual cores of an AMD EPYC (Zen 4), 2026-11, with `symmem bench moe --ranks R --tokens 1,2,4,8,16
/// --hidden 512,2048 --parts dispatch --route gathered` and `direct`, isolated, in us: 2 ranks, 1.63 and 1.71 at 2 KiB,
/// 2.20 and 1.87 at 4 KiB; 4 ranks, 8.1 and 11.8 at 1 KiB, 10.9 and 13.1 at 8 KiB, 14.2 and 14.4 at 16 KiB, 17.8 and 15.3
/// at 32 KiB; 8 ranks, 21 and 28 at 8 KiB, 24 and 29 at 16 KiB, 33 and 35 (periods 53 and 34) at 32 KiB. Of more ranks
/// nobody knows.
const GATHERED: &[(usize, u64)] = &[(2, 3 << 10), (4, 16 << 10), (8, 16 << 10)];

/// Tokens go to the ranks of the experts that they have chosen; see [`Routing::dispatch`].
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    routing: &'a Routing,
    /// `None` to go where the last dispatch went.
    indices: Option<&'a View>,
    weights: Option<&'a View>,
    count: Option<&'a View>,
    /// Sources and targets; the first one's scales, if it is quantised.
    payloads: [Option<(&'a View, &'a View)>; PAYLOADS],
    scales: Option<&'a View>,
    has_too_many: bool,
    route: Route,
}

impl Routing {
    /// Dispatch: each token's row goes to every rank that has an expert of its choice, once, and there to the
    /// place of each of those experts in `rows`, which is symmetric.
    ///
    /// `x` `[tokens, ...]`; `indices` `[tokens, choices]` of i32 or i64: experts, of which several may be the
    /// same, or -1 for none; `rows` `[capacity, ...]` of the same type and row. The number of tokens may
    /// differ between ranks, and between calls.
    ///
    /// Rows that hold no token (padding) stay as they are. `x` may be overwritten once the call has completed.
    pub fn dispatch<'a>(
        &'a self,
        x: &'a (impl AsRef<View> + ?Sized),
        indices: &'a (impl AsRef<View> + ?Sized),
        rows: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, Dispatch<'a>> {
        self.begin(x.as_ref(), Some(indices.as_ref()), rows.as_ref())
    }

    /// Sends other rows of the same tokens to where the last dispatch has sent them: nothing is routed again,
    /// and no counts are exchanged. In a graph too, of whatever the last dispatch before its launch was.
    pub fn resend<'a>(
        &'a self,
        x: &'a (impl AsRef<View> + ?Sized),
        rows: &'a (impl AsRef<View> + ?Sized),
    ) -> Call<'a, Dispatch<'a>> {
        self.begin(x.as_ref(), None, rows.as_ref())
    }

    fn begin<'a>(
        &'a self,
        x: &'a View,
        indices: Option<&'a View>,
        rows: &'a View,
    ) -> Call<'a, Dispatch<'a>> {
        let mut payloads = [None; PAYLOADS];
        payloads[0] = Some((x, rows));
        let (weights, count, scales) = (None, None, None);
        let what = Dispatch {
            routing: self,
            indices,
            weights,
            count,
            payloads,
            scales,
            has_too_many: false,
            route: Route::Auto,
        };
        Call::new(self.group(), what)
    }
}

impl<'a> Call<'a, Dispatch<'a>> {
    /// `[tokens, choices]` of f32: the weight of each choice, which travels with the rows' origins.
    #[inline]
    pub fn weights(mut self, weights: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.weights = Some(weights.as_ref());
        self
    }

    /// One i64 on the device: how many tokens there are, of the rows of `x`. For graphs, whose launches may
    /// each have another number.
    #[inline]
    pub fn tokens(mut self, count: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.count = Some(count.as_ref());
        self
    }

    /// Rows travel as f8e4m3, a scale for every 128 elements: `rows` is of that type and `scales`, symmetric,
    /// `[capacity, ceil(elements of a row / 128)]` of f32. `x` is of f32, f16 or bf16.
    ///
    /// A block's scale is its largest magnitude divided by 448, or 1 where that is 0; an element is divided
    /// by it in f32 and rounded to nearest even.
    #[inline]
    pub fn quantised(mut self, scales: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.what.scales = Some(scales.as_ref());
        self
    }

    /// How rows travel, instead of what the table says.
    #[inline]
    pub fn route(mut self, route: Route) -> Self {
        self.what.route = route;
        self
    }

    /// Another tensor of the same tokens, which goes the same way in the same call: `source` `[tokens, ...]`,
    /// `target` `[capacity, ...]`, symmetric. Three at most, beside `x`.
    #[inline]
    pub fn payload(
        mut self,
        source: &'a (impl AsRef<View> + ?Sized),
        target: &'a (impl AsRef<View> + ?Sized),
    ) -> Self {
        match self.what.payloads.iter_mut().find(|payload| payload.is_none()) {
            Some(place) => *place = Some((source.as_ref(), target.as_ref())),
            None => self.what.has_too_many = true,
        }
        self
    }
}

/// What every rank must have alike: four words of a call, three of a tensor, three of scales.
type Words = SmallVec<[u64; 4 + 3 * PAYLOADS + 3]>;

const SOURCES: [&str; PAYLOADS] = ["x", "first payload", "second payload", "third payload"];
const TARGETS: [&str; PAYLOADS] =
    ["rows", "first payload's target", "second payload's target", "third payload's target"];

impl<'a> Dispatch<'a> {
    /// What is read and what is written.
    fn tensors(&self) -> (ArrayVec<Named<'a>, 8>, ArrayVec<Named<'a>, 8>) {
        let pairs = self.payloads.iter().flatten().enumerate();
        let (mut read, mut written) = (ArrayVec::new(), ArrayVec::new());
        for (i, (source, target)) in pairs {
            read.push(Named::new(SOURCES[i], source));
            written.push(Named::new(TARGETS[i], target));
        }
        let rest = [("indices", self.indices), ("weights", self.weights), ("tokens", self.count)];
        read.extend(rest.into_iter().filter_map(|(what, view)| Some(Named::new(what, view?))));
        written.extend(self.scales.map(|view| Named::new("scales", view)));
        (read, written)
    }

    /// Rows of the sources.
    fn rows(&self, at: &At<'_>) -> Result<u64, RoutedError> {
        let shape = &self.routing.0.shape;
        let mut rows = None;
        for (i, (source, _)) in self.payloads.iter().flatten().enumerate() {
            let source = Named::new(SOURCES[i], source);
            let (found, row) = source.rows()?;
            source.shaped(*rows.get_or_insert(found), row)?;
        }
        let (found, what) = (rows.unwrap_or(0), SOURCES[0]);
        if found > shape.tokens {
            return Err(TensorMismatch::TooManyRows { what, most: shape.tokens, found }.into());
        }
        match self.indices {
            Some(indices) => {
                let indices = Named::new("indices", indices);
                indices.counts(found.saturating_mul(shape.choices as u64))?;
                indices.of(&[DType::I32, DType::I64], "i32 or i64")?;
            }
            None => {
                let least = self.routing.rows(at)?;
                if found < least {
                    return Err(TensorMismatch::TooFewRows { what, least, found }.into());
                }
            }
        }
        if let Some(weights) = self.weights {
            let weights = Named::new("weights", weights);
            weights.counts(found.saturating_mul(shape.choices as u64))?;
            weights.of(&[DType::F32], "f32")?;
        }
        if let Some(count) = self.count {
            let count = Named::new("tokens", count);
            count.counts(1)?;
            count.of(&[DType::I64], "i64")?;
        }
        Ok(found)
    }

    /// One tensor, with the words that every rank must have alike.
    fn payload(&self, i: usize, at: &At<'_>, words: &mut Words) -> Result<Payload, RoutedError> {
        let Some((source, target)) = self.payloads[i] else {
            return Ok(bytemuck::Zeroable::zeroed());
        };
        let (source, target) = (Named::new(SOURCES[i], source), Named::new(TARGETS[i], target));
        let (capacity, (_, row)) = (self.routing.capacity(), source.rows()?);
        target.shaped(capacity, row)?;
        let size = |tensor: &Named<'_>| tensor.view.dtype().size() as u64;
        let scales = self.scales.filter(|_| i == 0).map(|view| Named::new("scales", view));
        let mapped = target.mapped(at.group)?;
        words.extend([mapped.ordinal, mapped.offset, row * size(&target)]);
        let mut payload = Payload {
            source: source.view.ptr(),
            target: target.view.ptr(),
            peers: mapped.peers,
            offset: mapped.offset,
            source_row: row * size(&source),
            row: row * size(&target),
            dtype: 0,
            reserved: [0; 3],
            scales: DevicePtr::NULL,
            scale_peers: DevicePtr::NULL,
            scale_offset: 0,
            scale_row: 0,
        };
        if let Some(scales) = scales {
            source.of(BlockQuantiser::TYPES, "f32, f16 or bf16")?;
            target.of(&[DType::F8E4M3], "f8e4m3")?;
            scales.of(&[DType::F32], "f32")?;
            let blocks = row.div_ceil(BlockQuantiser::BLOCK as u64);
            scales.shaped(capacity, blocks)?;
            let mapped = scales.mapped(at.group)?;
            payload = Payload {
                dtype: source.view.dtype().code().into(),
                scales: scales.view.ptr(),
                scale_peers: mapped.peers,
                scale_offset: mapped.offset,
                scale_row: 4 * blocks,
                ..payload
            };
            words.extend([mapped.ordinal, mapped.offset, u64::from(payload.dtype)]);
        } else if source.view.dtype() != target.view.dtype() {
            let (input, output) = (source.view.dtype(), target.view.dtype());
            return Err(CallError::DType { input, output }.into());
        }
        Ok(payload)
    }

    /// Whether all tokens are shown to all ranks: a function of what all ranks have alike.
    fn shows(&self, at: &At<'_>) -> Result<bool, RoutedError> {
        let Some(indices) = self.indices.filter(|_| self.route != Route::Direct) else {
            return Ok(false);
        };
        if at.group.device().kind() == BackendKind::Cuda {
            let is_asked = self.route == Route::Gathered;
            return if is_asked { Err(RoutedError::NotGathered) } else { Ok(false) };
        }
        let (shape, world) = (&self.routing.0.shape, at.group.size());
        let mut rows = 0;
        for (i, (source, _)) in self.payloads.iter().flatten().enumerate() {
            let (_, row) = Named::new(SOURCES[i], source).rows()?;
            let bytes = row.saturating_mul(source.dtype().size() as u64);
            rows = shape.tokens.saturating_mul(bytes).saturating_add(rows).saturating_add(16);
        }
        let choices = shape.tokens * shape.choices as u64;
        let needed = 8 * shape.words() as u64 + choices * (4 + indices.dtype().size() as u64) + 16;
        let needed = needed.saturating_add(rows);
        let room = 2 * at.lane.layout().chunk_capacity().get();
        if self.route == Route::Gathered {
            let error = RoutedError::TooLargeToGather { needed, room };
            return if needed > room { Err(error) } else { Ok(true) };
        }
        let most = GATHERED.iter().find(|(ranks, _)| world <= *ranks).map_or(0, |(_, most)| *most);
        Ok(needed <= most.min(room))
    }

    fn plan(&self, at: &At<'_>) -> Result<(DispatchPlan, Signature), RoutedError> {
        let is_plain = self.weights.is_none() && self.count.is_none() && self.route == Route::Auto;
        if self.indices.is_none() && !is_plain {
            return Err(RoutedError::Resend);
        }
        if self.has_too_many {
            return Err(RoutedError::TooManyPayloads { most: PAYLOADS });
        }
        let (read, written) = self.tensors();
        read.iter().chain(&written).try_for_each(|tensor| tensor.check(at.group))?;
        let source_rows = self.rows(at)?;
        let records = self.routing.mapped()?;
        let shows = self.shows(at)?;
        let kind = u64::from(self.indices.is_some()) | u64::from(shows) << 1;
        // Where indices are shown, they are of one type.
        let index = self.indices.filter(|_| shows).map_or(0, |view| view.dtype().size() as u64);
        let has_weights = u64::from(self.weights.is_some());
        let payloads = self.payloads.iter().flatten().count() as u64;
        let quantised = u64::from(self.scales.is_some());
        let kind = kind | has_weights << 2 | quantised << 3 | index << 4 | payloads << 8;
        let mut words: Words = smallvec![at.tag, at.lane.index().into(), records.ordinal, kind];
        let mut payloads = [bytemuck::Zeroable::zeroed(); PAYLOADS];
        for (i, payload) in payloads.iter_mut().enumerate() {
            *payload = self.payload(i, at, &mut words)?;
        }
        apart(&written, &read)?;
        let pointer = |view: Option<&View>| view.map_or(DevicePtr::NULL, View::ptr);
        let inner = &self.routing.0;
        let plan = DispatchPlan {
            routed: self.routing.routed(at),
            payloads,
            indices: pointer(self.indices),
            weights: pointer(self.weights),
            count: pointer(self.count),
            source_rows,
            records: inner.records.view().ptr(),
            record_peers: records.peers,
            record_offset: records.offset,
            record_bytes: inner.record_bytes,
            payload_count: self.payloads.iter().flatten().count() as u32,
            index: self.indices.map_or(0, |indices| indices.dtype().size() as u32),
            drop: (inner.overflow == Overflow::Drop).into(),
            shows: shows.into(),
        };
        let dtype = self.payloads[0].map(|(x, _)| x.dtype());
        Ok((plan, Signature::new(Operation::Dispatch, dtype, None, &words)))
    }
}

impl Exchange for Dispatch<'_> {
    type Error = RoutedError;

    #[allow(unsafe_code, reason = "launches a kernel")]
    fn launch(&self, at: &At<'_>) -> Result<(), RoutedError> {
        at.check_stream()?;
        self.routing.check_lane(at)?;
        let (plan, signature) = self.plan(at)?;
        let keep = || -> Vec<KeepAlive> {
            let (read, written) = self.tensors();
            let mut views: Vec<_> = read.iter().chain(&written).map(|t| t.view).collect();
            views.push(self.routing.0.records.view());
            let mut kept = keep(at, &views);
            kept.push(self.routing.keep_alive());
            kept
        };
        let dispatched = || {
            if self.indices.is_some() {
                self.routing.dispatched(at, plan.source_rows);
            }
        };
        #[cfg(feature = "cuda")]
        if let Kernels::Gpu(kernels) = &at.kept.kernels {
            gpu::dispatch(&gpu::Calling { kernels, at, signature }, &plan, keep)?;
            dispatched();
            return Ok(());
        }
        let operation = Operation::Dispatch;
        let function = at.kept.kernels.function(operation)?;
        let (stream, wait) = (at.stream, at.wait);
        let issue = Issue { stream, wait, function, operation, signature };
        // SAFETY: the kernel takes an OnHost<DispatchPlan>. Its addresses are of the caller's views and of
        // the routing's own, of as many bytes as it says, which `keep` holds for a queued or captured launch
        // and this call for any other, with the mappings of peers' memory and the status record.
        unsafe { at.lane.issue(issue, |lane| OnHost { lane, plan }, keep) }
            .map_err(failed::<RoutedError>)?;
        dispatched();
        Ok(())
    }
}
