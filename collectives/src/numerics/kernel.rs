//! The loops.
//!
//! Written for LLVM's loop vectoriser: counted loops over raw pointers, no calls, no branches in
//! the body. Each source is read once and each output written once, in ascending order.
#![allow(unsafe_code)] // Reads memory that peers wrote, which is never behind a reference.

use core::mem::MaybeUninit;

use super::accumulate::Operator;
use super::format::Format;

/// Bytes of accumulators that stay in the first-level cache while every source is folded in.
const TILE: usize = 4096;

#[repr(C, align(64))]
struct Tile(MaybeUninit<[u8; TILE]>);

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
            _ => tiles::<F, O, LANES>(sources, out, words),
        }
        if !count.is_multiple_of(LANES) {
            let whole = words * size_of::<F::Word>();
            let bytes = count % LANES * (size_of::<F::Word>() / LANES);
            tail::<F, O, LANES>(sources, out, whole, bytes);
        }
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
unsafe fn tiles<F, O, const LANES: usize>(sources: &[*const u8], out: *mut u8, words: usize)
where
    F: Format<LANES>,
    O: Operator<F::Acc>,
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
                    seed::<F, O, 1, LANES>(acc, [a.add(at)], full, len);
                    &[]
                }
                [a, b, ref rest @ ..] => {
                    seed::<F, O, 2, LANES>(acc, [a.add(at), b.add(at)], full, len);
                    rest
                }
            };
            let (pairs, last) = rest.as_chunks::<2>();
            for &[a, b] in pairs {
                fold::<F, O, 2, LANES>(acc, [a.add(at), b.add(at)], full, len);
            }
            for &a in last {
                fold::<F, O, 1, LANES>(acc, [a.add(at)], full, len);
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

/// Sets the accumulators from the first sources.
///
/// # Safety
///
/// `len <= stride` words can be read at each source; `acc` holds `stride * LANES` accumulators.
#[inline(always)]
unsafe fn seed<F, O, const SOURCES: usize, const LANES: usize>(
    acc: *mut F::Acc,
    sources: [*const u8; SOURCES],
    stride: usize,
    len: usize,
) where
    F: Format<LANES>,
    O: Operator<F::Acc>,
{
    for i in 0..len {
        // SAFETY: `i < len <= stride` and `lane < LANES`, by the contract above.
        unsafe {
            let values =
                sources.map(|source| F::unpack(source.cast::<F::Word>().add(i).read_unaligned()));
            for lane in 0..LANES {
                let mut value = values[0][lane];
                for next in &values[1..] {
                    value = O::combine(value, next[lane]);
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
#[inline(always)]
unsafe fn fold<F, O, const SOURCES: usize, const LANES: usize>(
    acc: *mut F::Acc,
    sources: [*const u8; SOURCES],
    stride: usize,
    len: usize,
) where
    F: Format<LANES>,
    O: Operator<F::Acc>,
{
    for i in 0..len {
        // SAFETY: `i < len <= stride` and `lane < LANES`, by the contract above.
        unsafe {
            let values =
                sources.map(|source| F::unpack(source.cast::<F::Word>().add(i).read_unaligned()));
            for lane in 0..LANES {
                let slot = acc.add(slot::<LANES>(lane, i, stride));
                let mut value = slot.read();
                for next in &values {
                    value = O::combine(value, next[lane]);
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
/// `at + bytes` bytes can be read at each source and written at `out`, and `bytes` is less than a
/// word.
#[inline(always)]
unsafe fn tail<F, O, const LANES: usize>(
    sources: &[*const u8],
    out: *mut u8,
    at: usize,
    bytes: usize,
) where
    F: Format<LANES>,
    O: Operator<F::Acc>,
{
    let load = |source: *const u8| {
        let mut word = <F::Word as bytemuck::Zeroable>::zeroed();
        // SAFETY: `bytes` bytes from `at` can be read, by the contract above, and fit in the word.
        unsafe { source.add(at).copy_to_nonoverlapping((&raw mut word).cast(), bytes) };
        F::unpack(word)
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
