//! `cargo xtask bundle`: what a machine with GPUs and no toolchain needs, in one small folder.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{target_dir, workspace};
use crate::kernels;
use crate::summary::Summary;
use crate::vendor::remove;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where to; what is there goes.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Programs of the folder examples to take along.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = EXAMPLES)]
    example: Vec<String>,
}

/// What a bundle may be at most, in bytes.
const MOST: u64 = 64 << 20;

const README: &str = "\
For a machine with NVIDIA GPUs: nothing to install but the driver, and NVRTC where there is no
kernels.bundle (python3 -m pip install nvidia-cuda-nvrtc; SYMMEM_NVRTC_LIBRARY can name its path).
With one: gunzip --keep kernels.bundle.gz; export SYMMEM_KERNEL_BUNDLE=$PWD/kernels.bundle
Compiled kernels are kept in ~/.cache/symmem, or SYMMEM_CACHE_DIR.

What is here, and why not what is not
  ./symmem info
The suite: ranks take the GPUs in turn, and share them where they are more
  ./conformance --backend cuda --local
  ./conformance --backend cuda --ranks 2
  ./conformance --backend cuda --ranks 2 --threads
  ./conformance --backend cuda --ranks 4,8 --threads --one-device
  ./conformance --backend cuda --ranks 4 --one-device collectives::sizes  (processes on one GPU: slow)
  ./conformance --backend cuda --ranks 2 --threads stalls             (each rank delayed at each step)
  ./conformance --backend cuda --ranks 2 --threads --soak-seconds 600 soak::
Latency and bandwidth, every result checked
  ./symmem bench all-reduce --backend cuda --ranks 2 --threads --graph --dtype bf16 --min 2K --max 256M
  ./symmem bench barrier --backend cuda --ranks 2 --graph
The table of algorithms
  ./symmem tune --backend cuda --ranks 2 --threads --graph --output tune.toml
  SYMMEM_TUNE=tune.toml ./symmem bench all-reduce --backend cuda --ranks 2 --threads --graph
Beside torch and NCCL, where they are installed
  python3 compare/compare.py --symmem ./symmem --peers torch,nccl
  python3 compare/compare.py --symmem ./symmem --peers torch,nccl --ops moe --layout vdev --hidden 7168 --experts 16 --top-k 8
A user's own kernel
  ./fused-rmsnorm
All of that, each step with a limit, into a folder
  ./report.sh report info processes threads shared faults memcheck all-reduce others barrier enqueue lanes bounds compare \
    moe memcheck-moe compare-moe
";

/// Examples that are taken along unless others are named.
const EXAMPLES: [&str; 1] = ["fused-rmsnorm"];

pub fn run(arguments: &Arguments, summary: &mut Summary) {
    let default = || target_dir().join("bundle");
    let folder = arguments.out.clone().unwrap_or_else(default);
    let made = summary.step("bundle: its folder", || {
        remove(&folder)?;
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))
    });
    if made.is_none() {
        return;
    }
    let mut take = |name: &str, tree: &Path, words: &[&str]| {
        summary.step(&format!("bundle: {name}"), || {
            let program = build(tree, words)?;
            copy(&program, &folder.join(name))
        });
    };
    let tree = workspace();
    let stripped = ["--profile", "stripped"];
    let command = ["build", "--package", "symmem-cli", "--bin", "symmem"];
    take("symmem", &tree, &[&command[..], &stripped].concat());
    let suite = ["test", "--no-run", "--package", "symmem-tests", "--test", "conformance"];
    // By itself: the command is built without.
    let stalls = ["--features", "stalls"];
    take("conformance", &tree, &[&suite[..], &stalls, &stripped].concat());
    // Workspaces of their own, which have no such profile.
    let released = [
        "--release",
        "--config",
        "profile.release.strip=true",
        "--config",
        "profile.release.debug=false",
    ];
    for example in &arguments.example {
        let words = [&["build", "--bin", example][..], &released].concat();
        take(example, &tree.join("examples").join(example), &words);
    }
    summary.step("bundle: scripts", || {
        let scripts = tree.join("tools/compare");
        let entries = fs::read_dir(&scripts).map_err(|e| format!("{}: {e}", scripts.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if let Some(name) =
                path.file_name().filter(|_| path.extension().is_some_and(|e| e == "py"))
            {
                copy(&path, &folder.join("compare").join(name))?;
            }
        }
        copy(&tree.join("tools/gpu/report.sh"), &folder.join("report.sh"))?;
        let readme = folder.join("README.txt");
        fs::write(&readme, README).map_err(|e| format!("{}: {e}", readme.display()))
    });
    summary.step("bundle: kernels", || {
        let plain = folder.join("kernels.bundle");
        kernel_bundle(&folder, &plain)?;
        if plain.exists() { pack(&plain) } else { Ok(()) }
    });
    summary.step("bundle: its size", || measure(&folder));
}

/// Builds one program; its path.
fn build(tree: &Path, words: &[&str]) -> Result<PathBuf, String> {
    println!("$ cargo {}", words.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo);
    cargo.args(words).args(["--quiet", "--message-format", "json-render-diagnostics"]);
    cargo.current_dir(tree).env("CARGO_TARGET_DIR", target_dir()).stderr(Stdio::inherit());
    let output = cargo.output().map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        return Err(output.status.to_string());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut executables = messages.lines().filter_map(|message| {
        let message: serde_json::Value = serde_json::from_str(message).ok()?;
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    });
    executables.next_back().ok_or_else(|| "cargo names no executable".to_owned())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |e| format!("{} to {}: {e}", from.display(), to.display());
    to.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    fs::copy(from, to).map(drop).map_err(failed)
}

/// Compiles all kernels, where there is something to compile them with.
fn kernel_bundle(folder: &Path, out: &Path) -> Result<(), String> {
    let Some(nvrtc) = kernels::present() else {
        println!("left out: NVRTC is not on this machine, nor installed by `cargo xtask kernels`");
        return Ok(());
    };
    let mut compile = Command::new(folder.join("symmem"));
    compile.args(["kernels", "--out"]).arg(out);
    compile.env(kernels::VARIABLE, nvrtc);
    let status = compile.status().map_err(|e| e.to_string())?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

/// Packs a file, which goes: three architectures' code of every type is more than a folder may have, and packs
/// to a quarter.
fn pack(plain: &Path) -> Result<(), String> {
    let packed = plain.with_added_extension("gz");
    let failed = |e| format!("{}: {e}", packed.display());
    let code = fs::read(plain).map_err(|e| format!("{}: {e}", plain.display()))?;
    let file = fs::File::create(&packed).map_err(failed)?;
    let mut out = flate2::write::GzEncoder::new(file, flate2::Compression::best());
    out.write_all(&code).and_then(|()| out.finish()).map_err(failed)?;
    fs::remove_file(plain).map_err(|e| format!("{}: {e}", plain.display()))
}

/// Prints the sizes of all files, and refuses too much.
fn measure(folder: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    list(folder, &mut files).map_err(|e| format!("{}: {e}", folder.display()))?;
    files.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut out = std::io::stdout().lock();
    for (path, bytes) in &files {
        let path = path.strip_prefix(folder).unwrap_or(path);
        let _ = writeln!(out, "{:>10.3} MiB  {}", mib(*bytes), path.display());
    }
    let all = files.iter().map(|(_, bytes)| bytes).sum();
    let _ = writeln!(out, "{:>10.3} MiB  {}", mib(all), folder.display());
    match all <= MOST {
        true => Ok(()),
        false => Err(format!("{all} bytes are more than the {MOST} that a bundle may be")),
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn list(folder: &Path, files: &mut Vec<(PathBuf, u64)>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => list(&entry.path(), files)?,
            false => files.push((entry.path(), entry.metadata()?.len())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_packed_is_the_same() {
        use std::io::Read as _;

        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("kernels.bundle");
        let code: Vec<u8> = (0..100_000_u64).map(|i| ((i * i) >> 7) as u8).collect();
        fs::write(&plain, &code).unwrap();
        assert_eq!(pack(&plain), Ok(()));
        assert!(!plain.exists());
        let packed = fs::File::open(folder.path().join("kernels.bundle.gz")).unwrap();
        let mut found = Vec::new();
        flate2::read::GzDecoder::new(packed).read_to_end(&mut found).unwrap();
        assert!(found == code);
    }

    #[test]
    fn a_bundle_has_a_most() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("below");
        fs::create_dir(&below).unwrap();
        let sized = |name: &str, bytes| {
            fs::File::create(below.join(name)).unwrap().set_len(bytes).unwrap();
        };
        sized("large", MOST - 1);
        sized("small", 1);
        assert_eq!(measure(folder.path()), Ok(()));
        sized("small", 2);
        let refused = measure(folder.path()).unwrap_err();
        assert!(refused.contains("67108865") && refused.contains("67108864"), "{refused}");
    }
}
