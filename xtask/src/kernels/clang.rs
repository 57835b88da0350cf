//! The same sources as code of AMD GPUs, by clang alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::tool;
use crate::summary::Summary;

const COMPILER: &str = "clang-19";

/// AMD architectures that every kernel compiles for.
const AMD: [&str; 2] = ["gfx90a", "gfx942"];

/// Arithmetic as the library promises it: an operation at a time.
const OPTIONS: &[&str] = &[
    "-x",
    "hip",
    "--cuda-device-only",
    "--no-gpu-bundle-output",
    "-nogpuinc",
    "-nogpulib",
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-Wall",
    "-Wno-bitwise-op-parentheses",
    "-Wno-unknown-pragmas",
    "-Wno-pass-failed",
    "-Werror",
];

/// Compiles every unit of the list in `sources`, and programs of the public headers.
pub fn check(sources: &Path, summary: &mut Summary) {
    for arch in AMD {
        summary.step(&format!("kernels: clang, {arch}"), || {
            let list = sources.join("units");
            let list = fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
            let mut commands: Vec<Command> = Vec::new();
            for (index, unit) in list.lines().enumerate() {
                let mut words = unit.split('\t');
                let file = sources.join(words.next().unwrap_or_default());
                let output = sources.join(format!("{index}.{arch}.hsaco"));
                commands.push(compiler(arch, &file, &output, words));
            }
            for program in super::programs(&sources.join("include"))? {
                let output = program.with_extension(format!("{arch}.hsaco"));
                commands.push(compiler(arch, &program, &output, [].into_iter()));
            }
            let compiled = tool::run_all(commands)?;
            println!("{compiled} compiled for {arch}");
            Ok(())
        });
    }
}

fn compiler<'w>(
    arch: &str,
    file: &Path,
    output: &Path,
    defines: impl Iterator<Item = &'w str>,
) -> Command {
    let mut compiler = Command::new(COMPILER);
    compiler.args(OPTIONS).arg(format!("--offload-arch={arch}")).args(defines);
    compiler.arg(file).arg("-o").arg(output);
    compiler
}
