//! What all ranks said, put together.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use symmem::hal::types::Bytes;

use super::DriveError;
use crate::bench::check::Wrong;
use crate::bench::operation::Operation;
use crate::bench::report::{CopyLimit, Failed, Limits, Line, Report, Row, Skipped};
use crate::bench::show::Progress;
use crate::bench::timing::{Figures, Timing};

/// How long the other ranks have, after the first fault, to say what they know of it.
const GRACE: Duration = Duration::from_secs(2);

/// Why a rank did not do its part.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RankFault {
    /// A result is not what it must be.
    #[error("{what}: {wrong}")]
    Wrong { what: String, wrong: Wrong },
    /// Its process ended without a word.
    #[error("its process ended ({0}) before it had reported everything")]
    Died(ExitStatus),
    /// It said what is no report.
    #[error("it reported {0:?}, which is no report")]
    Garbled(String),
    /// It could not go on.
    #[error("{}", .0.because)]
    Failed(Failed),
    /// It ended too early, or not at all.
    #[error("it has not reported everything")]
    Silent,
}

impl RankFault {
    /// The lower, the closer to the cause: most ranks fail because another did.
    fn distance(&self) -> u8 {
        match self {
            RankFault::Wrong { .. } => 0,
            RankFault::Died(_) | RankFault::Garbled(_) => 1,
            RankFault::Failed(failed) if !failed.about_others => 2,
            RankFault::Failed(_) => 3,
            RankFault::Silent => 4,
        }
    }
}

/// Everything that was measured.
#[derive(Debug)]
pub struct Collected {
    pub lines: Vec<Line>,
    pub limits: Limits,
    pub skipped: Vec<Skipped>,
}

/// Hears the ranks.
pub struct Collector<'a> {
    operation: &'a dyn Operation,
    progress: &'a Progress,
    ranks: Vec<Heard>,
    failing: Option<Instant>,
}

#[derive(Default)]
struct Heard {
    rows: Vec<Row>,
    floor: Option<Timing>,
    copies: Vec<Row>,
    links: Vec<Row>,
    skipped: Vec<Skipped>,
    fault: Option<RankFault>,
}

impl<'a> Collector<'a> {
    pub fn new(operation: &'a dyn Operation, ranks: usize, progress: &'a Progress) -> Self {
        let ranks = (0..ranks).map(|_| Heard::default()).collect();
        Collector { operation, progress, ranks, failing: None }
    }

    pub fn report(&mut self, rank: usize, report: Report) {
        let fault = match report {
            Report::Row(row) => {
                self.ranks[rank].rows.push(row);
                return self.progress.at(self.done());
            }
            Report::Skipped { bytes, because } => {
                self.ranks[rank].skipped.push(Skipped { bytes: Bytes(bytes), because });
                return self.progress.at(self.done());
            }
            Report::Floor(timing) => {
                self.ranks[rank].floor = Some(timing);
                return;
            }
            Report::Copy(row) => return self.ranks[rank].copies.push(row),
            Report::Link(row) => return self.ranks[rank].links.push(row),
            Report::Wrong { what, wrong } => RankFault::Wrong { what, wrong },
            Report::Failed(failed) => RankFault::Failed(failed),
        };
        self.fault(rank, fault);
    }

    /// A rank's process has ended; everything it said has been heard. That is a fault, unless it
    /// had reported everything.
    pub fn ended(&mut self, rank: usize, status: ExitStatus) {
        if !status.success() || !self.complete(rank) {
            self.fault(rank, RankFault::Died(status));
        }
    }

    /// Keeps a rank's first fault: what it says itself tells more than how its process ended.
    pub fn fault(&mut self, rank: usize, fault: RankFault) {
        self.fail();
        self.ranks[rank].fault.get_or_insert(fault);
    }

    /// Something is wrong; who says why comes now.
    pub fn fail(&mut self) {
        self.failing.get_or_insert_with(Instant::now);
    }

    /// Whether the ranks have had the time to say why they fail.
    pub fn overdue(&self) -> bool {
        self.failing.is_some_and(|since| since.elapsed() > GRACE)
    }

    /// Sizes that all ranks are done with.
    fn done(&self) -> usize {
        let sizes =
            |heard: &Heard| heard.rows.len() / self.operation.variants() + heard.skipped.len();
        self.ranks.iter().map(sizes).min().unwrap_or(0)
    }

    fn complete(&self, rank: usize) -> bool {
        let heard = &self.ranks[rank];
        let variants = self.operation.variants();
        heard.rows.len() + variants * heard.skipped.len() == variants * self.operation.sizes().len()
    }

    /// The results of all ranks together, or the fault that is closest to the cause.
    pub fn finish(mut self) -> Result<Collected, DriveError> {
        if self.failing.is_none()
            && let Some(rank) = (0..self.ranks.len()).find(|rank| !self.complete(*rank))
        {
            self.fault(rank, RankFault::Silent);
        }
        let faults = self.ranks.iter().enumerate().filter_map(|(r, h)| Some((r, h.fault.clone()?)));
        if let Some((rank, fault)) = faults.min_by_key(|(_, fault)| fault.distance()) {
            return Err(DriveError::Rank { rank, fault });
        }
        let bus_factor = self.operation.bus_factor(self.ranks.len());
        let lines = by_index(&self.ranks, |heard| &heard.rows);
        let lines: Vec<_> = lines.filter_map(|rows| Line::new(&rows, bus_factor)).collect();
        let copies = by_index(&self.ranks, |heard| &heard.copies);
        let mut copies: Vec<_> = copies.filter_map(|rows| CopyLimit::new(&rows)).collect();
        // Over a link, what takes the time is what each rank sends.
        let links = by_index(&self.ranks, |heard| &heard.links);
        let link = links.filter_map(|rows| CopyLimit::new(&rows)).next();
        let link_gbps = link.as_ref().map(CopyLimit::gbps);
        if let Some(link) = link {
            copies.extend(lines.iter().map(|line: &Line| link.at(line.bytes, line.bus_factor())));
        }
        let floors: Option<Vec<Timing>> = self.ranks.iter().map(|h| h.floor.clone()).collect();
        let floor_us = floors.map(|floors| Figures::of(&floors).median);
        let limits = Limits { floor_us, link_gbps, copies };
        let skipped = self.ranks.into_iter().next().map(|h| h.skipped).unwrap_or_default();
        Ok(Collected { lines, limits, skipped })
    }
}

/// What all ranks reported, size by size.
fn by_index<'a>(
    ranks: &'a [Heard],
    rows: impl Fn(&'a Heard) -> &'a Vec<Row> + 'a,
) -> impl Iterator<Item = Vec<&'a Row>> {
    (0..).map_while(move |index| ranks.iter().map(|heard| rows(heard).get(index)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::member::{Member, RankError};

    /// So many variants of two sizes; measures nothing by itself.
    struct Beside(usize);

    impl Operation for Beside {
        fn name(&self) -> &'static str {
            "beside"
        }
        fn dtype(&self) -> &'static str {
            "-"
        }
        fn describe(&self) -> String {
            String::new()
        }
        fn isolated(&self) -> &'static str {
            ""
        }
        fn checked(&self) -> &'static str {
            ""
        }
        fn sizes(&self) -> &[Bytes] {
            &[Bytes(8), Bytes(16)]
        }
        fn variants(&self) -> usize {
            self.0
        }
        fn bus_factor(&self, _: usize) -> f64 {
            1.0
        }
        fn measure(&self, _: &Member<'_>, _: &mut dyn FnMut(Report)) -> Result<(), RankError> {
            Ok(())
        }
    }

    #[test]
    fn everything_is_reported_once_each_variant_of_each_size_is() {
        let row = || {
            let timing = Timing::of_batches(vec![1.0]);
            let (algorithm, checked, routed) = (String::new(), true, None);
            Report::Row(Row { bytes: 8, algorithm, checked, routed, timing })
        };
        let skipped = || Report::Skipped { bytes: 16, because: String::new() };
        for (variants, rows, skips, complete) in [
            (1, 2, 0, true),
            (1, 1, 0, false),
            (2, 2, 0, false),
            (2, 3, 0, false),
            (2, 4, 0, true),
            (2, 2, 1, true),
            (2, 1, 1, false),
            (2, 5, 0, false),
        ] {
            let (operation, progress) = (Beside(variants), Progress::new(2));
            let mut collector = Collector::new(&operation, 1, &progress);
            (0..rows).for_each(|_| collector.report(0, row()));
            (0..skips).for_each(|_| collector.report(0, skipped()));
            let collected = collector.finish();
            assert_eq!(collected.is_ok(), complete, "{variants} {rows} {skips}");
            if let Ok(collected) = collected {
                assert_eq!((collected.lines.len(), collected.skipped.len()), (rows, skips));
            }
        }
    }
}
