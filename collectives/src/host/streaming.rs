//! Copies past the cache.
//!
//! A store to a line that is not in the cache reads it first; a non-temporal store does not, which
//! saves a third of the traffic where all lines are written whole and none is soon used. The C
//! library does so too, from a size on that follows from all of the machine's cache, of which a rank
//! has a part.
#![allow(unsafe_code, reason = "copies memory that peers write, by non-temporal stores")]

/// Copies `bytes` bytes; they are in memory, for whoever acquires a later release, at return.
///
/// # Safety
///
/// As [`copy_nonoverlapping`](core::ptr::copy_nonoverlapping).
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    // SAFETY: head, lines and tail are the bytes of the range; a line's stores are aligned to it.
    // The fence orders them before whatever this thread stores next, as stores are by themselves.
    unsafe {
        from.copy_to_nonoverlapping(to, head);
        let (from, to) = (from.add(head), to.add(head));
        for line in 0..lines {
            let from = from.add(line * LINE).cast::<__m128i>();
            let to = to.add(line * LINE).cast::<__m128i>();
            for part in 0..LINE / size_of::<__m128i>() {
                _mm_stream_si128(to.add(part), _mm_loadu_si128(from.add(part)));
            }
        }
        _mm_sfence();
        let done = lines * LINE;
        from.add(done).copy_to_nonoverlapping(to.add(done), bytes - head - done);
    }
}

/// Where the target has no such stores, a plain copy.
///
/// # Safety
///
/// As [`copy_nonoverlapping`](core::ptr::copy_nonoverlapping).
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { from.copy_to_nonoverlapping(to, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_byte_and_no_other() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for length in [0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 700] {
            for (start, offset) in [(0, 0), (1, 0), (0, 1), (3, 60), (17, 64)] {
                let mut to = vec![0xa5u8; 1000];
                // SAFETY: 17 + 700 and 64 + 700 are within both.
                unsafe { copy(from[start..].as_ptr(), to[offset..].as_mut_ptr(), length) };
                assert_eq!(to[offset..offset + length], from[start..start + length]);
                assert!(to[..offset].iter().chain(&to[offset + length..]).all(|b| *b == 0xa5));
            }
        }
    }
}
