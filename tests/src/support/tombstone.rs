//! When a rank died, told by itself.

use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use rustix::time::{ClockId, clock_gettime};
use symmem_hal::types::{Bytes, DType, Layout};
use symmem_mem::{Allocation, Group, View};

use crate::check;
use crate::runner::{Context, TestError};

/// The time that all processes of the machine share, in nanoseconds.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A word of symmetric memory that says when a rank died: in the memory of a rank that lives on.
#[derive(Clone, Debug)]
pub(crate) struct Tombstone(View);

impl Tombstone {
    /// Collective.
    #[track_caller]
    pub(crate) fn new(context: &Context, group: &Group, victim: usize) -> Result<Self, TestError> {
        let allocation = Allocation::new(context.device(), Bytes::new(8))?;
        let word = View::new(&allocation, Bytes::ZERO, DType::U64, Layout::flat(1))?;
        let handle = group.rendezvous(&word, &group.wait())?;
        Ok(Tombstone(handle.remote(group.rank_at(usize::from(victim == 0))?)?))
    }

    /// The rank dies, or stops, now.
    pub(crate) fn engrave(&self) {
        // Should it fail, the others miss the death, which the test finds.
        let _ = self.0.write(&[now()]);
    }

    /// Ends this process now.
    pub(crate) fn die(&self) {
        self.engrave();
        // Should it fail, the process lives, which the test finds.
        let _ = kill_process(getpid(), Signal::KILL);
    }

    /// How long ago that was.
    #[track_caller]
    pub(crate) fn since(&self) -> Result<Duration, TestError> {
        let mut died = [0u64];
        self.0.read(&mut died)?;
        check!(died[0] != 0, "told of a death that has not happened");
        Ok(Duration::from_nanos(now().saturating_sub(died[0])))
    }
}
