//! The sources as files, for compilers that take no others.

use std::fs;
use std::path::Path;

use symmem::KERNEL_UNITS;

use super::units::Owned;
use super::{KernelsError, write_file};

/// Writes below `folder`:
/// - `include/`: the public headers;
/// - a folder for each source, with it and every header it includes;
/// - `units`: a line for each unit, its file and then its definitions as options, tabs between.
pub fn export(folder: &Path, units: &[Owned]) -> Result<(), KernelsError> {
    for set in KERNEL_UNITS {
        write_all(&folder.join("include"), set.headers.iter())?;
    }
    let mut list = String::new();
    for Owned { source, defines } in units {
        let stem = source.file.0.split('.').next().unwrap_or_default();
        let below = Path::new(source.name).join(stem);
        write_all(&folder.join(&below), source.headers.iter().chain([&source.file]))?;
        list += &below.join(source.file.0).display().to_string();
        for (name, value) in defines {
            list += &format!("\t-D{name}={value}");
        }
        list.push('\n');
    }
    make_folder(folder)?;
    write_file(&folder.join("units"), list.as_bytes())
}

fn write_all<'f>(
    folder: &Path,
    files: impl Iterator<Item = &'f (&'f str, &'f str)>,
) -> Result<(), KernelsError> {
    make_folder(folder)?;
    files.into_iter().try_for_each(|(name, text)| write_file(&folder.join(name), text.as_bytes()))
}

fn make_folder(folder: &Path) -> Result<(), KernelsError> {
    let failed = |cause| KernelsError::File { path: folder.to_owned(), cause };
    fs::create_dir_all(folder).map_err(failed)
}
