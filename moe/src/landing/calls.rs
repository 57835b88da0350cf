//! The four halves as calls, and what they give.

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use arrayvec::ArrayVec;
use smallvec::SmallVec;
use symmem_collectives::CallError;
use symmem_hal::types::DType;
use symmem_hal::{Capture, DevicePtr, KeepAlive, Stream, Wait};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{Group, Tensor, View, ViewError};
use symmem_sync::{Issue, Lane};

use super::plan::{Arrival, ReceiveBackPlan, ReceivePlan, SendBackPlan, SendPlan};
use super::{HalfError, Landing, Live, Slot};
use crate::call::{At, Call, Exchange, Told, failed};
#[cfg(feature = "cuda")]
use crate::gpu;
#[cfg(feature = "cuda")]
use crate::kept::Kernels;
use crate::routing::plan::{CombinePlan, OnHost, Payload, Routed};
use crate::routing::{Chosen, Origin, chosen, origins, routed};
use crate::tensors::{Named, TensorMismatch, apart};
use crate::verdict::Refusal;

impl Landing {
    /// The send half of a dispatch: each token's row goes to every rank that has an expert of its choice, once.
    ///
    /// `x` `[tokens, ...]` of the landing's row and type; `indices` `[tokens, choices]` of i32 or i64: experts,
    /// or -1 for none. `x` may be overwritten once the half has completed.
    pub fn send<'a>(
        &'a self,
        x: &'a (impl AsRef<View> + ?Sized),
        indices: &'a (impl AsRef<View> + ?Sized),
    ) -> SendCall<'a> {
        let (x, indices) = (x.as_ref(), indices.as_ref());
        let what = Send { landing: self, slot: 0, x, indices, weights: None, count: None };
        SendCall { call: Call::new(self.group(), what) }
    }
}

/// A send half about to be issued. Collective, as any [`Call`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing happens before on(), run() or capture()"]
pub struct SendCall<'a> {
    call: Call<'a, Send<'a>>,
}

/// What a send half reads.
#[derive(Clone, Copy, Debug)]
struct Send<'a> {
    landing: &'a Landing,
    slot: usize,
    x: &'a View,
    indices: &'a View,
    weights: Option<&'a View>,
    count: Option<&'a View>,
}

impl<'a> SendCall<'a> {
    /// `[tokens, choices]` of f32: the weight of each choice, which travels with the rows.
    pub fn weights(mut self, weights: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.call.what.weights = Some(weights.as_ref());
        self
    }

    /// One i64 on the device: how many tokens there are, of the rows of `x`.
    pub fn tokens(mut self, count: &'a (impl AsRef<View> + ?Sized)) -> Self {
        self.call.what.count = Some(count.as_ref());
        self
    }

    /// The lane it runs on, as do the halves that follow it, instead of the group's default lane.
    pub fn lane(self, lane: Lane<'a>) -> Self {
        SendCall { call: self.call.lane(lane) }
    }

    /// A number of the caller's that must be equal on every rank.
    pub fn tag(self, tag: u64) -> Self {
        SendCall { call: self.call.tag(tag) }
    }

    /// The bound on its waits, instead of the group's.
    pub fn wait(self, wait: &'a Wait) -> Self {
        SendCall { call: self.call.wait(wait) }
    }

    /// Issues it on the group's own stream and waits for it.
    ///
    /// # Errors
    ///
    /// [`HalfError`]; all but a failure of the group are found before anything is sent.
    pub fn run(self) -> Result<Sent<'a>, HalfError> {
        self.begin(false, |call| call.run_telling(Told::Own))
    }

    /// Issues it on a stream.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`HalfError::Capture`] on a stream that captures.
    pub fn on(self, stream: &Stream) -> Result<Sent<'a>, HalfError> {
        if stream.capture() != Capture::None {
            return Err(HalfError::Capture { capturing: true });
        }
        self.begin(false, |call| call.on_telling(stream, Told::Own))
    }

    /// Captures it: each launch of the graph sends into the same landing, which belongs to what this returns
    /// and is no other send's as long as that lives.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`HalfError::Capture`] on a stream that does not capture.
    pub fn capture(self, stream: &Stream) -> Result<Captured<'a>, HalfError> {
        if stream.capture() == Capture::None {
            return Err(HalfError::Capture { capturing: false });
        }
        Ok(Captured(self.begin(true, |call| call.on_telling(stream, Told::Own))?))
    }

    fn begin(
        self,
        is_captured: bool,
        issue: impl FnOnce(Call<'a, Send<'a>>) -> Result<(), HalfError>,
    ) -> Result<Sent<'a>, HalfError> {
        let landing = self.call.what.landing;
        let live = landing.take(is_captured)?;
        let mut call = self.call;
        call.what.slot = live.index;
        if let Err(error) = issue(call) {
            landing.give_back(&live);
            return Err(error);
        }
        let rows = call.what.x.layout().shape().first().copied().unwrap_or(0);
        Ok(Sent { result: InUse { live, landing, rows }, call: call.with(()) })
    }
}

/// A send half that has been issued, whose receive half is still to come.
#[derive(Debug)]
#[must_use = "what was sent is there after receive()"]
pub struct Sent<'a> {
    result: InUse<'a>,
    call: Call<'a, ()>,
}

/// As [`Sent`], in a capture.
#[derive(Debug)]
#[must_use = "what is sent at each launch is there after receive()"]
pub struct Captured<'a>(Sent<'a>);

/// A landing in use.
#[derive(Debug)]
struct InUse<'a> {
    live: Arc<Live>,
    landing: &'a Landing,
    /// Rows of what was sent.
    rows: u64,
}

impl<'a> Sent<'a> {
    /// The receive half, on the group's own stream: waits until all that was sent to this rank is there.
    ///
    /// # Errors
    ///
    /// [`HalfError`]. After a refusal nothing has been received.
    pub fn receive(self) -> Result<Received<'a>, HalfError> {
        self.half().run_telling(Told::Own)?;
        // Of a queued half, too, this one's own verdict: every rank has the same arrivals.
        let verdict = self.result.landing.verdict(self.result.live.index);
        if verdict.is_err() {
            self.call.forget_verdict()?;
        }
        verdict?;
        Ok(Received { result: self.result, call: self.call })
    }

    /// The receive half, on a stream. Where that is not inline, [`Moe::verdict`](crate::Moe::verdict) says
    /// whether it was refused: then nothing has been received, on any rank.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive); [`HalfError::Capture`] on a stream that captures.
    pub fn receive_on(self, stream: &Stream) -> Result<Received<'a>, HalfError> {
        self.half().on_telling(stream, Told::Own)?;
        Ok(Received { result: self.result, call: self.call })
    }

    fn half(&self) -> Call<'a, Receive<'a>> {
        let InUse { live, landing, .. } = &self.result;
        let (slot, captured) = (live.index, live.is_captured);
        self.call.with(Receive { landing, slot, captured })
    }
}

impl<'a> Captured<'a> {
    /// The receive half, captured as well.
    ///
    /// # Errors
    ///
    /// As [`Sent::receive`]; [`HalfError::Capture`] on a stream that does not capture.
    pub fn receive_on(self, stream: &Stream) -> Result<CapturedResult<'a>, HalfError> {
        Ok(CapturedResult(self.0.receive_on(stream)?))
    }
}

/// What the last launch of a graph has received. Its landing is the graph's, as long as that lives or this:
/// no other send has it.
#[derive(Debug)]
pub struct CapturedResult<'a>(Received<'a>);

impl<'a> Deref for CapturedResult<'a> {
    type Target = Received<'a>;

    fn deref(&self) -> &Received<'a> {
        &self.0
    }
}

/// What has been received: a landing, as long as this lives.
///
/// To be dropped when the work that reads it has been enqueued on the stream of the next send but one, or is
/// done.
#[derive(Debug)]
pub struct Received<'a> {
    result: InUse<'a>,
    call: Call<'a, ()>,
}

impl Received<'_> {
    fn slot(&self) -> &Slot {
        self.result.landing.slot(self.result.live.index)
    }

    /// `[capacity, row]`: rows by source rank, each of which has room for as many as it may have tokens.
    #[must_use]
    pub fn rows(&self) -> &View {
        self.slot().rows.view()
    }

    /// `[capacity, ceil(row / 128)]` of f32, where rows are quantised.
    #[must_use]
    pub fn scales(&self) -> Option<&View> {
        self.slot().scales.as_ref().map(|scales| scales.view())
    }

    /// `[2, ranks]` of i64 on the device: rows from each source, then where those begin.
    #[must_use]
    pub fn groups(&self) -> &Tensor<i64> {
        &self.slot().groups
    }

    /// Where each row came from; as [`Routing::origins`](crate::Routing::origins).
    ///
    /// # Errors
    ///
    /// [`ViewError`] where the device refuses to copy.
    pub fn origins(&self) -> Result<Vec<Origin>, ViewError> {
        let landing = &self.result.landing.0;
        origins(
            &landing.group,
            self.slot().records.view(),
            landing.record_bytes,
            &self.slot().groups,
        )
    }

    /// Which of this rank's experts each choice of each row's token is, with its weight; as
    /// [`Routing::chosen`](crate::Routing::chosen).
    ///
    /// # Errors
    ///
    /// [`ViewError`] where the device refuses to copy.
    pub fn chosen(&self) -> Result<Vec<Vec<Chosen>>, ViewError> {
        let landing = &self.result.landing.0;
        let origins = self.origins()?;
        chosen(&landing.shape, self.slot().records.view(), landing.record_bytes, &origins)
    }

    /// The send half of a combine: `rows` `[capacity, row]` of the landing's type, what this rank has made of each
    /// row that it received, at its place; each goes back to its token's rank. `rows` may be overwritten once
    /// the half has completed.
    pub fn send_back<'b>(
        &'b self,
        rows: &'b (impl AsRef<View> + ?Sized),
    ) -> Call<'b, SendBack<'b>> {
        let result = &self.result;
        let (landing, slot, captured) =
            (result.landing, result.live.index, result.live.is_captured);
        self.call.with(SendBack { landing, slot, captured, rows: rows.as_ref() })
    }

    /// The receive half of a combine: each token of this rank's send gets the sum of the rows that have come
    /// back for it, in rank order; a token that went nowhere gets zeros.
    ///
    /// `output` `[tokens, row]` of the landing's type, with at least as many rows as were sent; those past the
    /// tokens stay as they are. On the lane of the send half, after it.
    pub fn receive_back<'b>(
        &'b self,
        output: &'b (impl AsRef<View> + ?Sized),
    ) -> Call<'b, ReceiveBack<'b>> {
        let result = &self.result;
        let (landing, slot, captured) =
            (result.landing, result.live.index, result.live.is_captured);
        let (sent, output) = (result.rows, output.as_ref());
        self.call.with(ReceiveBack { landing, slot, captured, sent, output })
    }
}

/// What a receive half is of.
#[derive(Clone, Copy, Debug)]
struct Receive<'a> {
    landing: &'a Landing,
    slot: usize,
    captured: bool,
}

/// See [`Received::send_back`].
#[derive(Clone, Copy, Debug)]
pub struct SendBack<'a> {
    landing: &'a Landing,
    slot: usize,
    captured: bool,
    rows: &'a View,
}

/// See [`Received::receive_back`].
#[derive(Clone, Copy, Debug)]
pub struct ReceiveBack<'a> {
    landing: &'a Landing,
    slot: usize,
    captured: bool,
    sent: u64,
    output: &'a View,
}

impl Landing {
    /// What the receive half of a landing found, by what has arrived there.
    fn verdict(&self, slot: usize) -> Result<(), HalfError> {
        let arrivals = self.slot(slot).arrivals.view();
        let mut words: SmallVec<[u64; 64]> = SmallVec::from_elem(0, arrivals.count() as usize);
        arrivals.read(&mut words).map_err(CallError::from)?;
        let arrivals: &[Arrival] = bytemuck::cast_slice(&words);
        let wrong = arrivals.iter().position(|arrival| arrival.finding.what != 0);
        let Some(rank) = wrong else { return Ok(()) };
        Ok(Refusal::told(self.group(), rank as u64 + 1, arrivals[rank].finding)?)
    }

    fn routed(&self, at: &At<'_>, slot: usize) -> Routed {
        let slot = self.slot(slot);
        let [places, groups, tokens] = [slot.places.ptr(), slot.groups.ptr(), slot.tokens.ptr()];
        routed(at, &self.0.shape, [places, groups, tokens, DevicePtr::NULL])
    }

    fn mapped(&self, group: &Group, view: &View) -> Result<crate::tensors::Mapped, TensorMismatch> {
        Named::new("landing", view).mapped(group)
    }

    /// A tensor of the caller's with rows of the landing's shape and type. How many.
    fn rows_of(&self, at: &At<'_>, tensor: Named<'_>) -> Result<u64, HalfError> {
        tensor.check(at.group)?;
        let (rows, _) = tensor.rows()?;
        tensor.shaped(rows, self.0.row)?;
        let (input, output) = (tensor.view.dtype(), self.0.dtype);
        if input == output { Ok(rows) } else { Err(CallError::DType { input, output }.into()) }
    }

    /// Launches the kernel of a half.
    #[allow(unsafe_code, reason = "launches a kernel")]
    fn launch<P: bytemuck::Pod + fmt::Debug>(
        &self,
        at: &At<'_>,
        operation: Operation,
        slot: usize,
        plan: P,
        views: &[&View],
    ) -> Result<(), HalfError> {
        self.check_lane(at.lane.index())?;
        let records = self.mapped(at.group, self.slot(slot).records.view())?;
        let words = [at.tag, at.lane.index().into(), records.ordinal];
        let signature = Signature::new(operation, Some(self.0.dtype), None, &words);
        let keep = || -> Vec<KeepAlive> {
            let mut kept = crate::routing::keep(at, views);
            kept.push(self.keep_alive());
            if at.stream.capture() != Capture::None {
                kept.extend(self.live(slot).map(|live| live as KeepAlive));
            }
            kept
        };
        #[cfg(feature = "cuda")]
        if let Kernels::Gpu(kernels) = &at.kept.kernels {
            let (shape, row) = (&self.0.shape, self.0.row * self.0.dtype.size() as u64);
            let call = gpu::Calling { kernels, at, signature };
            return gpu::half(&call, operation, shape, row, plan, keep);
        }
        let function = at.kept.kernels.function(operation)?;
        let issue = Issue { stream: at.stream, wait: at.wait, function, operation, signature };
        // SAFETY: the kernel of the operation takes an OnHost of this plan. Its addresses are of the caller's
        // views and of the landing's own, of as many bytes as it says, which `keep` holds for a queued or
        // captured launch and this call for any other, with the mappings of peers' memory, which the landing
        // holds, and the status record.
        unsafe { at.lane.issue(issue, |lane| OnHost { lane, plan }, keep) }.map_err(failed)
    }
}

/// That a half is in a capture if the send half was, and only then.
fn same_capture(at: &At<'_>, captured: bool) -> Result<(), HalfError> {
    let capturing = at.stream.capture() != Capture::None;
    if capturing == captured { Ok(()) } else { Err(HalfError::Capture { capturing }) }
}

impl Exchange for Send<'_> {
    type Error = HalfError;

    fn launch(&self, at: &At<'_>) -> Result<(), HalfError> {
        at.check_stream()?;
        let (landing, inner) = (self.landing, &*self.landing.0);
        let (shape, slot) = (&inner.shape, landing.slot(self.slot));
        let x = Named::new("x", self.x);
        let rows = landing.rows_of(at, x)?;
        if rows > shape.tokens {
            let wrong = TensorMismatch::TooManyRows { what: "x", most: shape.tokens, found: rows };
            return Err(wrong.into());
        }
        let indices = Named::new("indices", self.indices);
        let weights = self.weights.map(|view| Named::new("weights", view));
        let count = self.count.map(|view| Named::new("tokens", view));
        for (tensor, types, names, elements) in [
            (
                Some(indices),
                &[DType::I32, DType::I64][..],
                "i32 or i64",
                rows * shape.choices as u64,
            ),
            (weights, &[DType::F32], "f32", rows * shape.choices as u64),
            (count, &[DType::I64], "i64", 1),
        ] {
            let Some(tensor) = tensor else { continue };
            tensor.check(at.group)?;
            tensor.counts(elements)?;
            tensor.of(types, names)?;
        }
        let read: ArrayVec<_, 4> =
            [Some(x), Some(indices), weights, count].into_iter().flatten().collect();
        let of_peers =
            [Some(&slot.rows), slot.scales.as_ref(), Some(&slot.records), Some(&slot.arrivals)];
        let written: ArrayVec<_, 4> =
            of_peers.into_iter().flatten().map(|m| Named::new("landing", m.view())).collect();
        apart(&written, &read)?;
        let sent = landing.mapped(at.group, slot.rows.view())?;
        let scales = match &slot.scales {
            Some(scales) => Some((landing.mapped(at.group, scales.view())?, scales.view())),
            None => None,
        };
        let records = landing.mapped(at.group, slot.records.view())?;
        let arrivals = landing.mapped(at.group, slot.arrivals.view())?;
        let size = |view: &View| view.dtype().size() as u64;
        let dtype = if inner.quantised { inner.dtype.code().into() } else { 0 };
        let payload = Payload {
            source: self.x.ptr(),
            target: slot.rows.view().ptr(),
            peers: sent.peers,
            offset: sent.offset,
            source_row: inner.row * size(self.x),
            row: inner.row * size(slot.rows.view()),
            dtype,
            reserved: [0; 3],
            scales: scales.map_or(DevicePtr::NULL, |(_, view)| view.ptr()),
            scale_peers: scales.map_or(DevicePtr::NULL, |(mapped, _)| mapped.peers),
            scale_offset: scales.map_or(0, |(mapped, _)| mapped.offset),
            scale_row: scales.map_or(0, |(_, view)| 4 * view.layout().shape()[1]),
        };
        let pointer = |view: Option<&View>| view.map_or(DevicePtr::NULL, View::ptr);
        let plan = SendPlan {
            routed: landing.routed(at, self.slot),
            payload,
            indices: self.indices.ptr(),
            weights: pointer(self.weights),
            count: pointer(self.count),
            source_rows: rows,
            record_peers: records.peers,
            record_offset: records.offset,
            record_bytes: inner.record_bytes,
            arrival_peers: arrivals.peers,
            arrival_offset: arrivals.offset,
            index: size(self.indices) as u32,
            reserved: 0,
        };
        let views: ArrayVec<_, 4> = read.iter().map(|tensor| tensor.view).collect();
        landing.launch(at, Operation::DispatchSend, self.slot, plan, &views)
    }
}

impl Exchange for Receive<'_> {
    type Error = HalfError;

    fn launch(&self, at: &At<'_>) -> Result<(), HalfError> {
        at.check_stream()?;
        same_capture(at, self.captured)?;
        let arrivals = self.landing.slot(self.slot).arrivals.view().ptr();
        let plan =
            ReceivePlan { routed: self.landing.routed(at, self.slot), arrivals, reserved: 0 };
        self.landing.launch(at, Operation::DispatchReceive, self.slot, plan, &[])
    }
}

impl Exchange for SendBack<'_> {
    type Error = HalfError;

    fn launch(&self, at: &At<'_>) -> Result<(), HalfError> {
        at.check_stream()?;
        same_capture(at, self.captured)?;
        let landing = self.landing;
        let rows = Named::new("rows", self.rows);
        landing.rows_of(at, rows)?;
        rows.shaped(landing.capacity(), landing.0.row)?;
        let back = landing.slot(self.slot).back.view();
        apart(&[Named::new("landing", back)], &[rows])?;
        let mapped = landing.mapped(at.group, back)?;
        let plan = SendBackPlan {
            routed: landing.routed(at, self.slot),
            rows: self.rows.ptr(),
            row: landing.0.row * landing.0.dtype.size() as u64,
            peers: mapped.peers,
            offset: mapped.offset,
        };
        landing.launch(at, Operation::CombineSend, self.slot, plan, &[self.rows])
    }
}

impl Exchange for ReceiveBack<'_> {
    type Error = HalfError;

    fn launch(&self, at: &At<'_>) -> Result<(), HalfError> {
        at.check_stream()?;
        same_capture(at, self.captured)?;
        let landing = self.landing;
        let output = Named::new("output", self.output);
        let found = landing.rows_of(at, output)?;
        if found < self.sent {
            let least = self.sent;
            return Err(TensorMismatch::TooFewRows { what: "output", least, found }.into());
        }
        let back = landing.slot(self.slot).back.view();
        apart(&[output], &[Named::new("landing", back)])?;
        let combine = CombinePlan {
            routed: landing.routed(at, self.slot),
            peers: DevicePtr::NULL,
            offset: 0,
            count: landing.0.row,
            output: self.output.ptr(),
            output_rows: found,
            weights: DevicePtr::NULL,
            dtype: landing.0.dtype.code().into(),
            reserved: [0; 3],
        };
        let plan = ReceiveBackPlan { combine, rows: back.ptr(), reserved: 0 };
        landing.launch(at, Operation::CombineReceive, self.slot, plan, &[self.output])
    }
}
