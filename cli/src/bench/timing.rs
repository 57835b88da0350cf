//! How a time is taken, and what is made of the ranks' times.
//!
//! - *Isolated*: an untimed barrier, then one operation. A rank's time is its own, from its call to
//!   its completion; an iteration's is the slowest rank's. Median, 10th and 90th percentile.
//! - *Period*: operations back to back, without barriers. The slowest rank's mean of a batch; the
//!   median of three batches.
//!
//! Iterations fill a time budget, at least 3 and at most 1000 of them, after an eighth of it has
//! passed untimed; a batch has a quarter as many, on GPUs as many or 4 times as many in a graph that
//! is launched again and again, unless its [`Batch`] is given. These are the rules
//! of the benchmarks of MPI implementations and, for the period, of nccl-tests, so that figures can
//! stand side by side.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use symmem::hal::Graph;
use symmem::hal::types::BackendKind;

use super::member::{Member, RankError};

const LEAST: usize = 3;
const MOST: usize = 1000;
const BATCHES: usize = 3;

/// What part of the budget goes by first, untimed: where a thousand iterations take less than a
/// scheduler needs to give each rank a core of its own, all of them would show two ranks on one.
const WARMING: u32 = 8;

/// How many iterations to make.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub isolated: Isolated,
    /// Back to back; else a quarter of the isolated iterations, issued once.
    pub batch: Option<Batch>,
}

/// How many isolated iterations to make.
#[derive(Clone, Copy, Debug)]
pub enum Isolated {
    /// As many as fit in a time.
    Budget(Duration),
    /// Exactly so many.
    Iterations(usize),
}

/// Operations back to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Operations; a graph of them, where they are captured.
    pub calls: usize,
    /// How often those are issued, without a pause.
    pub launches: usize,
}

impl Pace {
    /// A quarter of the time, for what is measured beside.
    pub fn quarter(self) -> Self {
        let isolated = match self.isolated {
            Isolated::Budget(budget) => Isolated::Budget(budget / 4),
            Isolated::Iterations(n) => Isolated::Iterations(n),
        };
        Pace { isolated, ..self }
    }
}

/// What separates isolated iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separation {
    /// An untimed barrier.
    Barrier,
    /// Nothing: the operation is a barrier itself.
    None,
}

/// What is timed.
pub trait Iteration {
    /// Makes so many operations ready, untimed; collective.
    fn prepare(&mut self, times: usize) -> Result<(), RankError>;

    /// Enqueues as many as were made ready.
    fn run(&mut self, times: usize) -> Result<(), RankError>;

    /// Whether they are in a graph.
    fn is_captured(&self) -> bool {
        false
    }
}

/// What needs no preparation.
pub struct Ready<'a>(pub &'a dyn Fn() -> Result<(), RankError>);

impl Iteration for Ready<'_> {
    fn prepare(&mut self, _: usize) -> Result<(), RankError> {
        Ok(())
    }

    fn run(&mut self, times: usize) -> Result<(), RankError> {
        (0..times).try_for_each(|_| self.0())
    }
}

/// Operations captured in a graph, which is launched.
pub struct Replay<'a> {
    member: &'a Member<'a>,
    issue: &'a dyn Fn() -> Result<(), RankError>,
    graph: Option<(usize, Graph)>,
}

impl<'a> Replay<'a> {
    pub fn new(member: &'a Member<'a>, issue: &'a dyn Fn() -> Result<(), RankError>) -> Self {
        Replay { member, issue, graph: None }
    }
}

impl Iteration for Replay<'_> {
    fn prepare(&mut self, times: usize) -> Result<(), RankError> {
        if self.graph.as_ref().is_some_and(|(captured, _)| *captured == times) {
            return Ok(());
        }
        let stream = &self.member.stream;
        stream.begin_capture()?;
        let issued = (0..times).try_for_each(|_| (self.issue)());
        // Ended in any case; a call that was refused is the error to tell.
        let graph = stream.end_capture();
        issued?;
        self.graph = Some((times, graph?));
        Ok(())
    }

    fn run(&mut self, _: usize) -> Result<(), RankError> {
        if let Some((_, graph)) = &self.graph {
            graph.launch(&self.member.stream, &self.member.group.wait())?;
        }
        Ok(())
    }

    fn is_captured(&self) -> bool {
        true
    }
}

/// One rank's own times, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Of each isolated iteration.
    isolated: Vec<f64>,
    /// Means of the batches.
    periods: Vec<f64>,
}

/// The ranks' times together, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    pub median: f64,
    pub p10: f64,
    pub p90: f64,
    pub period: f64,
}

impl Timing {
    /// Of batches that were timed one by one, whose means these are.
    pub fn of_batches(means: Vec<f64>) -> Self {
        Timing { isolated: means.clone(), periods: means }
    }

    /// Measures; collective.
    pub fn take(
        member: &Member<'_>,
        pace: Pace,
        separation: Separation,
        timed: &mut dyn Iteration,
    ) -> Result<Self, RankError> {
        let iterations = match pace.isolated {
            Isolated::Budget(budget) => iterations(member, budget, timed)?,
            Isolated::Iterations(n) => n,
        };
        let mut isolated = Vec::with_capacity(iterations);
        for _ in 0..iterations {
            timed.prepare(1)?;
            if separation == Separation::Barrier {
                member.barrier()?;
            }
            let start = Instant::now();
            timed.run(1)?;
            member.finish()?;
            isolated.push(micros(start.elapsed()));
        }
        let batch = || default_batch(member, iterations, timed.is_captured());
        let Batch { calls, launches } = pace.batch.unwrap_or_else(batch);
        let mut periods = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            timed.prepare(calls)?;
            member.barrier()?;
            let start = Instant::now();
            for _ in 0..launches {
                timed.run(calls)?;
            }
            member.finish()?;
            periods.push(micros(start.elapsed()) / (calls * launches) as f64);
        }
        Ok(Timing { isolated, periods })
    }
}

/// What is back to back unless told otherwise. Where a stream runs beside the CPU a batch is longer,
/// since its end takes as long to be seen as a few operations.
fn default_batch(member: &Member<'_>, iterations: usize, captured: bool) -> Batch {
    match (member.group.device().kind(), captured) {
        (BackendKind::Cuda, true) => Batch { calls: 20, launches: (iterations / 5).max(1) },
        (BackendKind::Cuda, false) => Batch { calls: iterations, launches: 1 },
        _ => Batch { calls: (iterations / 4).max(1), launches: 1 },
    }
}

/// How many iterations fill the budget: the same on every rank.
fn iterations(
    member: &Member<'_>,
    budget: Duration,
    timed: &mut dyn Iteration,
) -> Result<usize, RankError> {
    let estimate = |timed: &mut dyn Iteration, times: u32| {
        timed.prepare(1)?;
        let start = Instant::now();
        for _ in 0..times {
            member.barrier()?;
            timed.run(1)?;
            member.finish()?;
        }
        member.slowest(start.elapsed() / times)
    };
    let one = estimate(timed, 1)?;
    if one >= budget / 50 {
        return Ok(fitting(budget, one).clamp(LEAST, MOST));
    }
    for _ in 0..fitting(budget / WARMING, one) {
        timed.prepare(1)?;
        member.barrier()?;
        timed.run(1)?;
        member.finish()?;
    }
    let one = estimate(timed, 5)?;
    Ok(fitting(budget, one).clamp(LEAST, MOST))
}

fn fitting(budget: Duration, one: Duration) -> usize {
    usize::try_from(budget.as_nanos() / one.as_nanos().max(1)).unwrap_or(MOST)
}

impl Figures {
    /// Each iteration's value is its slowest rank's.
    pub fn of(ranks: &[Timing]) -> Self {
        let isolated = sorted(slowest(ranks, |timing| &timing.isolated));
        let periods = sorted(slowest(ranks, |timing| &timing.periods));
        let n = isolated.len();
        let at = |sorted: &[f64], index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Figures {
            median: at(&isolated, n / 2),
            p10: at(&isolated, n / 10),
            p90: at(&isolated, n * 9 / 10),
            period: at(&periods, periods.len() / 2),
        }
    }
}

fn slowest(ranks: &[Timing], times: impl Fn(&Timing) -> &Vec<f64>) -> Vec<f64> {
    let mut all = ranks.iter().map(times);
    let mut slowest = all.next().cloned().unwrap_or_default();
    for times in all {
        slowest.iter_mut().zip(times).for_each(|(slowest, time)| *slowest = slowest.max(*time));
    }
    slowest
}

fn sorted(mut times: Vec<f64>) -> Vec<f64> {
    times.sort_by(f64::total_cmp);
    times
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_is_its_slowest_rank() {
        let a = Timing { isolated: vec![1.0, 9.0, 3.0, 4.0], periods: vec![5.0, 1.0, 1.0] };
        let b = Timing { isolated: vec![2.0, 2.0, 2.0, 8.0], periods: vec![1.0, 2.0, 7.0] };
        let figures = Figures::of(&[a, b]);
        // 2, 9, 3, 8 and 5, 2, 7.
        assert_eq!(figures, Figures { median: 8.0, p10: 2.0, p90: 9.0, period: 5.0 });
    }
}
