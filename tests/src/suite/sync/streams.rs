//! Streams that come and go.

use symmem_hal::StreamMode;
use symmem_sync::{Channel, Signals as _};

use super::Bench;
use crate::runner::{Context, PATIENT, Test, Verdict};
use crate::support::observe::Holdings;
use crate::test;

pub(super) const TESTS: &[Test] = &[test!(a_group_keeps_no_stream_alive)];

/// A stream's thread ends with the last handle of it, so a stream that a group keeps is a thread
/// too many.
fn a_group_keeps_no_stream_alive(context: &Context) -> Verdict {
    let bench = Bench::new(context.group()?)?;
    let many = |streams| -> Verdict {
        for _ in 0..streams {
            let stream = context.device().stream(StreamMode::Worker)?;
            bench.group.barrier(Channel(0)).on(&stream)?;
            stream.synchronize(&PATIENT)?;
        }
        // The last of them, too, is then no longer the one used last.
        Ok(bench.barrier(0)?)
    };
    many(1)?;
    let before = Holdings::of_all_ranks(context)?;
    many(100)?;
    before.check_no_more(context)
}
