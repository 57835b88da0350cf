//! Operations that reduce data.
#![allow(unsafe_code, reason = "reduces memory that peers write")]

use smallvec::SmallVec;
use symmem_sync::host::{Ended, Session};
use symmem_sync::protocol::Peers;

use super::parts::{Runs, copy, stretches};
use super::staged::{Roles, staged};
use super::work::{Sources, Work};
use crate::call::Access;
use crate::choice::{Algorithm, UNIT};
use crate::numerics::Reducer;

/// Bytes that the packet algorithm reduces at a time.
const TILE: usize = 256;

/// One tile of a rank's packets, and the packet that it begins in the middle of.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Tile([u8; TILE + 8]);

/// Reduces, for each reader, the part of every rank's input that is meant for it.
pub(crate) fn reduction(work: &Work<'_>, roles: Roles) -> Result<(), Ended> {
    let reduction = Reduction { work, reducer: work.reducer().ok_or(Ended)?, roles };
    work.copy_in()?;
    if work.world == 1 {
        reduction.fold(&[work.input_part(0)], 0, work.part);
        return Ok(());
    }
    // In a two-shot every rank reduces a slice, whoever gathers them.
    let two_shot = work.is(Algorithm::TwoShot);
    let exchanges = if two_shot { Roles::ALL } else { roles };
    let mut session = work.begin(exchanges.feeds(work.me), exchanges.consumes(work.me))?;
    let direct = work.reaches(Access::Read);
    let raised = if work.part == 0 {
        0
    } else if work.is(Algorithm::Packet) {
        reduction.packets(&mut session)?
    } else {
        match (two_shot, direct) {
            (false, false) => reduction.one_shot(&mut session)?,
            (false, true) => reduction.one_shot_direct(&mut session)?,
            (true, false) => reduction.two_shot(&mut session)?,
            (true, true) => reduction.two_shot_direct(&mut session)?,
        }
    };
    work.finish(session, raised)
}

struct Reduction<'a> {
    work: &'a Work<'a>,
    reducer: Reducer,
    /// Whose parts are reduced, and who gets a result.
    roles: Roles,
}

impl Reduction<'_> {
    /// Every rank's input travels in packets and is reduced a tile at a time.
    fn packets(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        if work.others(self.roles.readers).next().is_some() {
            work.put_packets(session)?;
        }
        if !self.roles.readers.contains(work.me) {
            return Ok(0);
        }
        session.agree()?;
        let mut tiles: SmallVec<[Tile; 8]> = SmallVec::from_elem(Tile([0; TILE + 8]), work.world);
        for start in (0..work.part).step_by(TILE) {
            let length = (work.part - start).min(TILE);
            // Where it begins in each writer's stream of packets.
            let from = work.slot(work.me) * work.part + start;
            let mut sources: SmallVec<[Runs; 16]> = SmallVec::new();
            for (writer, tile) in tiles.iter_mut().enumerate() {
                if writer == work.me {
                    sources.push(work.input_part(work.slot(work.me)));
                    continue;
                }
                let words = tile.0.as_chunks_mut::<8>().0;
                for (index, word) in (from / 8..(from + length).div_ceil(8)).zip(words) {
                    *word = session.await_packet(index, writer)?.to_ne_bytes();
                }
                let base = tile.0.as_mut_ptr().wrapping_add(from % 8).wrapping_sub(start);
                sources.push(Runs { base, stride: work.row });
            }
            self.fold(&sources, start, length);
        }
        Ok(0)
    }

    /// Every rank stages its input; each reader reduces what is its own, piece by piece.
    fn one_shot(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        let own = work.slot(work.me);
        // A part with gaps is staged for its own rank too: closed up, it is reduced in one go.
        let has_gaps = work.input_part(own).stride != work.row;
        let stage = |session: &Session<'_>, k| {
            let (start, length) = work.piece(k);
            let staging = session.staging(work.me, k);
            for slot in 0..work.slots() {
                if slot != own || work.slots() == 1 || has_gaps {
                    let to = work.staged_part(staging, slot, k);
                    // SAFETY: a piece of each slot fits in a staging; all readers finished with
                    // what was there (`staged`).
                    unsafe { copy(work.input_part(slot), to, work.row, start, length) };
                }
            }
        };
        let consume = |session: &mut Session<'_>, k| {
            let (start, length) = work.piece(k);
            let mut sources: SmallVec<[Runs; 16]> = SmallVec::new();
            for writer in work.others(Peers::All) {
                session.await_flag(writer, k as u32 + 1)?;
            }
            for writer in 0..work.world {
                sources.push(if writer == work.me && !has_gaps {
                    work.input_part(own)
                } else {
                    work.staged_part(session.staging(writer, k), own, k)
                });
            }
            self.fold(&sources, start, length);
            Ok(())
        };
        staged(work, session, self.roles, stage, consume)
    }

    /// As `one_shot`, with inputs read where they lie, since they are symmetric memory.
    ///
    /// A rank returns only after every reader's step, raised after its last read of this rank's
    /// input. In place, a rank's result replaces what only itself reads.
    fn one_shot_direct(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        if self.roles.readers.contains(work.me) {
            session.agree()?;
            let slot = work.slot(work.me);
            let pitch = work.plan.geometry.input;
            let inputs = work.peers()?;
            let sources: SmallVec<[Runs; 16]> =
                inputs.iter().map(|input| Work::runs(input.cast_mut(), pitch, slot)).collect();
            self.fold(&sources, 0, work.part);
            session.raise(1);
        }
        for reader in work.others(self.roles.readers) {
            session.await_flag(reader, 1)?;
        }
        Ok(1)
    }

    /// Every rank stages its input, reduces its slice of each chunk into its staging; readers
    /// gather the slices.
    ///
    /// Chunk k uses the input area 2k + 1 and the result area 2k + 2 of its staging. Both may
    /// overwrite chunk k - 2: a peer raises 2k - 1 only after it gathered k - 2.
    fn two_shot(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        let me = work.me;
        let mut step = 0;
        for k in 0..work.pieces() {
            let (start, length) = work.piece(k);
            let slices = Slices::new(length, work.world);
            step = 2 * k as u32 + 1;
            let (from, count) = slices.of(me);
            let input = work.input_part(0);
            let to = work.staged_part(session.staging(me, k), 0, k);
            // SAFETY: both ranges lie in this piece of the input, which fits in the first half of
            // the staging. Nobody else reads this rank's own slice, so it is not staged.
            unsafe {
                copy(input, to, work.row, start, from);
                copy(input, to, work.row, start + from + count, length - from - count);
            }
            session.raise(step);
            session.agree()?;
            session.await_all(step)?;
            let sources: Sources = (0..work.world)
                .map(|rank| {
                    let part = match rank == me {
                        true => input,
                        false => work.staged_part(session.staging(rank, k), 0, k),
                    };
                    part.base.wrapping_add(start + from).cast_const()
                })
                .collect();
            // The result area is the second half of the staging.
            let result = |rank| session.staging(rank, k).wrapping_add(work.piece);
            self.reduce(&sources, result(me).wrapping_add(from), count);
            step += 1;
            session.raise(step);
            self.gather(
                session,
                step,
                |rank| {
                    let (from, count) = slices.of(rank);
                    (from, start + from, count)
                },
                k,
                work.piece,
            )?;
        }
        Ok(step)
    }

    /// As `two_shot`, with inputs read where they lie, since they are symmetric memory.
    ///
    /// A rank returns only after every peer's last step, which the peer raised after its last read
    /// of this rank's input. In place: a slice's piece is stored into an output only after its
    /// owner raised it, and so read all inputs there.
    fn two_shot_direct(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        let inputs = work.peers()?;
        let piece = 2 * work.piece;
        let slices = Slices::new(work.part, work.world);
        session.raise(1);
        session.agree()?;
        session.await_all(1)?;
        let mut step = 1;
        // The first slice is the longest, so its pieces are the most.
        for (k, at) in (0..slices.of(0).1).step_by(piece).enumerate() {
            step += 1;
            // A piece may overwrite the one before the last, which readers gathered before they
            // raised the last.
            for reader in work.others(self.roles.readers) {
                session.await_flag(reader, step - 1)?;
            }
            let (from, count) = slices.piece(work.me, at, piece);
            let sources: Sources = inputs.iter().map(|input| input.wrapping_add(from)).collect();
            self.reduce(&sources, session.staging(work.me, k), count);
            session.raise(step);
            self.gather(
                session,
                step,
                |rank| {
                    let (from, count) = slices.piece(rank, at, piece);
                    (0, from, count)
                },
                k,
                0,
            )?;
        }
        // Nobody reads this rank's input any more.
        session.await_all(step)?;
        Ok(step)
    }

    /// Copies every rank's result, once it raised `step`: `of` says where it begins in that rank's
    /// results and in the output, and its length. Results begin `skip` bytes into a staging.
    fn gather(
        &self,
        session: &mut Session<'_>,
        step: u32,
        of: impl Fn(usize) -> (usize, usize, usize),
        k: usize,
        skip: usize,
    ) -> Result<(), Ended> {
        let work = self.work;
        if !self.roles.readers.contains(work.me) {
            return Ok(());
        }
        for writer in work.others(Peers::All).chain([work.me]) {
            session.await_flag(writer, step)?;
            let (from, to, count) = of(writer);
            let results = session.staging(writer, k).wrapping_add(skip + from);
            let [results, output] =
                [results, work.output.wrapping_add(to)].map(|base| Runs { base, stride: work.row });
            // SAFETY: the result lies in the writer's staging, complete since its flag was awaited,
            // and in the output, which has a part's bytes.
            unsafe { work.store(results, output, 0, count) };
        }
        Ok(())
    }

    /// Reduces the logical bytes `start..start + length` of parts into this rank's output.
    fn fold(&self, parts: &[Runs], start: usize, length: usize) {
        fold(&self.reducer, self.work.row, parts, self.work.output_part(0), start, length);
    }

    fn reduce(&self, sources: &[*const u8], output: *mut u8, bytes: usize) {
        reduce(&self.reducer, sources, output, bytes);
    }
}

/// Reduces the logical bytes `start..start + length` of parts in runs of `row` bytes.
pub(crate) fn fold(
    reducer: &Reducer,
    row: usize,
    parts: &[Runs],
    output: Runs,
    start: usize,
    length: usize,
) {
    let has_gaps = parts.iter().chain([&output]).any(|part| part.stride != row);
    for (at, stretch) in stretches(row, has_gaps, start, length) {
        let sources: Sources = parts.iter().map(|part| part.at(row, at).cast_const()).collect();
        reduce(reducer, &sources, output.at(row, at), stretch);
    }
}

fn reduce(reducer: &Reducer, sources: &[*const u8], output: *mut u8, bytes: usize) {
    // SAFETY: each source and the output have `bytes` bytes (every caller computes them so),
    // aligned to the element: slices and pieces are multiples of 128 bytes from aligned starts.
    // Sources overlap the output only as this rank's own input in place, exactly. What a peer wrote
    // happens before: its flag, header or packets were awaited, by acquire, after it released them.
    unsafe { reducer.reduce(sources, output, bytes / reducer.dtype().size()) };
}

/// A range of bytes cut into a slice for each rank: all but the last ones equal, multiples of 128.
#[derive(Clone, Copy, Debug)]
struct Slices {
    bytes: usize,
    slice: usize,
}

impl Slices {
    fn new(bytes: usize, world: usize) -> Self {
        Slices { bytes, slice: bytes.div_ceil(world).next_multiple_of(UNIT as usize) }
    }

    /// Where a rank's slice begins, and its length.
    fn of(self, rank: usize) -> (usize, usize) {
        let from = (rank * self.slice).min(self.bytes);
        (from, (self.bytes - from).min(self.slice))
    }

    /// Where the part of a rank's slice that begins `at` bytes into it lies, and its length.
    fn piece(self, rank: usize, at: usize, piece: usize) -> (usize, usize) {
        let (from, length) = self.of(rank);
        let at = at.min(length);
        (from + at, (length - at).min(piece))
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_tile_the_range() {
        for world in 1..10 {
            for bytes in [0, 1, 127, 128, 129, 1000, 1024, 12_345] {
                let slices = Slices::new(bytes, world);
                let mut end = 0;
                for rank in 0..world {
                    let (from, length) = slices.of(rank);
                    assert_eq!(from, end);
                    assert!(from % (UNIT as usize) == 0 || length == 0);
                    end += length;
                    let (mut at, mut seen) = (0, 0);
                    while at < slices.of(0).1 {
                        let (start, count) = slices.piece(rank, at, 256);
                        assert_eq!(start, from + seen);
                        seen += count;
                        at += 256;
                    }
                    assert_eq!(seen, length);
                }
                assert_eq!(end, bytes);
            }
        }
    }
}
