//! `COVERAGE.md` names tests that exist.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use std::collections::HashSet;
use std::fs;
use std::path::Path;

const TABLE: &str = include_str!("../COVERAGE.md");

/// The rows of all tables: a behaviour, and the tests that it names.
fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    let cells = TABLE
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.rsplit_once(" | "));
    let rows = cells.filter(|(behaviour, _)| *behaviour != "behaviour");
    rows.map(|(behaviour, tests)| (behaviour, tests.split('`').skip(1).step_by(2).collect()))
        .collect()
}

/// Whether a test beside a crate exists, as in `mem/tests/file.rs::name`. A vendored suite has not all
/// crates beside it: what is not there cannot be looked into.
fn is_beside_a_crate(name: &str) -> bool {
    let Some((path, test)) = name.split_once(".rs::") else { return false };
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crate_folder = path.split('/').next().unwrap_or_default();
    if !workspace.join(crate_folder).is_dir() {
        return true;
    }
    let text = fs::read_to_string(workspace.join(format!("{path}.rs"))).unwrap_or_default();
    text.contains(&format!("fn {test}(")) || text.contains(&format!("\"{test}\""))
}

#[test]
fn every_test_in_the_table_exists() {
    let suite: HashSet<String> = crate::suite::all().iter().map(|test| test.name()).collect();
    let rows = rows();
    assert!(rows.len() > 60, "only {} rows were read", rows.len());
    for (behaviour, tests) in rows {
        assert!(!tests.is_empty(), "no test: {behaviour}");
        for name in tests {
            assert!(suite.contains(name) || is_beside_a_crate(name), "no test {name}: {behaviour}");
        }
    }
}

#[test]
fn what_does_not_exist_is_found() {
    assert!(is_beside_a_crate("tests/src/coverage.rs::what_does_not_exist_is_found"));
    assert!(!is_beside_a_crate("tests/src/coverage.rs::what_exists"));
    assert!(!is_beside_a_crate("tests/src/coverages.rs::what_does_not_exist_is_found"));
    assert!(!is_beside_a_crate("mem::pool::what_does_not_exist"));
}
