//! The public headers as users' programs include them.

use std::path::Path;
use std::process::Command;

use super::{python, tool};
use crate::command::workspace;
use crate::summary::Summary;

/// Kernels that are users of the headers, whom nothing else compiles without a GPU.
const USERS: [&str; 3] = [
    "tests/kernels/steps.cu",
    "tests/kernels/lines.cu",
    "examples/fused-rmsnorm/kernels/rmsnorm.cu",
];

/// Compiles a program of each header in a folder, and each user of them, for each architecture.
pub fn check(headers: &Path, archs: &[String], summary: &mut Summary) {
    let Some(nvcc) = summary.step("kernels: nvcc is there", python::nvcc) else { return };
    summary.step("kernels: public headers by nvcc", || {
        let mut commands = Vec::new();
        let users = USERS.map(|user| workspace().join(user));
        for program in super::programs(headers)?.into_iter().chain(users) {
            for arch in archs {
                let mut nvcc = Command::new(&nvcc);
                nvcc.args(["-std=c++17", "-cubin", "-fmad=false", "-Werror", "all-warnings"]);
                nvcc.arg("-I").arg(headers);
                nvcc.arg(format!("-arch={arch}")).arg(&program).arg("-o");
                let name = program.with_extension(format!("{arch}.cubin"));
                nvcc.arg(headers.join(name.file_name().unwrap_or_default()));
                commands.push(nvcc);
            }
        }
        let compiled = tool::run_all(commands)?;
        println!("{compiled} programs that include one or more");
        Ok(())
    });
}
