//! `symmem tune`: a table that groups take, and what becomes of one that they cannot.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use symmem::collectives::ChoiceTable;

fn symmem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symmem"));
    command.args(args);
    command
}

/// Benchmarks two sizes with a table.
fn bench(table: &Path, json: &Path) -> Output {
    let args = ["bench", "all-reduce", "--min", "64", "--max", "4K", "--factor", "64"];
    let mut command = symmem(&args);
    command.args(["--iterations", "3", "--ranks", "2", "--json"]).arg(json);
    command.env("SYMMEM_TUNE", table).output().unwrap()
}

#[test]
fn what_is_measured_is_a_table_that_groups_take() {
    let folder = tempfile::tempdir().unwrap();
    let (table, json) = (folder.path().join("table.toml"), folder.path().join("rows.json"));
    let args = ["tune", "--operations", "all-reduce,all-gather", "--ranks", "3,2", "--min", "24"];
    let budget =
        ["--max", "64K", "--factor", "16", "--repeats", "1", "--budget", "0.001", "--output"];
    let output = symmem(&args).args(budget).arg(&table).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&table).unwrap();
    let tuned = ChoiceTable::parse(&text).unwrap();
    assert_eq!(tuned.symmem, env!("CARGO_PKG_VERSION"));
    let rows: Vec<(&str, usize)> =
        tuned.rows.iter().map(|row| (row.operation.as_str(), row.ranks)).collect();
    let all = [("all_reduce", 2), ("all_reduce", 3), ("all_gather", 2), ("all_gather", 3)];
    assert_eq!(rows, all, "{text}");
    let output = bench(&table, &json);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_table_decides() {
    let folder = tempfile::tempdir().unwrap();
    let (table, json) = (folder.path().join("table.toml"), folder.path().join("rows.json"));
    let head = "format = 1\nsymmem = \"0.1.0\"\nmachine = \"\"\ndate = \"\"\n";
    let row = "[[row]]\noperation = \"all_reduce\"\nbackend = \"host\"\nranks = 2\n";
    let steps =
        "steps = [{ algorithm = \"two-shot\", up_to = 64 }, { algorithm = \"one-shot\" }]\n";
    fs::write(&table, [head, row, steps].concat()).unwrap();
    let output = bench(&table, &json);
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(found["rows"][0]["algorithm"], "two-shot");
    assert_eq!(found["rows"][1]["algorithm"], "one-shot");
}

#[test]
fn what_is_no_table_ends_the_run_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (table, json) = (folder.path().join("table.toml"), folder.path().join("rows.json"));
    for (text, reason) in [
        (None, "SYMMEM_TUNE names"),
        (Some("algorithm: two-shot"), "the choice table is malformed"),
        (Some("format = 9"), "format 9"),
    ] {
        if let Some(text) = text {
            fs::write(&table, text).unwrap();
        }
        let output = bench(&table, &json);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(reason), "{reason} in {errors}");
    }
}
