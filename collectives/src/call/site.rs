//! Where a call is issued: what every call of this layer and of those above is told in the same way.

use symmem_hal::{Stream, Wait};
use symmem_mem::Group;
use symmem_sync::{Lane, LaneError, Lanes as _};

use super::CallError;

/// Group, lane, tag and bound of a call. For the layers above, which have calls of their own.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Whose ranks it is a call of.
    pub group: &'a Group,
    /// The lane, if it is not the default one.
    pub lane: Option<Lane<'a>>,
    /// A number of the caller's that is equal on every rank.
    pub tag: u64,
    /// The bound on waits, if it is not the group's.
    pub wait: Option<&'a Wait>,
}

impl<'a> Site<'a> {
    /// The group's default lane and bound.
    #[must_use]
    pub fn new(group: &'a Group) -> Self {
        Site { group, lane: None, tag: 0, wait: None }
    }

    /// The lane that it runs on.
    ///
    /// # Errors
    ///
    /// [`CallError::Lane`] for a lane of another group.
    pub fn lane(&self) -> Result<Lane<'a>, CallError> {
        let default = self.group.lane()?;
        match self.lane {
            None => Ok(default),
            // Lanes of one group share one layout.
            Some(lane) if core::ptr::eq(lane.layout(), default.layout()) => Ok(lane),
            Some(_) => Err(CallError::Lane),
        }
    }

    /// Issues on the group's own stream, and waits until it has happened.
    ///
    /// # Errors
    ///
    /// What `issue` returns, or what `failed` makes of how the wait ended.
    pub fn run<E: From<CallError>>(
        &self,
        issue: impl FnOnce(&Lane<'a>, &Stream, &Wait) -> Result<(), E>,
        failed: impl FnOnce(LaneError) -> E,
    ) -> Result<(), E> {
        let lane = self.lane()?;
        let default = self.group.wait();
        let wait = self.wait.unwrap_or(&default);
        issue(&lane, lane.default_stream(), wait)?;
        lane.settle(lane.default_stream(), wait).map_err(failed)
    }

    /// Issues on a stream.
    ///
    /// # Errors
    ///
    /// What `issue` returns.
    pub fn on<E: From<CallError>>(
        &self,
        stream: &Stream,
        issue: impl FnOnce(&Lane<'a>, &Stream, &Wait) -> Result<(), E>,
    ) -> Result<(), E> {
        let default = self.group.wait();
        issue(&self.lane()?, stream, self.wait.unwrap_or(&default))
    }
}
