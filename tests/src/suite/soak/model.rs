//! What ranks put into an operation of the soak, and what comes of it, by plain integers.
//!
//! Every element is a function of its operation, rank and index, so that shifted or stale data is
//! found. What is reduced as floats is whole numbers so small that every result is exact.

use symmem_hal::types::{DType, ReduceOp};

use crate::model::float::fields;

/// Elements of one type, and what reduces them: nothing where they only move.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    pub dtype: DType,
    pub op: Option<ReduceOp>,
    pub ranks: u64,
    /// What makes this operation's data other than all others'.
    pub key: u64,
}

/// The code of a whole number that the type has.
fn encode((exponent, mantissa): (u32, u32), number: u64) -> u64 {
    if number == 0 {
        return 0;
    }
    let log = 63 - number.leading_zeros();
    let bias = (1u64 << (exponent - 1)) - 1;
    let fraction = (number << (63 - log)) << 1 >> (64 - mantissa);
    (bias + u64::from(log)) << mantissa | fraction
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Elements {
    /// Bits of an element.
    fn bits(&self) -> u32 {
        8 * self.dtype.size() as u32
    }

    /// The number that a rank has at an index; codes for what only moves.
    fn number(&self, rank: u64, index: u64) -> u64 {
        let stream = self.key ^ mix(rank.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let raw = mix(stream.wrapping_add(index.wrapping_mul(0xd1b5_4a32_d192_ed03)));
        let Some(op) = self.op else { return raw };
        // Up to here all whole numbers are codes.
        let exact = fields(self.dtype).map(|(_, mantissa)| 1u64 << (mantissa + 1));
        match (op, exact) {
            (ReduceOp::Avg, exact) => {
                let exact = exact.unwrap_or(1 << (self.bits() - 1).min(50));
                let most = match self.dtype {
                    // Formed in 32 bits, where the sum has room.
                    DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => exact / self.ranks,
                    _ => (exact - 1) / (self.ranks * self.ranks),
                };
                raw % (most + 1) * self.ranks
            }
            (ReduceOp::Product, Some(_)) => raw % 3,
            (_, Some(exact)) => raw % (exact / self.ranks + 1),
            (_, None) => raw,
        }
    }

    fn code(&self, number: u64) -> u64 {
        match fields(self.dtype).filter(|_| self.op.is_some()) {
            Some(fields) => encode(fields, number),
            None => number,
        }
    }

    fn put(&self, into: &mut [u8], numbers: impl Iterator<Item = u64>) {
        let size = self.dtype.size();
        for (bytes, number) in into.chunks_exact_mut(size).zip(numbers) {
            bytes.copy_from_slice(&self.code(number).to_le_bytes()[..size]);
        }
    }

    /// What a rank has from an index on.
    pub(super) fn write(&self, into: &mut [u8], rank: usize, from: u64) {
        self.put(into, (from..).map(|index| self.number(rank as u64, index)));
    }

    /// What all ranks' elements come to, from an index on.
    pub(super) fn write_reduced(&self, into: &mut [u8], from: u64) {
        let Some(op) = self.op else { return };
        let all = |index| {
            let numbers = (0..self.ranks).map(|rank| self.number(rank, index));
            numbers.reduce(|a, b| self.combine(op, a, b)).unwrap_or(0)
        };
        let average = op == ReduceOp::Avg;
        let last = |sum: u64| if average { sum / self.ranks } else { sum };
        self.put(into, (from..).map(|index| last(all(index))));
    }

    fn combine(&self, op: ReduceOp, a: u64, b: u64) -> u64 {
        let is_signed = matches!(self.dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
        let unused = 64 - self.bits();
        let less = match (fields(self.dtype), is_signed) {
            (Some(_), _) => a < b,
            (None, true) => ((a << unused) as i64) < (b << unused) as i64,
            (None, false) => a << unused < b << unused,
        };
        match op {
            ReduceOp::Sum | ReduceOp::Avg => a.wrapping_add(b),
            ReduceOp::Product => a.wrapping_mul(b),
            ReduceOp::Min => {
                if less {
                    a
                } else {
                    b
                }
            }
            ReduceOp::Max => {
                if less {
                    b
                } else {
                    a
                }
            }
            ReduceOp::And => a & b,
            ReduceOp::Or => a | b,
            _ => a ^ b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::reduce::reduce;

    /// Two models that know nothing of each other.
    #[test]
    fn reductions_are_those_of_the_suites_model() {
        for dtype in DType::ALL {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
                for ranks in [1, 2, 3, 4, 8] {
                    let elements = Elements { dtype, op: Some(op), ranks, key: 99 + ranks };
                    let bytes = 200 * dtype.size();
                    let inputs: Vec<_> = (0..ranks as usize)
                        .map(|rank| {
                            let mut input = vec![0; bytes];
                            elements.write(&mut input, rank, 7);
                            input
                        })
                        .collect();
                    let mut found = vec![0; bytes];
                    elements.write_reduced(&mut found, 7);
                    assert_eq!(found, reduce(dtype, op, &inputs), "{op} of {dtype}, {ranks}");
                }
            }
        }
    }
}
