//! One rank is delayed at one step of a protocol: every rank, every step.
//!
//! Compiled with the feature `stalls`, which puts a look at each step into the layers below.

#[cfg(feature = "stalls")]
mod beyond;
#[cfg(feature = "stalls")]
mod brief;

#[cfg(feature = "stalls")]
use {
    beyond::{a_rank_that_reports, beyond_the_bound_of_operations, beyond_the_bound_of_signals},
    brief::each_rank_at_each_step,
};

use crate::runner::Test;
use crate::test;

pub(super) const TESTS: &[Test] = &[
    test!(each_rank_at_each_step).ranks(2, 3).seconds(240),
    test!(beyond_the_bound_of_operations).ranks(2, 3).seconds(240),
    test!(beyond_the_bound_of_signals).ranks(2, 3).seconds(240),
    test!(a_rank_that_reports).ranks(2, 3),
];

#[cfg(not(feature = "stalls"))]
crate::suite::mem::stalls::skipped!(
    each_rank_at_each_step,
    beyond_the_bound_of_operations,
    beyond_the_bound_of_signals,
    a_rank_that_reports
);

#[cfg(feature = "stalls")]
mod delayed {
    use std::time::Duration;

    use symmem_mem::Group;
    use symmem_sync::stalls::{Held, Stall, Step};

    use crate::check;
    use crate::runner::{Context, TestError, Verdict};

    /// While it lives, kernels are compiled with a look at each step.
    #[cfg(feature = "cuda")]
    pub(super) fn kernels() -> symmem_hal::kernels::Stalled {
        symmem_hal::kernels::Stalled::compile()
    }
    #[cfg(not(feature = "cuda"))]
    pub(super) fn kernels() -> NoKernels {
        NoKernels
    }
    #[cfg(not(feature = "cuda"))]
    pub(super) struct NoKernels;

    /// One rank's delay: begun by that rank alone.
    pub(super) struct Delay<'g> {
        held: Option<Held<'g>>,
        step: Step,
    }

    impl<'g> Delay<'g> {
        pub(super) fn begin(
            context: &Context,
            group: &'g Group,
            stall: Stall,
        ) -> Result<Self, TestError> {
            let held = if context.rank() == stall.rank { Some(stall.begin(group)?) } else { None };
            Ok(Delay { held, step: stall.step })
        }

        /// That the rank was delayed. Ends it.
        pub(super) fn end(self) -> Verdict {
            let Some(held) = self.held else { return Ok(()) };
            let (passed, delayed) = held.counts();
            check!(passed > 0 && delayed > 0, "{:?}: {delayed} delays of {passed}", self.step);
            Ok(())
        }
    }

    /// Until all others have done what they can without the rank.
    pub(super) const BRIEF: Duration = Duration::from_millis(3);

    /// At the first of how many comings: those that every word takes part in are many.
    pub(super) fn every(step: Step) -> u64 {
        match step {
            Step::PutPacket | Step::PollPacket => 97,
            Step::ReadStaging | Step::WriteStaging | Step::RaiseFlag | Step::AwaitFlag => 19,
            Step::Enter | Step::AwaitReaders | Step::PublishHeader => 11,
            Step::Compare | Step::Exit => 11,
            Step::AwaitReset => 5,
            _ => 1,
        }
    }
}
