//! `cargo xtask vendor-check`: the lower layers, taken out of the tree, stand alone.
//!
//! Whoever vendors symmem takes the layers up to one of them with their part of the conformance
//! suite. This does the same, into a folder outside the tree with a workspace manifest of its own:
//! there it builds, documents and tests what it took, and looks at every file that the compiler
//! read, so that nothing works only because the rest of the tree happens to lie beside it.

mod manifest;
mod paths;
mod slice;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use crate::command::{Cargo, target_dir, workspace};
use crate::summary::Summary;
use paths::Allowed;
use slice::Layer;
pub use slice::remove;

/// Where the suite runs: once by itself and once with ranks, since it is the copy that is tested, and not the layers.
const SUITE_PLACES: [&[&str]; 2] = [&["--local"], &["--ranks", "2"]];

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The highest layer to take.
    #[arg(value_enum, default_value_t = Layer::Sync)]
    layer: Layer,
    /// Where to, and it stays there; a folder that is empty or not there yet.
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, summary: &mut Summary) {
    let layer = arguments.layer;
    let copy = arguments.into.clone().unwrap_or_else(|| own_folder(&workspace()));
    println!("{} to {}", layer.folders().join(", "), copy.display());
    let started = summary.step("vendored: taken out", || {
        if arguments.into.is_none() {
            slice::remove(&copy)?;
        }
        slice::take(&workspace(), layer, &copy)
    });
    let Some(started) = started else { return };
    // Unoptimised: what is tested here is that nothing lacks.
    let quick = |cargo: Cargo| cargo.folder(&copy).env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    let cargo = |command| quick(Cargo::new(command)).args(["--quiet", "--workspace"]);
    summary.tier("vendored: builds", &[cargo("build").args(["--all-targets"])]);
    let docs = cargo("doc").args(["--no-deps"]).env("RUSTDOCFLAGS", "--deny warnings");
    summary.tier("vendored: documents", &[docs]);
    let mut tests = vec![cargo("test")];
    if layer.has_suite() {
        tests = vec![cargo("test").args(["--exclude", "symmem-tests"])];
        let suite = |place: &[&str]| {
            let place = ["--quiet"].iter().chain(place).copied();
            quick(Cargo::suite(place)).options(["--quiet"])
        };
        tests.extend(SUITE_PLACES.iter().map(|place| suite(place)));
    }
    summary.tier("vendored: tests", &tests);
    summary.step("vendored: nothing outside is read", || {
        Allowed::new(&copy, &target_dir())?.check(&target_dir(), started)
    });
    if arguments.into.is_none() && summary.is_well() {
        // What is wrong can be looked at.
        let _ = slice::remove(&copy);
    }
}

/// A folder outside the tree, one for each tree, so that what was built there is built once.
fn own_folder(tree: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    tree.hash(&mut hasher);
    std::env::temp_dir().join(format!("symmem-vendored-{:016x}", hasher.finish()))
}
