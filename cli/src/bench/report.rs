//! What ranks report, and what becomes of it.

use serde::{Deserialize, Serialize};
use symmem::hal::types::Bytes;
use symmem::prelude::*;

use super::check::Wrong;
use super::member::RankError;
use super::timing::{Figures, Timing};

/// One line from a rank to whoever started it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// A size is measured, and every result of it was right.
    Row(Row),
    /// The floor of latencies: a rank's times of barriers.
    Floor(Timing),
    /// The limit of a size: a rank's times of copies.
    Copy(Row),
    /// The limit of GPUs: a rank's times of copies to the next rank.
    Link(Row),
    /// A size is not measured.
    Skipped { bytes: u64, because: String },
    /// A result is not what it must be. Nothing follows.
    Wrong { what: String, wrong: Wrong },
    /// The rank cannot go on. Nothing follows.
    Failed(Failed),
}

/// One rank's times of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub bytes: u64,
    pub algorithm: String,
    /// Whether every result was.
    pub checked: bool,
    /// Of routed tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed: Option<Routed>,
    pub timing: Timing,
}

/// What else there is to say of routed tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routed {
    /// Of each rank.
    pub tokens: u64,
    /// Bytes that go to other ranks, or come from there: of the rank with the most.
    pub across_bytes: u64,
    /// The digest of all routes, in hexadecimal.
    pub routes: String,
}

/// Why a rank cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub because: String,
    /// Whether it is about other ranks: that they are gone, or did not come.
    pub about_others: bool,
}

impl Failed {
    pub fn new(error: &dyn Fault) -> Self {
        let about_others = matches!(error.kind(), Kind::PeerLost | Kind::TimedOut);
        Failed { because: error.to_string(), about_others }
    }
}

impl From<RankError> for Report {
    fn from(error: RankError) -> Self {
        match error {
            RankError::Wrong { what, wrong } => Report::Wrong { what, wrong },
            RankError::Fault(error) => Report::Failed(Failed::new(&*error)),
        }
    }
}

/// What a benchmark found, as it is written to a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    pub op: &'static str,
    pub backend: &'static str,
    pub ranks: usize,
    pub mode: &'static str,
    pub dtype: &'static str,
    /// What else was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<serde_json::Value>,
    /// Of GPUs: the measured limit of what each rank sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<f64>,
    pub rows: Vec<Line>,
}

/// One size. Times in microseconds, bandwidths in 10^9 bytes a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    pub bytes: u64,
    pub algorithm: String,
    pub median_us: f64,
    pub p10_us: f64,
    pub p90_us: f64,
    pub period_us: f64,
    pub algbw_gbps: f64,
    pub busbw_gbps: f64,
    pub checked: bool,
    /// Of routed tokens.
    #[serde(flatten)]
    pub routed: Option<Routed>,
}

impl Line {
    /// Puts together what all ranks reported of one size.
    pub fn new(ranks: &[&Row], bus_factor: f64) -> Option<Self> {
        let first = ranks.first()?;
        let timings: Vec<Timing> = ranks.iter().map(|row| row.timing.clone()).collect();
        let Figures { median, p10, p90, period } = Figures::of(&timings);
        // Bytes per microsecond are 10^6 bytes a second.
        let algbw = first.bytes as f64 / period / 1e3;
        let routed = first.routed.clone();
        let bus_factor = match &routed {
            Some(routed) => routed.across_bytes as f64 / first.bytes.max(1) as f64,
            None => bus_factor,
        };
        Some(Line {
            bytes: first.bytes,
            algorithm: first.algorithm.clone(),
            median_us: median,
            p10_us: p10,
            p90_us: p90,
            period_us: period,
            algbw_gbps: algbw,
            busbw_gbps: algbw * bus_factor,
            // A rank reports a row only after its last check.
            checked: ranks.iter().all(|row| row.checked),
            routed,
        })
    }

    /// How many of its bytes each rank sends to others.
    pub fn bus_factor(&self) -> f64 {
        self.busbw_gbps / self.algbw_gbps
    }
}

/// What the machine could do at best; see [`limit`](super::limit).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Limits {
    /// An isolated barrier, in microseconds.
    pub floor_us: Option<f64>,
    /// Of GPUs: what each rank sends to the next, in 10^9 bytes a second.
    pub link_gbps: Option<f64>,
    /// The copies of sizes, ascending.
    pub copies: Vec<CopyLimit>,
}

/// The copy of a size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CopyLimit {
    pub bytes: u64,
    /// Isolated and back to back.
    pub median_us: f64,
    pub period_us: f64,
}

impl Limits {
    /// How near an operation came: the copy's period by its own.
    pub fn share(&self, line: &Line) -> Option<f64> {
        let copy = self.copies.iter().find(|copy| copy.bytes == line.bytes)?;
        Some(copy.period_us / line.period_us)
    }
}

impl CopyLimit {
    /// In 10^9 bytes a second.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 / self.period_us / 1e3
    }

    /// What an operation of `bytes` takes, of which each rank sends `factor` times as much, at the
    /// rate of this copy.
    pub fn at(&self, bytes: u64, factor: f64) -> Self {
        let us = bytes as f64 * factor / self.bytes as f64 * self.period_us;
        CopyLimit { bytes, median_us: us, period_us: us }
    }

    /// Puts together what all ranks reported of one size.
    pub fn new(ranks: &[&Row]) -> Option<Self> {
        let bytes = ranks.first()?.bytes;
        let timings: Vec<Timing> = ranks.iter().map(|row| row.timing.clone()).collect();
        let Figures { median, period, .. } = Figures::of(&timings);
        Some(CopyLimit { bytes, median_us: median, period_us: period })
    }
}

/// Sizes that were not measured, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub bytes: Bytes,
    pub because: String,
}
