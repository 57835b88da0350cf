//! Operations that are more than one piece of work on a GPU's stream.
#![allow(unsafe_code, reason = "launches kernels")]

use symmem_hal::types::Bytes;
use symmem_hal::{DevicePtr, Function, Grid, KeepAlive, Launch, Launched, Stream, Wait};
use symmem_mem::Failure;

use super::{Issue, Lane, LaneError};
use crate::gpu::{Called, SymmemLane};
use crate::shared::Executor;

/// What an operation enqueues within its turn, one after the other.
pub struct Steps<'a> {
    stream: &'a Stream,
    wait: &'a Wait,
    keep: &'a dyn Fn() -> Vec<KeepAlive>,
    launched: Option<Launched>,
}

impl core::fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Steps").field("launched", &self.launched).finish_non_exhaustive()
    }
}

impl Steps<'_> {
    /// A kernel, which may take part in the lane's protocol.
    ///
    /// # Errors
    ///
    /// [`LaneError::Stream`].
    ///
    /// # Safety
    ///
    /// The function takes an `A`, whose addresses are valid as [`Lane::issue_steps`] says.
    pub unsafe fn launch<A: bytemuck::NoUninit>(
        &mut self,
        function: Function,
        grid: Grid,
        args: &A,
    ) -> Result<(), LaneError> {
        let launch = Launch::keeping(function, args, self.wait, self.keep).grid(grid);
        // SAFETY: the caller's promise.
        self.launched = Some(unsafe { self.stream.launch(launch) }?);
        Ok(())
    }

    /// Copies `(to, from, bytes)`, by the device's copy engines where they can: in no order among
    /// themselves.
    ///
    /// # Errors
    ///
    /// [`LaneError::Stream`].
    ///
    /// # Safety
    ///
    /// All ranges are memory of this device or mapped by it, valid as [`Lane::issue_steps`] says; none
    /// that is written overlaps another.
    pub unsafe fn copy(
        &mut self,
        copies: &[(DevicePtr, DevicePtr, Bytes)],
    ) -> Result<(), LaneError> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.copy_batch(copies, self.keep) }?;
        Ok(())
    }
}

impl Lane<'_> {
    /// As [`issue_device`](Self::issue_device), of an operation of several kernels and copies: `steps`
    /// enqueues them, given the lane's part of the kernels' arguments. The first kernel reads the
    /// lane's epoch and the last one advances it. The issue's function is for `steps` to launch.
    ///
    /// # Errors
    ///
    /// As [`issue`](Self::issue). Where `steps` fails after a kernel was launched, the group has failed.
    ///
    /// # Safety
    ///
    /// What `steps` launches and copies is right, and valid until this returns and, in addition, as
    /// long as what `keep` returns lives.
    pub unsafe fn issue_steps(
        &self,
        issue: Issue<'_>,
        steps: impl FnOnce(&SymmemLane, &mut Steps<'_>) -> Result<(), LaneError>,
        keep: impl Fn() -> Vec<KeepAlive>,
    ) -> Result<(), LaneError> {
        let Executor::Gpu(gpu) = &self.shared.executor else { return Err(self.other_backend()) };
        let turn = self.enter(&issue)?;
        let ends = gpu.ends(issue.stream, issue.wait, turn.place.is_some())?;
        let args = gpu.lane_args(
            self.index,
            &Called {
                signature: turn.signature(&issue).0,
                issue: turn.count,
                runs: turn.runs(),
                operation: issue.operation as u32,
                ends: &ends,
            },
        );
        let counts = turn.place.as_ref().map(|place| place.keep.clone());
        let keep = || {
            let mut kept = keep();
            kept.push(self.shared.clone());
            kept.extend(counts.iter().cloned());
            kept.extend(ends.keep());
            kept
        };
        let Issue { stream, wait, .. } = issue;
        let mut enqueued = Steps { stream, wait, keep: &keep, launched: None };
        let result = steps(&args, &mut enqueued);
        let Some(launched) = enqueued.launched else { return result };
        self.launched(turn, &issue, launched)?;
        result.map_err(|error| {
            // The lane's epoch is in the middle of an operation that nothing will end.
            let failure = Failure::Device(format!("an operation was enqueued in part: {error}"));
            self.shared.status.fail(failure).clone().into()
        })
    }
}
