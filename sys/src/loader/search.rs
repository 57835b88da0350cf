//! Where a library may lie.

use std::collections::HashSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::Place;

/// How a library is found and recognised.
#[derive(Debug)]
pub(crate) struct Spec {
    /// The name in prose.
    pub name: &'static str,
    /// The environment variable that names the exact path.
    pub variable: &'static str,
    /// File names, the most wanted first.
    pub sonames: &'static [&'static str],
    /// The usual folders, the most wanted first.
    pub folders: &'static [Folder],
    /// Files in a Python environment's folder of packages.
    pub packages: &'static [&'static str],
    /// Files in the library's own folder, by the beginning of their names, to be opened before it.
    pub companion: Option<&'static str>,
    /// A function that every release has. A file without it is another library.
    pub anchor: &'static str,
}

/// A folder of libraries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Folder {
    /// Always at the same path.
    Fixed(&'static str),
    /// Below the folder that an environment variable names.
    Below(&'static str, &'static str),
    /// Debian's folder for this architecture.
    Multiarch,
}

/// A library that may exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub place: Place,
    pub path: PathBuf,
}

/// Looks up an environment variable; one that is empty counts as unset.
pub(crate) fn process_variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// What to try for `spec`, in order. Reads the environment through `variable`, and lists folders of
/// Python environments; runs nothing.
pub(super) fn candidates(
    spec: &Spec,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Vec<Candidate> {
    if let Some(path) = variable(spec.variable) {
        return vec![Candidate { place: Place::Override(spec.variable), path: path.into() }];
    }
    let by_linker =
        spec.sonames.iter().map(|name| Candidate { place: Place::Linker, path: name.into() });
    let in_folders =
        spec.folders.iter().filter_map(|folder| folder.path(variable)).flat_map(|folder| {
            spec.sonames
                .iter()
                .map(move |name| Candidate { place: Place::Folder, path: folder.join(name) })
        });
    let sites = if spec.packages.is_empty() { Vec::new() } else { python_sites(variable) };
    let in_packages = sites.iter().flat_map(|site| {
        spec.packages
            .iter()
            .map(|file| Candidate { place: Place::PythonPackage, path: site.join(file) })
    });
    let mut seen = HashSet::new();
    by_linker
        .chain(in_folders)
        .chain(in_packages)
        .filter(|candidate| seen.insert(candidate.path.clone()))
        .collect()
}

impl Folder {
    fn path(self, variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        match self {
            Folder::Fixed(path) => Some(path.into()),
            Folder::Below(name, rest) => Some(PathBuf::from(variable(name)?).join(rest)),
            Folder::Multiarch => Some(format!("/usr/lib/{}-linux-gnu", env::consts::ARCH).into()),
        }
    }
}

/// The existing folders of Python packages: the active environment's, those of the `python3` found
/// on the path, the user's, the system's.
fn python_sites(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(|name| variable(name).map(PathBuf::from))
        .collect();
    if let Some(python) = variable("PATH").and_then(|path| python_on(&path)) {
        // Inside an environment python3 is a link: the environment is where the link lies, and the
        // interpreter it was made from is where the link leads.
        let resolved = fs::canonicalize(&python).ok();
        prefixes.extend([Some(python), resolved].into_iter().flatten().filter_map(prefix_of));
    }
    let user = variable("PYTHONUSERBASE")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".local")));
    prefixes.extend(user);
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));

    let mut seen = HashSet::new();
    prefixes
        .iter()
        .flat_map(|prefix| ["lib", "lib64"].map(|folder| prefix.join(folder)))
        .flat_map(|folder| versions_in(&folder))
        .flat_map(|folder| ["site-packages", "dist-packages"].map(|name| folder.join(name)))
        .filter(|site| site.is_dir())
        // lib64 is often a link to lib.
        .filter(|site| seen.insert(fs::canonicalize(site).unwrap_or_else(|_| site.clone())))
        .collect()
}

/// The first `python3` in a list of folders.
fn python_on(path: &OsString) -> Option<PathBuf> {
    env::split_paths(path).map(|folder| folder.join("python3")).find(|file| file.is_file())
}

/// `/usr` for `/usr/bin/python3`.
fn prefix_of(executable: PathBuf) -> Option<PathBuf> {
    executable.parent()?.parent().map(Path::to_owned)
}

/// The `python3*` folders in `lib`, the newest first.
fn versions_in(lib: &Path) -> Vec<PathBuf> {
    let mut found: Vec<(Option<u32>, PathBuf)> = fs::read_dir(lib)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let minor = match name.strip_prefix("python3")?.strip_prefix('.') {
                Some(minor) => Some(minor.parse().ok()?),
                None => None,
            };
            Some((minor, entry.path()))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const SPEC: Spec = Spec {
        name: "thing",
        variable: "THING_LIBRARY",
        sonames: &["libthing.so.2", "libthing.so.1"],
        folders: &[
            Folder::Below("THING_HOME", "lib64"),
            Folder::Fixed("/opt/thing"),
            Folder::Below("THING_ALIAS", "thing"),
        ],
        packages: &["thing/lib/libthing.so.2", "old/lib/libthing.so.1"],
        companion: None,
        anchor: "thing",
    };

    fn paths(environment: &[(&str, &Path)]) -> Vec<(Place, PathBuf)> {
        let variable = |name: &str| {
            let found = environment.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.as_os_str().to_owned())
        };
        candidates(&SPEC, &variable).into_iter().map(|c| (c.place, c.path)).collect()
    }

    #[test]
    fn an_override_is_the_only_candidate() {
        let path = Path::new("/somewhere/libthing.so");
        let expected = vec![(Place::Override("THING_LIBRARY"), path.to_owned())];
        assert_eq!(paths(&[("THING_LIBRARY", path), ("THING_HOME", Path::new("/t"))]), expected);
    }

    #[test]
    fn linker_then_folders_newest_name_first_each_path_once() {
        let found = paths(&[("THING_HOME", Path::new("/t")), ("THING_ALIAS", Path::new("/opt"))]);
        let expected = [
            (Place::Linker, "libthing.so.2"),
            (Place::Linker, "libthing.so.1"),
            (Place::Folder, "/t/lib64/libthing.so.2"),
            (Place::Folder, "/t/lib64/libthing.so.1"),
            (Place::Folder, "/opt/thing/libthing.so.2"),
            (Place::Folder, "/opt/thing/libthing.so.1"),
        ];
        let found: Vec<_> =
            found.iter().map(|(place, path)| (*place, path.to_str().unwrap())).collect();
        assert_eq!(found[..expected.len()], expected);
        assert!(found[expected.len()..].iter().all(|(place, _)| *place == Place::PythonPackage));
    }

    #[test]
    fn python_environments_in_order_newest_version_first() {
        let root = tempfile::tempdir().unwrap();
        let make = |folder: &str| {
            let path = root.path().join(folder);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let expected = [
            make("venv/lib/python3.13/site-packages"),
            make("venv/lib/python3.9/site-packages"),
            make("conda/lib/python3.12/site-packages"),
            make("path/lib/python3.11/site-packages"),
            make("base/lib/python3.11/site-packages"),
            make("home/.local/lib/python3.11/site-packages"),
        ];
        make("venv/lib/python2.7/site-packages");
        make("venv/lib/python3.x/site-packages");
        make("path/bin");
        let interpreter = make("base/bin").join("python3.11");
        fs::write(&interpreter, "").unwrap();
        std::os::unix::fs::symlink("lib", root.path().join("venv/lib64")).unwrap();
        std::os::unix::fs::symlink(&interpreter, root.path().join("path/bin/python3")).unwrap();

        let found = paths(&[
            ("VIRTUAL_ENV", &root.path().join("venv")),
            ("CONDA_PREFIX", &root.path().join("conda")),
            ("PATH", &root.path().join("path/bin")),
            ("HOME", &root.path().join("home")),
        ]);
        let found: Vec<PathBuf> = found
            .into_iter()
            .filter(|(place, path)| *place == Place::PythonPackage && path.starts_with(root.path()))
            .map(|(_, path)| path)
            .collect();
        let expected: Vec<PathBuf> = expected
            .iter()
            .flat_map(|site| SPEC.packages.iter().map(move |file| site.join(file)))
            .collect();
        assert_eq!(found, expected);
    }
}
