//! The reduction of one element of each rank, as the contract says it.
//!
//! - Floats: rank 0's value, then one rank after the other. f8, f16, bf16 and f32 in f32, here by
//!   f64 rounded to f32 after each operation: with 53 bits for 24 the second rounding changes
//!   nothing (Figueroa, 1995). f64 in f64. One conversion at the end.
//! - Integers in 128 bits.

use symmem_hal::types::{DType, ReduceOp};

use super::float::{F32, Format};

/// Reduces element by element what each rank has, in rank order; all have equally many bytes.
///
/// # Panics
///
/// For an operator that the type does not have.
#[must_use]
pub fn reduce(dtype: DType, op: ReduceOp, ranks: &[Vec<u8>]) -> Vec<u8> {
    assert!(op.supports(dtype), "{op} of {dtype}");
    let size = dtype.size();
    let bytes = ranks.first().map_or(0, Vec::len);
    let mut out = Vec::with_capacity(bytes);
    let mut codes = vec![0; ranks.len()];
    for at in (0..bytes).step_by(size) {
        for (code, rank) in codes.iter_mut().zip(ranks) {
            *code = load(&rank[at..at + size]);
        }
        out.extend_from_slice(&element(dtype, op, &codes).to_le_bytes()[..size]);
    }
    out
}

fn load(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |code, byte| code << 8 | u64::from(*byte))
}

/// Reduces one element's codes, by rank.
#[must_use]
pub fn element(dtype: DType, op: ReduceOp, codes: &[u64]) -> u64 {
    if dtype == DType::F64 {
        let value = fold(op, codes.iter().map(|code| f64::from_bits(*code)), |x| x);
        if value.is_nan() { 0x7fff_ffff_ffff_ffff } else { value.to_bits() }
    } else if let Some(format) = Format::of(dtype) {
        let value = fold(op, codes.iter().map(|code| format.decode(*code)), |x| F32.round(x));
        format.encode(value)
    } else {
        integer(dtype, op, codes)
    }
}

fn fold(
    op: ReduceOp,
    mut values: impl ExactSizeIterator<Item = f64>,
    round: impl Fn(f64) -> f64,
) -> f64 {
    let ranks = values.len();
    let Some(first) = values.next() else { return 0.0 };
    let reduced = values.fold(first, |a, b| match op {
        ReduceOp::Sum | ReduceOp::Avg => round(a + b),
        ReduceOp::Product => round(a * b),
        ReduceOp::Min => least(a, b),
        _ => -least(-a, -b),
    });
    if op == ReduceOp::Avg { round(reduced / ranks as f64) } else { reduced }
}

/// IEEE 754-2019 minimum.
fn least(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a == b {
        // Equal, or zeros of either sign, of which the negative one is less.
        if a.is_sign_negative() { a } else { b }
    } else if a < b {
        a
    } else {
        b
    }
}

fn integer(dtype: DType, op: ReduceOp, codes: &[u64]) -> u64 {
    let bits = 8 * dtype.size() as u32;
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let value = |code: u64| {
        let value = i128::from(code);
        if signed && code >> (bits - 1) & 1 == 1 { value - (1 << bits) } else { value }
    };
    let mut values = codes.iter().map(|code| value(*code));
    let Some(first) = values.next() else { return 0 };
    let reduced = values.fold(first, |a, b| match op {
        ReduceOp::Sum | ReduceOp::Avg => a + b,
        // Only the low bits count, so any wrap above them does no harm.
        ReduceOp::Product => a.wrapping_mul(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::And => a & b,
        ReduceOp::Or => a | b,
        ReduceOp::Xor => a ^ b,
    });
    // Rust's division goes toward zero.
    let reduced = if op == ReduceOp::Avg { reduced / codes.len() as i128 } else { reduced };
    reduced as u64 & (u64::MAX >> (64 - bits))
}
