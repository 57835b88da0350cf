//! Compiled code of many units in one file, for machines that have no compiler.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `symmemKB` |
//! | 4 | version of the format: 1 |
//! | 4 | number of entries |
//! | 32 | SHA-256 of all that follows |
//! | 56 each | entry: unit's hash (32), major and minor architecture (4 + 4), offset from the file's start and length of its code (8 + 8) |
//! | | the codes |
//!
//! Numbers are little-endian.

use core::ops::Range;
use std::path::Path;
use std::sync::{Arc, Once};

use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};

use super::arch::Arch;
use super::sources::UnitHash;
use super::{Key, Unit};
use crate::fault::{Fault, Kind};

const MAGIC: &[u8; 8] = b"symmemKB";
const VERSION: u32 = 1;
const HEADER: usize = 48;
const ENTRY: usize = 56;

/// Why a file is no bundle of kernels that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// It is something else.
    #[error("{bytes} bytes that are no bundle of kernels, as `symmem kernels --out` makes them")]
    Foreign {
        /// Its length.
        bytes: usize,
    },
    /// Another release of the library wrote it.
    #[error(
        "a bundle of format {found}, where {expected} is expected: make it by this release's `symmem kernels`"
    )]
    Version {
        /// What is expected.
        expected: u32,
        /// What was found.
        found: u32,
    },
    /// It is too short for what it says it holds.
    #[error("a bundle of {found} bytes, where at least {expected} are expected: copy it again")]
    Truncated {
        /// Bytes that it needs.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// Its checksum is not that of what it holds.
    #[error("a bundle of {bytes} bytes that are not those that were written: copy it again")]
    Damaged {
        /// Its length.
        bytes: usize,
    },
}

impl Fault for BundleError {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}

static REGISTERED: RwLock<Vec<Bundle>> = RwLock::new(Vec::new());

/// Takes compiled kernels from a bundle, which `cargo xtask kernels --out` and [`BundleWriter`]
/// write, wherever the disk cache has none. For the whole process; a later bundle comes before
/// earlier ones. The files that `SYMMEM_KERNEL_BUNDLE` lists come after all of them.
///
/// # Errors
///
/// [`BundleError`]; nothing is registered then.
pub fn register_bundle(bytes: impl Into<Arc<[u8]>>) -> Result<(), BundleError> {
    let bundle = Bundle::read(bytes.into())?;
    REGISTERED.write().insert(0, bundle);
    Ok(())
}

/// Files of bundles, as `PATH` lists folders: registered at the first lookup.
const VARIABLE: &str = "SYMMEM_KERNEL_BUNDLE";

fn register_those_of_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(paths) = std::env::var_os(VARIABLE) else { return };
        for path in std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()) {
            if let Err(reason) = register_file(&path) {
                tracing::warn!(file = %path.display(), reason, "{VARIABLE} names no bundle");
            }
        }
    });
}

fn register_file(path: &Path) -> Result<(), String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    // Those that the program registers come before those of its surroundings.
    REGISTERED.write().push(Bundle::read(bytes.into()).map_err(|e| e.to_string())?);
    Ok(())
}

/// How many bundles are registered.
pub(super) fn registered() -> usize {
    register_those_of_environment();
    REGISTERED.read().len()
}

/// The code of a key in a registered bundle.
pub(super) fn find(key: Key) -> Option<Arc<[u8]>> {
    register_those_of_environment();
    REGISTERED.read().iter().find_map(|bundle| bundle.code(key).map(Arc::from))
}

struct Bundle {
    bytes: Arc<[u8]>,
    entries: Vec<(Key, Range<usize>)>,
}

impl Bundle {
    fn read(bytes: Arc<[u8]>) -> Result<Self, BundleError> {
        let header = bytes.first_chunk::<HEADER>();
        let header = header.filter(|header| header.starts_with(MAGIC));
        let header = header.ok_or(BundleError::Foreign { bytes: bytes.len() })?;
        let found = number(header, 8);
        if found != VERSION {
            return Err(BundleError::Version { expected: VERSION, found });
        }
        let count = number(header, 12) as usize;
        let table = HEADER as u64 + count as u64 * ENTRY as u64;
        let truncated = |expected| BundleError::Truncated { expected, found: bytes.len() as u64 };
        if (bytes.len() as u64) < table {
            return Err(truncated(table));
        }
        let (entries, _) = bytes[HEADER..].as_chunks::<ENTRY>();
        let mut read = Vec::with_capacity(count);
        for entry in &entries[..count] {
            let (offset, length) = (long(entry, 40), long(entry, 48));
            let end = offset.saturating_add(length);
            let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
            let range = range.filter(|(_, end)| *end <= bytes.len());
            let (offset, end) = range.ok_or_else(|| truncated(end))?;
            read.push((key(entry), offset..end));
        }
        if Sha256::digest(&bytes[HEADER..])[..] != header[16..] {
            return Err(BundleError::Damaged { bytes: bytes.len() });
        }
        Ok(Bundle { bytes, entries: read })
    }

    /// The code for the very architecture, else that of the latest whose code runs on it.
    fn code(&self, key: Key) -> Option<&[u8]> {
        let fitting = self
            .entries
            .iter()
            .filter(|(found, _)| found.unit == key.unit && found.arch.runs_on(key.arch));
        let (_, range) = fitting.max_by_key(|(found, _)| found.arch)?;
        Some(&self.bytes[range.clone()])
    }
}

fn number<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

fn long<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

fn key(entry: &[u8; ENTRY]) -> Key {
    let unit = UnitHash(entry.first_chunk().copied().unwrap_or_default());
    Key { unit, arch: Arch { major: number(entry, 32), minor: number(entry, 36) } }
}

/// Puts compiled units together to a bundle.
#[derive(Debug, Default)]
pub struct BundleWriter {
    codes: Vec<(Key, Arc<[u8]>)>,
}

impl BundleWriter {
    /// Adds the code of a unit for an architecture, as [`cubin`](super::cubin) returns it.
    pub fn add(&mut self, unit: &Unit<'_>, arch: Arch, code: Arc<[u8]>) {
        self.codes.push((Key { unit: unit.hash(), arch }, code));
    }

    /// The bundle's bytes; the same for the same code in the same order.
    #[must_use]
    pub fn finish(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        let mut offset = (HEADER + self.codes.len() * ENTRY) as u64;
        for (key, code) in &self.codes {
            let length = code.len() as u64;
            rest.extend(key.unit.0);
            rest.extend([key.arch.major, key.arch.minor].map(u32::to_le_bytes).concat());
            rest.extend([offset, length].map(u64::to_le_bytes).concat());
            offset += length;
        }
        self.codes.iter().for_each(|(_, code)| rest.extend_from_slice(code));
        // Units are counted in hundreds.
        let count = u32::try_from(self.codes.len()).unwrap_or(u32::MAX);
        let numbers = [VERSION, count].map(u32::to_le_bytes).concat();
        [&MAGIC[..], &numbers, &Sha256::digest(&rest), &rest].concat()
    }
}

/// For fuzzing: any bytes as a bundle, as they are and with the checksum that they should have.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let mut summed = bytes.to_vec();
    if let Some((header, rest)) = summed.split_at_mut_checked(HEADER) {
        header[16..].copy_from_slice(&Sha256::digest(rest));
    }
    for bytes in [bytes, &summed] {
        let bundle = match Bundle::read(bytes.into()) {
            Ok(bundle) => bundle,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        assert!(bundle.entries.len() * ENTRY <= bytes.len());
        let mut writer = BundleWriter::default();
        for (key, range) in &bundle.entries {
            // Whichever entry serves a key has code of its unit that runs there.
            let code = bundle.code(*key);
            assert!(code.is_some() || !key.arch.runs_on(key.arch), "{key:?}");
            // Entries may share their code, which a writer does not do: bounded by the first few.
            if writer.codes.len() < 4 {
                writer.codes.push((*key, Arc::from(&bytes[range.clone()])));
            }
        }
        let again = Bundle::read(writer.finish().into());
        let again = again.map(|again| {
            let entries =
                again.entries.iter().map(|(key, range)| (*key, &again.bytes[range.clone()]));
            entries.eq(writer.codes.iter().map(|(key, code)| (*key, &**code)))
        });
        assert_eq!(again, Ok(true));
    }
}

/// For fuzzing: bundles as they are written.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut writer = BundleWriter::default();
    let mut seeds = vec![writer.finish()];
    for (unit, major, minor, code) in [(1, 8, 0, "first"), (1, 8, 6, "second"), (2, 9, 0, "")] {
        let key = Key { unit: UnitHash([unit; 32]), arch: Arch { major, minor } };
        writer.codes.push((key, code.as_bytes().into()));
        seeds.push(writer.finish());
    }
    seeds
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::sources::KernelSource;
    use super::*;

    static SOURCE: KernelSource = KernelSource { name: "s", file: ("s.cu", "text"), headers: &[] };
    const FIRST: Unit<'static> = Unit { source: &SOURCE, defines: &[] };
    const SECOND: Unit<'static> = Unit { source: &SOURCE, defines: &[("A", "1")] };
    const ABSENT: Unit<'static> = Unit { source: &SOURCE, defines: &[("A", "2")] };

    fn arch(major: u32, minor: u32) -> Arch {
        Arch { major, minor }
    }

    fn bundle() -> Vec<u8> {
        let mut writer = BundleWriter::default();
        writer.add(&FIRST, arch(8, 0), b"first for 8.0".as_slice().into());
        writer.add(&FIRST, arch(8, 6), b"first for 8.6".as_slice().into());
        writer.add(&SECOND, arch(9, 0), b"".as_slice().into());
        writer.finish()
    }

    fn read(bytes: &[u8]) -> Result<Bundle, BundleError> {
        Bundle::read(bytes.into())
    }

    #[test]
    fn what_is_written_is_read() {
        let bundle = read(&bundle()).unwrap();
        let code = |unit: Unit<'_>, arch| bundle.code(Key { unit: unit.hash(), arch });
        assert_eq!(code(FIRST, arch(8, 0)), Some(&b"first for 8.0"[..]));
        assert_eq!(code(FIRST, arch(8, 6)), Some(&b"first for 8.6"[..]));
        assert_eq!(code(SECOND, arch(9, 0)), Some(&b""[..]));
        // The nearest whose code runs there.
        assert_eq!(code(FIRST, arch(8, 5)), Some(&b"first for 8.0"[..]));
        assert_eq!(code(FIRST, arch(8, 9)), Some(&b"first for 8.6"[..]));
        assert_eq!(code(FIRST, arch(9, 0)), None);
        assert_eq!(code(SECOND, arch(8, 0)), None);
        assert_eq!(code(ABSENT, arch(8, 0)), None);
        assert!(read(&BundleWriter::default().finish()).unwrap().entries.is_empty());
    }

    #[test]
    fn a_part_is_refused_at_every_length() {
        let whole = bundle();
        for length in 0..whole.len() {
            let error = read(&whole[..length]).err();
            match length {
                0..HEADER => assert_eq!(error, Some(BundleError::Foreign { bytes: length })),
                _ => assert!(
                    matches!(error, Some(BundleError::Truncated { found, .. }) if found == length as u64),
                    "{length}: {error:?}"
                ),
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let whole = bundle();
        for index in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[index] ^= 0x10;
            assert!(read(&flipped).is_err(), "byte {index}");
        }
    }

    #[test]
    fn seeds_and_what_is_near_them_are_read() {
        for seed in seeds() {
            fuzz(&seed);
            for at in 0..seed.len() {
                fuzz(&seed[..at]);
                let mut changed = seed.clone();
                changed[at] ^= 0xff;
                fuzz(&changed);
            }
        }
    }

    #[test]
    fn another_format_is_named() {
        let mut other = bundle();
        other[8] = 2;
        assert_eq!(read(&other).err(), Some(BundleError::Version { expected: 1, found: 2 }));
        assert_eq!(
            register_bundle(b"not a bundle".as_slice()),
            Err(BundleError::Foreign { bytes: 12 })
        );
    }
}
