//! What the compiler read, from the lists of files that it leaves for every crate.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::command::cargo_home;

/// Where files may come from: the copy, what was generated, dependencies' sources, the toolchain.
#[derive(Debug)]
pub struct Allowed {
    copy: PathBuf,
    roots: Vec<PathBuf>,
}

impl Allowed {
    pub fn new(copy: &Path, target: &Path) -> Result<Self, String> {
        let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
        let sysroot = sysroot.map_err(|e| format!("rustc: {e}"))?.stdout;
        let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot).trim());
        let registry = cargo_home()?.join("registry");
        let roots = vec![copy.to_owned(), target.to_owned(), registry, sysroot];
        Ok(Allowed { copy: copy.to_owned(), roots })
    }

    /// Looks at everything that was built into `target` since a time.
    pub fn check(&self, target: &Path, since: SystemTime) -> Result<(), String> {
        let mut outside = Vec::new();
        let mut looked_at = 0;
        for folder in ["debug/deps", "debug/examples"] {
            for list in lists(&target.join(folder), since).map_err(|e| format!("{folder}: {e}"))? {
                let text = fs::read_to_string(&list);
                let text = text.map_err(|e| format!("{}: {e}", list.display()))?;
                outside.extend(self.outside(&text).into_iter().map(|path| {
                    let name = list.file_stem().map(OsStr::to_string_lossy).unwrap_or_default();
                    format!("{name} reads {path}")
                }));
                looked_at += 1;
            }
        }
        match (looked_at, outside.as_slice()) {
            (0, _) => Err(format!("nothing was built into {}", target.display())),
            (_, []) => {
                println!("the files of {looked_at} crates and tests are where they may be");
                Ok(())
            }
            (_, outside) => Err(outside.join("\n")),
        }
    }

    /// The files in a list that come from elsewhere.
    fn outside(&self, list: &str) -> Vec<String> {
        // A line without prerequisites for each file; spaces in names are escaped.
        let files = list.lines().filter_map(|line| line.strip_suffix(':'));
        let files = files.map(|file| file.replace("\\ ", " "));
        files
            .filter(|file| {
                // Cargo runs the compiler in the workspace's folder.
                let path = lexical(&self.copy.join(file));
                !self.roots.iter().any(|root| path.starts_with(root))
            })
            .collect()
    }
}

fn lists(folder: &Path, since: SystemTime) -> io::Result<Vec<PathBuf>> {
    let mut lists = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_list = entry.path().extension() == Some(OsStr::new("d"));
        if is_list && entry.metadata()?.modified()? >= since {
            lists.push(entry.path());
        }
    }
    Ok(lists)
}

/// The path without `.` and `..`, as far as names alone tell.
fn lexical(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(found.pop()),
            other => found.push(other),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_out_is_found() {
        let copy = PathBuf::from("/tmp/copy");
        let roots = vec![copy.clone(), "/home/a b/.cargo/registry".into()];
        let allowed = Allowed { copy, roots };
        let list = "\
/target/debug/deps/x.d: mem/src/lib.rs mem/src/../../../README.md

mem/src/lib.rs:
hal/src/../../mem/src/lib.rs:
mem/src/../../../README.md:
/tmp/copy/mem/README.md:
/tmp/copy-of-another/lib.rs:
/home/a\\ b/.cargo/registry/src/crate/lib.rs:
/home/tree/mem/src/lib.rs:

# env-dep:CARGO_PKG_VERSION=0.1.0
";
        assert_eq!(
            allowed.outside(list),
            [
                "mem/src/../../../README.md",
                "/tmp/copy-of-another/lib.rs",
                "/home/tree/mem/src/lib.rs"
            ]
        );
    }
}
