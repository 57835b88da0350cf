//! `symmem info`: what this machine offers, and why not what it does not.
//!
//! Everything is looked up or tried when asked; nothing is guessed from names or versions. Where there
//! are GPUs it starts their driver and makes a context on each.

mod features;
mod gpus;
mod report;
mod show;
mod system;

use std::io::{self, Write};
use std::process::ExitCode;

/// Arguments of `symmem info`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Why there is nothing to see.
#[derive(Debug, thiserror::Error)]
pub enum InfoError {
    #[error("cannot write: {0}")]
    Output(io::Error),
}

impl From<io::Error> for InfoError {
    fn from(error: io::Error) -> Self {
        InfoError::Output(error)
    }
}

/// Prints what this machine offers.
pub fn info(args: &Args) -> Result<ExitCode, InfoError> {
    let report = report::Report::new();
    let mut out = io::stdout().lock();
    if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(io::Error::from)?;
        writeln!(out, "{text}")?;
    } else {
        show::show(&mut out, &report)?;
    }
    Ok(ExitCode::SUCCESS)
}
