//! Two all-reduces at once, on a lane and a stream each, beside the same one after the other.

use std::time::Instant;

use symmem::prelude::*;

use super::sweep::Buffers;
use super::{AllReduce, Comparison, Sweep};
use crate::bench::check::Data;
use crate::bench::member::{Member, RankError};
use crate::bench::report::{Report, Row};
use crate::bench::timing::{Batch, Ready, Timing, micros};

/// Two all-reduces of a size.
#[derive(Clone, Debug)]
pub struct TwoLanes;

/// How often each way is measured, in turns, and how many pairs at a time.
const TURNS: usize = 21;
const PAIRS: Batch = Batch { calls: 20, launches: 1 };

impl Comparison for TwoLanes {
    fn name(&self) -> &'static str {
        "lanes"
    }

    fn describe(&self, all_reduce: &str) -> String {
        format!("two all-reduces ({all_reduce}), on two lanes and on one")
    }

    fn isolated(&self) -> &'static str {
        "the mean of 20 pairs back to back; 21 times each way, in turns"
    }

    fn checked(&self) -> &'static str {
        "every element of the first of each lane and of the last of all"
    }

    fn all_reduces(&self) -> u32 {
        2
    }

    fn measure(
        &self,
        sweep: &Sweep<AllReduce>,
        member: &Member<'_>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), RankError> {
        let Sweep { collective, dtype, sizes, .. } = sweep;
        let wait = member.group.wait();
        let options = Options { max_lanes: 2, ..member.group.options().clone() };
        let group = member.group.subgroup(member.group.ranks()).options(options).create(&wait)?;
        group.prepare(&[(*dtype, collective.op)])?;
        let lanes = group.lanes(2, &wait)?;
        let streams = [stream_of(&group)?, stream_of(&group)?];
        let members =
            [Member::new(&group)?.on(&streams[0])?, Member::new(&group)?.on(&streams[1])?];
        let memory = [sweep.allocate(&members[0])?, sweep.allocate(&members[1])?];
        for (part, size) in sizes.iter().enumerate() {
            let of = |which: usize| sweep.buffers(&members[which], &memory[which], *size);
            let buffers = [of(0)?, of(1)?];
            let issue = |which: usize, lane: usize, stream: usize| -> Result<(), RankError> {
                let Buffers { input, output, .. } = &buffers[which];
                let call = group.all_reduce(input).into(output).op(collective.op);
                let call = call.algorithm(collective.algorithm).lane(lanes[lane]);
                Ok(call.on(&streams[stream])?)
            };
            let check = |part: u64| -> Result<(), RankError> {
                let data = Data::Small(sweep.seed.part(part));
                for which in 0..if sweep.check { 2 } else { 0 } {
                    let issue = || issue(which, which, which);
                    let (member, buffers) = (&members[which], &buffers[which]);
                    sweep.check(member, buffers, data, &mut Ready(&issue))?;
                }
                Ok(())
            };
            check(2 * part as u64)?;
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..TURNS {
                for (apart, times) in times.iter_mut().enumerate() {
                    members[0].barrier()?;
                    let start = Instant::now();
                    for _ in 0..PAIRS.calls {
                        issue(0, 0, 0)?;
                        issue(1, apart, apart)?;
                    }
                    members.iter().try_for_each(Member::finish)?;
                    times.push(micros(start.elapsed()) / PAIRS.calls as f64);
                }
            }
            check(2 * part as u64 + 1)?;
            let [one, two] = times.map(Timing::of_batches);
            let bytes = size.get();
            let row = |algorithm: &str, timing| {
                let (algorithm, checked) = (algorithm.to_owned(), sweep.check);
                Report::Row(Row { bytes, algorithm, checked, routed: None, timing })
            };
            report(row("one lane", one));
            report(row("two lanes", two));
        }
        Ok(())
    }
}

/// One that runs beside others.
fn stream_of(group: &Group) -> Result<Stream, RankError> {
    Ok(group.device().stream(StreamMode::Worker)?)
}
