//! `cargo xtask features`: every feature by itself compiles, without a warning.

use std::process::{Command, Stdio};

use crate::command::Cargo;
use crate::summary::Summary;

/// Crates of which every combination of features is tried. Elsewhere features are layers, each of
/// which implies those below it: there is nothing to combine.
const COMBINED: [&str; 1] = ["symmem-hal"];

pub fn run(summary: &mut Summary) {
    if !is_installed() {
        let install = Cargo::new("install").args(["--quiet", "--locked", "cargo-hack"]);
        summary.tier("install cargo-hack", &[install]);
    }
    // Clippy checks what `cargo check` does, and what it built for the lints is there already.
    let hack = || Cargo::new("hack").args(["clippy", "--quiet"]);
    let warnings = ["--", "--deny", "warnings"];
    summary.tier("each feature", &[hack().args(["--workspace", "--each-feature"]).args(warnings)]);
    let combined = COMBINED
        .map(|package| hack().args(["--package", package, "--feature-powerset"]).args(warnings));
    summary.tier("all combinations of features", &combined);
}

fn is_installed() -> bool {
    let mut version = Command::new("cargo-hack");
    version.args(["hack", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}
