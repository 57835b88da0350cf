//! What ends the waits of the kernels in a graph: the bound and the token of its launch, in words of
//! device memory that are written on the stream ahead of it, where they changed.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::CUstream;

use super::cancel::{CancelWord, Cancels};
use super::context::Context;
use super::driver::cu;
use super::memory::Private;
use crate::driver::DriverError;
use crate::types::Bytes;
use crate::{DevicePtr, Wait};

/// What kernels in a graph find where [`Stream::launch_bounds`](crate::Stream::launch_bounds) says.
///
/// All zeros where somebody else's code launches the graph: what was given in the capture then counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(16))]
pub struct LaunchBounds {
    /// The bound on each wait in nanoseconds, at most 2^52, from its first miss; 0 for none.
    pub deadline_ns: u64,
    /// Where the u32 is that ends the launch's waits once it is not 0; null for none.
    pub cancel: DevicePtr,
}

/// Fifty-two days, so that what multiplies it by a factor for shared devices does not overflow.
const MOST: u64 = 1 << 52;

/// The bounds of one graph.
#[derive(Debug)]
pub(super) struct Bounds {
    memory: Private,
    /// What the launch enqueued last finds; `None` where that is not sure.
    last: Mutex<Option<LaunchBounds>>,
}

impl Bounds {
    pub(super) fn new(context: &'static Context) -> Result<Self, DriverError> {
        let memory = Private::new(context, Bytes::from(size_of::<LaunchBounds>()))?;
        Ok(Bounds { memory, last: Mutex::new(Some(bytemuck::Zeroable::zeroed())) })
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        self.memory.base()
    }

    /// Enqueues what a launch of the graph that follows is to find; what is to be kept until that has
    /// run. Launches of one graph follow each other on whatever streams, and so does this. The context is
    /// current.
    pub(super) fn enqueue(
        &self,
        context: &'static Context,
        stream: CUstream,
        wait: &Wait,
    ) -> Result<Option<Arc<CancelWord>>, DriverError> {
        let word = match wait.cancel() {
            Some(token) => Cancels::of(context)?.take(token).map(Arc::new),
            None => None,
        };
        let deadline_ns = u64::try_from(wait.duration().as_nanos()).unwrap_or(MOST).clamp(1, MOST);
        let cancel = word.as_ref().map_or(DevicePtr::NULL, |word| word.ptr());
        let bounds = LaunchBounds { deadline_ns, cancel };
        let mut last = self.last.lock();
        let before: Option<[u32; 4]> = last.take().map(bytemuck::cast);
        let after: [u32; 4] = bytemuck::cast(bounds);
        for (i, value) in (0u64..).zip(after) {
            if before.is_none_or(|before| before[i as usize] != value) {
                let at = self.ptr().get() + 4 * i;
                // SAFETY: a word of this graph's own, which lives as long as the graph.
                unsafe { cu!(context, cuMemsetD32Async(at, value, 1, stream)) }?;
            }
        }
        *last = Some(bounds);
        Ok(word)
    }
}
