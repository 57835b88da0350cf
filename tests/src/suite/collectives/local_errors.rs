//! Bad input that one rank finds alone: an error before any effect. Nothing is sent and no epoch
//! used, so that the right call, made by all afterwards, succeeds.

use symmem_collectives::{
    Algorithm, AllGatherError, AllReduceError, AllToAllError, AllToAllNdError, BroadcastError,
    CallError, Collectives as _, ReduceError, ReduceScatterError,
};
use symmem_hal::types::{BackendKind, Bytes, DType, Layout, ReduceOp};
use symmem_hal::{Device, Fault as _, Kind, StreamMode};
use symmem_mem::{Allocation, Tensor, View, ViewError};
use symmem_sync::Lanes as _;

use super::harness::{Bench, Case, run};
use crate::runner::{Context, Test, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(counts_differ),
    test!(types_differ),
    test!(input_and_output_overlap),
    test!(a_view_has_gaps),
    test!(the_operator_is_not_of_the_type),
    test!(another_backend),
    test!(too_much_for_packets),
    test!(shapes_do_not_fit),
    test!(dimensions_without_elements_have_any_size).ranks(1, 8),
    test!(overlaps_that_are_not_in_place),
    test!(what_is_of_another_group_or_operation),
    test!(a_view_past_the_end),
    test!(slices_of_different_lengths).only_on(&[BackendKind::Host]),
];

/// A bad call on the first rank alone, then a good one on all; and the other way round.
fn alone(context: &Context, bad: impl Fn(&Bench<'_>) -> Verdict) -> Verdict {
    let bench = Bench::new(context, context.group()?, 1 << 16)?;
    for rank in [0, context.size() - 1] {
        if context.rank() == rank {
            bad(&bench)?;
            bad(&bench)?;
        }
        bench.group.check()?;
        for count in [10, 3000] {
            bench.check_all(Case::new(DType::F32, ReduceOp::Sum, count))?;
        }
    }
    Ok(())
}

fn tensor(bench: &Bench<'_>, count: u64) -> Result<Tensor<f32>, crate::runner::TestError> {
    Ok(Tensor::zeros(bench.context.device(), &[count])?)
}

fn counts_differ(context: &Context) -> Verdict {
    alone(context, |bench| {
        let (x, y) = (tensor(bench, 100)?, tensor(bench, 99)?);
        for (input, output) in [(&x, &y), (&y, &x)] {
            let found = run(bench.group.all_reduce(input).into(output), &bench.stream);
            let error = check_err!(found, AllReduceError::Count { .. });
            check!(
                matches!(&error, AllReduceError::Count { input: i, output: o }
                    if (*i, *o) == (input.count(), output.count())),
                "{error}"
            );
            check_eq!(error.kind(), Kind::InvalidArgument);
        }
        Ok(())
    })
}

fn types_differ(context: &Context) -> Verdict {
    alone(context, |bench| {
        let x = tensor(bench, 100)?;
        let y = Tensor::<i32>::zeros(bench.context.device(), &[100])?;
        let found = run(bench.group.all_reduce(&x).into(&y), &bench.stream);
        check_err!(
            found,
            AllReduceError::Call(CallError::DType { input: DType::F32, output: DType::I32 })
        );
        Ok(())
    })
}

fn input_and_output_overlap(context: &Context) -> Verdict {
    alone(context, |bench| {
        let all = tensor(bench, 200)?;
        for (input, output) in [(0, 1), (1, 0), (0, 99), (99, 0)] {
            let (x, y) = (all.slice(input, 100)?, all.slice(output, 100)?);
            let found = run(bench.group.all_reduce(&x).into(&y), &bench.stream);
            check_err!(found, AllReduceError::Call(CallError::Overlap));
        }
        check!(all.to_vec()?.iter().all(|v| *v == 0.0), "a refused call wrote");
        Ok(())
    })?;
    // Side by side is no overlap, and the same range is in place.
    let group = context.group()?;
    let all = Tensor::<u32>::zeros(context.device(), &[200])?;
    all.write(&[1u32; 200])?;
    let stream = crate::suite::sync::stream_of(&group)?;
    let (x, y) = (all.slice(0, 100)?, all.slice(100, 100)?);
    run(group.all_reduce(&x).into(&y), &stream)?;
    run(group.all_reduce(&x).into(&x.clone()), &stream)?;
    check_eq!(all.to_vec()?, vec![context.size() as u32; 200]);
    Ok(())
}

fn a_view_has_gaps(context: &Context) -> Verdict {
    alone(context, |bench| {
        let allocation = Allocation::new(bench.context.device(), Bytes::kib(4))?;
        let layout = Layout::strided(&[10, 10], &[11, 1])?;
        let gaps = View::new(&allocation, Bytes::ZERO, DType::F32, layout)?;
        let y = tensor(bench, 100)?;
        let refused = [
            run(bench.group.all_reduce(&gaps).into(&y), &bench.stream),
            run(bench.group.all_reduce(&y).into(&gaps), &bench.stream),
            run(bench.group.all_reduce(&gaps), &bench.stream),
        ];
        for found in refused {
            let error = check_err!(
                found,
                AllReduceError::Call(CallError::View(ViewError::NotContiguous { .. }))
            );
            check_eq!(error.kind(), Kind::InvalidArgument);
        }
        Ok(())
    })
}

fn the_operator_is_not_of_the_type(context: &Context) -> Verdict {
    alone(context, |bench| {
        let x = tensor(bench, 100)?;
        for op in [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor] {
            let error = check_err!(
                run(bench.group.all_reduce(&x).op(op), &bench.stream),
                AllReduceError::Call(CallError::Op(_))
            );
            check_eq!(error.kind(), Kind::InvalidArgument);
            check!(error.to_string().contains(op.name()), "{error}");
        }
        Ok(())
    })
}

fn another_backend(context: &Context) -> Verdict {
    alone(context, |bench| {
        let elsewhere = match bench.context.device() {
            Device::Host(_) => Device::stub(99),
            _ => Device::host(),
        };
        let mine = tensor(bench, 100)?;
        let theirs = Tensor::<f32>::zeros(&elsewhere, &[100])?;
        let stream = elsewhere.stream(StreamMode::Worker)?;
        let group = &bench.group;
        for (expected, found) in [
            ("input", group.all_reduce(&theirs).into(&mine).on(&bench.stream)),
            ("output", group.all_reduce(&mine).into(&theirs).on(&bench.stream)),
            ("stream", group.all_reduce(&mine).on(&stream)),
        ] {
            let error = check_err!(found, AllReduceError::Call(CallError::Backend { .. }));
            check!(
                matches!(&error, AllReduceError::Call(CallError::Backend { what, found, .. })
                    if *what == expected && *found == elsewhere.kind()),
                "{error}; expected the {expected}"
            );
        }
        Ok(())
    })
}

fn too_much_for_packets(context: &Context) -> Verdict {
    alone(context, |bench| {
        let capacity = bench.group.lane()?.layout().packet_capacity();
        let x = Tensor::<u8>::zeros(bench.context.device(), &[capacity.get() + 1])?;
        let operation = bench.group.all_reduce(&x).algorithm(Algorithm::Packet);
        check_err!(operation.chosen(), AllReduceError::Call(CallError::TooLargeForPackets { .. }));
        let error = check_err!(
            run(operation, &bench.stream),
            AllReduceError::Call(CallError::TooLargeForPackets { .. })
        );
        check!(
            matches!(&error, AllReduceError::Call(CallError::TooLargeForPackets { bytes, capacity: c })
                if bytes.get() == capacity.get() + 1 && *c == capacity),
            "{error}"
        );
        Ok(())
    })
}

/// What each operation asks of its shapes, with the numbers in the error.
fn shapes_do_not_fit(context: &Context) -> Verdict {
    let ranks = context.size();
    alone(context, |bench| {
        let (group, stream) = (&bench.group, &bench.stream);
        let n = ranks as u64;
        let (block, all, odd) =
            (tensor(bench, 10)?, tensor(bench, 10 * n)?, tensor(bench, 10 * n + 1)?);
        let root = group.rank_at(0)?;
        let error = check_err!(
            run(group.all_gather(&block).into(&odd), stream),
            AllGatherError::Count { .. }
        );
        let named = matches!(error, AllGatherError::Count { input: 10, output, ranks: r }
            if output == 10 * n + 1 && r == ranks);
        check!(named, "{error:?}");
        let error = check_err!(
            run(group.reduce_scatter(&odd).into(&block), stream),
            ReduceScatterError::Count { .. }
        );
        check_eq!(error.kind(), Kind::InvalidArgument);
        check_err!(
            run(group.broadcast(&all, root).into(&odd), stream),
            BroadcastError::Count { .. }
        );
        if group.rank() == root {
            check_err!(run(group.reduce(&all, root).into(&odd), stream), ReduceError::Count { .. });
        }
        check_err!(run(group.all_to_all(&all).into(&odd), stream), AllToAllError::Count { .. });
        if ranks > 1 {
            check_err!(run(group.all_gather(&odd), stream), AllGatherError::Blocks { .. });
            check_err!(run(group.reduce_scatter(&odd), stream), ReduceScatterError::Blocks { .. });
            check_err!(run(group.all_to_all(&odd), stream), AllToAllError::Blocks { .. });
        }
        let rows = Tensor::<f32>::zeros(bench.context.device(), &[5, 3 * n])?;
        let columns = Tensor::<f32>::zeros(bench.context.device(), &[5, 4])?;
        let call = group.reduce_scatter(&rows).last_dim().into(&columns);
        check_err!(run(call, stream), ReduceScatterError::Shape { .. });
        check_err!(
            run(group.all_to_all_nd(&rows, &columns), stream),
            AllToAllNdError::Shape { scatter: 1, .. }
        );
        check_err!(
            run(group.all_to_all_nd(&rows, &columns).dims(1, 1), stream),
            AllToAllNdError::Dims { scatter: 1, gather: 1 }
        );
        // As many elements, of a part of another shape.
        let (parts, turned) = ([2, 2 * n, 3], [2 * n, 3, 2]);
        let parts = Tensor::<f32>::zeros(bench.context.device(), &parts)?;
        let turned = Tensor::<f32>::zeros(bench.context.device(), &turned)?;
        check_err!(
            run(group.all_to_all_nd(&parts, &turned), stream),
            AllToAllNdError::Shape { scatter: 1, .. }
        );
        Ok(())
    })
}

/// Each operation has one way of being in place; every other overlap is refused.
fn overlaps_that_are_not_in_place(context: &Context) -> Verdict {
    alone(context, |bench| {
        let (group, stream) = (&bench.group, &bench.stream);
        let n = group.size() as u64;
        let me = group.rank().index() as u64;
        let room = tensor(bench, 20 * n + 20)?;
        let whole = room.slice(10, 10 * n)?;
        // One element beside this rank's block.
        let beside = room.slice(10 + 10 * me + 1, 10)?;
        check_err!(
            run(group.all_gather(&beside).into(&whole), stream),
            AllGatherError::Call(CallError::Overlap)
        );
        check_err!(
            run(group.reduce_scatter(&whole).into(&beside), stream),
            ReduceScatterError::Call(CallError::Overlap)
        );
        let shifted = room.slice(11, 10 * n)?;
        check_err!(
            run(group.all_to_all(&whole).into(&shifted), stream),
            AllToAllError::Call(CallError::Overlap)
        );
        let root = group.rank_at(0)?;
        check_err!(
            run(group.broadcast(&whole, root).into(&shifted), stream),
            BroadcastError::Call(CallError::Overlap)
        );
        Ok(())
    })
}

/// Ranks and lanes of another group, and algorithms of another operation.
fn what_is_of_another_group_or_operation(context: &Context) -> Verdict {
    let other = context.group()?;
    alone(context, |bench| {
        let (group, stream) = (&bench.group, &bench.stream);
        let x = tensor(bench, 10)?;
        let root = other.rank_at(0)?;
        check_err!(
            run(group.broadcast(&x, root), stream),
            BroadcastError::Call(CallError::Rank(_))
        );
        check_err!(run(group.reduce(&x, root), stream), ReduceError::Call(CallError::Rank(_)));
        let lane = other.lane()?;
        let error = check_err!(
            run(group.all_reduce(&x).lane(lane), stream),
            AllReduceError::Call(CallError::Lane)
        );
        check_eq!(error.kind(), Kind::InvalidArgument);
        let by = group.all_reduce(&x).algorithm(Algorithm::LowContention);
        check_err!(run(by, stream), AllReduceError::Call(CallError::Algorithm { .. }));
        let mine = group.rank_at(0)?;
        let by = group.broadcast(&x, mine).algorithm(Algorithm::TwoShot);
        check_err!(run(by, stream), BroadcastError::Call(CallError::Algorithm { .. }));
        Ok(())
    })?;
    // The group's own lane is as good as none.
    let group = context.group()?;
    let x = Tensor::<u32>::zeros(context.device(), &[10])?;
    let stream = crate::suite::sync::stream_of(&group)?;
    run(group.all_reduce(&x).lane(group.lane()?), &stream)?;
    Ok(())
}

fn a_view_past_the_end(context: &Context) -> Verdict {
    alone(context, |bench| {
        let x = tensor(bench, 100)?;
        check_err!(x.slice(1, 100), ViewError::PastEnd { .. });
        let allocation = Allocation::new(bench.context.device(), Bytes::new(400))?;
        let past = View::new(&allocation, Bytes::new(4), DType::F32, Layout::flat(100));
        check_err!(past, ViewError::PastEnd { .. });
        Ok(())
    })
}

fn slices_of_different_lengths(context: &Context) -> Verdict {
    alone(context, |bench| {
        let mut output = [7i32; 9];
        let found = bench.group.all_reduce_slice(&[1i32; 10], &mut output, ReduceOp::Sum);
        check_err!(found, AllReduceError::Count { input: 10, output: 9 });
        let found = bench.group.all_reduce_in_place(&mut [1f32; 10], ReduceOp::And);
        check_err!(found, AllReduceError::Call(CallError::Op(_)));
        check_eq!(output, [7; 9]);
        Ok(())
    })
}

/// Sizes beyond all memory, of a tensor without elements: taken like any other that has none.
fn dimensions_without_elements_have_any_size(context: &Context) -> Verdict {
    let bench = Bench::new(context, context.group()?, 1 << 10)?;
    let (group, ranks) = (&bench.group, context.size() as u64);
    let part = 1 << 60;
    let empty = |shape: &[u64]| Tensor::<f32>::zeros(context.device(), shape);
    let (wide, tall) = (empty(&[0, ranks * part])?, empty(&[0, part])?);
    run(group.all_to_all_nd(&wide, &tall), &bench.stream)?;
    run(group.all_to_all_nd(&tall, &wide).dims(0, 1), &bench.stream)?;
    run(group.reduce_scatter(&wide).into(&tall).last_dim(), &bench.stream)?;
    bench.check_all(Case::new(DType::F32, ReduceOp::Sum, 100))
}
