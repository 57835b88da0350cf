//! Where operations stand in the captures of a lane, and what counts their runs.
//!
//! An operation in a graph says of itself: the m-th of its lane in the n-th capture. How often it has
//! run is counted by its kernel, in words of device memory that the graph keeps: one for each block.

use std::sync::Arc;

use symmem_hal::types::Bytes;
use symmem_hal::{AllocError, Device, DevicePtr, KeepAlive, Memory};

/// Bytes of a count.
const WORD: u64 = 8;

/// Counts that memory is allocated for at a time, for the operations of one capture.
const CHUNK: u64 = 512;

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
    /// Counts in it that operations have.
    used: u64,
}

/// Where one operation stands.
pub(super) struct Place {
    /// In which capture of the lane.
    pub capture: u64,
    /// Which of its operations.
    pub operation: u64,
    /// The counts of its runs: a u64 for each block, 0 before the first.
    pub runs: DevicePtr,
    /// Keeps it.
    pub keep: KeepAlive,
}

impl Captures {
    /// The place of the next operation in the capture of this id, with a count for each of `blocks`.
    /// Captures that are not `open` any more are forgotten.
    pub(super) fn next(
        &mut self,
        id: u64,
        blocks: u32,
        device: &Device,
        open: impl Fn(u64) -> bool,
    ) -> Result<Place, AllocError> {
        let blocks = u64::from(blocks);
        let chunk = CHUNK.max(blocks);
        let counts = || device.allocate_private(Bytes(chunk * WORD)).map(Arc::new);
        let index = match self.open.iter().position(|capture| capture.id == id) {
            Some(index) => index,
            None => {
                self.open.retain(|capture| open(capture.id));
                let counts = counts()?;
                self.begun += 1;
                self.open.push(Open { id, ordinal: self.begun, operations: 0, counts, used: 0 });
                self.open.len() - 1
            }
        };
        let capture = &mut self.open[index];
        if capture.used + blocks > chunk {
            (capture.counts, capture.used) = (counts()?, 0);
        }
        let at = capture.used * WORD;
        capture.used += blocks;
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
        for blocks in [1, 128, 1000] {
            each_has_its_own(blocks);
        }
    }

    fn each_has_its_own(blocks: u32) {
        let (mut captures, device) = (Captures::default(), Device::host());
        let mut seen = std::collections::HashSet::new();
        let mut kept = Vec::new();
        for (id, ordinal) in [(7, 1), (9, 2), (7, 1)] {
            for _ in 0..CHUNK + 88 {
                let place = captures.next(id, blocks, &device, |_| true).unwrap();
                assert_eq!(place.capture, ordinal);
                for block in 0..u64::from(blocks) {
                    let word = place.runs.get() + WORD * block;
                    assert!(seen.insert(word), "a word for two operations");
                    assert!(word.is_multiple_of(WORD));
                }
                kept.push(place);
            }
        }
        assert_eq!(kept.last().unwrap().operation, 1200);
        // The next capture forgets those that are over, and counts on.
        let place = captures.next(11, blocks, &device, |_| false).unwrap();
        assert_eq!((place.capture, place.operation), (3, 1));
        assert_eq!(captures.open.len(), 1);
    }
}
