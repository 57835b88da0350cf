//! Operations that move data and change none of it.
#![allow(unsafe_code, reason = "copies memory that peers write")]

use smallvec::SmallVec;
use symmem_sync::host::{Ended, Session};
use symmem_sync::protocol::Peers;

use super::Work;
use super::parts::{Runs, copy};
use super::staged::{Roles, staged};
use crate::call::Access;
use crate::choice::Algorithm;

/// Gives each reader the part of every source's input that is meant for it.
pub(crate) fn exchange(work: &Work<'_>, roles: Roles) -> Result<(), Ended> {
    let exchange = Exchange { work, roles };
    if work.world == 1 {
        exchange.keep_own(0, work.part);
        return Ok(());
    }
    let pushes = work.reaches(Access::Write);
    // Who stores into a peer's output needs that peer's header as well.
    let consumes = if pushes { Peers::All } else { roles.consumes(work.me) };
    let mut session = work.begin(roles.feeds(work.me), consumes)?;
    let raised = if work.part == 0 {
        0
    } else if work.is(Algorithm::Packet) {
        exchange.packets(&mut session)?
    } else if work.reaches(Access::Read) {
        exchange.pull(&mut session)?
    } else if pushes {
        exchange.push(&mut session)?
    } else {
        exchange.staged(&mut session)?
    };
    work.finish(session, raised)
}

struct Exchange<'a> {
    work: &'a Work<'a>,
    roles: Roles,
}

impl Exchange<'_> {
    /// Copies bytes `start..start + length` of the part that this rank has for itself.
    fn keep_own(&self, start: usize, length: usize) {
        let work = self.work;
        if self.roles.sources.contains(work.me) && self.roles.readers.contains(work.me) {
            self.take(work.input_part(work.slot(work.me)), work.me, start, length);
        }
    }

    /// Copies bytes `start..start + length` of a part that `writer` has for this rank.
    fn take(&self, from: Runs, writer: usize, start: usize, length: usize) {
        let work = self.work;
        // SAFETY: every caller passes a range of a part that is whole there: its writer's flag,
        // header or packets were awaited, by acquire, after it released them. Parts of the output
        // are apart, and apart from the input but in place, where a part is the same or replaces
        // what has been staged.
        unsafe { work.store(from, work.output_part(writer), start, length) };
    }

    /// Whose parts this rank copies from elsewhere.
    fn writers(&self) -> impl Iterator<Item = usize> + use<> {
        self.work.others(self.roles.consumes(self.work.me))
    }

    /// Every source's input travels in packets.
    fn packets(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        if self.roles.sources.contains(work.me) {
            work.put_packets(session)?;
        }
        session.agree()?;
        // Where this rank's part begins in each writer's stream of packets.
        let from = work.slot(work.me) * work.part;
        let words = from / 8..(from + work.part).div_ceil(8);
        let mut stream: SmallVec<[u64; 16]> = SmallVec::from_elem(0, words.len());
        // Before the output is written, which is the input in place.
        self.keep_own(0, work.part);
        for writer in self.writers() {
            for (word, index) in stream.iter_mut().zip(words.clone()) {
                *word = session.await_packet(index, writer)?;
            }
            let base = stream.as_mut_ptr().cast::<u8>().wrapping_add(from % 8);
            self.take(Runs { base, stride: work.row }, writer, 0, work.part);
        }
        Ok(0)
    }

    /// Every source stages its input, piece by piece.
    fn staged(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        let own = work.slot(work.me);
        let stage = |session: &Session<'_>, k| {
            let (start, length) = work.piece(k);
            let staging = session.staging(work.me, k);
            for slot in 0..work.slots() {
                // Nobody else takes a part that is for this rank alone.
                if slot != own || work.slots() == 1 {
                    let to = work.staged_part(staging, slot, k);
                    // SAFETY: a piece of each slot fits in a staging; all readers finished with
                    // what was there (`staged`).
                    unsafe { copy(work.input_part(slot), to, work.row, start, length) };
                }
            }
        };
        let consume = |session: &mut Session<'_>, k| {
            let (start, length) = work.piece(k);
            for writer in self.writers() {
                session.await_flag(writer, k as u32 + 1)?;
                let from = work.staged_part(session.staging(writer, k), own, k);
                self.take(from, writer, start, length);
            }
            self.keep_own(start, length);
            Ok(())
        };
        staged(work, session, self.roles, stage, consume)
    }

    /// Readers copy from the sources' inputs, which are symmetric memory.
    ///
    /// A source's header says that its input is there. It returns only after every reader's step,
    /// raised after the last read of its input.
    fn pull(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        session.agree()?;
        let inputs = work.peers()?;
        let slot = work.slot(work.me);
        for writer in self.writers() {
            let from = Work::runs(inputs[writer].cast_mut(), work.plan.geometry.input, slot);
            self.take(from, writer, 0, work.part);
        }
        session.raise(1);
        // Its own copy goes on beside the others' reads.
        self.keep_own(0, work.part);
        for reader in work.others(self.roles.feeds(work.me)) {
            session.await_flag(reader, 1)?;
        }
        Ok(1)
    }

    /// Every rank copies into all readers' outputs, which are symmetric memory.
    ///
    /// A reader's header says that its output is its own to be written. It returns only after every
    /// source's step, raised after the last store into its output.
    fn push(&self, session: &mut Session<'_>) -> Result<u32, Ended> {
        let work = self.work;
        session.agree()?;
        let outputs = work.peers()?;
        for reader in work.others(self.roles.feeds(work.me)) {
            let output = outputs[reader].cast_mut();
            let to = Work::runs(output, work.plan.geometry.output, work.me);
            // SAFETY: this rank's part of the reader's output, which nobody else touches between
            // the reader's header of this epoch and its return.
            unsafe { work.store(work.input_part(work.slot(reader)), to, 0, work.part) };
        }
        session.raise(1);
        self.keep_own(0, work.part);
        for writer in self.writers() {
            session.await_flag(writer, 1)?;
        }
        Ok(1)
    }
}
