//! The layer of Mixture-of-Experts.

mod dispatch;
mod landing;
mod model;
mod routes;
mod tiles;
mod vdev;

use symmem_hal::types::{BackendKind, Bytes, Layout};
use symmem_mem::{Failure, Group, Options, View};
use symmem_moe::{Call, Exchange};
use symmem_sync::Lanes as _;

use crate::check;
use crate::runner::{Context, PATIENT, Test, TestError, options};
use crate::suite::collectives::least_workspace;
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

/// A group in the smallest workspace, or as little more as gives so many bytes of staging, of which packets hold
/// fewer.
fn small_group(context: &Context, staging: u64) -> Result<Group, TestError> {
    let mut workspace = least_workspace(context)?;
    loop {
        let group = context.group_with(&Options { workspace, ..options(context.size()) })?;
        let layout = *group.lane()?.layout();
        let (chunk, packets) = (layout.chunk_capacity().get(), layout.packet_capacity().get());
        if context.device().kind() != BackendKind::Cuda || chunk >= staging {
            check!(packets < staging, "packets hold {packets} bytes");
            return Ok(group);
        }
        workspace = Bytes::new(workspace.get() + (16 << 10));
    }
}
