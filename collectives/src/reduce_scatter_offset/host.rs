//! The reduce-scatter of blocks on a CPU, and whatever else is given blocks.
#![allow(unsafe_code, reason = "a kernel: reads its argument block; copies its input")]

use smallvec::SmallVec;
use symmem_hal::LaunchContext;
use symmem_sync::host::{Ended, Session};
use symmem_sync::protocol::Peers;

use crate::call::{Access, Block};
use crate::host::{Roles, Runs, Work, copy, fold, kernel, staged};
use crate::numerics::Reducer;

pub(crate) unsafe fn run(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: this kernel's arguments are a Plan (KERNELS).
    unsafe { kernel(context, args, scatter) };
}

/// Reduces each block of every rank's input at its owner.
fn scatter(work: &Work<'_>) -> Result<(), Ended> {
    if work.part == 0 && work.world == 1 {
        return Ok(());
    }
    let blocks: &[Block] = if work.part == 0 { &[] } else { work.blocks()? };
    let inputs = blocks.iter().map(|block| work.input_of(block)).collect::<Result<_, _>>()?;
    let scatter = Scatter { work, blocks, inputs, reducer: work.reducer().ok_or(Ended)? };
    if work.world == 1 {
        return scatter.own(0, work.part, |index| SmallVec::from_iter([scatter.inputs[index]]));
    }
    let mut session = work.begin(Peers::All, Peers::All)?;
    let raised = if work.part == 0 {
        0
    } else if work.reaches(Access::Read) {
        scatter.direct(&mut session)?
    } else {
        scatter.staged(&mut session)?
    };
    work.finish(session, raised)
}

struct Scatter<'a> {
    work: &'a Work<'a>,
    /// In the order of their starts.
    blocks: &'a [Block],
    /// Where each lies in this rank's input.
    inputs: Parts,
    reducer: Reducer,
}

/// One block's data on every rank.
type Parts = SmallVec<[Runs; 16]>;

impl Scatter<'_> {
    /// The blocks that have bytes of `start..start + length` of all blocks, by index, with which of
    /// their own bytes those are: where they begin, and how many.
    fn within(&self, start: usize, length: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let (from, to) = (start as u64, (start + length) as u64);
        let first = self.blocks.partition_point(|b| b.start + b.bytes() <= from);
        let rest = self.blocks.iter().enumerate().skip(first);
        rest.take_while(move |(_, b)| b.start < to).filter_map(move |(index, block)| {
            let begin = block.start.max(from);
            let end = (block.start + block.bytes()).min(to);
            let (begin, count) = (begin - block.start, end.checked_sub(begin)?);
            (count > 0).then_some((index, begin as usize, count as usize))
        })
    }

    /// Reduces this rank's blocks as far as they lie in `start..start + length` of all blocks, from
    /// what `parts` says each rank has of one.
    fn own(
        &self,
        start: usize,
        length: usize,
        parts: impl Fn(usize) -> Parts,
    ) -> Result<(), Ended> {
        for (index, begin, count) in self.within(start, length) {
            let block = &self.blocks[index];
            if block.owner == self.work.me as u64 {
                let bytes = block.extent(block.output_stride) as usize;
                let base = self.work.follow(block.output, bytes)?;
                let output = Runs { base, stride: block.output_stride as usize };
                fold(&self.reducer, block.row as usize, &parts(index), output, begin, count);
            }
        }
        Ok(())
    }

    /// Every rank stages its blocks, piece by piece of all blocks; owners reduce theirs.
    fn staged(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        // As if all blocks were there, the byte 0 of all first.
        let in_staging = |session: &Session<'_>, rank: usize, k: usize, block: &Block| {
            let all = work.staged_part(session.staging(rank, k), 0, k).base;
            Runs { base: all.wrapping_add(block.start as usize), stride: block.row as usize }
        };
        // Closed up, a block with gaps is reduced in one go, so its owner stages it too.
        let is_staged = |rank: usize, block: &Block| {
            rank != work.me || block.owner != work.me as u64 || block.stride != block.row
        };
        let stage = |session: &Session<'_>, k: usize| {
            let (start, length) = work.piece(k);
            for (index, begin, count) in self.within(start, length) {
                let block = &self.blocks[index];
                if is_staged(work.me, block) {
                    let to = in_staging(session, work.me, k, block);
                    // SAFETY: the bytes of a piece fit in a staging; all readers finished with what
                    // was there (`staged`).
                    unsafe { copy(self.inputs[index], to, block.row as usize, begin, count) };
                }
            }
        };
        let consume = |session: &mut Session<'_>, k: usize| {
            let (start, length) = work.piece(k);
            for writer in work.others(Peers::All) {
                session.await_flag(writer, k as u32 + 1)?;
            }
            let session = &*session;
            self.own(start, length, |index| {
                let block = &self.blocks[index];
                let of = |rank| match is_staged(rank, block) {
                    true => in_staging(session, rank, k, block),
                    false => self.inputs[index],
                };
                (0..work.world).map(of).collect()
            })
        };
        staged(work, session, Roles::ALL, stage, consume)
    }

    /// Owners reduce their blocks where they lie in all ranks' inputs, which are symmetric memory.
    ///
    /// A rank returns only after every peer's step, raised after its last read of this rank's input. In
    /// place, a result replaces what its owner alone reads.
    fn direct(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        session.agree()?;
        let inputs = work.peers()?;
        self.own(0, work.part, |index| {
            let Block { at, stride, .. } = self.blocks[index];
            let of = |input: &*const u8| Runs {
                base: input.cast_mut().wrapping_add(at as usize),
                stride: stride as usize,
            };
            inputs.iter().map(of).collect()
        })?;
        session.raise(1);
        session.await_all(1)?;
        Ok(1)
    }
}
