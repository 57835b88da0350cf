//! Pools: where blocks are, what ranks agree on, and when bytes are used again.

pub(super) mod agreement;
pub(super) mod places;
pub(super) mod reuse;

use symmem_hal::DevicePtr;
use symmem_hal::types::{Bytes, DType, Layout};
use symmem_mem::{Allocation, MemoryPool, View};

use crate::runner::{Context, TestError};

/// Small segments, so that tests reach their ends.
fn pool(context: &Context) -> MemoryPool {
    MemoryPool::with_segments(context.device(), Bytes::kib(64))
}

fn block(pool: &MemoryPool, bytes: u64) -> Result<Allocation, TestError> {
    Ok(pool.allocate(Bytes::new(bytes))?)
}

/// A view of all of a block, as bytes.
fn all_of(block: &Allocation) -> Result<View, TestError> {
    Ok(View::new(block, Bytes::ZERO, DType::U8, Layout::flat(block.bytes().get()))?)
}

fn after(base: DevicePtr, bytes: u64) -> Result<DevicePtr, TestError> {
    base.checked_add(Bytes::new(bytes)).ok_or_else(|| TestError::failed("no such address"))
}
