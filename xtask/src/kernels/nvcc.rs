//! The public headers as users' programs include them.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{python, tool};
use crate::summary::Summary;

/// Compiles a program that includes every header of a folder.
pub fn check(headers: &Path, archs: &[String], summary: &mut Summary) {
    let Some(nvcc) = summary.step("kernels: nvcc is there", python::nvcc) else { return };
    summary.step("kernels: public headers by nvcc", || {
        let names = super::headers(headers)?;
        let names = names.iter().filter_map(|path| path.file_name()?.to_str());
        let includes: String = names.map(|name| format!("#include \"{name}\"\n")).collect();
        // Twice: a header is its own guard.
        let program =
            format!("{includes}{includes}extern \"C\" __global__ void including() {{}}\n");
        let file = headers.join("program.cu");
        fs::write(&file, program).map_err(|e| format!("{}: {e}", file.display()))?;
        let commands = archs.iter().map(|arch| {
            let mut nvcc = Command::new(&nvcc);
            nvcc.args(["-std=c++17", "-cubin", "-fmad=false", "-Werror", "all-warnings"]);
            nvcc.arg(format!("-arch={arch}")).arg(&file).arg("-o");
            nvcc.arg(headers.join(format!("program.{arch}.cubin")));
            nvcc
        });
        let compiled = tool::run_all(commands.collect())?;
        println!("included and compiled for {compiled} architectures");
        Ok(())
    });
}
