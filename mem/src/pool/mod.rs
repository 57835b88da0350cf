//! Pools: many allocations in few memories.

mod blocks;
mod persistent;

pub(crate) use blocks::Blocks;
pub use persistent::PersistentError;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use symmem_hal::types::{Bytes, Element, Layout, LayoutError};
use symmem_hal::{AllocError, Device};

use crate::memory::{Allocation, Backing, Tensor, TensorError, View, retire};

/// One rank's pool of memory of a device: allocations are blocks of segments, so that most need no
/// system call, and a segment is mapped once in each group, whatever the number of its blocks.
/// Clones are the same pool.
///
/// Growing is local: no rank is spoken to, and ranks may grow at different times. What ranks need to
/// do alike is to allocate and drop the blocks that they rendezvous in one order: offsets are a
/// function of the calls made on the pool, and a rendezvous compares them, so that blocks that lie
/// differently on two ranks are a [`Mismatch`](crate::Mismatch) on every rank.
///
/// A dropped block is used again at once if it had no rendezvous, and no work on it is in flight. If
/// it had, peers may still have it: then it is used again once the ranks of its group have met, in a
/// rendezvous or in [`Group::reclaim`](crate::Group::reclaim), after all of them dropped theirs and
/// every handle and view of it. That moment is the same on all ranks. So a loop that allocates, makes symmetric and
/// drops uses two places in turn.
///
/// A pool belongs to one rank of one run: ranks that are threads have one each. What a rank that was
/// lost had of a block nobody can tell, so that the block is not used again while the pool lives.
#[derive(Clone, Debug)]
pub struct MemoryPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: Device,
    /// The least size of a segment.
    segment: Bytes,
    state: Mutex<State>,
    /// Memory with an id.
    persistent: Mutex<HashMap<u64, Allocation>>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they were made.
    segments: Vec<Segment>,
    made: u64,
    live: u64,
}

#[derive(Debug)]
struct Segment {
    id: u64,
    backing: Arc<Backing>,
    blocks: Blocks,
}

/// Where a block returns to.
#[derive(Debug)]
pub(crate) struct Home {
    pool: Weak<Inner>,
    segment: u64,
    offset: u64,
    length: u64,
}

/// What a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUsage {
    /// Segments.
    pub segments: usize,
    /// Bytes of all segments.
    pub reserved: Bytes,
    /// Bytes of blocks in use, each rounded up to the pool's alignment.
    pub live: Bytes,
    /// Bytes of dropped blocks that peers may still have.
    pub retired: Bytes,
    /// The largest block that fits into a segment there is.
    pub largest: Bytes,
}

impl MemoryPool {
    /// Blocks begin at multiples of this many bytes from a segment's start, which is aligned so
    /// itself.
    pub const ALIGNMENT: u64 = 256;

    /// An empty pool of a device, with segments of 16 MiB.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self::with_segments(device, Bytes::mib(16))
    }

    /// An empty pool whose segments have at least so many bytes. A block that is larger gets a
    /// segment of its size.
    #[must_use]
    pub fn with_segments(device: &Device, segment: Bytes) -> Self {
        MemoryPool(Arc::new(Inner {
            device: device.clone(),
            segment,
            state: Mutex::default(),
            persistent: Mutex::default(),
        }))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Allocates a block: the smallest free range that holds it, of equals the lowest of the oldest
    /// segment; where none does, the start of a new segment. Not zeroed: it holds what was there.
    ///
    /// # Errors
    ///
    /// [`AllocError`] where a new segment is needed and a limit is too tight for it.
    pub fn allocate(&self, bytes: Bytes) -> Result<Allocation, AllocError> {
        // No bytes take a place, too, so that each block has an address of its own. What overflows
        // is refused by the device, with numbers.
        let length = Bytes(bytes.get().max(1)).round_up(Self::ALIGNMENT).unwrap_or(Bytes(u64::MAX));
        let found = self.0.state.lock().take(length.get());
        let (backing, segment, offset) = match found {
            Some(found) => found,
            None => self.grow(length)?,
        };
        let pool = Arc::downgrade(&self.0);
        let home = Home { pool, segment, offset, length: length.get() };
        Ok(Allocation::block(backing, Bytes(offset), bytes, home))
    }

    /// As [`allocate`](Self::allocate), a tensor of this shape. Not zeroed.
    ///
    /// # Errors
    ///
    /// [`TensorError`] where the shape is none or memory is short.
    pub fn empty<T: Element>(&self, shape: &[u64]) -> Result<Tensor<T>, TensorError> {
        let layout = Layout::contiguous(shape)?;
        let size = T::DTYPE.size() as u64;
        let bytes = Bytes::of(layout.count(), size).ok_or(LayoutError::Overflow)?;
        let allocation = self.allocate(bytes)?;
        Ok(View::new(&allocation, Bytes::ZERO, T::DTYPE, layout)?.try_into()?)
    }

    /// A segment for `length` bytes, and the place of those in it. The system is asked for it
    /// without the lock, so that blocks come and go meanwhile; threads that ask at once get one each.
    fn grow(&self, length: Bytes) -> Result<Found, AllocError> {
        let size = length.max(self.0.segment);
        let size = size.round_up(Self::ALIGNMENT).unwrap_or(size);
        let backing = match Backing::new(&self.0.device, size) {
            Ok(backing) => backing,
            // Segments that nobody uses may be what is short. Another thread may have let go of them
            // since this one asked: so it asks again in any case.
            Err(_) => {
                self.0.state.lock().trim();
                Backing::new(&self.0.device, size)?
            }
        };
        let mut blocks = Blocks::new(size.get());
        let offset = blocks.take(length.get()).unwrap_or_default();
        let mut state = self.0.state.lock();
        let id = state.made;
        state.made += 1;
        state.live += length.get();
        state.segments.push(Segment { id, backing: backing.clone(), blocks });
        Ok((backing, id, offset))
    }

    /// Lets go of segments without blocks, and of the bytes of those; how many. Ranks that do so at
    /// different points of their program place later blocks differently.
    pub fn trim(&self) -> Bytes {
        let trimmed = self.0.state.lock().trim();
        let _ = retire::collect();
        Bytes(trimmed)
    }

    /// What it holds.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let state = self.0.state.lock();
        let sum = |of: fn(&Blocks) -> u64| state.segments.iter().map(|s| of(&s.blocks)).sum();
        let (reserved, free): (u64, u64) = (sum(Blocks::size), sum(Blocks::free));
        let largest = state.segments.iter().map(|s| s.blocks.largest()).max();
        PoolUsage {
            segments: state.segments.len(),
            reserved: Bytes(reserved),
            live: Bytes(state.live),
            retired: Bytes(reserved - free - state.live),
            largest: Bytes(largest.unwrap_or(0)),
        }
    }
}

/// A segment's memory, its id, and an offset in it.
type Found = (Arc<Backing>, u64, u64);

impl State {
    /// A block of a segment there is.
    fn take(&mut self, length: u64) -> Option<Found> {
        let fits = self.segments.iter_mut().filter_map(|s| Some((s.blocks.fit(length)?, s)));
        // The first of equals.
        let (_, segment) = fits.min_by_key(|(fit, _)| *fit)?;
        let offset = segment.blocks.take(length)?;
        let found = (segment.backing.clone(), segment.id, offset);
        self.live += length;
        Some(found)
    }

    /// Bytes of segments that had no blocks, and are no more.
    fn trim(&mut self) -> u64 {
        let unused = |segment: &mut Segment| segment.blocks.free() == segment.blocks.size();
        self.segments.extract_if(.., unused).map(|segment| segment.blocks.size()).sum()
    }
}

impl Home {
    /// The block has ended; its range may not be used yet.
    pub(crate) fn end(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.state.lock().live -= self.length;
        }
    }

    /// The range may be used again.
    pub(crate) fn give_back(&self) {
        let Some(pool) = self.pool.upgrade() else { return };
        let mut state = pool.state.lock();
        if let Some(segment) = state.segments.iter_mut().find(|s| s.id == self.segment) {
            segment.blocks.give_back(self.offset, self.length);
        }
    }
}
