//! Inputs: functions of seed, rank and index, so that every rank knows every other's.

use symmem::hal::types::{DType, ReduceOp};

use super::format;

/// What tells one set of inputs from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// The seed of a run.
    pub fn new(run: u64) -> Self {
        Seed(mix(run))
    }

    /// The seed of one of its parts.
    pub fn part(self, part: u64) -> Self {
        Seed(mix(self.0 ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// A word for each key.
    pub fn keyed(self, key: &[u64]) -> u64 {
        key.iter().fold(self.0, |word, part| mix(word ^ part))
    }

    fn word(self, rank: usize, index: usize) -> u64 {
        mix(mix(self.0 ^ rank as u64) ^ index as u64)
    }
}

/// The finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014).
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The inputs of one operation.
#[derive(Clone, Copy, Debug)]
pub enum Data {
    /// Bit patterns over the whole format.
    Random(Seed),
    /// Integers with which no partial result rounds.
    Small(Seed),
}

impl Data {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Data::Random(_) => "random data",
            Data::Small(_) => "small integers",
        }
    }

    /// The bits of an element of a rank's input.
    pub(super) fn bits(self, dtype: DType, op: ReduceOp, rank: usize, index: usize) -> u64 {
        match self {
            Data::Random(seed) => random(dtype, seed.word(rank, index)),
            Data::Small(seed) => {
                let x = small(dtype, op, seed.word(rank, index), rank);
                match dtype {
                    DType::F64 => format::from_f64(f64::from(x)),
                    _ if dtype.is_float() => format::from_f32(dtype, f32::from(x)),
                    _ => format::from_integer(dtype, x.into()),
                }
            }
        }
    }

    /// The value of an element of [`Data::Small`].
    pub(super) fn integer(self, dtype: DType, op: ReduceOp, rank: usize, index: usize) -> i8 {
        let (Data::Random(seed) | Data::Small(seed)) = self;
        small(dtype, op, seed.word(rank, index), rank)
    }
}

/// One element in sixteen is any bit pattern: subnormals, infinities, NaNs, far magnitudes. Of the
/// others the exponents lie close together, so that sums and products round.
fn random(dtype: DType, word: u64) -> u64 {
    let bits = word & format::mask(dtype);
    let Some(format::Float { exponent, mantissa }) = format::float(dtype) else { return bits };
    let choice = mix(word);
    if choice >> 60 == 0 {
        return bits;
    }
    let window = (1 << (exponent - 2).min(3)) - 1;
    let bias = (1 << (exponent - 1)) - 1;
    let near = bias - 1 + (choice & window) - window / 2;
    let cleared = bits & !(((1 << exponent) - 1) << mantissa);
    cleared | near << mantissa
}

/// Values of which every format holds each exactly, and with which no partial result of any order
/// needs more than 24 bits: sums of up to 2^22 ranks, products of any number.
fn small(dtype: DType, op: ReduceOp, word: u64, rank: usize) -> i8 {
    let signed = dtype.is_float() || format::to_integer(dtype, format::mask(dtype)) < 0;
    let sign = if signed && word & 1 == 1 { -1 } else { 1 };
    let magnitude = match op {
        // A zero would bring the sign of a zero into play.
        ReduceOp::Product if rank < 16 => 1 + (word >> 1 & 1) as i8,
        ReduceOp::Product => 1,
        _ => (word >> 1 & 3) as i8,
    };
    sign * magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_indices_and_parts_differ() {
        let seed = Seed::new(1);
        let words = [seed.word(0, 0), seed.word(0, 1), seed.word(1, 0), seed.part(1).word(0, 0)];
        for (i, a) in words.iter().enumerate() {
            assert!(words[..i].iter().all(|b| a != b));
        }
    }

    #[test]
    fn random_floats_are_mostly_ordinary_and_sometimes_not() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_float() && *d != DType::F64) {
            let data = Data::Random(Seed::new(7));
            let values: Vec<f32> = (0..65_000)
                .map(|i| format::to_f32(dtype, data.bits(dtype, ReduceOp::Sum, 0, i)))
                .collect();
            let ordinary = values.iter().filter(|x| (1e-2..1e2).contains(&x.abs())).count();
            assert!(ordinary > 55_000, "{dtype}: {ordinary}");
            assert!(values.iter().any(|x| x.is_nan()), "{dtype}");
        }
    }
}
