//! A kernel of one's own on symmetric memory: all-reduce, residual and RMSNorm in one launch, on the
//! public headers and the public interface alone. Checked against a model in f64, and timed beside the
//! library's all-reduce followed by a kernel for the rest.

mod kernel;
mod reference;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use symmem::launch::Threads;
use symmem::prelude::*;

use kernel::{Buffers, Kernels, check_hidden};
use reference::{Model, distance};

/// All-reduce + residual + RMSNorm of bf16, fused in one kernel.
#[derive(Debug, Parser)]
struct Args {
    /// Ranks, which are threads; without it one for each GPU, two at least
    #[arg(long)]
    ranks: Option<usize>,
    /// Tokens
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 32])]
    tokens: Vec<u32>,
    /// Elements of a token
    #[arg(long, value_delimiter = ',', default_values_t = [2048, 4096, 8192])]
    hidden: Vec<u32>,
    /// All ranks share the first GPU
    #[arg(long)]
    one_device: bool,
    /// What the mean of squares is raised by
    #[arg(long, default_value_t = 1e-6)]
    epsilon: f32,
}

/// Operations in a graph, and how often it is launched for a figure.
const CALLS: usize = 20;
const LAUNCHES: usize = 50;

/// What one rank found of one shape.
struct Line {
    places: f64,
    fused_us: f64,
    unfused_us: f64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let gpus = Device::cuda_count().context("this example needs a GPU")?;
    ensure!(gpus > 0, "this example needs a GPU: the driver shows this process none");
    args.hidden.iter().try_for_each(|hidden| check_hidden(*hidden))?;
    let ranks = args.ranks.unwrap_or((gpus as usize).max(2));
    ensure!(ranks >= 2, "--ranks {ranks}: there is nothing to reduce");
    let places = if args.one_device { 1 } else { gpus };
    let devices = (0..places.min(u32::try_from(ranks)?)).map(Device::cuda);
    let devices = devices.collect::<Result<Vec<_>, _>>()?;
    println!("{ranks} ranks as threads on {} x {}", devices.len(), devices[0].name());
    println!(
        "{:>7} {:>7} {:>10} {:>10} {:>7}  last places off",
        "tokens", "hidden", "fused us", "unfused us", "ratio"
    );
    let each = (0..ranks).map(|rank| devices[rank % devices.len()].clone()).collect();
    let ends = Threads::new(ranks).devices(each).run(|group| rank(args, &group))?;
    for (rank, end) in ends.into_iter().enumerate() {
        end.map_err(|error| anyhow!("rank {rank}: {error:#}"))?;
    }
    Ok(())
}

/// What each rank does.
fn rank(args: &Args, group: &Group) -> Result<()> {
    group.device().make_current()?;
    let kernels = Kernels::new(group.device(), args.epsilon)?;
    let shapes = args.hidden.iter().flat_map(|h| args.tokens.iter().map(move |t| (*t, *h)));
    for (tokens, hidden) in shapes {
        let line = shape(group, &kernels, tokens, hidden, args.epsilon)?;
        if group.rank().index() == 0 {
            let Line { places, fused_us, unfused_us } = line;
            let ratio = unfused_us / fused_us;
            println!(
                "{tokens:>7} {hidden:>7} {fused_us:>10.2} {unfused_us:>10.2} {ratio:>7.2}  {places:.2}"
            );
        }
    }
    Ok(())
}

fn shape(group: &Group, kernels: &Kernels, tokens: u32, hidden: u32, epsilon: f32) -> Result<Line> {
    let device = group.device();
    let buffers = Buffers::new(device, tokens, hidden)?;
    // The library's fastest ways are for memory that peers know.
    group.rendezvous(&buffers.input, &group.wait())?;
    group.rendezvous(&buffers.sum, &group.wait())?;
    let count = tokens as usize * hidden as usize;
    let inputs: Vec<_> = (0..group.size()).map(|rank| data(count, rank as u64)).collect();
    let (residual, weight) = (data(count, 1 << 20), data(hidden as usize, 1 << 21));
    buffers.input.write(&inputs[group.rank().index()])?;
    buffers.weight.write(&weight)?;

    let stream = device.stream(StreamMode::Worker)?;
    let ways: [&dyn Fn() -> Result<()>; 2] = [&|| kernels.fused(group, &buffers, &stream), &|| {
        kernels.unfused(group, &buffers, &stream)
    }];
    let model =
        Model { inputs: &inputs, residual: &residual, weight: &weight, epsilon: epsilon.into() };
    let expected = model.expected();
    let mut found = Vec::new();
    let mut places = 0.0f64;
    for (way, name) in ways.iter().zip(["fused", "unfused"]) {
        buffers.residual.write(&residual)?;
        way()?;
        stream.synchronize(&group.wait())?;
        let (sum, output) = (buffers.residual.to_vec()?, buffers.output.to_vec()?);
        distance(&format!("{name}: residual"), &sum, &expected.residual)?;
        places = places.max(distance(&format!("{name}: output"), &output, &expected.output)?);
        found.push((sum, output));
    }
    // Both add in the order of ranks, so that they give the same bits.
    ensure!(found[0] == found[1], "{tokens} x {hidden}: fused and unfused differ");
    let [fused_us, unfused_us] = ways.map(|way| time(group, &stream, way));
    Ok(Line { places, fused_us: fused_us?, unfused_us: unfused_us? })
}

/// Microseconds of one operation, back to back in a graph.
fn time(group: &Group, stream: &Stream, way: &dyn Fn() -> Result<()>) -> Result<f64> {
    group.lane()?.prepare()?;
    stream.begin_capture()?;
    let issued = (0..CALLS).try_for_each(|_| way());
    let graph = stream.end_capture();
    issued?;
    let graph = graph?;
    let mut times = Vec::new();
    for _ in 0..3 {
        group.barrier(Channel(0)).on(stream)?;
        stream.synchronize(&group.wait())?;
        let start = Instant::now();
        for _ in 0..LAUNCHES {
            graph.launch(stream, &group.wait())?;
        }
        stream.synchronize(&group.wait())?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / (CALLS * LAUNCHES) as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[1])
}

/// Numbers between -1 and 1, the same on every rank: multiples of 2^-15, so that a sum of few is exact
/// in f32 and the model rounds what the kernel does.
fn data(count: usize, name: u64) -> Vec<bf16> {
    let mut state = name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed;
    let mut next = || {
        // xorshift64 (Marsaglia, 2003), from a state that is never 0.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 48) as f32 / f32::from(1u16 << 15) - 1.0
    };
    (0..count).map(|_| bf16::from_f32(next())).collect()
}
