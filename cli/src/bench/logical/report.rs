//! What came of it: rows, as a table and as a file.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// What a benchmark found, as it is written to a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    pub op: &'static str,
    pub rows: Vec<Row>,
}

/// A number of ranks that met by one plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub logical_ranks: u32,
    pub group: u32,
    /// To the store, handshakes left out: the mean, and that of the rank with the most.
    pub requests_per_rank: f64,
    pub most_requests: u64,
    /// To and from the store.
    pub bytes_per_rank: f64,
    /// The median run, from a common start until the last rank has everything.
    pub seconds: f64,
    pub plan: &'static str,
    pub per_host: u32,
    pub client: &'static str,
    pub server: String,
    /// How often ranks were connected and met, one part of the groups after the other.
    pub waves: u32,
    /// Of the median run: connecting, and what the server and the load used of processors meanwhile.
    pub connect_seconds: f64,
    pub server_cpu_seconds: Option<f64>,
    pub load_cpu_seconds: f64,
    /// All of them.
    pub runs: Vec<f64>,
    pub checked: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

/// How the others learnt of the rank that did not come.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Missing {
    pub rank: u32,
    /// The other ranks of its group; all of them named it, and nobody else.
    pub named_by: u32,
    /// After the start.
    pub first_seconds: f64,
    pub last_seconds: f64,
    pub deadline_seconds: f64,
}

/// One run of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub requests: u64,
    pub most_requests: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub connect_seconds: f64,
    pub server_cpu_seconds: Option<f64>,
    pub load_cpu_seconds: f64,
    pub missing: Option<Missing>,
}

impl Run {
    /// The run whose time is the median; of an even number the slower one.
    pub fn median(runs: &[Run]) -> Option<&Run> {
        let mut sorted: Vec<&Run> = runs.iter().collect();
        sorted.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        sorted.get(sorted.len() / 2).copied()
    }
}

/// The rows, for people.
pub fn table(out: &mut dyn Write, rows: &[Row]) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "ranks",
        "plan",
        "requests",
        "most",
        "bytes",
        "seconds",
        "us a rank",
        "connect s",
        "server s",
        "load s",
        "waves",
        "checked",
    ]);
    for row in rows {
        let ranks = f64::from(row.logical_ranks);
        table.add_row([
            row.logical_ranks.to_string(),
            row.plan.to_owned(),
            format!("{:.2}", row.requests_per_rank),
            row.most_requests.to_string(),
            format!("{:.0}", row.bytes_per_rank),
            format!("{:.4}", row.seconds),
            format!("{:.2}", row.seconds / ranks * 1e6),
            format!("{:.3}", row.connect_seconds),
            row.server_cpu_seconds.map_or("-".to_owned(), |cpu| format!("{cpu:.3}")),
            format!("{:.3}", row.load_cpu_seconds),
            row.waves.to_string(),
            if row.checked { "yes" } else { "no" }.to_owned(),
        ]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        let is_text = [1, 11].contains(&index);
        column.set_cell_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right });
    }
    writeln!(out, "{}", table.trim_fmt())?;
    for row in rows {
        let Some(missing) = &row.missing else { continue };
        writeln!(
            out,
            "\n{} ranks, {}: rank {} did not come: named by all {} others of its group after {:.3} to {:.3} s \
             (deadline {:.3} s); all other groups met",
            row.logical_ranks,
            row.plan,
            missing.rank,
            missing.named_by,
            missing.first_seconds,
            missing.last_seconds,
            missing.deadline_seconds,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_a_run() {
        let run = |seconds| Run {
            requests: 0,
            most_requests: 0,
            bytes: 0,
            seconds,
            connect_seconds: 0.0,
            server_cpu_seconds: None,
            load_cpu_seconds: 0.0,
            missing: None,
        };
        let median = |all: &[f64]| {
            let runs: Vec<Run> = all.iter().copied().map(run).collect();
            Run::median(&runs).map(|run| run.seconds)
        };
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }
}
