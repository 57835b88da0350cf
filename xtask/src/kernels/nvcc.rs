//! The public headers as users' programs include them.

use std::path::Path;
use std::process::Command;

use super::{python, tool};
use crate::summary::Summary;

/// Compiles a program of each header in a folder, for each architecture.
pub fn check(headers: &Path, archs: &[String], summary: &mut Summary) {
    let Some(nvcc) = summary.step("kernels: nvcc is there", python::nvcc) else { return };
    summary.step("kernels: public headers by nvcc", || {
        let mut commands = Vec::new();
        for program in super::programs(headers)? {
            for arch in archs {
                let mut nvcc = Command::new(&nvcc);
                nvcc.args(["-std=c++17", "-cubin", "-fmad=false", "-Werror", "all-warnings"]);
                nvcc.arg(format!("-arch={arch}")).arg(&program).arg("-o");
                nvcc.arg(program.with_extension(format!("{arch}.cubin")));
                commands.push(nvcc);
            }
        }
        let compiled = tool::run_all(commands)?;
        println!("{compiled} programs that include one");
        Ok(())
    });
}
