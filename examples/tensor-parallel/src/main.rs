//! Sentence embeddings by several ranks: candle computes, symmem reduces.
//!
//! Every rank holds a share of each layer of all-MiniLM-L6-v2, embeds the same sentences together
//! with the others, and compares what comes out with the unsharded model.

mod parallel;
mod shard;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use minilm::{Args, Checkpoint, Difference, Embeddings, Encoder, TOLERANCE};
use symmem::prelude::{Collectives, Group, ReduceOp};

use parallel::sharded;
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
struct Command {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    Command::parse().args.run(&SENTENCES, rank)
}

/// What each rank does.
fn rank(checkpoint: &Checkpoint, sentences: &[String], group: &Group) -> Result<()> {
    let (config, weights) = (checkpoint.config()?, checkpoint.weights()?);
    let embeddings = Embeddings::load(&config, weights.pp("embeddings"))?;
    let batches = checkpoint.tokenize([sentences])?;
    let inputs: Vec<_> = batches.iter().map(|b| embeddings.forward(b)).collect::<Result<_, _>>()?;
    let all_reduce = AllReduce::of(group, inputs.iter().map(|input| input.x.elem_count()).sum())?;

    let weights = weights.pp("encoder");
    let embed = |encoder: &Encoder| encoder.embed(&inputs)?.to_vec2::<f32>();
    let found = embed(&sharded(&config, &weights, Shard::of(&all_reduce))?)?;
    let difference = Difference::largest(&embed(&Encoder::whole(&config, &weights)?)?, &found)?;

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
