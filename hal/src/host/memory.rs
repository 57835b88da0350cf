//! Memory of the CPU.

use std::sync::Arc;

use crate::DevicePtr;
use crate::backend::MemoryOps;
use crate::driver::DriverError;
use crate::memory::{ExportError, Shareable, export_segment, fill_segment};
use crate::shm::Segment;
use crate::types::Bytes;

/// A mapped segment of this machine's memory.
#[derive(Debug)]
pub struct Memory {
    /// Holds the segment for as long as a GPU knows it.
    #[cfg(feature = "cuda")]
    registration: crate::cuda::Registration,
    segment: Arc<Segment>,
}

impl Memory {
    pub(crate) fn new(segment: Segment) -> Self {
        Memory {
            #[cfg(feature = "cuda")]
            registration: crate::cuda::Registration::default(),
            segment: Arc::new(segment),
        }
    }

    /// What makes it known to GPUs.
    #[cfg(feature = "cuda")]
    pub(crate) fn registration(&self) -> (&crate::cuda::Registration, &Arc<Segment>) {
        (&self.registration, &self.segment)
    }
}

impl MemoryOps for Memory {
    fn base(&self) -> DevicePtr {
        DevicePtr::new(self.segment.base().as_ptr().expose_provenance() as u64)
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
        Some(&self.segment)
    }
}
