//! `cargo xtask compare`: symmem beside its peers, in one run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::command::{Cargo, target_dir, workspace};
use crate::summary::Summary;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The command; without it, it is built.
    #[arg(long, value_name = "PATH")]
    symmem: Option<PathBuf>,
    /// The Python that has torch.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
    /// Arguments of tools/compare/compare.py, such as `--peers torch,nccl --sizes 2K:256M` or
    /// `--peers tcpstore --logical-ranks 720`; `--help` after `--` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<OsString>,
}

pub fn run(arguments: &Arguments, summary: &mut Summary) {
    let symmem = arguments.symmem.clone().unwrap_or_else(|| {
        let build = Cargo::new("build").args(["--release", "--package", "symmem-cli"]);
        summary.tier("compare: the command", &[build]);
        target_dir().join("release/symmem")
    });
    if !summary.is_well() {
        return;
    }
    summary.step("compare", || {
        let mut python = Command::new(&arguments.python);
        python.arg(workspace().join("tools/compare/compare.py"));
        python.arg("--symmem").arg(symmem).args(&arguments.more);
        let status = python.status().map_err(|e| format!("{}: {e}", arguments.python.display()))?;
        if status.success() { Ok(()) } else { Err(status.to_string()) }
    });
}
