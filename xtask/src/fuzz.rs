//! `cargo xtask fuzz`: every target of `mem/fuzz`, one after the other, with the corpus as it is
//! committed.
//!
//! On the stable toolchain, by permission to use its unstable flags. What is new goes below the target
//! folder, not into the corpus; `mem/fuzz/README.md` says how it gets there. An input that breaks a
//! rule is left in `mem/fuzz/artifacts`.

use std::fs;
use std::process::{Command, Stdio};

use crate::command::{Cargo, target_dir, workspace};
use crate::summary::Summary;

/// For how long, and what.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Seconds for all targets together, but one for each at least.
    #[arg(long, value_name = "N", default_value_t = 600)]
    seconds: usize,

    /// Targets whose names contain this.
    #[arg(default_value = "")]
    filter: String,
}

/// The fuzzing workspace, in this one's folder.
const FOLDER: &str = "mem/fuzz";

/// The target that must fail.
const PLANTED: &str = "planted";

/// Rules for all targets: no input takes longer, and no single allocation is larger; the checks
/// themselves bound what is held for an input by its length.
const RULES: [&str; 4] =
    ["-timeout=10", "-malloc_limit_mb=64", "-rss_limit_mb=1024", "-print_final_stats=1"];

pub fn run(arguments: &Arguments, summary: &mut Summary) {
    let Some(targets) = summary.step("fuzz: targets", || targets(&arguments.filter)) else {
        return;
    };
    let fuzz = |target: &str| {
        let fuzz = Cargo::new("fuzz").args(["run", "--fuzz-dir", FOLDER]).args([target]);
        fuzz.env("RUSTC_BOOTSTRAP", "1").target("fuzz")
    };
    let planted = fuzz(PLANTED).args(["--", "-runs=1"]).must_report("bytes held for an input");
    summary.tier("fuzz: planted fault", &[planted]);
    let each = (arguments.seconds / targets.len()).max(1);
    for target in targets {
        let found = target_dir().join("fuzz/corpus").join(&target);
        let corpus = workspace().join(FOLDER).join("corpus").join(&target);
        if let Err(e) = fs::create_dir_all(&found) {
            println!("{}: {e}", found.display());
        }
        let fuzz = fuzz(&target).args([found, corpus]).args(["--"]).args(RULES);
        let fuzz = fuzz.args([format!("-max_total_time={each}")]);
        summary.tier(&format!("fuzz: {target}"), &[fuzz]);
    }
}

/// Their names, if the tool is there that runs them.
fn targets(filter: &str) -> Result<Vec<String>, String> {
    let mut version = Command::new("cargo-fuzz");
    version.args(["--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !version.status().is_ok_and(|status| status.success()) {
        return Err("cargo-fuzz is missing: cargo install --locked cargo-fuzz".to_owned());
    }
    let folder = workspace().join(FOLDER).join("fuzz_targets");
    let files = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let stem = |file: fs::DirEntry| Some(file.path().file_stem()?.to_str()?.to_owned());
    let mut names: Vec<String> = files.flatten().filter_map(stem).collect();
    names.retain(|name| name.contains(filter) && name != PLANTED);
    names.sort();
    if names.is_empty() { Err(format!("no target is called {filter:?}")) } else { Ok(names) }
}
