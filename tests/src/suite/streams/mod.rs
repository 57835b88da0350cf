//! Streams: what is ordered across them, what graphs record, what lanes keep apart, and how a group
//! goes on without a rank.

mod graphs;
mod kernels;
mod lanes;
mod serialization;
mod stale;
mod waits;

use symmem_hal::{Fault as _, Stream, SyncError};
use symmem_mem::Failure;

use crate::runner::{PATIENT, Test, TestError};
use crate::suite::sync::behind;

/// The tests of the module.
#[must_use]
pub fn tests() -> Vec<Test> {
    [serialization::TESTS, graphs::TESTS, stale::TESTS, lanes::TESTS, waits::TESTS].concat()
}

/// The failure with which a stream's synchronisation, or a graph's launch, ends.
#[track_caller]
fn failure<T>(found: Result<T, SyncError>) -> Result<Failure, TestError> {
    match found {
        Err(SyncError::Unhealthy(fault)) => behind::<Failure>(&*fault)
            .ok_or_else(|| TestError::failed(format!("no failure of the group: {fault}"))),
        Err(error) => Err(TestError::failed(format!("{error} ({})", error.kind()))),
        Ok(_) => Err(TestError::failed("expected a failure, found success")),
    }
}

/// Waits for several streams.
#[track_caller]
fn synchronize<'s>(streams: impl IntoIterator<Item = &'s Stream>) -> Result<(), TestError> {
    for stream in streams {
        stream.synchronize(&PATIENT)?;
    }
    Ok(())
}
