//! How elements lie in memory words, and the way from there to accumulators and back.
//!
//! Every conversion is branch-free integer and f32 arithmetic, so that loops over it vectorise.
//! Narrow floats are taken from memory as 32-bit words of two or four elements: the shifts and
//! masks that part a word stay within 32-bit lanes, where widening each element on its own would
//! shuffle across them. Which end of a word an element sits at does not matter, since its result
//! goes back to the same place.

#[cfg(target_arch = "x86_64")]
mod f16c;
mod float;
mod integer;
mod minifloat;
mod order;

use bytemuck::Pod;

#[cfg(target_arch = "x86_64")]
pub(super) use f16c::F16c;
pub(super) use float::{Bf16, F32, F64};
pub(super) use integer::{Exact, Native};
pub(super) use minifloat::{E4m3, E5m2, F16};
pub(super) use order::Ordered;

/// `LANES` elements in one memory word.
pub(super) trait Format<const LANES: usize> {
    /// What is read and written at once.
    type Word: Pod;
    /// What one element is accumulated in.
    type Acc: Copy;

    fn unpack(word: Self::Word) -> [Self::Acc; LANES];

    /// The one final conversion: rounds to nearest even and makes every NaN the canonical one.
    fn pack(values: [Self::Acc; LANES]) -> Self::Word;
}
