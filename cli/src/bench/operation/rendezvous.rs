//! The rendezvous: how long it takes until memory of all ranks is mapped into all.

use symmem::hal::types::Bytes;
use symmem::prelude::*;

use super::Operation;
use crate::bench::check::Wrong;
use crate::bench::member::{Member, RankError};
use crate::bench::report::{Report, Row};
use crate::bench::timing::{Iteration, Pace, Separation, Timing};

/// Rendezvous of fresh memory.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    /// Of each rank's memory.
    pub bytes: Bytes,
    pub pace: Pace,
}

/// Rendezvous to come and those that were.
struct Meetings<'a> {
    member: &'a Member<'a>,
    count: u64,
    fresh: Vec<Tensor<u64>>,
    met: Vec<SymmetricMemory>,
}

impl Operation for Rendezvous {
    fn name(&self) -> &'static str {
        "rendezvous"
    }

    fn dtype(&self) -> &'static str {
        "-"
    }

    fn describe(&self) -> String {
        format!("rendezvous of fresh allocations of {}", self.bytes)
    }

    fn isolated(&self) -> &'static str {
        "an untimed allocation and barrier, then one rendezvous"
    }

    fn checked(&self) -> &'static str {
        "before and after: what each rank wrote, every other reads through its mapping"
    }

    /// What is exchanged are handles, not data.
    fn sizes(&self) -> &[Bytes] {
        &[Bytes::ZERO]
    }

    fn bus_factor(&self, _: usize) -> f64 {
        0.0
    }

    fn measure(
        &self,
        member: &Member<'_>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), RankError> {
        let count = self.bytes.get() / 8;
        let mut meetings = Meetings { member, count, fresh: Vec::new(), met: Vec::new() };
        meetings.check(1)?;
        let timing = Timing::take(member, self.pace, Separation::Barrier, &mut meetings)?;
        meetings.check(2)?;
        // Members of a host meet at a leader: the only algorithm there is.
        let (bytes, algorithm) = (Bytes::ZERO.get(), "leader".into());
        report(Report::Row(Row { bytes, algorithm, checked: true, routed: None, timing }));
        Ok(())
    }
}

impl Iteration for Meetings<'_> {
    fn prepare(&mut self, times: usize) -> Result<(), RankError> {
        self.met.clear();
        // What the ranks dropped is free again once all have unmapped it.
        self.member.barrier()?;
        symmem::mem::collect();
        let device = self.member.group.device();
        self.fresh.clear();
        for _ in 0..times {
            self.fresh.push(Tensor::zeros(device, &[self.count])?);
        }
        Ok(())
    }

    fn run(&mut self, _: usize) -> Result<(), RankError> {
        let group = self.member.group;
        for tensor in self.fresh.drain(..) {
            self.met.push(group.rendezvous(&tensor, &group.wait())?);
        }
        Ok(())
    }
}

impl Meetings<'_> {
    /// The last word of every rank's memory is what that rank wrote there.
    fn check(&mut self, part: u64) -> Result<(), RankError> {
        self.prepare(1)?;
        self.run(1)?;
        let Some(memory) = self.met.last() else { return Ok(()) };
        let (member, last) = (self.member, self.count - 1);
        let word = |rank: usize| part << 32 | rank as u64;
        memory.view().slice(last, 1)?.write(&[word(member.rank())])?;
        member.barrier()?;
        for (index, rank) in member.group.ranks().enumerate() {
            let mut found = [0];
            memory.remote(rank)?.slice(last, 1)?.read(&mut found)?;
            if found != [word(index)] {
                let what = format!("the last word of rank {index}'s memory after a rendezvous");
                let (expected, found) = (format!("{:#x}", word(index)), format!("{:#x}", found[0]));
                let wrong = Wrong { index: last, expected, found, wrong: 1, count: self.count };
                return Err(RankError::Wrong { what, wrong });
            }
        }
        member.barrier()
    }
}
