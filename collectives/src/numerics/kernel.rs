//! The loops.
//!
//! Written for LLVM's loop vectoriser: counted loops over raw pointers, no calls, no branches in
//! the body. Each source is read once and each output written once, in ascending order.
#![allow(unsafe_code)] // Reads memory that peers wrote, which is never behind a reference.

use core::mem::MaybeUninit;

use super::accumulate::{Accumulator, Operator, Sum};
use super::format::Format;

/// Bytes of accumulators that stay in the first-level cache while every source is folded in.
const TILE: usize = 4096;

#[repr(C, align(64))]
struct Tile(MaybeUninit<[u8; TILE]>);

/// What the loops fold in: elements at an address, as they are or each with a factor.
pub(super) trait Source<A>: Copy {
    fn address(self) -> *const u8;
    fn weigh(self, value: A) -> A;
}

impl<A> Source<A> for *const u8 {
    #[inline(always)]
    fn address(self) -> *const u8 {
        self
    }

    #[inline(always)]
    fn weigh(self, value: A) -> A {
        value
    }
}

impl<A: Accumulator> Source<A> for (A, *const u8) {
    #[inline(always)]
    fn address(self) -> *const u8 {
        self.1
    }

    #[inline(always)]
    fn weigh(self, value: A) -> A {
        self.0.multiply(value)
    }
}

/// `out[i] = finish(sources[0][i] op sources[1][i] op ...)` for `count` elements.
///
/// Without sources it does nothing.
///
/// # Safety
///
/// As [`Reducer::reduce`](super::Reducer::reduce).
#[inline(always)]
pub(super) unsafe fn reduce<F, O, const LANES: usize>(
    sources: &[*const u8],
    out: *mut u8,
    count: usize,
) where
    F: Format<LANES>,
    O: Operator<F::Acc>,
{
    let words = count / LANES;
    // SAFETY: whole words and the elements after them lie within `count` elements of each range;
    // all else is the caller's promise, until this returns.
    unsafe {
        match *sources {
            // A store to `out` may hit only the element just read. LLVM sees that if both are the
            // same pointer; told apart at run time they would fall back to scalar code.
            [a, b] if out.cast_const() == a => pair::<F, O, LANES>(out, b, out, words),
            [a, b] if out.cast_const() == b => pair::<F, O, LANES>(out, a, out, words),
            [a, b] => pair::<F, O, LANES>(a, b, out, words),
            _ => tiles::<F, O, _, LANES>(sources, out, words),
        }
        tail::<F, O, _, LANES>(sources, out, count);
    }
}

/// `out[i] = rows[0].weight * rows[0][i] + rows[1].weight * rows[1][i] + ...` for `count` elements.
///
/// Without rows it does nothing.
///
/// # Safety
///
/// As [`WeightedSum::sum`](super::WeightedSum::sum).
#[inline(always)]
pub(super) unsafe fn weighted<F, const LANES: usize>(
    rows: &[(F::Acc, *const u8)],
    out: *mut u8,
    count: usize,
) where
    F: Format<LANES, Acc: Accumulator>,
{
    // SAFETY: as in `reduce`.
    unsafe {
        tiles::<F, Sum, _, LANES>(rows, out, count / LANES);
        tail::<F, Sum, _, LANES>(rows, out, count);
    }
}

/// Two sources, without a tile between.
///
/// # Safety
///
/// `words` words can be read at `a` and `b` and written at `out`; `out` is `a`, `b` or apart from
/// both.
#[inline(always)]
unsafe fn pair<F, O, const LANES: usize>(a: *const u8, b: *const u8, out: *mut u8, words: usize)
where
    F: Format<LANES>,
    O: Operator<F::Acc>,
{
    let (a, b, out) = (a.cast::<F::Word>(), b.cast::<F::Word>(), out.cast::<F::Word>());
    for i in 0..words {
        // SAFETY: `i < words`, by the contract above.
        unsafe {
            let mut values = F::unpack(a.add(i).read_unaligned());
            let right = F::unpack(b.add(i).read_unaligned());
            for lane in 0..LANES {
                values[lane] = O::finish(O::combine(values[lane], right[lane]), 2);
            }
            out.add(i).write_unaligned(F::pack(values));
        }
    }
}

/// Any number of sources, tile by tile: all of them are read before the tile's output is written,
/// so the output may be one of them.
///
/// # Safety
///
/// As [`reduce`], for `words` words.
#[inline(always)]
unsafe fn tiles<F, O, S, const LANES: usize>(sources: &[S], out: *mut u8, words: usize)
where
    F: Format<LANES>,
    O: Operator<F::Acc>,
    S: Source<F::Acc>,
{
    let mut tile = Tile(MaybeUninit::uninit());
    let acc: *mut F::Acc = tile.0.as_mut_ptr().cast();
    let full = TILE / (size_of::<F::Acc>() * LANES);
    let mut start = 0;
    while start < words {
        let len = full.min(words - start);
        let at = start * size_of::<F::Word>();
        // SAFETY: words `start` to `start + len` are within every range. `acc` holds `full` words'
        // lanes, aligned for any accumulator, and `seed` writes each that is read after it.
        unsafe {
            let rest = match *sources {
                [] => return,
                [a] => {
                    seed::<F, O, _, 1, LANES>(acc, [a], at, full, len);
                    &[]
                }
                [a, b, ref rest @ ..] => {
                    seed::<F, O, _, 2, LANES>(acc, [a, b], at, full, len);
                    rest
                }
            };
            let (pairs, last) = rest.as_chunks::<2>();
            for &[a, b] in pairs {
                fold::<F, O, _, 2, LANES>(acc, [a, b], at, full, len);
            }
            for &a in last {
                fold::<F, O, _, 1, LANES>(acc, [a], at, full, len);
            }
            finish::<F, O, LANES>(acc, out.add(at), full, len, sources.len());
        }
        start += len;
    }
}

/// Which accumulator is lane `lane`'s of word `i`. Lanes of one word are apart, so that a vector
/// holds one lane of many words; where a word is a vector they stay together.
#[inline(always)]
fn slot<const LANES: usize>(lane: usize, i: usize, stride: usize) -> usize {
    if LANES < 8 { lane * stride + i } else { i * LANES + lane }
}

/// The lanes of a source's word `i` after `at` bytes, not weighed yet: the loops over lanes do that,
/// by index. With `map`, `zip` or a loop of its own the loops over words no longer vectorise.
///
/// # Safety
///
/// The word can be read.
#[inline(always)]
unsafe fn load<F, S, const LANES: usize>(source: S, at: usize, i: usize) -> [F::Acc; LANES]
where
    F: Format<LANES>,
    S: Source<F::Acc>,
{
    // SAFETY: the contract above.
    F::unpack(unsafe { source.address().add(at).cast::<F::Word>().add(i).read_unaligned() })
}

/// Sets the accumulators from the first sources.
///
/// # Safety
///
/// `len <= stride` words can be read `at` bytes into each source; `acc` holds `stride * LANES`
/// accumulators.
#[expect(clippy::needless_range_loop)] // See `load`.
#[inline(always)]
unsafe fn seed<F, O, S, const SOURCES: usize, const LANES: usize>(
    acc: *mut F::Acc,
    sources: [S; SOURCES],
    at: usize,
    stride: usize,
    len: usize,
) where
    F: Format<LANES>,
    O: Operator<F::Acc>,
    S: Source<F::Acc>,
{
    for i in 0..len {
        // SAFETY: `i < len <= stride` and `lane < LANES`, by the contract above.
        unsafe {
            let values = sources.map(|source| load::<F, S, LANES>(source, at, i));
            for lane in 0..LANES {
                let mut value = sources[0].weigh(values[0][lane]);
                for k in 1..SOURCES {
                    value = O::combine(value, sources[k].weigh(values[k][lane]));
                }
                acc.add(slot::<LANES>(lane, i, stride)).write(value);
            }
        }
    }
}

/// Folds the next sources into what [`seed`] set.
///
/// # Safety
///
/// As [`seed`], which must have set the first `len` accumulators of each lane.
#[expect(clippy::needless_range_loop)] // See `load`.
#[inline(always)]
unsafe fn fold<F, O, S, const SOURCES: usize, const LANES: usize>(
    acc: *mut F::Acc,
    sources: [S; SOURCES],
    at: usize,
    stride: usize,
    len: usize,
) where
    F: Format<LANES>,
    O: Operator<F::Acc>,
    S: Source<F::Acc>,
{
    for i in 0..len {
        // SAFETY: `i < len <= stride` and `lane < LANES`, by the contract above.
        unsafe {
            let values = sources.map(|source| load::<F, S, LANES>(source, at, i));
            for lane in 0..LANES {
                let slot = acc.add(slot::<LANES>(lane, i, stride));
                let mut value = slot.read();
                for k in 0..SOURCES {
                    value = O::combine(value, sources[k].weigh(values[k][lane]));
                }
                slot.write(value);
            }
        }
    }
}

/// Converts the accumulators and writes them out.
///
/// # Safety
///
/// As [`fold`]; `len` words can be written at `out`, which does not overlap `acc`.
#[inline(always)]
unsafe fn finish<F, O, const LANES: usize>(
    acc: *const F::Acc,
    out: *mut u8,
    stride: usize,
    len: usize,
    ranks: usize,
) where
    F: Format<LANES>,
    O: Operator<F::Acc>,
{
    let out = out.cast::<F::Word>();
    for i in 0..len {
        // SAFETY: `i < len <= stride` and `lane < LANES`, by the contract above.
        unsafe {
            let values = core::array::from_fn(|lane| {
                O::finish(acc.add(slot::<LANES>(lane, i, stride)).read(), ranks)
            });
            out.add(i).write_unaligned(F::pack(values));
        }
    }
}

/// The elements after the last whole word, as a word filled up with zeros.
///
/// # Safety
///
/// `count` elements can be read at each source and written at `out`.
#[inline(always)]
unsafe fn tail<F, O, S, const LANES: usize>(sources: &[S], out: *mut u8, count: usize)
where
    F: Format<LANES>,
    O: Operator<F::Acc>,
    S: Source<F::Acc>,
{
    if count.is_multiple_of(LANES) {
        return;
    }
    let at = count / LANES * size_of::<F::Word>();
    let bytes = count % LANES * (size_of::<F::Word>() / LANES);
    let load = |source: S| {
        let mut word = <F::Word as bytemuck::Zeroable>::zeroed();
        let from = source.address().wrapping_add(at);
        // SAFETY: `bytes` bytes from `at` can be read, by the contract above, and fit in the word.
        unsafe { from.copy_to_nonoverlapping((&raw mut word).cast(), bytes) };
        F::unpack(word).map(|value| source.weigh(value))
    };
    let Some((&first, rest)) = sources.split_first() else { return };
    let mut values = load(first);
    for &source in rest {
        let next = load(source);
        values = core::array::from_fn(|lane| O::combine(values[lane], next[lane]));
    }
    let word = F::pack(values.map(|value| O::finish(value, sources.len())));
    // SAFETY: `bytes` bytes from `at` can be written, by the contract above.
    unsafe { out.add(at).copy_from_nonoverlapping((&raw const word).cast(), bytes) };
}
