//! Against an independent model, bit for bit, at every level this processor runs.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod environment;
mod floats;
mod integers;
mod model;
mod operators;
mod quantise;
mod random;
mod ranges;
mod weighted;

use symmem_hal::types::DType;

use super::dispatch::Level;
use super::{ReduceOp, Reducer};

/// Elements' bits, packed as they lie in memory.
fn pack(dtype: DType, elements: &[u64]) -> Vec<u8> {
    elements.iter().flat_map(|bits| bits.to_ne_bytes_of(dtype)).collect()
}

fn unpack(dtype: DType, bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(dtype.size())
        .map(|chunk| match *chunk {
            [a] => u64::from(a),
            [a, b] => u64::from(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
            _ => u64::from_ne_bytes(chunk.try_into().unwrap()),
        })
        .collect()
}

trait ElementBytes {
    fn to_ne_bytes_of(self, dtype: DType) -> Vec<u8>;
}

impl ElementBytes for u64 {
    fn to_ne_bytes_of(self, dtype: DType) -> Vec<u8> {
        match dtype.size() {
            1 => vec![self as u8],
            2 => (self as u16).to_ne_bytes().to_vec(),
            4 => (self as u32).to_ne_bytes().to_vec(),
            _ => self.to_ne_bytes().to_vec(),
        }
    }
}

/// Reduces columns of equal length out of place.
fn reduce(level: Level, dtype: DType, op: ReduceOp, columns: &[Vec<u64>]) -> Vec<u64> {
    let count = columns[0].len();
    let sources: Vec<Vec<u8>> = columns.iter().map(|column| pack(dtype, column)).collect();
    let addresses: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
    let mut out = vec![0xa5; count * dtype.size()];
    let reducer = Reducer::at_level(level, dtype, op).unwrap();
    // SAFETY: every buffer holds `count` elements and belongs to this function. The loops need no
    // alignment.
    unsafe { reducer.reduce(&addresses, out.as_mut_ptr(), count) };
    unpack(dtype, &out)
}

/// Reduces columns at every level and compares each element with the model.
fn check(dtype: DType, op: ReduceOp, columns: &[Vec<u64>]) {
    let expected: Vec<u64> = (0..columns[0].len())
        .map(|i| {
            let row: Vec<u64> = columns.iter().map(|column| column[i]).collect();
            model::reduce(dtype, op, &row)
        })
        .collect();
    for level in Level::available() {
        let found = reduce(level, dtype, op, columns);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(
                found,
                expected,
                "{dtype} {op} at {level:?}: {:x?} gave {found:#x}, expected {expected:#x}",
                columns.iter().map(|column| column[i]).collect::<Vec<_>>()
            );
        }
    }
}

/// All pairs of elements of two lists, as two columns.
fn pairs(left: &[u64], right: &[u64]) -> [Vec<u64>; 2] {
    let first = left.iter().flat_map(|&a| right.iter().map(move |_| a)).collect();
    let second = left.iter().flat_map(|_| right.iter().copied()).collect();
    [first, second]
}
