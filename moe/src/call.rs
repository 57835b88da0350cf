//! What every call of this layer shares.

use core::fmt;

use symmem_collectives::{CallError, Refused, Site};
use symmem_hal::{Fault, Stream, Wait};
use symmem_mem::{Failure, Group};
use symmem_sync::Lane;

use crate::kept::Kept;
use crate::verdict::Refusal;

/// An operation about to be issued.
///
/// Collective: every rank of the group must issue the same (operation; row, splits, layout, policy, or shapes,
/// type, operator, roots; tag), in the same order among its operations on the lane. What differs is a [`Failure::CallMismatch`] on both
/// sides. What the splits on the device say may differ and must fit: if it does not, every rank is told the
/// same [`Refusal`], nothing has moved, and the group goes on.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing happens before run() or on()"]
pub struct Call<'a, O> {
    site: Site<'a>,
    pub(crate) what: O,
}

/// What a [`Call`] calls. Sealed: the operations of this crate implement it.
pub trait Exchange: Copy + fmt::Debug {
    /// Why a call did not happen, or did not end well.
    type Error: Fault + From<CallError> + From<Failure> + From<Refusal>;

    /// Checks shapes, and launches.
    #[doc(hidden)]
    fn launch(&self, at: &At<'_>) -> Result<(), Self::Error>;
}

/// Where one call is launched.
#[doc(hidden)]
#[derive(Debug)]
pub struct At<'a> {
    pub(crate) group: &'a Group,
    pub(crate) kept: &'a Kept,
    pub(crate) lane: &'a Lane<'a>,
    pub(crate) stream: &'a Stream,
    pub(crate) wait: &'a Wait,
    pub(crate) tag: u64,
}

impl At<'_> {
    /// That the stream is where the group is.
    pub(crate) fn check_stream(&self) -> Result<(), CallError> {
        let (group, found) = (self.group.device().kind(), self.stream.backend());
        if group == found {
            return Ok(());
        }
        Err(CallError::Backend { what: "stream", group, found })
    }
}

impl<'a, O> Call<'a, O> {
    pub(crate) fn new(group: &'a Group, what: O) -> Self {
        Call { site: Site::new(group), what }
    }

    /// Another call with the same lane, tag and bound.
    pub(crate) fn with<P>(&self, what: P) -> Call<'a, P> {
        Call { site: self.site, what }
    }

    /// The lane that it will run on.
    pub(crate) fn lane_index(&self) -> u32 {
        self.site.lane.map_or(0, |lane| lane.index())
    }

    /// The lane it runs on, instead of the group's default lane.
    #[inline]
    pub fn lane(self, lane: Lane<'a>) -> Self {
        Call { site: Site { lane: Some(lane), ..self.site }, ..self }
    }

    /// A number of the caller's that must be equal on every rank: a layer's index, say.
    #[inline]
    pub fn tag(self, tag: u64) -> Self {
        Call { site: Site { tag, ..self.site }, ..self }
    }

    /// The bound on its waits, instead of the group's.
    #[inline]
    pub fn wait(self, wait: &'a Wait) -> Self {
        Call { site: Site { wait: Some(wait), ..self.site }, ..self }
    }
}

impl<O: Exchange> Call<'_, O> {
    /// Issues it on the group's own stream and waits for it: it has happened at return.
    ///
    /// # Errors
    ///
    /// The operation's own. A [`Refusal`] is of this call, or of one before it on this lane that was issued
    /// on a stream and whose verdict nobody has asked for since; this call has been issued all the same.
    pub fn run(self) -> Result<(), O::Error> {
        let Site { group, .. } = self.site;
        self.site.run(|lane, stream, wait| self.issue(lane, stream, wait), failed)?;
        let lane = self.site.lane()?;
        Ok(Kept::of(group)?.status.take(group, lane.index())?)
    }

    /// Issues it on a stream. On an inline stream it has happened at return; on another,
    /// [`Stream::synchronize`] waits for it and reports how the group is, and
    /// [`Moe::verdict`](crate::Moe::verdict) or the next call on the lane whether it was refused.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn on(self, stream: &Stream) -> Result<(), O::Error> {
        self.site.on(stream, |lane, stream, wait| self.issue(lane, stream, wait))?;
        if !stream.is_inline() {
            return Ok(());
        }
        let Site { group, .. } = self.site;
        Ok(Kept::of(group)?.status.take(group, self.site.lane()?.index())?)
    }

    fn issue(&self, lane: &Lane<'_>, stream: &Stream, wait: &Wait) -> Result<(), O::Error> {
        let Site { group, tag, .. } = self.site;
        let kept = Kept::of(group)?;
        self.what.launch(&At { group, kept, lane, stream, wait, tag })?;
        // Told after this call is issued: else a rank that has noticed would leave those alone in it that
        // have not.
        Ok(kept.status.take(group, lane.index())?)
    }
}

/// A failure of the group as the operation's error of that name, all else as a call's.
pub(crate) fn failed<E: From<CallError> + From<Failure>>(error: impl Into<Refused>) -> E {
    match error.into() {
        Refused::Failed(e) => e.into(),
        Refused::Call(e) => e.into(),
    }
}
