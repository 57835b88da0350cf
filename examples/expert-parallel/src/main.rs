//! Sentence embeddings by experts on several ranks: candle computes, symmem routes.
//!
//! Every feed-forward block of all-MiniLM-L6-v2 is cut into experts, which the ranks share. Each rank has
//! some of the sentences; a token goes to the ranks of the experts that it chooses, and the sum of what
//! they make of it comes back. With all experts chosen that is the dense model, which every rank computes
//! too, and compares.

mod layer;
mod model;
mod router;
mod statistics;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use minilm::{Args, Checkpoint, Difference, Embeddings, TOLERANCE};
use symmem::prelude::Group;

use model::Model;
use router::dot;

const SENTENCES: [&str; 16] = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl is carrying a baby.",
    "A woman holds her child in her arms.",
    "Shared memory lets one process read what another one wrote, without a copy.",
    "Processes can exchange data through pages that both of them have mapped.",
    "The recipe asks for two cups of flour, a pinch of salt and 250 ml of warm milk.",
    "After three weeks of rain the river rose above the lower bridge.",
    "He plays the cello in a string quartet on Thursdays.",
    "Interest rates were left unchanged, which surprised nobody.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "Der Zug nach Hamburg hat heute zwanzig Minuten Verspätung.",
    "Why did the chicken cross the road?",
    "The defendant appealed, but the court upheld the verdict of 1987.",
    "let x = y.iter().map(|z| z * 2).collect::<Vec<_>>();",
    "Yes.",
];

/// Sentence embeddings, expert-parallel.
#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
    /// Experts of a layer, of all ranks: 1 to 1024.
    #[arg(long, default_value = "16")]
    experts: NonZeroUsize,
    /// Experts that a token chooses, in the run whose loads are printed. Others are compared, too: 1, 2,
    /// 4 and so on, and all.
    #[arg(long, default_value = "4", value_name = "K")]
    top_k: NonZeroUsize,
}

fn main() -> ExitCode {
    let Command { args, experts, top_k } = Command::parse();
    args.run(&SENTENCES, |checkpoint, sentences, group| {
        rank(checkpoint, sentences, group, experts.get(), top_k.get())
    })
}

/// What each rank does.
fn rank(
    checkpoint: &Checkpoint,
    sentences: &[String],
    group: &Group,
    experts: usize,
    top_k: usize,
) -> Result<()> {
    ensure!(top_k <= experts, "a token cannot choose {top_k} of {experts} experts");
    let (config, weights) = (checkpoint.config()?, checkpoint.weights()?);
    let embeddings = Embeddings::load(&config, weights.pp("embeddings"))?;
    // Each sentence is a batch: what comes out does not depend on what else a rank has.
    let batches = checkpoint.tokenize(sentences.chunks(1))?;
    let weights = weights.pp("encoder");
    let model = Model::load(group, &config, &weights, experts)?;
    let prints = group.rank().index() == 0;
    if prints {
        println!(
            "{} layers of {} neurons as {experts} experts, {} sentences of {} tokens, ranks: {}",
            config.num_hidden_layers,
            config.intermediate_size,
            batches.len(),
            batches.iter().map(|batch| batch.ids.elem_count()).sum::<usize>(),
            group.size(),
        );
    }
    let expected = model.dense(&embeddings, &batches)?;

    let doubling = (0..).map(|i| 1 << i).take_while(|&k| k < experts);
    let mut all: Vec<usize> = doubling.chain([top_k, experts]).collect();
    all.sort_unstable();
    all.dedup();
    let mut table = Vec::new();
    // All experts first: whether it is right, before how far off fewer are.
    for choices in all.into_iter().rev() {
        let (found, loads) = model.routed(&embeddings, &batches, choices)?;
        let difference = Difference::largest(&expected, &found)?;
        if choices == experts {
            difference.check()?;
        }
        if choices == top_k && prints {
            println!("\ntop {top_k}:");
            loads.print();
        }
        table.push((choices, difference, found));
    }
    if prints {
        println!("\ntop-k  mean cosine  least cosine  largest difference  bits");
        for (choices, difference, found) in table.iter().rev() {
            // Vectors have length 1.
            let cosines = expected.iter().zip(found).map(|(a, b)| dot(a, b));
            println!(
                "{choices:>5}{:>13.6}{:>14.6}{:>20.1e}  {:016x}",
                cosines.clone().sum::<f64>() / expected.len() as f64,
                cosines.fold(f64::INFINITY, f64::min),
                difference.size(),
                digest(found)
            );
        }
        println!("all {experts} experts are the dense model: {TOLERANCE:e} allowed");
    }
    Ok(())
}

/// FNV-1a of all bits: equal for equal embeddings, whoever computed them.
fn digest(embeddings: &[Vec<f32>]) -> u64 {
    let bytes = embeddings.iter().flatten().flat_map(|x| x.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
