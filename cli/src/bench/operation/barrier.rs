//! The barrier.

use std::time::{Duration, Instant};

use symmem::hal::types::Bytes;

use super::Operation;
use crate::bench::check::Wrong;
use crate::bench::member::{Member, RankError};
use crate::bench::report::{Report, Row};
use crate::bench::timing::{Pace, Ready, Replay, Separation, Timing};

/// How late the late rank of a check is: longer than the others take to be at the barrier.
const LATE: Duration = Duration::from_micros(200);

/// Barriers of a group.
#[derive(Clone, Debug)]
pub struct Barrier {
    /// Whether barriers are captured in graphs.
    pub graph: bool,
    pub pace: Pace,
}

impl Operation for Barrier {
    fn name(&self) -> &'static str {
        "barrier"
    }

    fn dtype(&self) -> &'static str {
        "-"
    }

    fn describe(&self) -> String {
        let graph = if self.graph { ", in graphs" } else { "" };
        format!("barriers of one channel{graph}")
    }

    fn isolated(&self) -> &'static str {
        "one barrier"
    }

    fn checked(&self) -> &'static str {
        "each rank in turn comes late, before and after; what it stored first, all see"
    }

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
        let capturing = if self.graph { Some(member.capturing()?) } else { None };
        let member = capturing.as_ref().unwrap_or(member);
        check(member, 1)?;
        let issue = || member.issue_barrier();
        let timing = match self.graph {
            false => Timing::take(member, self.pace, Separation::None, &mut Ready(&issue))?,
            true => {
                let mut replay = Replay::new(member, &issue);
                Timing::take(member, self.pace, Separation::None, &mut replay)?
            }
        };
        check(member, 2)?;
        // Every rank writes its word and reads all others': the only algorithm there is.
        let (bytes, algorithm) = (Bytes::ZERO.get(), "flags".into());
        report(Report::Row(Row { bytes, algorithm, checked: true, routed: None, timing }));
        Ok(())
    }
}

/// What a rank stored before a barrier, every rank sees after it: each rank in turn comes late,
/// and all look for its word.
fn check(member: &Member<'_>, part: u64) -> Result<(), RankError> {
    let ranks = member.ranks();
    for round in 0..2 * ranks {
        if round % ranks == member.rank() {
            let until = Instant::now() + LATE;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        let word = |rank: usize| part << 32 | (round as u64) << 16 | rank as u64;
        let found = member.gather(word(member.rank()))?;
        let differs = |(rank, found): &(usize, u64)| *found != word(*rank);
        if let Some((rank, found)) = found.into_iter().enumerate().find(differs) {
            let what = format!("after barrier {round} of a check, the words of all ranks");
            let (expected, found) = (format!("{:#x}", word(rank)), format!("{found:#x}"));
            let (index, count) = (rank as u64, ranks as u64);
            let wrong = Wrong { index, expected, found, wrong: 1, count };
            return Err(RankError::Wrong { what, wrong });
        }
    }
    Ok(())
}
