//! Compiled code on disk, for the processes to come.
//!
//! One file for each unit and architecture, named by what it is made from, so that none is ever out
//! of date. A file appears by a rename, whole: ranks that write the same one at once write the same
//! code. Nothing here fails: what cannot be read or written is compiled again.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use super::Key;

/// What a file begins with; the SHA-256 of the code follows, then the code.
const MAGIC: &[u8; 8] = b"symmemK1";

/// A folder of compiled code, which need not exist.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The one of this process's user: `SYMMEM_CACHE_DIR`, else `symmem` in `XDG_CACHE_HOME`, else
    /// `~/.cache/symmem`.
    pub fn of_user() -> Self {
        Self::from_variables(|name| env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        // A path that is not absolute would be another folder wherever a program starts.
        let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = path("SYMMEM_CACHE_DIR")
            .or_else(|| Some(path("XDG_CACHE_HOME")?.join("symmem")))
            .or_else(|| Some(path("HOME")?.join(".cache/symmem")));
        Cache { folder }
    }

    #[cfg(test)]
    pub fn at(folder: &Path) -> Self {
        Cache { folder: Some(folder.to_owned()) }
    }

    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn path(&self, key: Key) -> Option<PathBuf> {
        Some(self.folder()?.join(format!("{}-{}.bin", key.unit, key.arch)))
    }

    /// What was put here for the key, if it is there and whole.
    pub fn get(&self, key: Key) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        let file = match fs::read(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "cached code cannot be read");
                return None;
            }
        };
        let code = unpack(&file);
        if code.is_none() {
            tracing::debug!(path = %path.display(), "cached code is damaged, and made anew");
        }
        code.map(<[u8]>::to_vec)
    }

    /// Keeps code for later.
    pub fn put(&self, key: Key, code: &[u8]) {
        let Some(path) = self.path(key) else { return };
        if let Err(error) = write(&path, code) {
            tracing::debug!(path = %path.display(), %error, "compiled code is not cached");
        }
    }
}

fn unpack(file: &[u8]) -> Option<&[u8]> {
    let (sum, code) = file.strip_prefix(MAGIC)?.split_first_chunk::<32>()?;
    (Sha256::digest(code)[..] == sum[..]).then_some(code)
}

fn write(path: &Path, code: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)?;
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(MAGIC)?;
    file.write_all(&Sha256::digest(code))?;
    file.write_all(code)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use super::super::arch::Arch;
    use super::super::sources::UnitHash;
    use super::*;

    const KEY: Key = Key { unit: UnitHash([7; 32]), arch: Arch { major: 9, minor: 0 } };
    const CODE: &[u8] = b"some code";

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn what_is_put_is_found_under_its_key_alone() {
        let folder = folder();
        let cache = Cache::at(&folder.path().join("made/when/needed"));
        assert_eq!(cache.get(KEY), None);
        cache.put(KEY, CODE);
        assert_eq!(cache.get(KEY).as_deref(), Some(CODE));
        assert_eq!(cache.get(Key { arch: Arch { major: 8, minor: 0 }, ..KEY }), None);
        assert_eq!(cache.get(Key { unit: UnitHash([8; 32]), ..KEY }), None);
        cache.put(KEY, b"");
        assert_eq!(cache.get(KEY).as_deref(), Some(&b""[..]));
    }

    #[test]
    fn damage_is_found_wherever_it_is_and_mended() {
        let folder = folder();
        let cache = Cache::at(folder.path());
        cache.put(KEY, CODE);
        let path = files(folder.path()).remove(0);
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(cache.get(KEY), None, "cut to {length} bytes");
        }
        for index in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[index] ^= 1;
            fs::write(&path, &flipped).unwrap();
            assert_eq!(cache.get(KEY), None, "byte {index} flipped");
        }
        cache.put(KEY, CODE);
        assert_eq!(cache.get(KEY).as_deref(), Some(CODE));
    }

    #[test]
    fn many_who_write_and_read_at_once_never_see_a_part() {
        let folder = folder();
        let code = vec![42; 1 << 20];
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let cache = Cache::at(folder.path());
                    for _ in 0..8 {
                        cache.put(KEY, &code);
                        assert!(cache.get(KEY).as_ref() == Some(&code));
                    }
                });
            }
        });
        assert_eq!(files(folder.path()).len(), 1, "no temporary file is left");
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is_cached() {
        let folder = folder();
        // Permissions do not stop root: a file in a folder's place does.
        let occupied = folder.path().join("file");
        fs::write(&occupied, "").unwrap();
        let cache = Cache::at(&occupied.join("below"));
        cache.put(KEY, CODE);
        assert_eq!(cache.get(KEY), None);
        let nowhere = Cache { folder: None };
        nowhere.put(KEY, CODE);
        assert_eq!(nowhere.get(KEY), None);
    }

    #[test]
    fn variables_name_the_folder() {
        let of = |set: &[(&str, &str)]| {
            let variable = |name: &str| {
                set.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value))
            };
            Cache::from_variables(variable).folder
        };
        let (own, xdg, home) =
            (("SYMMEM_CACHE_DIR", "/own"), ("XDG_CACHE_HOME", "/xdg"), ("HOME", "/home/me"));
        assert_eq!(of(&[own, xdg, home]), Some("/own".into()));
        assert_eq!(of(&[xdg, home]), Some("/xdg/symmem".into()));
        assert_eq!(of(&[home]), Some("/home/me/.cache/symmem".into()));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("SYMMEM_CACHE_DIR", ""), home]), Some("/home/me/.cache/symmem".into()));
    }
}
