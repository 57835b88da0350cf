//! Results, to the bit: every type by every operator, and the values where they go wrong.

use symmem_collectives::{Algorithm, AllReduceError, CallError, Collectives as _};
use symmem_hal::types::{DType, ReduceOp};
use symmem_mem::call::Operation;
use symmem_mem::{Options, Tensor};

use super::data::{random, specials};
use super::harness::{Bench, Case, Placement, affordable, run};
use crate::model::reduce::reduce;
use crate::runner::{Context, Test, Verdict, options};
use crate::support::random::Random;
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(every_type_by_every_operator).seconds(120),
    test!(every_pair_of_special_values).seconds(120),
    test!(every_pair_of_f8).ranks(1, 8).seconds(120),
    test!(every_f16_and_bf16).ranks(1, 8).seconds(120),
    test!(every_placement),
    test!(slices_of_the_caller),
    test!(results_repeat),
    test!(a_part_has_the_bits_of_the_whole),
    test!(group_completion_is_everybodys),
    test!(data_is_copied_in_first),
    test!(sums_of_16_bits_are_formed_in_32),
    test!(without_checks),
];

/// Each operator of each type.
fn pairs() -> impl Iterator<Item = (DType, ReduceOp)> {
    DType::ALL.into_iter().flat_map(|dtype| {
        ReduceOp::ALL.into_iter().filter(move |op| op.supports(dtype)).map(move |op| (dtype, op))
    })
}

fn every_type_by_every_operator(context: &Context) -> Verdict {
    let bench = Bench::new(context, context.group()?, 8 * 400)?;
    for (n, (dtype, op)) in pairs().enumerate() {
        let placement = Placement::number(n);
        bench.check_all(Case { placement, ..Case::new(dtype, op, 397) })?;
    }
    Ok(())
}

/// Codes that go through `codes` in rank 0 fastest, then in rank 1, and are drawn in the others.
fn combined(context: &Context, dtype: DType, codes: &[u64], count: u64) -> Vec<Vec<u8>> {
    let n = codes.len() as u64;
    let size = dtype.size();
    (0..context.size() as u64)
        .map(|rank| {
            let mut random = Random::new(context.seed(), &[dtype.code().into(), rank]);
            let index = |i: u64, drawn| match rank {
                0 => i % n,
                1 => i / n % n,
                _ => drawn,
            };
            let code = |i| codes[index(i, random.below(n)) as usize];
            (0..count).map(code).flat_map(|code| code.to_le_bytes()[..size].to_vec()).collect()
        })
        .collect()
}

/// Runs all operators of a type on given data, each by another algorithm than the one before.
fn by_every_operator(bench: &Bench<'_>, dtype: DType, inputs: &[Vec<u8>], count: u64) -> Verdict {
    for (n, op) in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)).enumerate() {
        let algorithm = [Algorithm::TwoShot, Algorithm::OneShot][n % 2];
        let placement = Placement::number(n);
        let case = Case { algorithm, placement, ..Case::new(dtype, op, count) };
        bench.check_inputs(case, inputs)?;
    }
    Ok(())
}

fn every_pair_of_special_values(context: &Context) -> Verdict {
    let bench = Bench::new(context, context.group()?, 8 * 40 * 40)?;
    for dtype in DType::ALL {
        let codes = specials(dtype);
        let count = (codes.len() * codes.len()) as u64;
        by_every_operator(&bench, dtype, &combined(context, dtype, &codes, count), count)?;
    }
    Ok(())
}

fn every_pair_of_f8(context: &Context) -> Verdict {
    let bench = Bench::new(context, context.group()?, 1 << 16)?;
    let codes: Vec<u64> = (0..256).collect();
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        by_every_operator(&bench, dtype, &combined(context, dtype, &codes, 1 << 16), 1 << 16)?;
    }
    Ok(())
}

fn every_f16_and_bf16(context: &Context) -> Verdict {
    let bench = Bench::new(context, context.group()?, 2 << 16)?;
    let codes: Vec<u64> = (0..1 << 16).collect();
    for dtype in [DType::F16, DType::BF16] {
        let mut inputs = combined(context, dtype, &codes, 1 << 16);
        if let Some(second) = inputs.get_mut(1) {
            // Every code meets special ones.
            let specials = specials(dtype);
            let shuffled = (0..1u64 << 16).map(|i| specials[(i % specials.len() as u64) as usize]);
            *second = shuffled.flat_map(|code| code.to_le_bytes()[..2].to_vec()).collect();
        }
        by_every_operator(&bench, dtype, &inputs, 1 << 16)?;
    }
    Ok(())
}

fn every_placement(context: &Context) -> Verdict {
    let bench = Bench::new(context, context.group()?, 4 * 50_000)?;
    for count in [1, 100, affordable(context, 3000), affordable(context, 50_000)] {
        bench.check_placed(Case::new(DType::F32, ReduceOp::Sum, count), &Placement::ALL)?;
    }
    Ok(())
}

/// Slices are borrowed for the call: a group of the host takes them, any other says that it cannot.
fn slices_of_the_caller(context: &Context) -> Verdict {
    let group = context.group()?;
    let me = context.rank() as i32;
    let size = context.size() as i32;
    for count in [0i32, 1, 63, 5000, 200_000] {
        let input: Vec<i32> = (0..count).map(|i| i * 7 + me).collect();
        let expected: Vec<i32> = (0..count).map(|i| i * 7 * size + size * (size - 1) / 2).collect();
        let mut output = vec![-1; input.len()];
        let done = group.all_reduce_slice(&input, &mut output, ReduceOp::Sum);
        if context.backend() != symmem_hal::types::BackendKind::Host {
            crate::check_err!(done, AllReduceError::Call(CallError::Borrowed(_)));
            check!(output.iter().all(|x| *x == -1), "a refused call wrote");
            continue;
        }
        done?;
        check!(output == expected, "{count} elements");
        let mut data = input;
        group.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
        check!(data == expected, "{count} elements in place");
    }
    Ok(())
}

/// The same data gives the same bits, whatever ran in between.
fn results_repeat(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = crate::suite::sync::stream_of(&group)?;
    let count = 10_001;
    let x = Tensor::<f32>::zeros(context.device(), &[count])?;
    let y = Tensor::<f32>::zeros(context.device(), &[count])?;
    let data = random(DType::F32, count, context.seed(), 0, context.rank() as u64);
    super::harness::write(&x, &data)?;
    let mut first: Option<Vec<u8>> = None;
    for round in 0..20u64 {
        let algorithm = Algorithm::ALL[[0, 2, 3][round as usize % 3]];
        run(group.all_reduce(&x).into(&y).algorithm(algorithm), &stream)?;
        let found = super::harness::read(&y)?;
        let first = first.get_or_insert_with(|| found.clone());
        check!(found == *first, "round {round}, {algorithm}: other bits than in round 0");
        let noise = y.slice(0, 1 + round * 37)?;
        run(group.all_reduce(&noise).op(ReduceOp::Max), &stream)?;
    }
    let digest = first.iter().flatten().fold(0u64, |d, b| d.wrapping_mul(31) ^ u64::from(*b));
    context.same("bits", digest);
    Ok(())
}

/// Reduced by itself, a part of a tensor has the bits that it has in the whole, at sizes on either
/// side of every choice.
fn a_part_has_the_bits_of_the_whole(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = crate::suite::sync::stream_of(&group)?;
    let count = 60_000;
    let whole = Tensor::<half::bf16>::zeros(context.device(), &[count])?;
    let inputs: Vec<Vec<u8>> = (0..context.size() as u64)
        .map(|rank| random(DType::BF16, count, context.seed(), 1, rank))
        .collect();
    let mine = &inputs[context.rank()];
    super::harness::write(&whole, mine)?;
    let y = Tensor::<half::bf16>::zeros(context.device(), &[count])?;
    run(group.all_reduce(&whole).into(&y), &stream)?;
    let expected = super::harness::read(&y)?;
    check!(expected == reduce(DType::BF16, ReduceOp::Sum, &inputs), "the whole is wrong");
    for (start, length) in
        [(0, 1), (7, 9), (100, 255), (1, 257), (3, 8192), (17, 30_000), (1, 59_999)]
    {
        let (part, out) = (whole.slice(start, length)?, y.slice(start, length)?);
        run(group.all_reduce(&part).into(&out), &stream)?;
        let bytes = 2 * start as usize..2 * (start + length) as usize;
        check_eq!(
            super::harness::read(&out)? == expected[bytes],
            true,
            "elements {start} to {}",
            start + length
        );
    }
    Ok(())
}

/// Under group completion, whoever has returned knows that every rank has the result.
fn group_completion_is_everybodys(context: &Context) -> Verdict {
    let completion = symmem_mem::Completion::Group;
    let group = context.group_with(&Options { completion, ..options(context.size()) })?;
    let stream = crate::suite::sync::stream_of(&group)?;
    let x = Tensor::<u32>::zeros(context.device(), &[5000])?;
    let y = Tensor::<u32>::zeros(context.device(), &[5000])?;
    let handle = group.rendezvous(&y, &group.wait())?;
    for (round, algorithm) in
        (1u32..).zip(Algorithm::of(Operation::AllReduce).iter().copied().cycle().take(12))
    {
        let count = if algorithm == Algorithm::Packet { 100 } else { 5000 };
        let (x, y) = (x.slice(0, count)?, y.slice(0, count)?);
        x.write(&vec![round; count as usize])?;
        run(group.all_reduce(&x).into(&y).algorithm(algorithm), &stream)?;
        for rank in group.ranks() {
            let theirs = handle.remote(rank)?.slice(0, count)?;
            let mut found = vec![0u32; count as usize];
            theirs.read(&mut found)?;
            let expected = round * context.size() as u32;
            check!(
                found.iter().all(|x| *x == expected),
                "round {round}, {algorithm}: rank {rank} is not done"
            );
        }
        // Before the next round's results, all have looked.
        context.meet()?;
    }
    Ok(())
}

/// Data in private memory, copied into the symmetric input as part of the operation.
fn data_is_copied_in_first(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = crate::suite::sync::stream_of(&group)?;
    for (number, count) in [0, 1, 9, 2048, 2049, 40_000].into_iter().enumerate() {
        let inputs: Vec<Vec<u8>> = (0..context.size() as u64)
            .map(|rank| random(DType::BF16, count, context.seed(), number as u64, rank))
            .collect();
        let tensor = || Tensor::<half::bf16>::zeros(context.device(), &[count]);
        let (source, x, y) = (tensor()?, tensor()?, tensor()?);
        group.rendezvous(&x, &group.wait())?;
        super::harness::write(&source, &inputs[context.rank()])?;
        let expected = reduce(DType::BF16, ReduceOp::Sum, &inputs);
        for algorithm in [Algorithm::Auto, Algorithm::OneShot, Algorithm::TwoShot] {
            let call = group.all_reduce(&x).copy_from(&source).algorithm(algorithm);
            run(call.into(&y), &stream)?;
            check!(super::harness::read(&y)? == expected, "{count} by {algorithm}");
            check!(super::harness::read(&x)? == inputs[context.rank()], "{count}: not copied in");
            run(call, &stream)?;
            check!(super::harness::read(&x)? == expected, "{count} by {algorithm} in place");
            let kept = super::harness::read(&source)?;
            check!(kept == inputs[context.rank()], "{count}: the source has changed");
        }
        for (from, elements) in [(0, count.saturating_sub(1)), (0, 0)] {
            let short = source.slice(from, elements)?;
            if elements != count {
                let found = run(group.all_reduce(&x).copy_from(&short), &stream);
                crate::check_err!(found, AllReduceError::Source { .. });
            }
        }
        if count > 0 {
            let found = run(group.all_reduce(&x).copy_from(&x), &stream);
            crate::check_err!(found, AllReduceError::Call(CallError::Overlap));
        }
    }
    Ok(())
}

/// 256 and ones: in bf16 none of them counts, and in f16 as many small ones are lost beside 2048.
/// Rounded once, all do.
fn sums_of_16_bits_are_formed_in_32(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = crate::suite::sync::stream_of(&group)?;
    let ranks = context.size() as f32;
    let first = context.rank() == 0;
    let x = Tensor::<half::bf16>::zeros(context.device(), &[100])?;
    let y = Tensor::<half::f16>::zeros(context.device(), &[100])?;
    for algorithm in [Algorithm::Auto, Algorithm::OneShot, Algorithm::TwoShot] {
        x.write(&[half::bf16::from_f32(if first { 256.0 } else { 1.0 }); 100])?;
        y.write(&[half::f16::from_f32(if first { 2048.0 } else { 1.0 }); 100])?;
        run(group.all_reduce(&x).algorithm(algorithm), &stream)?;
        run(group.all_reduce(&y).algorithm(algorithm), &stream)?;
        let expected = half::bf16::from_f32(256.0 + (ranks - 1.0));
        check_eq!(x.to_vec()?, vec![expected; 100]);
        check_eq!(y.to_vec()?, vec![half::f16::from_f32(2048.0 + (ranks - 1.0)); 100]);
        // What 16 bits alone would make of it.
        let naive = (1..context.size())
            .fold(half::bf16::from_f32(256.0), |sum, _| sum + half::bf16::from_f32(1.0));
        check!(context.size() < 3 || naive != expected, "the sums do not differ");
    }
    Ok(())
}

fn without_checks(context: &Context) -> Verdict {
    let options = Options { checked: false, ..options(context.size()) };
    let bench = Bench::new(context, context.group_with(&options)?, 4 * 9000)?;
    for count in [0, 1, 100, 9000] {
        bench.check_all(Case::new(DType::F32, ReduceOp::Avg, count))?;
    }
    Ok(())
}
