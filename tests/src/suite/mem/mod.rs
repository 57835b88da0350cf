//! The memory layer: allocations, groups, rendezvous, and what becomes of ranks that are gone.

mod agreement;
mod allocation;
mod errors;
mod exhaustion;
mod launch;
mod leaks;
mod leaving;
mod limits;
mod missing;
mod one_sided;
mod peers;
mod pool;
mod registration;
mod rendezvous;
mod restart;
mod settings;
pub(in crate::suite) mod stalls;
mod subgroups;

use symmem_hal::types::{Bytes, DType, Layout};
use symmem_mem::{Allocation, Group, SymmetricMemory, Tensor, View};

use crate::runner::{Context, Test, TestError, Verdict};

/// The tests of the layer.
#[must_use]
pub fn tests() -> Vec<Test> {
    [
        allocation::TESTS,
        rendezvous::TESTS,
        registration::TESTS,
        peers::TESTS,
        pool::places::TESTS,
        pool::agreement::TESTS,
        pool::reuse::TESTS,
        one_sided::TESTS,
        settings::TESTS,
        agreement::TESTS,
        subgroups::TESTS,
        leaks::TESTS,
        errors::TESTS,
        exhaustion::TESTS,
        limits::TESTS,
        restart::TESTS,
        launch::TESTS,
        leaving::TESTS,
        missing::TESTS,
        stalls::TESTS,
    ]
    .concat()
}

/// A view of all of a new allocation of bytes.
#[track_caller]
fn bytes_view(context: &Context, bytes: u64) -> Result<View, TestError> {
    let allocation = Allocation::new(context.device(), Bytes::new(bytes))?;
    Ok(View::new(&allocation, Bytes::ZERO, DType::U8, Layout::flat(bytes))?)
}

/// What a rank writes into its memory: no two ranks and no two rounds the same.
fn mark(global: u32, round: u32) -> u32 {
    0x5eed_0000 ^ global << 8 ^ round
}

/// Every member writes its mark into its own memory, and finds every other's in theirs.
fn exchange_marks(
    context: &Context,
    group: &Group,
    handle: &SymmetricMemory,
    tensor: &Tensor<u32>,
    round: u32,
) -> Verdict {
    let globals = group.global_ranks();
    tensor.write(&vec![mark(globals[group.rank().index()], round); tensor.count() as usize])?;
    meet_in(group)?;
    for rank in group.ranks() {
        let theirs = Tensor::<u32>::try_from(handle.remote(rank)?)?.to_vec()?;
        let expected = vec![mark(globals[rank.index()], round); theirs.len()];
        crate::check_eq!(theirs, expected, "memory of rank {rank} seen by {}", context.rank());
    }
    meet_in(group)
}

/// Waits until every member of a group has come here.
#[track_caller]
fn meet_in(group: &Group) -> Verdict {
    group.split(None, 0, &group.wait())?;
    Ok(())
}
