//! `--plot`: the results as a figure.
//!
//! Two panels over message size, both logarithmic: the isolated latency's median with a band from
//! its 10th to its 90th percentile, and the bus bandwidth of the period; of routed tokens a curve for each
//! part of a round. Drawn in: what the machine
//! could do at best, from the same run ([`limit`](super::limit)), and where the algorithm changes.
//! Colours are those of Okabe and Ito, which colour-blind readers tell apart. The figures themselves
//! lie in the file's metadata, as JSON.

mod draw;
mod scale;

use serde::Serialize;
use symmem::prelude::*;
use time::OffsetDateTime;

use super::report::{Limits, Results};

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    #[error("cannot draw the results: {0}")]
    Draw(String),
    #[error("no size was measured: there is nothing to draw")]
    Nothing,
}

/// What a figure shows.
pub struct Figure<'a> {
    pub results: &'a Results,
    pub limits: &'a Limits,
    pub bus_factor: f64,
    /// What was measured, for people.
    pub description: String,
    /// What an isolated iteration is, for people.
    pub isolated: &'static str,
}

/// What a figure's file holds besides.
#[derive(Serialize)]
struct Metadata<'a> {
    results: &'a Results,
    limits: &'a Limits,
}

impl Figure<'_> {
    /// The figure as SVG.
    pub fn svg(&self) -> Result<String, PlotError> {
        if self.results.rows.is_empty() {
            return Err(PlotError::Nothing);
        }
        let drawing = draw::draw(self).map_err(|e| PlotError::Draw(e.to_string()))?;
        let metadata = Metadata { results: self.results, limits: self.limits };
        let metadata =
            serde_json::to_string(&metadata).map_err(|e| PlotError::Draw(e.to_string()))?;
        let inside = format!(
            ">\n<title>{}</title>\n<metadata>{}</metadata>",
            escape(&self.title()),
            escape(&metadata)
        );
        // After the end of the root's own tag. Of a size for a screen, and drawn finer than that.
        Ok(drawing.replacen('>', &inside, 1).replacen(
            &format!("width=\"{}\" height=\"{}\"", draw::WIDTH, draw::HEIGHT),
            &format!("width=\"{}\" height=\"{}\"", draw::WIDTH / 2, draw::HEIGHT / 2),
            1,
        ))
    }

    fn title(&self) -> String {
        format!("{}: {}", self.results.op, self.description)
    }

    fn caption(&self) -> [String; 2] {
        let cpu = Device::host();
        let Results { backend, ranks, mode, .. } = self.results;
        let plural = if *mode == "thread" { "threads" } else { "processes" };
        let date = OffsetDateTime::now_utc().date();
        let where_and_when = format!(
            "{}, {} cores; {ranks} {plural}, {backend} memory; symmem {}; {date}",
            cpu.name(),
            cpu.capabilities().units,
            env!("CARGO_PKG_VERSION"),
        );
        let meaning = format!(
            "isolated: {}, the slowest rank's own time; bandwidth: back to back",
            self.isolated
        );
        [where_and_when, meaning]
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests;
