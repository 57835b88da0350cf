//! Memory of the CPU.

use crate::DevicePtr;
use crate::backend::MemoryOps;
use crate::memory::{ExportError, Shareable, export_segment};
use crate::shm::Segment;
use crate::types::Bytes;

/// A mapped segment of this machine's memory.
#[derive(Debug)]
pub struct Memory(Segment);

impl Memory {
    pub(crate) fn new(segment: Segment) -> Self {
        Memory(segment)
    }
}

impl MemoryOps for Memory {
    fn base(&self) -> DevicePtr {
        DevicePtr::new(self.0.base().as_ptr().expose_provenance() as u64)
    }

    fn bytes(&self) -> Bytes {
        self.0.bytes()
    }

    fn export(&self) -> Result<Shareable, ExportError> {
        export_segment(&self.0)
    }

    fn segment(&self) -> &Segment {
        &self.0
    }

    fn host_segment(&self) -> Option<&Segment> {
        Some(&self.0)
    }
}
