//! `cargo xtask package`: every crate as it would be published, built from its package.
//!
//! Cargo builds the packages against each other through a registry of its own, and takes what a
//! registry has of one version to be the same for ever: it would build on what another run unpacked
//! and compiled. So what earlier runs left of this workspace is removed first.

use std::fs;
use std::io;
use std::path::Path;

use crate::command::{Cargo, cargo_home, target_dir};
use crate::summary::Summary;

/// Below the target folder, for this alone.
const FOLDER: &str = "packages";

/// What all packages' names begin with.
const OURS: &str = "symmem";

pub fn run(summary: &mut Summary) {
    let cleared = summary.step("packages of earlier runs", || {
        clear(&target_dir().join(FOLDER))?;
        let registry = cargo_home()?.join("registry");
        ["src", "cache"].iter().try_for_each(|kind| forget(&registry.join(kind)))
    });
    if cleared.is_some() {
        // Built once and thrown away.
        let package = Cargo::new("package").args(["--quiet", "--workspace"]).target(FOLDER);
        let package = package.env("CARGO_INCREMENTAL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
        summary.tier("packages", &[package]);
    }
}

/// Removes what local registries left of this workspace's packages; cargo's names for those begin
/// with a dash, since they have no host.
fn forget(registries: &Path) -> Result<(), String> {
    for registry in entries(registries)?.iter().filter(|name| name.starts_with('-')) {
        let registry = registries.join(registry);
        for package in entries(&registry)?.iter().filter(|name| name.starts_with(OURS)) {
            clear(&registry.join(package))?;
        }
    }
    Ok(())
}

/// The names in a folder; none if there is no such folder.
fn entries(folder: &Path) -> Result<Vec<String>, String> {
    let failed = |e: io::Error| format!("{}: {e}", folder.display());
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    entries.map(|e| Ok(e.map_err(failed)?.file_name().to_string_lossy().into_owned())).collect()
}

/// Removes a file or folder, if it is there.
fn clear(path: &Path) -> Result<(), String> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("{}: {e}", path.display())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_this_workspaces_packages_of_local_registries_go() {
        let folder = tempfile::tempdir().unwrap();
        let gone = ["-0123/symmem-hal-0.1.0", "-4567/symmem-0.1.0"];
        let kept = ["-0123/libc-0.2.0", "index.crates.io-89ab/symmem-hal-0.1.0"];
        for path in gone.iter().chain(&kept) {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        fs::write(folder.path().join("-0123/symmem-mem-0.1.0.crate"), "").unwrap();
        forget(folder.path()).unwrap();
        assert!(kept.iter().all(|path| folder.path().join(path).exists()));
        assert!(!gone.iter().any(|path| folder.path().join(path).exists()));
        assert!(!folder.path().join("-0123/symmem-mem-0.1.0.crate").exists());
        forget(&folder.path().join("nowhere")).unwrap();
    }
}
