//! What a result must be, found without the library's arithmetic.
//!
//! Two kinds of data. *Random*: bit patterns over the whole format, most of them of magnitudes that
//! make additions round; the expectation is a fold in rank order by the documented rules, compared
//! bit for bit. *Small*: integers chosen so that every partial result is exact in the accumulator,
//! so that the expectation is integer arithmetic and no rule about order or rounding is trusted.
//!
//! Data repeats after a prime number of elements. Expectations are therefore computed once per
//! period, every element of an output is still compared, and no two slices, chunks or pages of a
//! message hold the same bytes, so that a piece that landed elsewhere is found.

mod data;
mod expect;
mod format;
mod model;
mod pattern;

pub use data::{Data, Seed, mix};
pub use expect::{Inputs, Part, Source};
pub use format::{from_f32, spell, to_f32};
pub use pattern::{Pattern, Wrong};
