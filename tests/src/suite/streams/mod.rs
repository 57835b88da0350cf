//! Streams: what is ordered across them, what graphs record, what lanes keep apart, and how a group
//! goes on without a rank.

mod faults;
mod graphs;
mod kernels;
mod lanes;
mod recovery;
mod serialization;
mod stale;
mod unordered;
mod waits;

use symmem_hal::{Fault as _, Stream, SyncError};
use symmem_mem::Failure;
use symmem_sync::LaneError;

use crate::runner::{PATIENT, Test, TestError};
use crate::suite::sync::behind;

/// The tests of the module.
#[must_use]
pub fn tests() -> Vec<Test> {
    let tests = [
        serialization::TESTS,
        graphs::TESTS,
        stale::TESTS,
        lanes::TESTS,
        waits::TESTS,
        recovery::TESTS,
    ];
    [&tests.concat(), unordered::TESTS, &faults::tests()].concat()
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

/// That a graph was launched, or is stale: another rank may have found out what is wrong and closed the
/// lanes before this one came so far.
#[track_caller]
fn launched_or_stale(found: Result<(), SyncError>) -> Result<(), TestError> {
    match found {
        Ok(()) => Ok(()),
        stale => match failure(stale)? {
            Failure::StaleGraph => Ok(()),
            other => Err(TestError::failed(other.to_string())),
        },
    }
}

/// As [`launched_or_stale`], of an operation.
#[track_caller]
fn issued_or_failed(found: Result<(), LaneError>) -> Result<(), TestError> {
    match found {
        Ok(()) | Err(LaneError::Failed(_)) => Ok(()),
        Err(other) => Err(TestError::failed(other.to_string())),
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
