//! Where the loops read and write: tile and word edges, element-aligned addresses, in place.

use symmem_hal::types::DType;

use super::model;
use super::{Level, pack, unpack};
use crate::numerics::{ReduceOp, Reducer};

const GUARD: u8 = 0xc3;
const MARGIN: usize = 64;

/// Ranges of one length at chosen element offsets, with a margin before and after each.
pub(super) struct Arena {
    dtype: DType,
    count: usize,
    /// Words, so that offset 0 is aligned to any element.
    buffers: Vec<Vec<u64>>,
    offsets: Vec<usize>,
}

impl Arena {
    /// The columns at their offsets in elements, and after them one more range for the output.
    pub(super) fn new(dtype: DType, columns: &[Vec<u64>], offsets: &[usize]) -> Self {
        let count = columns[0].len();
        let mut arena = Arena { dtype, count, buffers: Vec::new(), offsets: Vec::new() };
        for (i, &offset) in offsets.iter().enumerate() {
            let start = MARGIN + offset * dtype.size();
            let words = (start + count * dtype.size() + MARGIN).div_ceil(8);
            let mut buffer = vec![u64::from_ne_bytes([GUARD; 8]); words];
            if let Some(column) = columns.get(i) {
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut buffer);
                bytes[start..][..count * dtype.size()].copy_from_slice(&pack(dtype, column));
            }
            arena.buffers.push(buffer);
            arena.offsets.push(start);
        }
        arena
    }

    /// Reduces the first `ranks` ranges into range `out`.
    pub(super) fn reduce(
        &mut self,
        level: Level,
        op: ReduceOp,
        ranks: usize,
        out: usize,
    ) -> Vec<u64> {
        let reducer = Reducer::at_level(level, self.dtype, op).unwrap();
        self.fold(ranks, out, |sources, out, count| {
            // SAFETY: each range holds `count` elements within its own buffer, which nobody else has.
            unsafe { reducer.reduce(sources, out, count) };
        })
    }

    /// Has the first `ranks` ranges folded into range `out`, checks that nothing else changed, and
    /// returns the output.
    pub(super) fn fold(
        &mut self,
        ranks: usize,
        out: usize,
        fold: impl FnOnce(&[*const u8], *mut u8, usize),
    ) -> Vec<u64> {
        let before: Vec<Vec<u64>> = self.buffers.clone();
        let addresses: Vec<*mut u8> = (self.buffers.iter_mut().zip(&self.offsets))
            .map(|(buffer, &start)| buffer.as_mut_ptr().cast::<u8>().wrapping_add(start))
            .collect();
        let sources: Vec<*const u8> =
            addresses[..ranks].iter().map(|address| address.cast_const()).collect();
        fold(&sources, addresses[out], self.count);
        let bytes = self.count * self.dtype.size();
        let mut result = Vec::new();
        for (i, (now, then)) in self.buffers.iter().zip(&before).enumerate() {
            let (now, then): (&[u8], &[u8]) =
                (bytemuck::cast_slice(now), bytemuck::cast_slice(then));
            let range = self.offsets[i]..self.offsets[i] + bytes;
            if i == out {
                assert_eq!(now[..range.start], then[..range.start], "before the output");
                assert_eq!(now[range.end..], then[range.end..], "after the output");
                result = unpack(self.dtype, &now[range]);
            } else {
                assert_eq!(now, then, "source {i}");
            }
        }
        result
    }
}

/// Distinct finite values of any type: an element never has its neighbour's result.
fn column(dtype: DType, rank: usize, count: usize) -> Vec<u64> {
    let mask = u64::MAX >> (64 - 8 * dtype.size());
    (0..count as u64)
        .map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(rank as u32 * 7) & mask)
        .collect()
}

fn expected(dtype: DType, op: ReduceOp, columns: &[Vec<u64>]) -> Vec<u64> {
    (0..columns[0].len())
        .map(|i| model::reduce(dtype, op, &columns.iter().map(|c| c[i]).collect::<Vec<_>>()))
        .collect()
}

#[test]
fn counts_around_every_edge() {
    // A tile holds 4096 bytes of accumulators, of 1 to 16 bytes each; a word up to 8 elements.
    let counts = [
        0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 65, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 4096,
        4097,
    ];
    for dtype in DType::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max] {
            for count in counts {
                for ranks in [1, 2, 5] {
                    let columns: Vec<_> =
                        (0..ranks).map(|rank| column(dtype, rank, count)).collect();
                    let expected = expected(dtype, op, &columns);
                    for level in Level::available() {
                        let mut arena = Arena::new(dtype, &columns, &vec![0; ranks + 1]);
                        let found = arena.reduce(level, op, ranks, ranks);
                        assert_eq!(found, expected, "{dtype} {op} {count} x {ranks} {level:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn addresses_aligned_to_the_element_alone() {
    for dtype in DType::ALL {
        let columns: Vec<_> = (0..4).map(|rank| column(dtype, rank, 133)).collect();
        for ranks in [1, 2, 4] {
            let expected = expected(dtype, ReduceOp::Sum, &columns[..ranks]);
            for offsets in [[1, 0, 0, 0, 0], [0, 1, 2, 3, 5], [3, 3, 3, 3, 3], [0, 0, 0, 0, 1]] {
                for level in Level::available() {
                    let mut arena = Arena::new(dtype, &columns, &offsets);
                    let found = arena.reduce(level, ReduceOp::Sum, ranks, 4);
                    assert_eq!(found, expected, "{dtype} {ranks} {offsets:?} {level:?}");
                }
            }
        }
    }
}

#[test]
fn in_place_is_out_of_place() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
            for ranks in [1, 2, 3, 6] {
                let columns: Vec<_> = (0..ranks).map(|rank| column(dtype, rank, 1030)).collect();
                for level in Level::available() {
                    let offsets = vec![1; ranks + 1];
                    let apart =
                        Arena::new(dtype, &columns, &offsets).reduce(level, op, ranks, ranks);
                    for out in 0..ranks {
                        let within =
                            Arena::new(dtype, &columns, &offsets).reduce(level, op, ranks, out);
                        assert_eq!(within, apart, "{dtype} {op} {ranks} into {out} {level:?}");
                    }
                }
            }
        }
    }
}

/// One address for several ranks, as where ranks contribute the same constant; also as the output.
#[test]
fn a_source_may_come_twice() {
    for dtype in DType::ALL {
        let values = column(dtype, 0, 259);
        let expected = expected(dtype, ReduceOp::Sum, &[values.clone(), values.clone()]);
        for level in Level::available() {
            let mut bytes = pack(dtype, &values);
            let mut out = vec![0; bytes.len()];
            let address = bytes.as_mut_ptr();
            let reducer = Reducer::at_level(level, dtype, ReduceOp::Sum).unwrap();
            let sources = [address.cast_const(); 2];
            // SAFETY: both buffers hold the elements and belong to this test.
            unsafe {
                reducer.reduce(&sources, out.as_mut_ptr(), values.len());
                reducer.reduce(&sources, address, values.len());
            }
            assert_eq!(unpack(dtype, &out), expected, "{dtype} {level:?}");
            assert_eq!(unpack(dtype, &bytes), expected, "{dtype} {level:?} in place");
        }
    }
}

#[test]
fn nothing_happens_without_elements_or_sources() {
    let mut out = [0x5au8; 16];
    for dtype in DType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
            let reducer = Reducer::new(dtype, op).unwrap();
            // SAFETY: no element is touched; the addresses are valid all the same.
            unsafe {
                reducer.reduce(&[out.as_ptr(); 3], out.as_mut_ptr(), 0);
                reducer.reduce(&[], out.as_mut_ptr(), 2);
            }
        }
    }
    assert_eq!(out, [0x5a; 16]);
}
