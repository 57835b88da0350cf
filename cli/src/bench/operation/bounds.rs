//! What the bounds on kernels' waits cost: an all-reduce beside itself compiled without them.
#![allow(unsafe_code, reason = "measures kernels whose waits have no bound")]

use std::time::Instant;

use symmem::hal::kernels::Unbounded;
use symmem::prelude::*;

use super::sweep::Buffers;
use super::{AllReduce, Call, Collective as _, Comparison, Sweep};
use crate::bench::check::Data;
use crate::bench::member::{Member, RankError};
use crate::bench::report::{Report, Row};
use crate::bench::timing::{Batch, Iteration as _, Replay, Timing, micros};

/// Graphs of both variants, launched in turns.
#[derive(Clone, Debug)]
pub struct Bounds;

/// How often each variant is measured; of a pair, each is the first in turn.
const PAIRS: usize = 20;

impl Comparison for Bounds {
    fn name(&self) -> &'static str {
        "bounds"
    }

    fn describe(&self, all_reduce: &str) -> String {
        format!("all-reduce ({all_reduce}), and the same without bounds on its waits")
    }

    fn isolated(&self) -> &'static str {
        "one of 20 batches of each variant, taken in turns"
    }

    fn checked(&self) -> &'static str {
        "every element of the first of each variant, against an independent model"
    }

    fn measure(
        &self,
        sweep: &Sweep<AllReduce>,
        member: &Member<'_>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), RankError> {
        let Sweep { collective, dtype, sizes, .. } = sweep;
        let wanted = [(*dtype, collective.op)];
        member.group.prepare(&wanted)?;
        let other = member.group.subgroup(member.group.ranks()).create(&member.group.wait())?;
        // All ranks have loaded the one variant before any loads the other, and the other way round.
        member.barrier()?;
        // SAFETY: the ranks are those of this benchmark, which a person runs and can end.
        let unbounded = unsafe { Unbounded::compile() };
        let prepared = other.prepare(&wanted);
        member.barrier()?;
        drop(unbounded);
        prepared?;
        let member = &member.capturing()?;
        let beside = &Member::new(&other)?.on(&member.stream)?;
        let memory = sweep.allocate(member)?;
        let memory_beside = sweep.allocate(beside)?;
        for (part, size) in sizes.iter().enumerate() {
            let mine = sweep.buffers(member, &memory, *size)?;
            let theirs = sweep.buffers(beside, &memory_beside, *size)?;
            let (call, without) = (call(member, &mine), call(beside, &theirs));
            let algorithm = collective.algorithm(&call)?;
            let (issue, issue_without) =
                (|| collective.issue(&call), || collective.issue(&without));
            let mut bounded = Replay::new(member, &issue);
            let mut unbounded = Replay::new(beside, &issue_without);
            if sweep.check {
                let data = Data::Small(sweep.seed.part(part as u64));
                sweep.check(member, &mine, data, &mut bounded)?;
                sweep.check(beside, &theirs, data, &mut unbounded)?;
            }
            let batch = sweep.pace.batch.unwrap_or(Batch { calls: 20, launches: 10 });
            let mut times = [Vec::new(), Vec::new()];
            for pair in 0..PAIRS {
                for turn in 0..2 {
                    let which = (pair + turn) % 2;
                    let timed = if which == 0 { &mut bounded } else { &mut unbounded };
                    timed.prepare(batch.calls)?;
                    member.barrier()?;
                    let start = Instant::now();
                    for _ in 0..batch.launches {
                        timed.run(batch.calls)?;
                    }
                    member.finish()?;
                    let calls = (batch.calls * batch.launches) as f64;
                    times[which].push(micros(start.elapsed()) / calls);
                }
            }
            let [with, without] = times.map(Timing::of_batches);
            let bytes = size.get();
            let row = |algorithm, timing| Row {
                bytes,
                algorithm,
                checked: sweep.check,
                routed: None,
                timing,
            };
            report(Report::Row(row(format!("{algorithm}, without bounds"), without)));
            report(Report::Row(row(algorithm, with)));
        }
        Ok(())
    }
}

fn call<'a>(member: &'a Member<'_>, buffers: &'a Buffers) -> Call<'a> {
    let Buffers { input, output, .. } = buffers;
    Call { group: member.group, stream: &member.stream, input, output }
}
