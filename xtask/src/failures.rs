//! `cargo xtask failures`: makes the suite fail in every way that it knows, and writes what the ranks
//! reported into the tables of `docs/failure.md`, one for each backend.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command::{Cargo, target_dir, workspace};
use crate::summary::Summary;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// What a run of `conformance --findings FILE` has written elsewhere, as on a machine with GPUs, instead
    /// of a run here
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Where and when that was: machine, kernel, date
    #[arg(long, requires = "from")]
    machine: Option<String>,
}

/// Tests that are one fault each: the fault, and where it is.
const FAULTS: &[(&str, &str, &str)] = &[
    (
        "mem::missing::a_rank_missing_from_a_rendezvous_is_named",
        "a rank does not come",
        "to a rendezvous",
    ),
    (
        "mem::missing::a_rank_missing_from_a_new_group_is_named",
        "a rank does not come",
        "to a new group",
    ),
    ("sync::timeouts::a_barrier_names_all_who_did_not_come", "ranks do not come", "to a barrier"),
    (
        "collectives::failing::a_missing_rank_is_named_by_all",
        "a rank does not come",
        "to a collective",
    ),
    (
        "collectives::failing::a_cancelled_operation_ends_on_every_rank",
        "a rank's caller cancels",
        "in a collective",
    ),
    (
        "collectives::failing::a_rank_that_left_is_said_to_have_left",
        "a rank has left",
        "before a collective",
    ),
    ("collectives::disagreements::another_count", "a rank passes another count", "to a collective"),
    (
        "collectives::disagreements::another_operation",
        "a rank calls another operation",
        "in the place of one",
    ),
    (
        "streams::graphs::one_launch_too_many_is_told",
        "a rank launches a graph once more",
        "on one lane",
    ),
    (
        "streams::lanes::two_graphs_at_once_on_one_lane_are_told",
        "two operations at once",
        "on one lane, checked",
    ),
    (
        "streams::unordered::a_checked_lane_tells_of_it",
        "a graph and a call that nothing orders",
        "on one lane, checked",
    ),
    (
        "streams::unordered::an_unchecked_lane_never_has_a_wrong_result",
        "a graph and a call that nothing orders",
        "on one lane, unchecked",
    ),
    (
        "streams::stale::after_a_failure_a_launch_is_stale",
        "a graph outlives its group's lane",
        "launch after a failure",
    ),
    (
        "streams::recovery::a_stopped_process_changes_nothing_when_it_wakes",
        "a rank is stopped until others went on without it",
        "recovery; the last rank is that one",
    ),
    ("mem::agreement::bytes_differ", "a rank's memory has another size", "to a rendezvous"),
    ("mem::agreement::options_differ", "a rank has other options", "to a new group"),
    ("mem::limits::one_rank_has_no_memory_for_the_group", "a rank has no memory", "to a new group"),
    (
        "mem::restart::a_run_is_joined_again_and_again",
        "none: the same name again, at once",
        "a run after a run",
    ),
];

/// The tests in which a rank's process ends or stops: the module is how, the function is where.
const MATRIX: &str = "streams::faults::";

/// What one test found.
struct Row {
    fault: String,
    place: String,
    reported: String,
    after: String,
    left: String,
}

pub fn run(arguments: &Arguments, summary: &mut Summary) {
    let (file, machine, command) = match &arguments.from {
        Some(file) => {
            let machine = arguments.machine.clone().unwrap_or_else(|| "another machine".into());
            (file.clone(), machine, "conformance --backend cuda --ranks 2 --findings FILE")
        }
        None => {
            let file = target_dir().join("failures.jsonl");
            // Of this run alone.
            let _ = std::fs::remove_file(&file);
            let suite = |filter: &str| {
                let file = file.clone().into_os_string();
                Cargo::suite(["--quiet", "--backend", "host", "--ranks", "3", "--findings"])
                    .args([file])
                    .args(filter.split(' ').filter(|word| !word.is_empty()))
            };
            // One filter is all that the suite takes.
            let tests: Vec<_> = std::iter::once(suite(MATRIX))
                .chain(
                    FAULTS
                        .iter()
                        .map(|(test, ..)| suite(&format!("--exact host-processes-3::{test}"))),
                )
                .collect();
            summary.tier("failures", &tests);
            (file, machine(), "cargo xtask failures")
        }
    };
    summary.step("docs/failure.md", || write(&file, &machine, command));
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = model.map_or("a CPU", |(_, name)| name.trim());
    format!("{model}, {cores} cores, Linux {}; {}", said("uname", "-r"), said("date", "+%F"))
}

fn said(command: &str, argument: &str) -> String {
    let output = Command::new(command).arg(argument).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
}

/// Replaces the table of each backend that the file tells of.
fn write(file: &Path, machine: &str, command: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut tables: BTreeMap<String, (String, Vec<Row>)> = BTreeMap::new();
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
        let field = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        if value["passed"] != true {
            return Err(format!("{} did not pass: its findings are of no use", field("test")));
        }
        if let Some(row) = row(&field("test"), &value["ranks"]) {
            let table =
                tables.entry(field("backend")).or_insert_with(|| (field("place"), Vec::new()));
            table.1.push(row);
        }
    }
    if tables.is_empty() {
        return Err(format!("{} tells of no failure", file.display()));
    }
    let path = workspace().join("docs/failure.md");
    let mut page =
        std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    for (backend, (place, rows)) in tables {
        let header = format!("`{place}`; {machine}; `{command}`\n\n");
        let table = format!("\n{header}{}", render(&rows));
        page = replaced(&page, &backend, &table)?;
        println!("{backend}: {} faults", rows.len());
    }
    std::fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()))
}

/// The page with another text between a backend's marks.
fn replaced(page: &str, backend: &str, text: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- begin {backend} -->\n"), format!("<!-- end {backend} -->"));
    let lacks = || format!("docs/failure.md has no marks for {backend}");
    let (before, rest) = page.split_once(&begin).ok_or_else(lacks)?;
    let (_, after) = rest.split_once(&end).ok_or_else(lacks)?;
    Ok(format!("{before}{begin}{text}\n{end}{after}"))
}

fn row(test: &str, ranks: &Value) -> Option<Row> {
    let words = |text: &str| text.replace('_', " ");
    let (fault, place) = match test.strip_prefix(MATRIX).and_then(|name| name.split_once("::")) {
        Some((fault, place)) => (format!("a rank's process: {}", words(fault)), words(place)),
        None => {
            let known = FAULTS.iter().find(|(known, ..)| *known == test);
            known.map(|(_, fault, place)| ((*fault).to_owned(), (*place).to_owned()))?
        }
    };
    let mut reports: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut times: Vec<f64> = Vec::new();
    let mut left: Vec<String> = Vec::new();
    for (rank, findings) in ranks.as_array()?.iter().enumerate() {
        let mut findings = findings.as_array()?.iter().filter_map(Value::as_str);
        let Some(first) = findings.next() else { continue };
        let (report, time) = first.split_once("; told after ").unwrap_or((first, ""));
        // How a stream wraps what the group says.
        let report = report.trim_start_matches("an operation on the stream failed: ");
        reports.entry(report.to_owned()).or_default().push(rank);
        times.extend(time.strip_suffix(" ms").and_then(|time| time.parse::<f64>().ok()));
        // Survivors say how they go on, and last that nothing is left.
        let rest: Vec<&str> = findings.collect();
        if let [goes_on, nothing] = rest[..] {
            left.push(format!("{nothing}; {goes_on}"));
        }
    }
    let silent = |all: &[usize]| all.len() == ranks.as_array().map_or(0, Vec::len);
    let mut reported = String::new();
    for (report, by) in &reports {
        let separator = if reported.is_empty() { "" } else { "<br>" };
        let by = match (reports.len(), silent(by)) {
            (1, _) => String::new(),
            _ => format!("{}: ", by.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
        };
        let _ = write!(reported, "{separator}{by}{}", report.replace('|', "\\|"));
    }
    let after =
        match (times.iter().copied().reduce(f64::min), times.iter().copied().reduce(f64::max)) {
            (Some(least), Some(most)) => format!("{least:.1} to {most:.1} ms"),
            _ => String::new(),
        };
    let left = left.into_iter().next().unwrap_or_default();
    Some(Row { fault, place, reported, after, left })
}

fn render(rows: &[Row]) -> String {
    let mut table = String::from(
        "| fault | where | what the ranks reported | after | what was left |\n|---|---|---|---|---|\n",
    );
    for Row { fault, place, reported, after, left } in rows {
        let _ = writeln!(table, "| {fault} | {place} | {reported} | {after} | {left} |");
    }
    table
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_row_says_what_each_rank_reported() {
        let ranks = serde_json::json!([
            [
                "an operation on the stream failed: rank 1 is lost; told after 1.5 ms",
                "goes on",
                "nothing"
            ],
            [],
            ["rank 1 is lost; told after 0.5 ms", "goes on", "nothing"]
        ]);
        let row = row("streams::faults::killed::inside_a_replay", &ranks).unwrap();
        assert_eq!((&*row.fault, &*row.place), ("a rank's process: killed", "inside a replay"));
        assert_eq!((&*row.reported, &*row.after), ("rank 1 is lost", "0.5 to 1.5 ms"));
        assert_eq!(row.left, "nothing; goes on");
        let ranks = serde_json::json!([["a|b"], ["c"]]);
        let row = super::row(FAULTS[0].0, &ranks).unwrap();
        assert_eq!((&*row.reported, &*row.after, &*row.left), ("0: a\\|b<br>1: c", "", ""));
        assert!(super::row("mem::some::test", &ranks).is_none());
    }

    #[test]
    fn a_table_takes_the_place_of_the_one_before() {
        let page = "x\n<!-- begin host -->\nold\n<!-- end host -->\ny\n";
        let new = replaced(page, "host", "new").unwrap();
        assert_eq!(new, "x\n<!-- begin host -->\nnew\n<!-- end host -->\ny\n");
        assert!(replaced(page, "cuda", "new").is_err());
    }
}
