//! NVIDIA's compilers from Python packages, in environments below the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use symmem_sys::nvrtc::Nvrtc;

use super::tool;
use crate::command::target_dir;

/// The variable that names NVRTC's path.
pub const VARIABLE: &str = "SYMMEM_NVRTC_LIBRARY";

const NVRTC_VENV: &str = "nvrtc-venv";
/// In the toolkit's folder.
const LIBRARY: &str = "lib/libnvrtc.so.13";

const NVRTC: &[&str] = &["nvidia-cuda-nvrtc==13.0.88"];
const NVCC: &[&str] = &[
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

/// NVRTC's path, where it had to be installed; `None` where it is found without.
pub fn nvrtc() -> Result<Option<PathBuf>, String> {
    match Nvrtc::get() {
        Ok(nvrtc) => {
            let version = nvrtc.version().map(|version| version.to_string()).unwrap_or_default();
            println!("{} {version}", nvrtc.path().display());
            Ok(None)
        }
        // Named, and not to be opened: installing another one would hide that.
        Err(not_found) if std::env::var_os(VARIABLE).is_some() => Err(format!("{not_found:#}")),
        Err(_) => {
            let library = toolkit(NVRTC_VENV, NVRTC)?.join(LIBRARY);
            println!("{}", library.display());
            Ok(Some(library))
        }
    }
}

/// NVRTC's path, where it is there already.
pub fn present() -> Option<PathBuf> {
    let found = Nvrtc::get().map(|nvrtc| nvrtc.path().to_owned()).ok();
    found.or_else(|| Some(find_toolkit(&target_dir().join(NVRTC_VENV))?.join(LIBRARY)))
}

/// The program nvcc.
pub fn nvcc() -> Result<PathBuf, String> {
    Ok(toolkit("nvcc-venv", NVCC)?.join("bin/nvcc"))
}

/// The folder in which packages of the toolkit lie, after installing those into an environment.
fn toolkit(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let environment = target_dir().join(name);
    if let Some(toolkit) = find_toolkit(&environment) {
        return Ok(toolkit);
    }
    println!("installing {}", packages.join(", "));
    tool::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    let installed = tool::run(&mut pip);
    let found = find_toolkit(&environment);
    match (installed, found) {
        (Ok(()), Some(toolkit)) => Ok(toolkit),
        (outcome, _) => {
            // A part of it would be taken for the whole next time.
            let _ = fs::remove_dir_all(&environment);
            outcome.and(Err(format!("{} lack nvidia/cu13", packages.join(", "))))
        }
    }
}

fn find_toolkit(environment: &Path) -> Option<PathBuf> {
    let pythons = fs::read_dir(environment.join("lib")).ok()?.flatten();
    let mut folders = pythons.map(|python| python.path().join("site-packages/nvidia/cu13"));
    folders.find(|folder| folder.is_dir())
}
