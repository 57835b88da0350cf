//! How a call is spread over a grid: a function of agreed values alone, since blocks of equal index
//! exchange data.

use symmem_sync::gpu::{WARP_LINES, WARP_VECTORS};

use crate::choice::UNIT;

/// Threads of a warp. The last one of a block exchanges headers and flags, the others move payload.
const WARP: u32 = 32;

/// Most warps of a block that move payload: more do not make a link busier.
const MOST: u32 = 8;

/// Bytes of a vector, which one thread moves at a time.
pub(super) const VECTOR: u64 = 16;

/// Vectors that a thread loads before it stores the first.
const UNROLL: u64 = 4;

/// Chunks that are under way before the first is awaited: one covers the way to a peer.
const AHEAD: u32 = 1;

/// Chunks of a block's ring of staging: a flag says what the round before has read.
const RING: u32 = 2 * AHEAD + 2;

/// What a grid can be made of, equal on every rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub blocks: u32,
    /// Bytes of staging that a rank has with each other.
    pub staging: u64,
}

/// A grid and each block's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub blocks: u32,
    /// Threads of a block that move payload.
    pub workers: u32,
    /// The bytes that are cut: of a part, those that one rank reduces.
    pub slice: u64,
    pub chunk: u64,
    /// Chunks of block 0.
    pub rounds: u32,
    /// Blocks that have as many; the others have one less.
    pub last: u32,
    pub slots: u32,
    pub ahead: u32,
}

impl Cut {
    pub(super) fn threads(&self) -> u32 {
        self.workers + WARP
    }

    /// Vectors that travel one by one, wherever their thread is.
    fn of_vectors(bytes: u64, blocks: u32, workers: u32) -> Self {
        let (chunk, rounds, slots, ahead) = (0, 0, 0, 0);
        Cut { blocks, workers, slice: bytes, chunk, rounds, last: blocks, slots, ahead }
    }

    /// As [`of_vectors`](Self::of_vectors), for so many threads that have something to do, in as few warps
    /// a block as there are blocks for.
    fn of_threads(bytes: u64, threads: u64, room: Room) -> Self {
        let most = room.blocks.max(1);
        let warps = threads.div_ceil(u64::from(WARP) * u64::from(most)).clamp(2, MOST.into());
        let workers = warps as u32 * WARP;
        let blocks = threads.div_ceil(workers.into()).clamp(1, most.into()) as u32;
        Cut::of_vectors(bytes, blocks, workers)
    }

    /// Chunks that are dealt out block by block.
    fn of_chunks(slice: u64, chunk: u64, most_blocks: u32, (ahead, ring): (u32, u32)) -> Self {
        let chunks = slice.div_ceil(chunk);
        let blocks = u32::try_from(chunks).unwrap_or(u32::MAX).clamp(1, most_blocks.max(1));
        let rounds = u32::try_from(chunks.div_ceil(blocks.into())).unwrap_or(u32::MAX);
        // All blocks, where there are no chunks.
        let before = u64::from(rounds.saturating_sub(1)) * u64::from(blocks);
        let last = if rounds == 0 { blocks } else { (chunks - before) as u32 };
        // As many vectors for each thread as kernels have in flight.
        let warps = chunk.div_ceil(UNROLL * VECTOR * u64::from(WARP)).clamp(1, MOST.into()) as u32;
        // A ring is no longer than what goes through it.
        let slots = ring.min(rounds).max(1);
        Cut { blocks, workers: warps * WARP, slice, chunk, rounds, last, slots, ahead }
    }

    fn ring(&self) -> u64 {
        u64::from(self.slots) * self.chunk * u64::from(self.blocks)
    }

    /// As [`of_chunks`](Self::of_chunks), as large as the rings of all blocks fit in the staging:
    /// smaller chunks first, then fewer blocks. `slice` says how much is cut into chunks of a size.
    fn staged(slice: impl Fn(u64) -> u64, wanted: u64, ring: u32, room: Room) -> Self {
        let (mut chunk, mut blocks) = (wanted, room.blocks);
        loop {
            let cut = Cut::of_chunks(slice(chunk), chunk, blocks, (AHEAD, ring));
            if cut.ring() <= room.staging || (chunk == UNIT && blocks <= 1) {
                return cut;
            }
            match chunk {
                8192.. => chunk -= 4096,
                256.. => chunk = chunk / 2 / UNIT * UNIT,
                _ => (chunk, blocks) = (UNIT, if chunk == UNIT { blocks / 2 } else { blocks }),
            }
        }
    }
}

/// What the first step says that is for as many bytes, else `beyond`.
fn by_size<T: Copy>(bytes: u64, steps: &[(u64, T)], beyond: T) -> T {
    steps.iter().find(|(most, _)| bytes <= *most).map_or(beyond, |(_, value)| *value)
}

/// By packets, each vector by itself. Few threads a block, so that a message is spread over many
/// processors, until all have enough to do.
///
/// Measured on two H200, bf16, 2026-11: 2 blocks of 64 at 2 KiB, 4 of 128 at 8 KiB, 32 of 64 at 32 KiB,
/// 64 of 64 at 64 KiB, 64 of 128 at 128 KiB, 128 of 256 at 512 KiB are the fastest.
pub(super) fn packets(bytes: u64, room: Room) -> Cut {
    let vectors = bytes.div_ceil(VECTOR);
    let steps = [(512, WARP), (2 << 10, 64), (8 << 10, 128), (64 << 10, 64), (256 << 10, 128)];
    let wanted = by_size(bytes, &steps, MOST * WARP);
    let most = u64::from(room.blocks.max(1));
    let fits = |workers: &u32| vectors.div_ceil(u64::from(*workers)) <= most;
    let workers = [wanted, 128, 256].into_iter().filter(|w| *w >= wanted).find(fits);
    let workers = workers.unwrap_or(MOST * WARP);
    let blocks = vectors.div_ceil(u64::from(workers)).clamp(1, most) as u32;
    Cut::of_vectors(bytes, blocks, workers)
}

/// By lines of 128 bytes, of which 124 are payload: as many warps as it takes to have as much to do each.
///
/// Measured on two H200, bf16, 2026-11: 96 to 128 blocks, of 3 warps at 512 KiB, 5 or 6 at 1 and 2 MiB, 6 to 8
/// at 4 and 8 MiB.
pub(super) fn lines(bytes: u64, room: Room) -> Cut {
    let units = units(bytes);
    let most = u64::from(room.blocks.max(1)) * u64::from(MOST);
    let turns = units.div_ceil(most).max(1);
    Cut::of_threads(bytes, units.div_ceil(turns) * u64::from(WARP), room)
}

fn units(bytes: u64) -> u64 {
    bytes.div_ceil(VECTOR).div_ceil(WARP_VECTORS)
}

/// Lines of so many bytes: those of whole warps.
pub(super) fn line_count(bytes: u64) -> u64 {
    units(bytes) * WARP_LINES
}

/// Through staging: every rank's part, a chunk at a time.
///
/// Measured on two H200, bf16, 2026-11: 64 blocks of 16 KiB at 1 MiB, 128 of 16 KiB at 2 MiB, 128 of 32
/// KiB at 4 MiB, 256 threads, one chunk ahead.
pub(super) fn pushed(bytes: u64, room: Room) -> Cut {
    Cut::staged(|_| bytes, pushed_chunk(bytes), RING, room)
}

fn pushed_chunk(bytes: u64) -> u64 {
    by_size(bytes, &[(64 << 10, 2), (256 << 10, 4), (512 << 10, 8), (2 << 20, 16)], 32) << 10
}

/// As [`pushed`], of blocks of any sizes, of which `chunks` says how many chunks they make: each has a
/// last one that may not be whole.
pub(super) fn blocks(bytes: u64, chunks: impl Fn(u64) -> u64, room: Room) -> Cut {
    Cut::staged(|chunk| chunks(chunk) * chunk, pushed_chunk(bytes), RING, room)
}

/// As [`pushed`], of a slice for each rank: multiples of 128 bytes.
///
/// Measured on two H200, bf16, 2026-11: 128 blocks of 256 threads, one chunk ahead, of 16 KiB at 8 MiB
/// and of 32 KiB from 16 MiB on, where the workspace has room for them.
pub(super) fn two_shot(bytes: u64, ranks: usize, room: Room) -> Cut {
    let slice = slice(bytes, ranks);
    let steps = [(128 << 10, 2), (512 << 10, 4), (1 << 20, 8), (4 << 20, 16)];
    Cut::staged(|_| slice, by_size(slice, &steps, 32) << 10, RING, room)
}

/// What each of `ranks` ranks has of so many bytes, of which the last may have less.
pub(super) fn slice(bytes: u64, ranks: usize) -> u64 {
    bytes.div_ceil(UNIT * ranks as u64) * UNIT
}

/// By the switch, of which each rank moves a slice: what a thread has in flight at once for each. Never
/// measured, for want of a machine that allows it.
pub(super) fn switched(slice: u64, room: Room) -> Cut {
    Cut::of_threads(slice, slice.div_ceil(VECTOR * UNROLL), room)
}

/// Straight to where it belongs: nothing is staged.
pub(super) fn direct(bytes: u64, room: Room) -> Cut {
    let steps = [(256 << 10, 4), (1 << 20, 8), (4 << 20, 16)];
    let chunk = by_size(bytes, &steps, 32) << 10;
    Cut { slots: 0, ahead: 0, ..Cut::of_chunks(bytes, chunk, room.blocks, (0, 1)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::LINES_CUH;

    /// What a workspace of 56 MiB has for two ranks.
    const ROOM: Room = Room { blocks: 128, staging: 19_000_000 / 128 * 128 };

    fn shape(cut: Cut) -> (u32, u32, u64) {
        (cut.blocks, cut.threads(), cut.chunk)
    }

    #[test]
    fn lines_are_those_of_the_kernels() {
        let sizes = format!("VECTORS = {WARP_VECTORS}, BYTES = {WARP_LINES} * 128;");
        assert_eq!(LINES_CUH.1.matches(&sizes).count(), 1);
    }

    #[test]
    fn what_was_measured_is_taken() {
        for (bytes, blocks, threads) in [
            (2 << 10, 2, 96),
            (8 << 10, 4, 160),
            (32 << 10, 32, 96),
            (64 << 10, 64, 96),
            (128 << 10, 64, 160),
            (256 << 10, 128, 160),
            (512 << 10, 128, 288),
        ] {
            assert_eq!(shape(packets(bytes, ROOM)), (blocks, threads, 0), "{bytes}");
        }
        for (bytes, blocks, threads) in [
            (256 << 10, 67, 96),
            (512 << 10, 89, 128),
            (1 << 20, 106, 192),
            (2 << 20, 106, 192),
            (4 << 20, 118, 224),
            (8 << 20, 121, 256),
        ] {
            assert_eq!(shape(lines(bytes, ROOM)), (blocks, threads, 0), "{bytes}");
        }
        for (bytes, blocks, chunk) in [(1 << 20, 64, 16), (2 << 20, 128, 16), (4 << 20, 128, 32)] {
            assert_eq!(shape(pushed(bytes, ROOM)), (blocks, 288, chunk << 10), "{bytes}");
        }
        for (bytes, chunk) in [(8 << 20, 16), (16 << 20, 32), (256 << 20, 32)] {
            assert_eq!(shape(two_shot(bytes, 2, ROOM)), (128, 288, chunk << 10), "{bytes}");
        }
    }

    #[test]
    fn every_byte_is_in_one_chunk_and_every_ring_in_the_staging() {
        let sizes =
            [0, 1, 2, 127, 128, 129, 4095, 4096, 4097, 65_536, 999_983, 1 << 20, 16_777_213];
        for bytes in sizes.into_iter().chain([1 << 30, (1 << 32) + 6]) {
            for most in [1, 2, 7, 16, 128] {
                for staging in [1024, 4096, 65_536, 6 << 20, 64 << 20] {
                    let room = Room { blocks: most, staging };
                    for world in [1, 2, 3, 4, 8, 72] {
                        check(two_shot(bytes, world, room), room);
                    }
                    check(pushed(bytes, room), room);
                    // Blocks that are much smaller than a chunk, and one that is not.
                    let chunks = |chunk: u64| 7 + bytes.div_ceil(chunk);
                    check(blocks(bytes, chunks, room), room);
                    for cut in [lines(bytes, room), switched(bytes, room)] {
                        assert!((1..=most).contains(&cut.blocks), "{cut:?}");
                        assert!((96..=288).contains(&cut.threads()) && cut.slice == bytes);
                    }
                    let cut = packets(bytes, room);
                    assert!((1..=most).contains(&cut.blocks), "{cut:?}");
                    assert!(cut.workers.is_multiple_of(32) && (64..=288).contains(&cut.threads()));
                    let cut = direct(bytes, room);
                    assert!((1..=most).contains(&cut.blocks), "{cut:?}");
                }
            }
        }
    }

    fn check(cut: Cut, room: Room) {
        assert!(cut.ring() <= room.staging, "{cut:?} in {room:?}");
        assert!((1..=room.blocks).contains(&cut.blocks), "{cut:?}");
        assert!(cut.chunk.is_multiple_of(UNIT) && cut.chunk > 0);
        assert!(cut.workers.is_multiple_of(32) && (64..=288).contains(&cut.threads()));
        assert!((1..=cut.blocks).contains(&cut.last));
        let rounds = u64::from(cut.rounds);
        let idle = u64::from(cut.blocks - cut.last);
        let chunks = rounds * u64::from(cut.blocks) - if rounds == 0 { 0 } else { idle };
        assert_eq!(chunks, cut.slice.div_ceil(cut.chunk), "{cut:?}");
    }

    #[test]
    fn slices_of_all_ranks_are_the_whole() {
        for world in 1..=9u64 {
            for bytes in [1, 128, 1000, 12_345, 1 << 20] {
                let cut = two_shot(bytes, world as usize, ROOM);
                assert!(cut.slice * world >= bytes && cut.slice.is_multiple_of(UNIT));
            }
        }
    }
}
