//! `symmem kernels`: every kernel compiled ahead of time.
//!
//! Programs compile what they need at its first use. This does so for all units and architectures at
//! once, without a GPU: to see that everything compiles, and to write a bundle for machines that
//! have no NVRTC. `--sources` writes out what other compilers are to be given.

mod export;
mod units;
mod work;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use symmem::hal::kernels::{Arch, BundleWriter, CompileError, KernelSource, Target, compile};
use symmem::hal::types::Bytes;
use units::Owned;

/// Arguments of `symmem kernels`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Architectures to compile for
    #[arg(
        long,
        value_name = "ARCH[,ARCH..]",
        value_delimiter = ',',
        default_value = "sm_80,sm_90a,sm_100"
    )]
    arch: Vec<Arch>,
    /// Also write all of it to a bundle, which programs register
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Compile nothing: write the sources, the public headers and a list of the units
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["arch", "out"])]
    sources: Option<PathBuf>,
}

/// Why not all kernels are compiled.
#[derive(Debug, thiserror::Error)]
pub enum KernelsError {
    #[error("{failed} of {all} did not compile; the first:\n{first}")]
    Compile { failed: usize, all: usize, first: Box<CompileError> },
    /// What would run on a later architecture is not what a bundle promises for it.
    #[error("the NVRTC found does not know {arch}: it makes {made:?} of {unit} only")]
    Portable { unit: String, arch: Arch, made: Target },
    #[error("cannot write {path:?}: {cause}")]
    File { path: PathBuf, cause: io::Error },
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// What became of one unit for one architecture.
struct Made {
    unit: usize,
    arch: Arch,
    took: Duration,
    outcome: Result<Vec<u8>, KernelsError>,
}

/// Compiles everything, or writes out the sources.
pub fn kernels(args: &Args) -> Result<ExitCode, KernelsError> {
    let units = units::all();
    if let Some(folder) = &args.sources {
        return export::export(folder, &units).map(|()| ExitCode::SUCCESS);
    }
    let jobs: Vec<(usize, Arch)> =
        (0..units.len()).flat_map(|unit| args.arch.iter().map(move |arch| (unit, *arch))).collect();
    let since = Instant::now();
    let made = work::in_parallel(&jobs, |(unit, arch)| make(&units[*unit], *unit, *arch));
    let took = since.elapsed();
    let mut out = io::stdout().lock();
    table(&mut out, &args.arch, &units, &made)?;
    writeln!(out, "{} compilations in {:.1} s", made.len(), took.as_secs_f64())?;
    let all = made.len();
    let mut writer = BundleWriter::default();
    let (mut failed, mut first) = (0, None);
    for Made { unit, arch, outcome, .. } in made {
        match outcome {
            Ok(code) => units[unit].with(|unit| writer.add(unit, arch, code.into())),
            Err(error) => {
                failed += 1;
                first.get_or_insert(error);
            }
        }
    }
    match first {
        Some(KernelsError::Compile { first, .. }) => {
            return Err(KernelsError::Compile { failed, all, first });
        }
        Some(other) => return Err(other),
        None => {}
    }
    if let Some(path) = &args.out {
        let bundle = writer.finish();
        write_file(path, &bundle)?;
        let size = Bytes(bundle.len() as u64);
        writeln!(out, "{} holds all of them, in {size}", path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn make(owned: &Owned, unit: usize, arch: Arch) -> Made {
    let since = Instant::now();
    let outcome = owned.with(|unit| match compile(unit, arch) {
        Ok(compiled) if compiled.target == Target::Binary(arch) => Ok(compiled.code),
        Ok(compiled) => {
            let made = compiled.target;
            Err(KernelsError::Portable { unit: unit.to_string(), arch, made })
        }
        Err(error) => Err(KernelsError::Compile { failed: 1, all: 1, first: error.into() }),
    });
    Made { unit, arch, took: since.elapsed(), outcome }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), KernelsError> {
    fs::write(path, bytes).map_err(|cause| KernelsError::File { path: path.to_owned(), cause })
}

/// A row for each source and architecture.
fn table(out: &mut dyn Write, archs: &[Arch], units: &[Owned], made: &[Made]) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["source", "for", "units", "failed", "code", "slowest s", "all s"]);
    let mut sources: Vec<&KernelSource> = units.iter().map(|unit| unit.source).collect();
    sources.dedup();
    for source in sources {
        for arch in archs {
            let of = |made: &&Made| units[made.unit].source == source && made.arch == *arch;
            let made: Vec<&Made> = made.iter().filter(of).collect();
            let codes = made.iter().filter_map(|made| made.outcome.as_ref().ok());
            let code: usize = codes.clone().map(Vec::len).sum();
            let times = made.iter().map(|made| made.took);
            table.add_row([
                format!("{}/{}", source.name, source.file.0),
                arch.to_string(),
                made.len().to_string(),
                (made.len() - codes.count()).to_string(),
                Bytes(code as u64).to_string(),
                format!("{:.2}", times.clone().max().unwrap_or_default().as_secs_f64()),
                format!("{:.1}", times.sum::<Duration>().as_secs_f64()),
            ]);
        }
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        let side = if index < 2 { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(side);
    }
    writeln!(out, "{}", table.trim_fmt())
}
