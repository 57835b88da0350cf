//! Shared memory of one host: sealed memfds, mapped.
//!
//! # Memory that somebody else writes
//!
//! A segment is written by other processes, and by other threads, at any time. It is therefore
//! never seen through `&` or `&mut` of plain data anywhere in this project. There are two ways in:
//! atomics on aligned words ([`Segment::words`]), and raw copies ([`Segment::read`],
//! [`Segment::write`], and the kernels' own) by code that can name the happens-before edge that
//! orders it with the writer, or that makes no claim about torn values.
//!
//! # Why a memfd
//!
//! It has no name, so nothing is left behind by a killed process and nobody else can open it; it is
//! bounded by memory, not by the size of `/dev/shm`; its size can be sealed, so that a peer cannot
//! shrink it under a reader. All pages are reserved at creation: a touch cannot fault later.
//!
//! # References
//! - `memfd_create(2)`, `fcntl(2)` (file sealing), `fallocate(2)`, `mmap(2)`
#![allow(unsafe_code, reason = "maps memory and follows raw pointers into it")]

mod limits;

pub use limits::{Limit, LimitSource, limits, tightest};

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::types::Bytes;
use crate::{Fault, Kind};

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Why a segment could not be created or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// A limit leaves too little.
    #[error("{needed} of shared memory needed, {} available under {}: ask for less, or raise that", limit.available, limit.source)]
    Limit {
        /// Bytes asked for.
        needed: Bytes,
        /// The limit that is too tight.
        limit: Limit,
    },
    /// The kernel refused for want of room, although the limits that are visible here leave enough by
    /// now: what others took meanwhile they may have given back.
    #[error("{call} for {needed} of shared memory: {cause}; {} available now under {}, the tightest limit of it: ask for less, or raise that", limit.available, limit.source)]
    Refused {
        /// The system call.
        call: &'static str,
        /// Bytes asked for.
        needed: Bytes,
        /// The kernel's reason.
        cause: io::Error,
        /// The tightest limit of what the call takes.
        limit: Limit,
    },
    /// The kernel refused although no limit that is visible here forbids it.
    #[error("{call} for {bytes}: {cause}")]
    System {
        /// The system call.
        call: &'static str,
        /// Bytes asked for.
        bytes: Bytes,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// A descriptor from a peer is not what it was announced to be.
    #[error("the peer's segment has {found}, {expected} were announced")]
    WrongSize {
        /// Announced bytes.
        expected: Bytes,
        /// Bytes of the file behind the descriptor.
        found: Bytes,
    },
    /// A descriptor from a peer could still be resized, so a read could fault.
    #[error("the peer's segment of {bytes} is not sealed against resizing")]
    NotSealed {
        /// Announced bytes.
        bytes: Bytes,
    },
}

impl Fault for SegmentError {
    fn kind(&self) -> Kind {
        match self {
            SegmentError::Limit { .. } | SegmentError::Refused { .. } => Kind::Exhausted,
            SegmentError::System { cause, .. } => Kind::of_io(cause),
            SegmentError::WrongSize { .. } | SegmentError::NotSealed { .. } => Kind::Disagreement,
        }
    }
}

/// A mapped piece of shared memory; unmapped when dropped.
///
/// Created with all pages reserved and its size sealed. The descriptor of a created segment stays
/// open, to be exported again; an imported one's is closed once mapped.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    bytes: usize,
    fd: Option<OwnedFd>,
}

// SAFETY: a segment is an address range and a descriptor; all access goes through atomics or raw
// copies, which are sound from any thread. The range stays mapped until the one owner drops it.
unsafe impl Send for Segment {}
// SAFETY: as for Send: `&Segment` gives no access that needs exclusion.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates a zeroed segment, reserving all its memory. Zero bytes map one page, so that every
    /// segment has an address and a descriptor.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Limit`] where a limit leaves too little: found before anything is created or,
    /// where others took memory since, after the kernel has refused;
    /// [`SegmentError::Refused`] or [`SegmentError::System`] where that has no such reason.
    pub fn create(bytes: Bytes) -> Result<Self, SegmentError> {
        let failed = |call| {
            move |e: rustix::io::Errno| SegmentError::System { call, bytes, cause: e.into() }
        };
        if let Some(limit) = tightest().filter(|l| l.available < bytes) {
            return Err(SegmentError::Limit { needed: bytes, limit });
        }
        let length = bytes.0.max(1);
        let fd =
            rustix::fs::memfd_create("symmem", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(failed("memfd_create"))?;
        // Peers are given the descriptor. By the name in `/proc`, where a memfd is open to all, nobody
        // else is to come in, should it be seen.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(failed("fchmod"))?;
        rustix::fs::ftruncate(&fd, length).map_err(failed("ftruncate"))?;
        reserve(&fd, length).map_err(|e| refused("fallocate", bytes, e, &OF_PAGES))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(failed("F_ADD_SEALS"))?;
        let mut segment = Self::map(fd.as_fd(), bytes)?;
        segment.fd = Some(fd);
        Ok(segment)
    }

    /// As [`create`](Self::create), without a descriptor: the segment cannot be exported.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn create_private(bytes: Bytes) -> Result<Self, SegmentError> {
        let mut segment = Self::create(bytes)?;
        segment.fd = None;
        Ok(segment)
    }

    /// Maps a segment that a peer created and sent.
    ///
    /// # Errors
    ///
    /// [`SegmentError::WrongSize`] or [`SegmentError::NotSealed`] where the descriptor is not a
    /// segment of `bytes`; [`SegmentError::System`] where the kernel refuses.
    pub fn import(fd: OwnedFd, bytes: Bytes) -> Result<Self, SegmentError> {
        let failed = |call| {
            move |e: rustix::io::Errno| SegmentError::System { call, bytes, cause: e.into() }
        };
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(failed("F_GET_SEALS"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(SegmentError::NotSealed { bytes });
        }
        let found = rustix::fs::fstat(&fd).map_err(failed("fstat"))?.st_size;
        let found = Bytes(u64::try_from(found).unwrap_or(0));
        if found.0 != bytes.0.max(1) {
            return Err(SegmentError::WrongSize { expected: bytes, found });
        }
        Self::map(fd.as_fd(), bytes)
    }

    fn map(fd: BorrowedFd<'_>, bytes: Bytes) -> Result<Self, SegmentError> {
        let failed = |e: io::Error| SegmentError::System { call: "mmap", bytes, cause: e };
        let length =
            bytes.to_usize().ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?.max(1);
        // SAFETY: a fresh mapping at an address the kernel picks aliases nothing. It covers a file
        // whose size is sealed (checked or set by both callers), so no page of it can vanish; it is
        // unmapped only by Drop of the segment made here.
        let base = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }
        .map_err(|e| refused("mmap", bytes, e, &[LimitSource::AddressSpace]))?;
        let base =
            NonNull::new(base.cast()).ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
        Ok(Segment { base, bytes: length.min(bytes.to_usize().unwrap_or(0)), fd: None })
    }

    /// The first byte. Following it is the caller's business; see the module's text.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Usable bytes.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes::from(self.bytes)
    }

    /// The descriptor, where this process created the segment.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// The words at a byte offset, as atomics; `None` if out of range or misaligned.
    #[must_use]
    pub fn words(&self, offset: usize, count: usize) -> Option<&[AtomicU32]> {
        let ptr = self.typed::<AtomicU32>(offset, count)?;
        // SAFETY: in range and aligned (checked by `typed`), mapped as long as `self` lives, and
        // only ever accessed as atomics or by raw copies that race no differently than atomics.
        Some(unsafe { core::slice::from_raw_parts(ptr, count) })
    }

    /// As [`words`](Self::words), of 64 bits.
    #[must_use]
    pub fn wide_words(&self, offset: usize, count: usize) -> Option<&[AtomicU64]> {
        let ptr = self.typed::<AtomicU64>(offset, count)?;
        // SAFETY: as in `words`.
        Some(unsafe { core::slice::from_raw_parts(ptr, count) })
    }

    fn typed<T>(&self, offset: usize, count: usize) -> Option<*const T> {
        let end = count.checked_mul(size_of::<T>())?.checked_add(offset)?;
        if end > self.bytes {
            return None;
        }
        // SAFETY: offset <= end <= bytes, so the result lies in the mapping or one past it.
        let ptr = unsafe { self.base.as_ptr().add(offset) }.cast::<T>();
        ptr.is_aligned().then_some(ptr.cast_const())
    }

    /// Copies out of the segment. Makes no claim of order: bytes that a peer is writing at the
    /// moment arrive old or new, each 8-byte word of an aligned range whole. `false` if out of range.
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        let Some(src) = self.typed::<u8>(offset, out.len()) else { return false };
        // SAFETY: the range is in the mapping (checked), which lives as long as `self`.
        unsafe { copy_out(src, out) };
        true
    }

    /// Copies into the segment; as [`read`](Self::read), the other way.
    #[must_use]
    pub fn write(&self, offset: usize, data: &[u8]) -> bool {
        let Some(dst) = self.typed::<u8>(offset, data.len()) else { return false };
        // SAFETY: the range is in the mapping (checked), which lives as long as `self`.
        unsafe { copy_in(dst.cast_mut(), data) };
        true
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this range was mapped by `map` with this length and belongs to this value alone;
        // borrows of it (`words`) cannot outlive the value.
        if let Err(e) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes.max(1)) }
        {
            tracing::error!(bytes = self.bytes, error = %e, "munmap of a segment failed");
        }
    }
}

/// What bounds the pages of a segment, beside its addresses.
const OF_PAGES: [LimitSource; 3] =
    [LimitSource::System, LimitSource::Cgroup, LimitSource::FileSize];

/// Why the kernel refused to reserve or map. Who looks at the limits and then takes memory may find
/// that others, who looked at the same time, have taken it: so the limits are looked at again.
#[cold]
fn refused(
    call: &'static str,
    bytes: Bytes,
    error: rustix::io::Errno,
    sources: &[LimitSource],
) -> SegmentError {
    let found = limits().into_iter().filter(|limit| sources.contains(&limit.source));
    explain(call, bytes, error, found.min_by_key(|limit| limit.available))
}

fn explain(
    call: &'static str,
    needed: Bytes,
    error: rustix::io::Errno,
    tightest: Option<Limit>,
) -> SegmentError {
    use rustix::io::Errno;
    match tightest.filter(|_| matches!(error, Errno::NOMEM | Errno::NOSPC | Errno::FBIG)) {
        Some(limit) if limit.available < needed => SegmentError::Limit { needed, limit },
        Some(limit) => SegmentError::Refused { call, needed, cause: error.into(), limit },
        None => SegmentError::System { call, bytes: needed, cause: error.into() },
    }
}

fn reserve(fd: &OwnedFd, length: u64) -> rustix::io::Result<()> {
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, length) {
            Err(rustix::io::Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Copies from memory that others may be writing, by relaxed atomics: 8 bytes at a time where the
/// source is aligned for it, bytes at its ends.
///
/// # Safety
///
/// `src` must be valid for reads of `out.len()` bytes for the whole call.
pub unsafe fn copy_out(src: *const u8, out: &mut [u8]) {
    let head = src.align_offset(8).min(out.len());
    let (ends, body) = split(out, head);
    let [front, back] = ends;
    for (i, byte) in front.iter_mut().enumerate() {
        // SAFETY: i < out.len(), in the caller's range; AtomicU8 has no alignment need.
        *byte = unsafe { AtomicU8::from_ptr(src.add(i).cast_mut()) }.load(Ordering::Relaxed);
    }
    for (i, word) in body.chunks_exact_mut(8).enumerate() {
        // SAFETY: 8 bytes at head + 8 i lie in the caller's range; aligned since src + head is.
        let value = unsafe { AtomicU64::from_ptr(src.add(head + 8 * i).cast_mut().cast()) }
            .load(Ordering::Relaxed);
        word.copy_from_slice(&value.to_ne_bytes());
    }
    let tail = head + body.len();
    for (i, byte) in back.iter_mut().enumerate() {
        // SAFETY: as for the head.
        *byte = unsafe { AtomicU8::from_ptr(src.add(tail + i).cast_mut()) }.load(Ordering::Relaxed);
    }
}

/// Copies into memory that others may be reading; as [`copy_out`], the other way.
///
/// # Safety
///
/// `dst` must be valid for writes of `data.len()` bytes for the whole call.
pub unsafe fn copy_in(dst: *mut u8, data: &[u8]) {
    let head = dst.align_offset(8).min(data.len());
    let body = (data.len() - head) & !7;
    let byte = |i: usize| {
        // SAFETY: every i used is < data.len(), in the caller's range.
        unsafe { AtomicU8::from_ptr(dst.add(i)) }.store(data[i], Ordering::Relaxed);
    };
    (0..head).for_each(byte);
    for (i, chunk) in data[head..head + body].chunks_exact(8).enumerate() {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        // SAFETY: 8 bytes at head + 8 i lie in the caller's range; aligned since dst + head is.
        unsafe { AtomicU64::from_ptr(dst.add(head + 8 * i).cast()) }
            .store(u64::from_ne_bytes(word), Ordering::Relaxed);
    }
    (head + body..data.len()).for_each(byte);
}

/// Copies between two places that others may be reading and writing, by relaxed atomics: of the
/// widest unit, up to 8 bytes, that the two distances from alignment allow; bytes at the ends. Makes
/// no claim of order, as [`Segment::read`] makes none.
///
/// # Safety
///
/// `src` must be valid for reads and `dst` for writes of `len` bytes for the whole call. Where they
/// overlap without being equal, what arrives is unspecified.
pub unsafe fn copy_between(src: *const u8, dst: *mut u8, len: usize) {
    macro_rules! by {
        ($atomic:ty) => {{
            const UNIT: usize = size_of::<$atomic>();
            let head = src.align_offset(UNIT).min(len);
            let body = (len - head) / UNIT * UNIT;
            let byte = |i: usize| {
                // SAFETY: every i used is < len, in the caller's ranges; AtomicU8 is always aligned.
                unsafe {
                    let value = AtomicU8::from_ptr(src.add(i).cast_mut()).load(Ordering::Relaxed);
                    AtomicU8::from_ptr(dst.add(i)).store(value, Ordering::Relaxed);
                }
            };
            (0..head).for_each(byte);
            for i in (head..head + body).step_by(UNIT) {
                // SAFETY: UNIT bytes at i lie in the caller's ranges. `src + head` is aligned to
                // UNIT, and so is `dst + head`, since both addresses agree in the bits below it.
                unsafe {
                    let value = <$atomic>::from_ptr(src.add(i).cast_mut().cast());
                    let to = <$atomic>::from_ptr(dst.add(i).cast());
                    to.store(value.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
            (head + body..len).for_each(byte);
        }};
    }
    match (src.addr() ^ dst.addr()).trailing_zeros() {
        0 => by!(AtomicU8),
        1 => by!(AtomicU16),
        2 => by!(AtomicU32),
        _ => by!(AtomicU64),
    }
}

/// The unaligned ends and the multiple of 8 bytes between them.
fn split(out: &mut [u8], head: usize) -> ([&mut [u8]; 2], &mut [u8]) {
    let (front, rest) = out.split_at_mut(head);
    let (body, back) = rest.split_at_mut(rest.len() & !7);
    ([front, back], body)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;

    fn segment(bytes: u64) -> Segment {
        Segment::create(Bytes(bytes)).unwrap()
    }

    #[test]
    fn shared_between_mappings_and_zeroed() {
        let a = segment(100_000);
        let b =
            Segment::import(a.fd().unwrap().try_clone_to_owned().unwrap(), Bytes(100_000)).unwrap();
        let mut all = vec![1; 100_000];
        assert!(b.read(0, &mut all) && all.iter().all(|x| *x == 0));
        assert!(a.write(3, b"hello"));
        let mut seen = [0; 7];
        assert!(b.read(2, &mut seen));
        assert_eq!(&seen, b"\0hello\0");
    }

    #[test]
    fn copies_of_every_alignment_and_length_touch_nothing_else() {
        let s = segment(64);
        for offset in 0..20 {
            for len in 0..30 {
                assert!(s.write(0, &[0xee; 64]));
                let data: Vec<u8> = (0..len).map(|i| i as u8 + 1).collect();
                assert!(s.write(offset, &data));
                let mut all = [0; 64];
                assert!(s.read(0, &mut all));
                assert_eq!(&all[offset..offset + len], &data[..]);
                assert!(all[..offset].iter().chain(&all[offset + len..]).all(|b| *b == 0xee));
                let mut part = vec![0; len];
                assert!(s.read(offset, &mut part));
                assert_eq!(part, data);
            }
        }
    }

    #[test]
    fn copies_between_segments_of_every_alignment_and_length_touch_nothing_else() {
        let (from, to) = (segment(64), segment(64));
        let data: Vec<u8> = (1..=64).collect();
        assert!(from.write(0, &data));
        for (source, target) in (0..9).flat_map(|s| (0..9).map(move |t| (s, t))) {
            for len in 0..40 {
                assert!(to.write(0, &[0xee; 64]));
                // SAFETY: both ranges end below 64 in segments that live to the end of the test.
                unsafe {
                    let (src, dst) = (from.base().as_ptr(), to.base().as_ptr());
                    copy_between(src.add(source), dst.add(target), len);
                }
                let mut all = [0; 64];
                assert!(to.read(0, &mut all));
                assert_eq!(all[target..target + len], data[source..source + len]);
                assert!(all[..target].iter().chain(&all[target + len..]).all(|b| *b == 0xee));
            }
        }
    }

    #[test]
    fn ranges_are_checked() {
        let s = segment(64);
        assert!(s.words(60, 1).is_some() && s.words(64, 0).is_some());
        assert!(s.words(61, 1).is_none() && s.words(62, 0).is_none() && s.words(64, 1).is_none());
        assert!(s.wide_words(56, 1).is_some() && s.wide_words(60, 1).is_none());
        assert!(s.words(usize::MAX - 3, 1).is_none() && s.words(0, usize::MAX / 2).is_none());
        assert!(!s.read(60, &mut [0; 5]) && !s.write(65, &[]));
    }

    #[test]
    fn zero_bytes_have_an_address_and_a_descriptor() {
        let s = segment(0);
        assert_eq!(s.bytes(), Bytes(0));
        assert!(!s.write(0, &[1]) && s.write(0, &[]));
        assert!(Segment::import(s.fd().unwrap().try_clone_to_owned().unwrap(), Bytes(0)).is_ok());
    }

    #[test]
    fn too_much_names_limit_and_numbers() {
        let e = Segment::create(Bytes(1 << 60)).unwrap_err();
        let text = e.to_string();
        assert!(matches!(e, SegmentError::Limit { .. }), "{text}");
        assert!(text.contains("1048576 TiB") && text.contains("available"), "{text}");
    }

    #[test]
    fn a_refusal_names_the_limit_that_others_have_used_up() {
        use rustix::io::Errno;
        let limit = |available| {
            Some(Limit { source: LimitSource::AddressSpace, available: Bytes(available) })
        };
        let e = explain("mmap", Bytes(4096), Errno::NOMEM, limit(1024));
        assert!(matches!(e, SegmentError::Limit { needed: Bytes(4096), .. }), "{e}");
        // Others have given up what they had by the second look.
        let e = explain("mmap", Bytes(4096), Errno::NOMEM, limit(8192));
        assert!(matches!(e, SegmentError::Refused { .. }), "{e}");
        let text = e.to_string();
        assert!(text.contains("4 KiB") && text.contains("8 KiB available now"), "{text}");
        assert_eq!(e.kind(), Kind::Exhausted);
        // Another trouble is no limit's.
        for (error, limit) in [(Errno::BADF, limit(1)), (Errno::NOMEM, None)] {
            let e = explain("mmap", Bytes(4096), error, limit);
            assert!(matches!(e, SegmentError::System { call: "mmap", .. }), "{e}");
        }
    }

    #[test]
    fn a_peer_cannot_resize_what_we_map() {
        let s = segment(8192);
        let fd = s.fd().unwrap();
        assert_eq!(rustix::fs::ftruncate(fd, 1), Err(rustix::io::Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 1 << 20), Err(rustix::io::Errno::PERM));
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 8192).unwrap();
        let e = Segment::import(loose, Bytes(8192)).unwrap_err();
        assert!(matches!(e, SegmentError::NotSealed { .. }));
        let e = Segment::import(fd.try_clone_to_owned().unwrap(), Bytes(4096)).unwrap_err();
        assert!(matches!(e, SegmentError::WrongSize { found: Bytes(8192), .. }));
    }
}
