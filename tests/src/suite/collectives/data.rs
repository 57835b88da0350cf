//! What ranks put into operations.

use symmem_hal::types::DType;

use crate::model::float::fields;
use crate::support::random::Random;

/// What a rank puts into a case: numbers of moderate size most of the time, so that sums mean
/// something; at some indices any bits, or the values where rounding and signs go wrong.
pub(in crate::suite) fn random(
    dtype: DType,
    count: u64,
    seed: u64,
    case: u64,
    rank: u64,
) -> Vec<u8> {
    let size = dtype.size();
    let mut own = Random::new(seed, &[case, rank]);
    let mut common = Random::new(seed, &[case, u64::MAX]);
    let specials = specials(dtype);
    let mut bytes = Vec::with_capacity(count as usize * size);
    for _ in 0..count {
        let code = match common.below(16) {
            0 if own.below(2) == 0 => specials[own.below(specials.len() as u64) as usize],
            1 => own.next(),
            _ => moderate(dtype, own.next()),
        };
        bytes.extend_from_slice(&code.to_le_bytes()[..size]);
    }
    bytes
}

/// Integers of any size; floats between 1/16 and 16 in magnitude.
fn moderate(dtype: DType, random: u64) -> u64 {
    let Some((exponent, mantissa)) = fields(dtype) else { return random };
    let bias = (1u64 << (exponent - 1)) - 1;
    let sign = (random >> 63) << (exponent + mantissa);
    let field = bias - 4 + (random >> 60 & 7);
    sign | field << mantissa | random & ((1 << mantissa) - 1)
}

/// Zeros, ones, the ends of each range of codes and what lies beside them, infinities and NaNs of
/// either sign and payload.
pub(super) fn specials(dtype: DType) -> Vec<u64> {
    let bits = 8 * dtype.size() as u32;
    let top = 1u64 << (bits - 1);
    let mut codes = vec![0, 1, 2, 3, top - 1, top - 2];
    if let Some((exponent, mantissa)) = fields(dtype) {
        let unit = 1u64 << mantissa;
        let bias = (1u64 << (exponent - 1)) - 1;
        let infinity = ((1u64 << exponent) - 1) << mantissa;
        codes.extend([unit - 1, unit, unit + 1, infinity - 1, infinity, infinity + 1]);
        // A quiet NaN; 1, the numbers beside it, 2; half a unit in the last place of 1.
        codes.extend([infinity | unit >> 1, infinity | unit >> 1 | 1]);
        codes.extend([bias << mantissa, (bias << mantissa) + 1, (bias << mantissa) - 1]);
        codes.extend([
            (bias + 1) << mantissa,
            bias.saturating_sub(u64::from(mantissa) + 1) << mantissa,
        ]);
    }
    codes.iter().flat_map(|code| [*code, code | top]).collect()
}
