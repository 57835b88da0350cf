//! What every call of this layer shares.

use core::fmt;

use symmem_collectives::{CallError, Refused, Site};
use symmem_hal::{DevicePtr, Fault, Stream, Wait};
use symmem_mem::{Failure, Group};
use symmem_sync::Lane;

use crate::kept::Kept;
use crate::verdict::{OwnRecord, Refusal};

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
    /// Where the kernel says what became of the call.
    pub(crate) status: DevicePtr,
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

    /// What became of calls on the lane that were queued is known.
    pub(crate) fn forget_verdict(&self) -> Result<(), CallError> {
        let (group, lane) = (self.site.group, self.site.lane()?);
        let _known = Kept::of(group)?.status.take(group, lane.index());
        Ok(())
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
        self.run_telling(Told::All)
    }

    /// Issues it on a stream. On an inline stream it has happened at return; on another,
    /// [`Stream::synchronize`] waits for it and reports how the group is, and
    /// [`Moe::verdict`](crate::Moe::verdict) or the next call on the lane whether it was refused.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn on(self, stream: &Stream) -> Result<(), O::Error> {
        self.on_telling(stream, Told::All)
    }

    pub(crate) fn run_telling(self, told: Told) -> Result<(), O::Error> {
        let issue = |lane: &Lane<'_>, stream: &Stream, wait: &Wait| {
            self.issue(lane, stream, wait, Told::Own)
        };
        self.site.run(issue, failed)?;
        self.tell(told)
    }

    pub(crate) fn on_telling(self, stream: &Stream, told: Told) -> Result<(), O::Error> {
        self.site.on(stream, |lane, stream, wait| self.issue(lane, stream, wait, told))
    }

    fn issue(
        &self,
        lane: &Lane<'_>,
        stream: &Stream,
        wait: &Wait,
        told: Told,
    ) -> Result<(), O::Error> {
        let Site { group, tag, .. } = self.site;
        let kept = Kept::of(group)?;
        let launch =
            |status| self.what.launch(&At { group, kept, lane, stream, wait, tag, status });
        if stream.is_immediate() {
            // It is over at return: what became of it is its own, whoever else calls meanwhile.
            let own = OwnRecord::default();
            launch(own.address())?;
            kept.status.add_dropped(lane.index(), own.dropped());
            return Ok(own.verdict(group)?);
        }
        launch(kept.status.record(lane.index()))?;
        // Told after this call is issued: else a rank that has noticed would leave those alone in it that
        // have not.
        self.tell(told)
    }

    /// What became of calls on the lane that were queued.
    fn tell(&self, told: Told) -> Result<(), O::Error> {
        match told {
            Told::Own => Ok(()),
            Told::All => {
                let (group, lane) = (self.site.group, self.site.lane()?);
                Ok(Kept::of(group)?.status.take(group, lane.index())?)
            }
        }
    }
}

/// Of which refusals a call tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Its own, if it is over at return: of a call that gives something, which every rank must get or none.
    Own,
    /// Those of calls before it on the lane as well.
    All,
}

/// A failure of the group as the operation's error of that name, all else as a call's.
pub(crate) fn failed<E: From<CallError> + From<Failure>>(error: impl Into<Refused>) -> E {
    match error.into() {
        Refused::Failed(e) => e.into(),
        Refused::Call(e) => e.into(),
    }
}
