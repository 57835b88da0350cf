//! Random numbers that every rank can compute for every rank.

/// A stream of numbers, a function of its seed and name.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream of this name.
    pub(crate) fn new(seed: u64, name: &[u64]) -> Self {
        Random(name.iter().fold(seed, |state, part| mix(state ^ mix(*part))))
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// One of 0 to `n` - 1. Uneven by less than any test could see.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// The finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
