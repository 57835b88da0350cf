//! The layer of Mixture-of-Experts.

mod dispatch;
mod landing;
mod model;
mod routes;
mod tiles;
mod vdev;

use symmem_hal::types::Layout;
use symmem_mem::{Failure, Group, View};
use symmem_moe::{Call, Exchange};

use crate::runner::{PATIENT, Test, TestError};
use crate::suite::sync::stream_of;

/// The tests of the layer.
#[must_use]
pub fn tests() -> Vec<Test> {
    [vdev::tests(), dispatch::tests(), landing::TESTS.to_vec(), tiles::tests()].concat()
}

/// How the group fails in a call that must make it fail.
fn failure<O: Exchange>(call: Call<'_, O>, group: &Group) -> Result<Failure, TestError> {
    let stream = stream_of(group)?;
    let found = call.on(&stream);
    // What it ends with is the group's failure, too.
    let _ = stream.synchronize(&PATIENT);
    match group.check() {
        Err(failure) => Ok(failure),
        Ok(()) => Err(TestError::failed(format!("the group is well after {:?}", found.err()))),
    }
}

/// The elements of a view without gaps, in another shape.
fn reshaped(view: &View, shape: &[u64]) -> Result<View, TestError> {
    let allocation = view.allocation().ok_or_else(|| TestError::failed("no allocation"))?;
    Ok(View::new(allocation, view.offset(), view.dtype(), Layout::contiguous(shape)?)?)
}
