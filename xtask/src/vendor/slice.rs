//! Layers from the lowest up to one, and their part of the suite, as files.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::manifest;

/// A crate of the layered ones, from the lowest to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Layer {
    Sys,
    Hal,
    Mem,
    Sync,
    Collectives,
    Moe,
}

/// The suite's folder.
pub const SUITE: &str = "tests";

/// Files beside the layers that belong to each of them.
const BESIDE: [&str; 4] = ["Cargo.lock", "rustfmt.toml", "LICENSE-APACHE", "LICENSE-MIT"];

impl Layer {
    pub const ALL: [Layer; 6] =
        [Layer::Sys, Layer::Hal, Layer::Mem, Layer::Sync, Layer::Collectives, Layer::Moe];

    /// Its folder, and the suite's feature that has its tests.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Sys => "sys",
            Layer::Hal => "hal",
            Layer::Mem => "mem",
            Layer::Sync => "sync",
            Layer::Collectives => "collectives",
            Layer::Moe => "moe",
        }
    }

    /// Whether the suite has tests for what is taken up to this.
    pub fn has_suite(self) -> bool {
        self > Layer::Sys
    }

    /// The folders that are taken.
    pub fn folders(self) -> Vec<&'static str> {
        let layers = Self::ALL.into_iter().filter(|layer| *layer <= self).map(Self::name);
        layers.chain(self.has_suite().then_some(SUITE)).collect()
    }

    /// The layers that are left behind.
    pub fn above(self) -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().filter(move |layer| *layer > self).map(Self::name)
    }
}

/// Copies the layers of a tree into an empty folder, as a workspace; returns a time before which
/// nothing was built of that.
pub fn take(tree: &Path, layer: Layer, into: &Path) -> Result<SystemTime, String> {
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |e: io::Error| format!("{path}: {e}")
    };
    fs::create_dir_all(into).map_err(at(into))?;
    if fs::read_dir(into).map_err(at(into))?.next().is_some() {
        return Err(format!("{} is not empty", into.display()));
    }
    for folder in layer.folders() {
        copy(&tree.join(folder), &into.join(folder))?;
    }
    for file in BESIDE {
        fs::copy(tree.join(file), into.join(file)).map_err(at(&tree.join(file)))?;
    }
    let rewrite = |file: &str, change: &dyn Fn(&str) -> Result<String, String>| {
        let text = fs::read_to_string(tree.join(file)).map_err(at(&tree.join(file)))?;
        let text = change(&text).map_err(|e| format!("{file}: {e}"))?;
        fs::write(into.join(file), text).map_err(at(&into.join(file)))
    };
    rewrite("Cargo.toml", &|text| manifest::workspace(text, layer))?;
    if layer.has_suite() {
        rewrite("tests/Cargo.toml", &|text| manifest::suite(text, layer))?;
    }
    let manifest = into.join("Cargo.toml");
    // The file system's own clock, which times of files are compared with.
    fs::metadata(&manifest).and_then(|file| file.modified()).map_err(at(&manifest))
}

/// Copies a folder. A link would lead out of the copy, or to a second name of what is in it.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |e: io::Error| format!("{}: {e}", from.display());
    let kind = fs::symlink_metadata(from).map_err(failed)?.file_type();
    if kind.is_symlink() {
        return Err(format!(
            "{} is a link: a copy of the folder has no use for it",
            from.display()
        ));
    }
    if !kind.is_dir() {
        return fs::copy(from, to).map(drop).map_err(failed);
    }
    fs::create_dir(to).map_err(|e| format!("{}: {e}", to.display()))?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Removes a folder, if it is there.
pub fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("{}: {e}", folder.display())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_link_is_refused_and_files_are_copied() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/b/file"), "text").unwrap();
        copy(&from, &folder.path().join("to")).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("to/a/b/file")).unwrap(), "text");
        std::os::unix::fs::symlink("../outside", from.join("a/link")).unwrap();
        let error = copy(&from, &folder.path().join("again")).unwrap_err();
        assert!(error.contains("from/a/link is a link"), "{error}");
    }

    #[test]
    fn a_slice_is_what_is_below_and_the_suite() {
        assert_eq!(Layer::Sys.folders(), ["sys"]);
        assert_eq!(Layer::Mem.folders(), ["sys", "hal", "mem", "tests"]);
        assert_eq!(Layer::Mem.above().collect::<Vec<_>>(), ["sync", "collectives", "moe"]);
    }
}
