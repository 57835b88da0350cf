//! `cargo xtask kernels`: every kernel of every crate compiles, for every GPU, without one.
//!
//! NVRTC is what compiles for NVIDIA GPUs at run time; clang makes the same sources code of AMD GPUs,
//! with no header or library of a vendor; nvcc takes the public headers as users' programs do. What
//! is not there is installed below the target folder, from Python packages.

mod clang;
mod nvcc;
mod python;
mod tool;

pub use python::{VARIABLE, present};

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Cargo, target_dir};
use crate::summary::Summary;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Compile every unit for NVIDIA and AMD GPUs; what is done if nothing is said.
    #[arg(long)]
    check: bool,
    /// Compile the public headers with nvcc.
    #[arg(long)]
    nvcc: bool,
    /// Write a bundle of every unit.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// NVIDIA architectures, such as sm_90a; those of the project if none is named.
    #[arg(long, value_name = "ARCH", value_delimiter = ',')]
    arch: Vec<String>,
}

/// NVIDIA architectures that every kernel compiles for.
const NVIDIA: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

pub fn run(arguments: &Arguments, summary: &mut Summary) {
    let Arguments { check, nvcc, out, arch } = arguments;
    let check = *check || (!nvcc && out.is_none());
    let archs = if arch.is_empty() { NVIDIA.map(str::to_owned).to_vec() } else { arch.clone() };
    if check || out.is_some() {
        let name = if out.is_some() { "kernels: bundle" } else { "kernels: NVRTC" };
        let nvrtc = summary.step("kernels: NVRTC is there", python::nvrtc);
        let Some(nvrtc) = nvrtc else { return };
        let mut compile = command().args(["--arch".into(), archs.join(",")]);
        if let Some(file) = out {
            compile = compile.args([OsString::from("--out"), file.into()]);
        }
        if let Some(library) = nvrtc {
            compile = compile.env(python::VARIABLE, library);
        }
        summary.tier(name, &[compile]);
    }
    if !check && !nvcc {
        return;
    }
    let sources = target_dir().join("kernels");
    let export = command().args([OsString::from("--sources"), sources.clone().into()]);
    summary.step("kernels: sources from earlier runs go", || crate::vendor::remove(&sources));
    summary.tier("kernels: sources", &[export]);
    if !sources.is_dir() {
        return;
    }
    if check {
        clang::check(&sources, summary);
    }
    if *nvcc {
        nvcc::check(&sources.join("include"), &archs, summary);
    }
}

/// The command that knows the kernels of all crates.
fn command() -> Cargo {
    let run = Cargo::new("run").args(["--quiet", "--package", "symmem-cli", "--bin", "symmem"]);
    run.args(["--", "kernels"])
}

/// For each header in a folder, a program beside it that includes it, twice: it needs no other
/// before it, and is its own guard.
fn programs(headers: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |e| format!("{}: {e}", headers.display());
    let paths = fs::read_dir(headers).map_err(failed)?.flatten().map(|entry| entry.path());
    let mut programs = Vec::new();
    for path in paths.filter(|path| path.extension().is_some_and(|e| e == "cuh")) {
        let name = path.file_name().unwrap_or_default().display();
        let program = path.with_extension("cu");
        fs::write(&program, format!("#include \"{name}\"\n").repeat(2)).map_err(failed)?;
        programs.push(program);
    }
    Ok(programs)
}
