//! Memory of a device in software, and the table that gives its addresses a meaning.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::DevicePtr;
use crate::backend::MemoryOps;
use crate::driver::DriverError;
use crate::memory::{ExportError, Shareable, export_segment, fill_segment};
use crate::shm::Segment;
use crate::types::Bytes;

/// Not canonical on any 64-bit processor in use: to follow such an address on the host is a fault
/// at once, not a read of something else.
const FIRST: u64 = 0x5ab0_0000_0000_0000;

/// Free addresses between two memories, so that a range that runs over an end maps to nothing.
const GAP: u64 = 1 << 16;

static NEXT: AtomicU64 = AtomicU64::new(FIRST);

/// Every memory of every software device in this process: device address to (host address, bytes).
/// One table, as all devices see all peers' memory.
static TABLE: RwLock<BTreeMap<u64, (usize, u64)>> = RwLock::new(BTreeMap::new());

/// The host memory behind a device range; `None` unless all of it lies in one mapped memory.
pub(crate) fn resolve(ptr: DevicePtr, bytes: Bytes) -> Option<*mut u8> {
    let table = TABLE.read();
    let (base, (host, size)) = table.range(..=ptr.get()).next_back()?;
    let offset = ptr.get() - base;
    if offset.checked_add(bytes.0)? > *size {
        return None;
    }
    let address = host.checked_add(usize::try_from(offset).ok()?)?;
    Some(core::ptr::with_exposed_provenance_mut(address))
}

/// A segment under an address that only kernels can follow.
#[derive(Debug)]
pub struct Memory {
    segment: Segment,
    base: u64,
}

impl Memory {
    pub(crate) fn new(segment: Segment) -> Self {
        let size = segment.bytes().0;
        // 256-byte aligned, as device allocations are.
        let span = (size + GAP).next_multiple_of(256);
        let base = NEXT.fetch_add(span, Ordering::Relaxed);
        TABLE.write().insert(base, (segment.base().as_ptr().expose_provenance(), size));
        Memory { segment, base }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        TABLE.write().remove(&self.base);
    }
}

impl MemoryOps for Memory {
    fn base(&self) -> DevicePtr {
        DevicePtr::new(self.base)
    }

    fn bytes(&self) -> Bytes {
        self.segment.bytes()
    }

    fn export(&self) -> Result<Shareable, ExportError> {
        export_segment(&self.segment)
    }

    fn read(&self, start: usize, out: &mut [u8]) -> Result<(), DriverError> {
        let copied = self.segment.read(start, out);
        debug_assert!(copied, "the caller checked the range");
        Ok(())
    }

    fn write(&self, start: usize, data: &[u8]) -> Result<(), DriverError> {
        let copied = self.segment.write(start, data);
        debug_assert!(copied, "the caller checked the range");
        Ok(())
    }

    fn fill32(
        &self,
        start: usize,
        pitch: usize,
        value: u32,
        count: usize,
    ) -> Result<(), DriverError> {
        fill_segment(&self.segment, start, pitch, value, count);
        Ok(())
    }

    fn host_segment(&self) -> Option<&Segment> {
        None
    }
}
