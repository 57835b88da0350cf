//! Where operations stand in the captures of a lane, and what counts their runs.
//!
//! An operation in a graph says of itself: the m-th of its lane in the n-th capture. How often it has
//! run is counted by its kernel, in a word of device memory that the graph keeps.

use std::sync::Arc;

use symmem_hal::types::Bytes;
use symmem_hal::{AllocError, Device, DevicePtr, KeepAlive, Memory};

/// Bytes of a count.
const WORD: u64 = 8;

/// Bytes of memory that are allocated at a time, for the counts of one capture.
const PAGE: u64 = 4096;

/// The captures that a lane has operations in.
#[derive(Debug, Default)]
pub(super) struct Captures {
    begun: u64,
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    id: u64,
    ordinal: u64,
    operations: u64,
    counts: Arc<Memory>,
}

/// Where one operation stands.
pub(super) struct Place {
    /// In which capture of the lane.
    pub capture: u64,
    /// Which of its operations.
    pub operation: u64,
    /// The count of its runs: a u64, 0 before the first.
    pub runs: DevicePtr,
    /// Keeps it.
    pub keep: KeepAlive,
}

impl Captures {
    /// The place of the next operation in the capture of this id. Captures that are not `open` any
    /// more are forgotten.
    pub(super) fn next(
        &mut self,
        id: u64,
        device: &Device,
        open: impl Fn(u64) -> bool,
    ) -> Result<Place, AllocError> {
        let index = match self.open.iter().position(|capture| capture.id == id) {
            Some(index) => index,
            None => {
                self.open.retain(|capture| open(capture.id));
                let counts = Arc::new(device.allocate_private(Bytes::new(PAGE))?);
                self.begun += 1;
                self.open.push(Open { id, ordinal: self.begun, operations: 0, counts });
                self.open.len() - 1
            }
        };
        let capture = &mut self.open[index];
        let at = capture.operations * WORD % PAGE;
        if at == 0 && capture.operations > 0 {
            capture.counts = Arc::new(device.allocate_private(Bytes::new(PAGE))?);
        }
        capture.operations += 1;
        Ok(Place {
            capture: capture.ordinal,
            operation: capture.operations,
            runs: DevicePtr::new(capture.counts.base().get() + at),
            keep: capture.counts.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;

    #[test]
    fn every_operation_has_its_place_and_word() {
        let (mut captures, device) = (Captures::default(), Device::host());
        let mut seen = std::collections::HashSet::new();
        let mut kept = Vec::new();
        for (id, ordinal) in [(7, 1), (9, 2), (7, 1)] {
            for _ in 0..600 {
                let place = captures.next(id, &device, |_| true).unwrap();
                assert_eq!(place.capture, ordinal);
                assert!(seen.insert(place.runs.get()), "a word for two operations");
                assert!(place.runs.get().is_multiple_of(WORD));
                kept.push(place);
            }
        }
        assert_eq!(kept.last().unwrap().operation, 1200);
        // The next capture forgets those that are over, and counts on.
        let place = captures.next(11, &device, |_| false).unwrap();
        assert_eq!((place.capture, place.operation), (3, 1));
        assert_eq!(captures.open.len(), 1);
    }
}
