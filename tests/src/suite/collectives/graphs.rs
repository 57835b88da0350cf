//! Collectives in graphs.

use symmem_collectives::{Algorithm, Collectives as _};
use symmem_hal::types::{DType, ReduceOp};
use symmem_hal::{Stream, StreamMode};
use symmem_mem::{Tensor, View};
use symmem_sync::Lanes as _;

use super::harness::synchronize;
use crate::runner::{Context, PATIENT, Test, Verdict};
use crate::{check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_graph_of_several_collectives_with_new_data),
    test!(what_a_captured_call_was_given_may_go),
];

const COUNT: usize = 700;

fn modes(context: &Context) -> Vec<Stream> {
    let modes = [StreamMode::Inline, StreamMode::Worker];
    modes.iter().filter_map(|mode| context.device().stream(*mode).ok()).collect()
}

/// What rank `rank` puts in at launch `round`.
fn input(rank: usize, round: u64, count: usize) -> Vec<u64> {
    (0..count as u64).map(|i| (rank as u64 + 1) * 1000 + round * 7 + i).collect()
}

fn sum(ranks: usize, round: u64, count: usize) -> Vec<u64> {
    let all: Vec<_> = (0..ranks).map(|rank| input(rank, round, count)).collect();
    (0..count).map(|i| all.iter().map(|input| input[i]).sum()).collect()
}

/// By every algorithm, staged and direct, one after the other in one graph; eager calls between.
fn a_graph_of_several_collectives_with_new_data(context: &Context) -> Verdict {
    let (ranks, me, device) = (context.size(), context.rank(), context.device());
    for stream in modes(context) {
        let group = context.group()?;
        let (x, y) = (
            Tensor::<u64>::zeros(device, &[COUNT as u64])?,
            Tensor::<u64>::zeros(device, &[COUNT as u64])?,
        );
        let all = Tensor::<u64>::zeros(device, &[(COUNT * ranks) as u64])?;
        let symmetric = Tensor::<u64>::zeros(device, &[COUNT as u64])?;
        group.rendezvous(&symmetric, &group.wait())?;
        group.lane()?.prepare()?;
        group.prepare(&[(DType::U64, ReduceOp::Sum)])?;
        stream.begin_capture()?;
        group.all_gather(&x).into(&all).on(&stream)?;
        for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
            group.all_reduce(&x).into(&y).algorithm(algorithm).on(&stream)?;
            group.all_reduce(&symmetric).algorithm(algorithm).on(&stream)?;
        }
        let graph = stream.end_capture()?;
        context.ready()?;
        for round in 0..4u64 {
            context.step(format_args!("launch {round}"));
            x.write(&input(me, round, COUNT))?;
            symmetric.write(&vec![round + 1; COUNT])?;
            graph.launch(&stream, &PATIENT)?;
            synchronize(&stream)?;
            check_eq!(y.to_vec()?, sum(ranks, round, COUNT), "launch {round}");
            let factor = (ranks * ranks) as u64;
            check_eq!(symmetric.to_vec()?, vec![(round + 1) * factor; COUNT], "launch {round}");
            let gathered: Vec<u64> =
                (0..ranks).flat_map(|rank| input(rank, round, COUNT)).collect();
            check_eq!(all.to_vec()?, gathered, "launch {round}");
            group.all_reduce(&x).on(&stream)?;
            synchronize(&stream)?;
            check_eq!(x.to_vec()?, sum(ranks, round, COUNT), "a call after launch {round}");
        }
        group.check()?;
    }
    Ok(())
}

/// A call with lists of its own: lists, tensors and streams go before the graph is launched.
fn what_a_captured_call_was_given_may_go(context: &Context) -> Verdict {
    const COLUMNS: u64 = 24;
    let (ranks, me, device) = (context.size(), context.rank(), context.device());
    let rows = 2 * ranks as u64;
    for stream in modes(context) {
        let group = context.group()?;
        let result = Tensor::<u64>::zeros(device, &[2, COLUMNS])?;
        group.lane()?.prepare()?;
        group.prepare(&[(DType::U64, ReduceOp::Sum)])?;
        stream.begin_capture()?;
        {
            let input = Tensor::<u64>::zeros(device, &[rows, COLUMNS])?;
            input.write(&vec![me as u64 + 1; (rows * COLUMNS) as usize])?;
            let views: Vec<&View> = vec![&result];
            let offsets: Vec<u64> = (1..=ranks as u64).map(|block| 2 * block).collect();
            let destinations: Vec<_> = group.ranks().collect();
            let call = group.reduce_scatter_offset(&input, &views).op(ReduceOp::Sum);
            call.offsets(&offsets).destinations(&destinations).on(&stream)?;
        }
        let graph = stream.end_capture()?;
        context.ready()?;
        for round in 0..3 {
            // Takes what has come free.
            let _taken = vec![u64::MAX; 4096];
            result.write(&vec![0; 2 * COLUMNS as usize])?;
            graph.launch(&stream, &PATIENT)?;
            synchronize(&stream)?;
            let expected = (ranks * (ranks + 1) / 2) as u64;
            check_eq!(result.to_vec()?, vec![expected; 2 * COLUMNS as usize], "launch {round}");
        }
        group.check()?;
    }
    Ok(())
}
