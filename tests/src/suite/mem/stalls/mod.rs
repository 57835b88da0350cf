//! One rank is delayed at one step of a meeting: every rank, every step.
//!
//! Compiled with the feature `stalls`, which puts a look at each step into the layers below.

#[cfg(feature = "stalls")]
mod delayed;

#[cfg(feature = "stalls")]
use delayed::{each_rank_at_each_step, each_rank_beyond_the_bound};

use crate::runner::Test;
use crate::test;

pub(super) const TESTS: &[Test] =
    &[test!(each_rank_at_each_step).ranks(2, 3), test!(each_rank_beyond_the_bound).ranks(2, 3)];

/// Tests that need delays, in a build that has none.
#[cfg(not(feature = "stalls"))]
macro_rules! skipped {
    ($($test:ident),+ $(,)?) => {
        $(fn $test(_: &crate::runner::Context) -> crate::runner::Verdict {
            Err(crate::runner::TestError::skipped("built without the feature stalls"))
        })+
    };
}
#[cfg(not(feature = "stalls"))]
pub(in crate::suite) use skipped;

#[cfg(not(feature = "stalls"))]
self::skipped!(each_rank_at_each_step, each_rank_beyond_the_bound);
