//! What people see: what is measured and where, progress, the table.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use symmem::hal::types::Bytes;
use symmem::prelude::*;

use super::args::Common;
use super::devices::Backend;
use super::operation::Operation;
use super::report::{Limits, Line, Skipped};

/// How far the ranks are, on standard error where that is a terminal.
pub struct Progress(ProgressBar);

impl Progress {
    pub fn new(sizes: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(sizes as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos} of {len} sizes, {elapsed}")
        {
            bar.set_style(style);
        }
        Progress(bar)
    }

    pub fn at(&self, done: usize) {
        self.0.set_position(done as u64);
    }

    /// A line that stays.
    pub fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }

    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// What is measured, and what the figures mean.
pub fn header(
    out: &mut dyn Write,
    operation: &dyn Operation,
    common: &Common,
    devices: u32,
) -> io::Result<()> {
    let cpu = Device::host();
    let (name, cores) = (cpu.name(), cpu.capabilities().units);
    let mode = if common.threads { "threads" } else { "processes" };
    let width = (operation.name().len() + 2).max(12);
    let line = |out: &mut dyn Write, name, text: String| writeln!(out, "{name:width$}{text}");
    line(out, operation.name(), operation.describe())?;
    line(out, "machine", format!("{name}, {cores} cores"))?;
    let backend = common.devices.backend;
    let gpus = match backend {
        Backend::Cuda => format!(" on {}", plural(common.ranks.min(devices as usize), "GPU")),
        Backend::Host | Backend::Stub => String::new(),
    };
    line(out, "ranks", format!("{} {mode}, {} memory{gpus}", common.ranks, backend.name()))?;
    let isolated = operation.isolated();
    line(out, "isolated", format!("{isolated}; an iteration counts as its slowest rank"))?;
    let period = "back to back; the slowest rank's mean; bandwidths are bytes per period";
    line(out, "period", period.to_owned())?;
    if let Some(counted) = operation.counted() {
        line(out, "bytes", counted.to_owned())?;
    }
    if operation.sizes() != [Bytes::ZERO] {
        let limit = match backend {
            Backend::Cuda => "every rank's copy engine writes to the next rank, all at once",
            _ if operation.counted().is_some() => {
                "every rank copies as much of its own memory as its tokens have, all at once, in the same run"
            }
            _ => "every rank copies as much of its own memory, all at once, in the same run",
        };
        line(out, "limit", limit.to_owned())?;
    }
    line(out, "checked", operation.checked().to_owned())?;
    writeln!(out)
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// What makes figures worth less.
pub fn warnings(common: &Common, devices: u32) {
    let ranks = common.ranks;
    if common.devices.backend == Backend::Cuda && ranks > devices as usize {
        let gpus = plural(devices as usize, "GPU");
        match common.threads {
            true => {
                eprintln!("warning: {ranks} ranks on {gpus}: they share its units and memory\n")
            }
            false => eprintln!(
                "warning: {ranks} processes on {gpus} take turns on it: correct, but not fast\n"
            ),
        }
    }
    let cores = Device::host().capabilities().units;
    if ranks > cores as usize {
        eprintln!(
            "warning: {ranks} ranks on {cores} cores take turns: figures include the scheduler's\n"
        );
    }
    if cfg!(debug_assertions) {
        eprintln!("warning: this is a debug build: figures mean nothing\n");
    }
}

/// The results, and what was left out.
pub fn table(
    out: &mut dyn Write,
    lines: &[Line],
    limits: &Limits,
    skipped: &[Skipped],
) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let is_routed = lines.iter().any(|line| line.routed.is_some());
    let columns = [
        "bytes",
        "algorithm",
        "isolated us",
        "p10",
        "p90",
        "period us",
        "algbw GB/s",
        "busbw GB/s",
        "of limit",
        "checked",
    ];
    let first = ["tokens", "across"].into_iter().filter(|_| is_routed);
    table.set_header(first.chain(columns));
    for line in lines {
        let routed = line
            .routed
            .iter()
            .flat_map(|routed| [routed.tokens.to_string(), Bytes(routed.across_bytes).to_string()]);
        let cells = [
            Bytes(line.bytes).to_string(),
            line.algorithm.clone(),
            time(line.median_us),
            time(line.p10_us),
            time(line.p90_us),
            time(line.period_us),
            bandwidth(line.algbw_gbps),
            bandwidth(line.busbw_gbps),
            limits.share(line).map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
            if line.checked { "yes" } else { "no" }.to_owned(),
        ];
        table.add_row(routed.chain(cells));
    }
    let first = if is_routed { 2 } else { 0 };
    for (index, column) in table.column_iter_mut().enumerate() {
        let text = [first + 1, first + 9].contains(&index);
        column.set_cell_alignment(if text { CellAlignment::Left } else { CellAlignment::Right });
    }
    writeln!(out, "{}", table.trim_fmt())?;
    if let Some(gbps) = limits.link_gbps {
        writeln!(out, "\nlimit: {} GB/s from each rank to the next", bandwidth(gbps))?;
    }
    // Ascending sizes, so that the reason of the first is the reason of all.
    if let (Some(first), Some(last)) = (skipped.first(), skipped.last()) {
        let range = if first == last {
            first.bytes.to_string()
        } else {
            format!("{} to {}", first.bytes, last.bytes)
        };
        writeln!(out, "\nnot measured, {range}: {}", first.because)?;
    }
    Ok(())
}

/// Microseconds to three digits and more.
fn time(us: f64) -> String {
    match us {
        _ if us < 10.0 => format!("{us:.2}"),
        _ if us < 100.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}

fn bandwidth(gbps: f64) -> String {
    match gbps {
        _ if gbps < 10.0 => format!("{gbps:.3}"),
        _ => format!("{gbps:.2}"),
    }
}
