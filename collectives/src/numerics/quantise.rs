//! Blocks of elements as f8e4m3 with a scale each.
#![allow(unsafe_code)] // Reads memory that peers write, which is never behind a reference.

use core::marker::PhantomData;

use symmem_hal::types::DType;

use super::UnsupportedType;
use super::dispatch::{Compiled, Level, Loops};
use super::environment::DefaultEnvironment;
#[cfg(target_arch = "x86_64")]
use super::format::F16c;
use super::format::{Bf16, E4m3, F16, F32, Format};

/// Elements as f8e4m3 (OCP e4m3fn) codes, with an f32 scale for each [`BLOCK`](Self::BLOCK) of them:
/// looked up once, then called for each row.
///
/// An element is about its code's value times its block's scale. To the bit, with every operation
/// IEEE f32, rounded to nearest even, subnormals kept:
///
/// ```text
/// amax     = the largest |x| among the block's elements that are no NaN; 0 without any
/// quotient = amax / MAX
/// scale    = quotient == 0 ? 1 : quotient
/// y        = x / scale
/// code     = e4m3fn(clamp(y, -MAX, MAX)), rounded to nearest even; 0x7f where y is a NaN
/// ```
///
/// All are divisions: none is a product with a reciprocal, none an approximation. What follows:
///
/// - `scale` is never zero, nor a NaN. It is 1 in blocks of zeros and NaNs, and in blocks whose `amax`
///   is at most 224 * 2^-149: `amax` / 448 rounds to zero there, and codes are ±0.
/// - `scale` may be a subnormal, where `amax` is below 448 * 2^-126, and then rounded down by so much
///   that `y` exceeds 448: such elements become ±448.
/// - An infinity among the elements makes `scale` infinite. Infinities then become 0x7f, whatever
///   their sign, and finite elements zeros.
/// - A zero code has the sign of its element. A NaN is always 0x7f, without a sign, and does not
///   change what other elements become.
#[derive(Clone, Copy, Debug)]
pub struct BlockQuantiser {
    dtype: DType,
    kernel: unsafe fn(Blocks),
}

impl BlockQuantiser {
    /// Elements with a common scale. The last block of a row may be shorter.
    pub const BLOCK: usize = 128;

    /// The largest number of f8e4m3, which the largest element of a block becomes.
    pub const MAX: f32 = 448.0;

    /// The element types.
    pub const TYPES: &[DType] = &[DType::F32, DType::F16, DType::BF16];

    /// The fastest loops that this processor runs.
    ///
    /// # Errors
    ///
    /// [`UnsupportedType`] for others than [`TYPES`](Self::TYPES).
    pub fn new(dtype: DType) -> Result<Self, UnsupportedType> {
        Self::at_level(Level::best(), dtype)
    }

    pub(super) fn at_level(level: Level, dtype: DType) -> Result<Self, UnsupportedType> {
        let kernel = match (dtype, level) {
            (DType::F32, _) => compiled::<F32, 1>(level),
            (DType::F16, Level::Baseline) => compiled::<F16, 2>(level),
            #[cfg(target_arch = "x86_64")]
            (DType::F16, Level::Avx2 | Level::Avx512) => compiled::<F16c, 8>(level),
            (DType::BF16, _) => compiled::<Bf16, 2>(level),
            _ => return Err(UnsupportedType { dtype, supported: Self::TYPES }),
        };
        Ok(BlockQuantiser { dtype, kernel })
    }

    /// The element type of what is quantised.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Scales of `count` elements: one for each block begun.
    #[must_use]
    pub const fn scales(count: usize) -> usize {
        count.div_ceil(Self::BLOCK)
    }

    /// Writes the codes of the `count` elements at `x`, a byte each, to `out`, and the scales of their
    /// blocks to `scales`.
    ///
    /// Blocks begin at `x`: rows whose length is no multiple of [`BLOCK`](Self::BLOCK) take a call
    /// each. Bytes past the `count` codes and past the [`scales`](Self::scales) are untouched.
    ///
    /// # Safety
    ///
    /// Until this returns:
    ///
    /// - `count` elements can be read at `x`, `count` bytes be written at `out` and
    ///   [`scales(count)`](Self::scales) f32 at `scales`. `x` is aligned to the element, `scales` to
    ///   four bytes.
    /// - None of the three ranges overlaps another.
    /// - Nobody else writes the elements or touches the rest. What a peer wrote to `x` happens before
    ///   this call: the caller has acquired the word that the peer released after it.
    pub unsafe fn quantise(&self, x: *const u8, count: usize, out: *mut u8, scales: *mut f32) {
        let _environment = DefaultEnvironment::enter();
        // SAFETY: `at_level` chose loops that this processor runs; all else is the caller's promise.
        unsafe { (self.kernel)(Blocks { x, count, out, scales }) }
    }
}

/// The arguments of [`BlockQuantiser::quantise`].
struct Blocks {
    x: *const u8,
    count: usize,
    out: *mut u8,
    scales: *mut f32,
}

fn compiled<F, const LANES: usize>(level: Level) -> Compiled<Quantisation<F, LANES>>
where
    F: Format<LANES, Acc = f32>,
{
    level.compiled::<Quantisation<F, LANES>>()
}

const BLOCK: usize = BlockQuantiser::BLOCK;

struct Quantisation<F, const LANES: usize>(PhantomData<F>);

impl<F, const LANES: usize> Loops for Quantisation<F, LANES>
where
    F: Format<LANES, Acc = f32>,
{
    type Arguments<'a> = Blocks;

    #[inline(always)]
    unsafe fn run(Blocks { x, count, out, scales }: Blocks) {
        let size = size_of::<F::Word>() / LANES;
        let (whole, rest) = (count / BLOCK, count % BLOCK);
        // SAFETY: blocks `0..whole`, and the `rest` elements after them, are within the ranges of the
        // caller's promise. A block of f32, the widest element, fits in `padded`.
        unsafe {
            for i in 0..whole {
                let at = i * BLOCK;
                block::<F, LANES>(x.add(at * size), out.add(at), scales.add(i));
            }
            if rest > 0 {
                let at = whole * BLOCK;
                // Zeros change no maximum.
                let mut padded = [0u8; 4 * BLOCK];
                let mut codes = [0u8; BLOCK];
                x.add(at * size).copy_to_nonoverlapping(padded.as_mut_ptr(), rest * size);
                block::<F, LANES>(padded.as_ptr(), codes.as_mut_ptr(), scales.add(whole));
                out.add(at).copy_from_nonoverlapping(codes.as_ptr(), rest);
            }
        }
    }
}

/// One whole block.
///
/// # Safety
///
/// [`BLOCK`] elements can be read at `x`, as many bytes written at `out`, and an f32 at `scale`.
#[inline(always)]
unsafe fn block<F, const LANES: usize>(x: *const u8, out: *mut u8, scale: *mut f32)
where
    F: Format<LANES, Acc = f32>,
{
    let mut values = [0.0f32; BLOCK];
    for i in 0..BLOCK / LANES {
        // SAFETY: words of `LANES` elements make up the block, by the contract above.
        let word = unsafe { x.cast::<F::Word>().add(i).read_unaligned() };
        values[i * LANES..][..LANES].copy_from_slice(&F::unpack(word));
    }
    // Magnitudes are in the order of their bits, and a maximum of integers may be taken in any order:
    // the loop vectorises.
    let mut greatest = 0i32;
    for value in values {
        let magnitude = (value.to_bits() & 0x7fff_ffff) as i32;
        greatest = greatest.max(if magnitude > 0x7f80_0000 { 0 } else { magnitude });
    }
    let quotient = f32::from_bits(greatest as u32) / BlockQuantiser::MAX;
    let divisor = if quotient == 0.0 { 1.0 } else { quotient };
    // SAFETY: the contract above.
    unsafe { scale.write_unaligned(divisor) };
    for (i, value) in values.into_iter().enumerate() {
        // SAFETY: `i < BLOCK`, by the contract above.
        unsafe { out.add(i).write(E4m3::saturated(value / divisor)) };
    }
}
