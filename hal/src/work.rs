//! One launch, copied: what a queue runs later, and a graph again and again.
#![allow(unsafe_code, reason = "calls kernels, which take an untyped argument block")]

use crate::Wait;
use crate::health::SyncError;
use crate::module::{Kernel, LaunchContext, Space};
use crate::stream::{KeepAlive, Launch};

/// An argument block with the alignment that kernels may rely on.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct Line([u8; 16]);

/// A kernel, a copy of its arguments, and what keeps their addresses valid.
pub(crate) struct Work {
    kernel: &'static Kernel,
    space: Space,
    args: Vec<Line>,
    _keep: Vec<KeepAlive>,
}

impl core::fmt::Debug for Work {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Work").field(&self.kernel.name).finish()
    }
}

impl Work {
    /// Copies a launch.
    ///
    /// # Safety
    ///
    /// As for [`Stream::launch`](crate::Stream::launch), for each [`run`](Self::run) as long as this
    /// lives: what the launch keeps, this keeps.
    pub(crate) unsafe fn new(launch: &Launch<'_>, space: Space) -> Result<Self, SyncError> {
        let kernel = launch.kernel()?;
        let mut args = vec![Line([0; 16]); launch.args.len().div_ceil(16)];
        for (line, bytes) in args.iter_mut().zip(launch.args.chunks(16)) {
            line.0[..bytes.len()].copy_from_slice(bytes);
        }
        Ok(Work { kernel, space, args, _keep: launch.keep() })
    }

    /// Runs the kernel, to its end or until it stops early; whether it did the latter.
    pub(crate) fn run(&self, wait: &Wait) -> bool {
        let context = LaunchContext::new(self.space, wait);
        // SAFETY: whoever made this vouched for the arguments, which were copied whole into aligned
        // memory; what their addresses need is kept for as long as this lives.
        unsafe { (self.kernel.host)(&context, self.args.as_ptr().cast()) };
        context.is_stopped()
    }
}
