//! The reduce-scatter of blocks: any number of any size, to any ranks.

use symmem_collectives::{CallError, Collectives as _, ReduceScatterOffsetError as Error};
use symmem_hal::types::{Bytes, DType, Layout, Rank, ReduceOp};
use symmem_hal::{Fault as _, Kind};
use symmem_mem::{Allocation, Failure, Group, Tensor, View};

use super::data::random;
use super::harness::{affordable, read, run};
use crate::model::reduce::reduce;
use crate::runner::{Context, Test, TestError, Verdict};
use crate::suite::sync::stream_of;
use crate::support::random::Random;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(equal_blocks_in_turn),
    test!(uneven_blocks_in_turn),
    test!(random_blocks).seconds(120),
    test!(hundreds_of_blocks_for_one_rank),
    test!(blocks_of_more_rows_than_16_bits_hold).ranks(1, 8),
    test!(nothing_at_all),
    test!(bad_calls_are_refused),
    test!(another_list_of_blocks).at_least(2),
];

/// Bytes before, after and between rows that nobody may touch.
const POISON: u8 = 0xa5;

/// One call to be checked.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    op: ReduceOp,
    rows: u64,
    columns: u64,
    /// Elements from one row to the next.
    stride: u64,
    dim: usize,
    offsets: Vec<u64>,
    /// Who gets each block; by turns where there are none.
    owners: Vec<usize>,
    symmetric: bool,
}

impl Case {
    fn new(rows: u64, columns: u64, dim: usize, offsets: Vec<u64>) -> Self {
        let (dtype, op) = (DType::F32, ReduceOp::Sum);
        let stride = columns;
        Case { dtype, op, rows, columns, stride, dim, offsets, owners: vec![], symmetric: false }
    }

    fn owner(&self, block: usize, ranks: usize) -> usize {
        self.owners.get(block).copied().unwrap_or(block % ranks)
    }

    /// Where a block begins and ends along its dimension.
    fn range(&self, block: usize) -> (u64, u64) {
        let start = block.checked_sub(1).map_or(0, |before| self.offsets[before]);
        (start, self.offsets[block])
    }

    /// The elements of a block, row after row, as indices into the input.
    fn elements(&self, block: usize) -> Vec<u64> {
        let (from, to) = self.range(block);
        let (rows, columns) = match self.dim {
            0 => (from..to, 0..self.columns),
            _ => (0..self.rows, from..to),
        };
        rows.flat_map(|row| columns.clone().map(move |c| (row, c)))
            .map(|(row, column)| row * self.stride + column)
            .collect()
    }
}

/// Runs a case on fresh data and compares every byte with a plain reduction of each block.
fn check_case(context: &Context, group: &Group, case: &Case, number: u64) -> Verdict {
    context.step(format_args!("{case:?}"));
    let (ranks, size) = (context.size(), case.dtype.size());
    let layout = Layout::strided(&[case.rows, case.columns], &[case.stride, 1])?;
    let extent = layout.extent();
    let inputs: Vec<Vec<u8>> = (0..ranks as u64)
        .map(|rank| random(case.dtype, extent, context.seed(), number, rank))
        .collect();
    let allocation = Allocation::new(context.device(), Bytes::new(extent * size as u64))?;
    let input = View::new(&allocation, Bytes::ZERO, case.dtype, layout)?;
    if case.symmetric {
        group.rendezvous(&input, &group.wait())?;
    }
    allocation.memory().write(Bytes::ZERO, &inputs[context.rank()])?;
    let mine: Vec<usize> = (0..case.offsets.len())
        .filter(|block| case.owner(*block, ranks) == context.rank())
        .collect();
    // An element of poison before each output, and one after the last.
    let counts: Vec<u64> = mine.iter().map(|b| case.elements(*b).len() as u64).collect();
    let room = counts.iter().sum::<u64>() + mine.len() as u64 + 1;
    let memory = Allocation::new(context.device(), Bytes::new(room * size as u64))?;
    memory.memory().write(Bytes::ZERO, &vec![POISON; room as usize * size])?;
    let mut at = 1;
    let mut outputs = Vec::new();
    for count in &counts {
        let offset = Bytes::new(at * size as u64);
        outputs.push(View::new(&memory, offset, case.dtype, Layout::flat(*count))?);
        at += count + 1;
    }
    let outputs: Vec<&View> = outputs.iter().collect();
    let owners: Vec<Rank> =
        case.owners.iter().map(|r| group.rank_at(*r)).collect::<Result<_, _>>()?;
    let call = group.reduce_scatter_offset(&input, &outputs).dim(case.dim).op(case.op);
    let call = call.offsets(&case.offsets);
    let call = if owners.is_empty() { call } else { call.destinations(&owners) };
    run(call, &stream_of(group)?)?;
    let mut after = vec![0; inputs[context.rank()].len()];
    allocation.memory().read(Bytes::ZERO, &mut after)?;
    check!(after == inputs[context.rank()], "{case:?}: the input has changed");
    // It is this rank's again: whoever still read it would show.
    allocation.memory().write(Bytes::ZERO, &vec![POISON; after.len()])?;
    let mut expected = vec![POISON; size];
    for block in mine {
        let parts: Vec<Vec<u8>> = inputs
            .iter()
            .map(|input| {
                let element = |i: u64| input[i as usize * size..][..size].to_vec();
                case.elements(block).into_iter().flat_map(element).collect()
            })
            .collect();
        expected.extend(reduce(case.dtype, case.op, &parts));
        expected.extend(vec![POISON; size]);
    }
    let all = View::new(&memory, Bytes::ZERO, case.dtype, Layout::flat(room))?;
    check!(read(&all)? == expected, "{case:?}: wrong bytes");
    Ok(())
}

/// The length of the dimension that is not cut: less where many ranks look at all of it.
fn across(context: &Context, length: u64) -> u64 {
    if context.size() > 8 { 3 } else { length }
}

/// One and two blocks for each rank, of 64 rows and 32 columns.
fn equal_blocks_in_turn(context: &Context) -> Verdict {
    let group = context.group()?;
    let (rows, columns) = (across(context, 64), across(context, 32));
    for each in [1, 2] {
        let blocks = each * context.size() as u64;
        for symmetric in [false, true] {
            let by_rows =
                Case::new(64 * blocks, columns, 0, (1..=blocks).map(|i| 64 * i).collect());
            check_case(context, &group, &Case { symmetric, ..by_rows }, 2 * each)?;
            let by_columns =
                Case::new(rows, 32 * blocks, 1, (1..=blocks).map(|i| 32 * i).collect());
            check_case(context, &group, &Case { symmetric, ..by_columns }, 2 * each + 1)?;
        }
    }
    // Without offsets.
    let ranks = context.size() as u64;
    let x = Tensor::<u32>::zeros(context.device(), &[3 * ranks, 5])?;
    x.write(&(0..15 * ranks as u32).collect::<Vec<_>>())?;
    let y = Tensor::<u32>::zeros(context.device(), &[3, 5])?;
    run(group.reduce_scatter_offset(&x, &[&y]), &stream_of(&group)?)?;
    let first = 15 * context.rank() as u32;
    let expected: Vec<u32> = (first..first + 15).map(|i| i * context.size() as u32).collect();
    check_eq!(y.to_vec()?, expected);
    Ok(())
}

fn uneven_blocks_in_turn(context: &Context) -> Verdict {
    let group = context.group()?;
    let ranks = context.size();
    let sizes = [16, 48].into_iter().flat_map(|size| vec![size; ranks]);
    let offsets: Vec<u64> = sizes
        .scan(0, |end, size| {
            *end += size;
            Some(*end)
        })
        .collect();
    let total = 64 * ranks as u64;
    for symmetric in [false, true] {
        let rows = Case::new(total, across(context, 32), 0, offsets.clone());
        check_case(context, &group, &Case { symmetric, ..rows }, 0)?;
        let columns = Case::new(across(context, 64), total, 1, offsets.clone());
        check_case(context, &group, &Case { symmetric, ..columns }, 1)?;
    }
    Ok(())
}

fn random_blocks(context: &Context) -> Verdict {
    let group = context.group()?;
    let mut random = Random::new(context.seed(), &[]);
    let ranks = context.size() as u64;
    for number in 0..if ranks > 8 { 6 } else { 30 } {
        let most = affordable(context, 300);
        let (rows, columns) = (1 + random.below(most), 1 + random.below(most));
        let dim = random.below(2) as usize;
        let size = if dim == 0 { rows } else { columns };
        let mut offsets: Vec<u64> =
            (0..1 + random.below(12)).map(|_| random.below(size + 1)).collect();
        offsets.sort_unstable();
        let owners = offsets.iter().map(|_| random.below(ranks) as usize).collect();
        let dtype = DType::ALL[random.below(14) as usize];
        let case = Case {
            dtype,
            op: [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg][random.below(3) as usize],
            stride: columns + random.below(2) * random.below(9),
            owners,
            symmetric: random.below(2) == 0,
            ..Case::new(rows, columns, dim, offsets)
        };
        check_case(context, &group, &case, number)?;
    }
    Ok(())
}

fn hundreds_of_blocks_for_one_rank(context: &Context) -> Verdict {
    let group = context.group()?;
    for dim in [0, 1] {
        for symmetric in [false, true] {
            let offsets: Vec<u64> = (0..300).map(|i| i * 2 + i % 2).collect();
            let owners = vec![context.size() - 1; 300];
            let (rows, columns) = if dim == 0 { (600, 7) } else { (7, 600) };
            let case = Case { owners, symmetric, ..Case::new(rows, columns, dim, offsets) };
            check_case(context, &group, &case, 0)?;
        }
    }
    Ok(())
}

fn blocks_of_more_rows_than_16_bits_hold(context: &Context) -> Verdict {
    let group = context.group()?;
    for symmetric in [false, true] {
        let rows = Case::new(70_010, 1, 0, vec![3, 70_003, 70_010]);
        check_case(context, &group, &Case { symmetric, dtype: DType::U16, ..rows }, 0)?;
        let columns = Case::new(1, 70_010, 1, vec![3, 70_003, 70_010]);
        check_case(context, &group, &Case { symmetric, dtype: DType::BF16, ..columns }, 1)?;
    }
    Ok(())
}

fn nothing_at_all(context: &Context) -> Verdict {
    let group = context.group()?;
    for (rows, columns, offsets) in [(0, 5, vec![0]), (5, 0, vec![5]), (5, 5, vec![0, 0, 0])] {
        check_case(context, &group, &Case::new(rows, columns, 0, offsets), 0)?;
    }
    // No block at all is a call like any other.
    let x = Tensor::<f32>::zeros(context.device(), &[4, 4])?;
    run(group.reduce_scatter_offset(&x, &[]).offsets(&[]), &stream_of(&group)?)?;
    group.check()?;
    Ok(())
}

/// Each is found before anything is sent, so that the right call still succeeds.
fn bad_calls_are_refused(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = stream_of(&group)?;
    let ranks = context.size();
    let x = Tensor::<f32>::zeros(context.device(), &[4, 6])?;
    let y = Tensor::<f32>::zeros(context.device(), &[100])?;
    let rank = |index: usize| group.rank_at(index);
    let mine = group.rank();
    let out = y.slice(0, 6)?;
    let refused = |found: Result<(), Error>| -> Result<Error, TestError> {
        let error = check_err!(found, _);
        check_eq!(error.kind(), Kind::InvalidArgument);
        Ok(error)
    };
    let call = group.reduce_scatter_offset(&x, &[]);
    let error = refused(call.dim(2).on(&stream))?;
    check!(matches!(error, Error::Dim { dim: 2 }), "{error}");
    let error = refused(call.offsets(&[3, 2]).on(&stream))?;
    check!(matches!(error, Error::Offset { index: 1, start: 3, end: 2, size: 4 }), "{error}");
    let error = refused(call.dim(1).offsets(&[7]).on(&stream))?;
    check!(matches!(error, Error::Offset { index: 0, start: 0, end: 7, size: 6 }), "{error}");
    let three = [rank(0)?; 3];
    let error = refused(call.destinations(&three).on(&stream))?;
    check!(matches!(error, Error::Uneven { size: 4, blocks: 3 }), "{error}");
    let error = refused(call.offsets(&[1, 2]).destinations(&three).on(&stream))?;
    check!(matches!(error, Error::Destinations { blocks: 2, destinations: 3 }), "{error}");
    let error = refused(call.offsets(&[1]).destinations(&[mine]).on(&stream))?;
    check!(matches!(error, Error::Outputs { owned: 1, outputs: 0 }), "{error}");
    let outputs = [&*out, &*out];
    let call = group.reduce_scatter_offset(&x, &outputs);
    let error = refused(call.offsets(&[1, 2]).destinations(&[mine; 2]).on(&stream))?;
    check!(matches!(error, Error::Call(CallError::Overlap)), "{error}");
    let error = refused(call.offsets(&[1, 3]).destinations(&[mine; 2]).on(&stream))?;
    check!(matches!(error, Error::Count { index: 1, expected: 12, found: 6 }), "{error}");
    let flat = Tensor::<f32>::zeros(context.device(), &[24])?;
    let error = refused(group.reduce_scatter_offset(&flat, &[]).offsets(&[]).on(&stream))?;
    check!(matches!(error, Error::NotRows { .. }), "{error}");
    let within = x.slice(0, 6)?;
    let outputs = [&*within];
    let call = group.reduce_scatter_offset(&x, &outputs).offsets(&[1]).destinations(&three[..1]);
    if mine.index() == 0 {
        let error = refused(call.on(&stream))?;
        check!(matches!(error, Error::Call(CallError::Overlap)), "{error}");
    }
    let elsewhere = context.world()?.rank_at(ranks - 1)?;
    let call = group.reduce_scatter_offset(&x, &[]).offsets(&[1]);
    let error = refused(call.destinations(&[elsewhere]).on(&stream))?;
    check!(matches!(error, Error::Call(CallError::Rank(_))), "{error}");
    context.meet()?;
    check_case(context, &group, &Case::new(4, 6, 0, vec![1, 4]), 0)
}

fn another_list_of_blocks(context: &Context) -> Verdict {
    let lists: [(&[u64], &[usize]); 4] =
        [(&[2, 4], &[0, 1]), (&[1, 4], &[0, 1]), (&[2, 4], &[1, 0]), (&[2], &[0])];
    for (offsets, owners) in &lists[1..] {
        let group = context.group()?;
        let odd = context.rank() + 1 == context.size();
        let (offsets, owners) = if odd { (*offsets, *owners) } else { lists[0] };
        let x = Tensor::<f32>::zeros(context.device(), &[4, 6])?;
        let owners: Vec<Rank> =
            owners.iter().map(|r| group.rank_at(*r)).collect::<Result<_, _>>()?;
        let mut outputs = Vec::new();
        for (block, owner) in owners.iter().enumerate() {
            let from = block.checked_sub(1).map_or(0, |before| offsets[before]);
            if *owner == group.rank() {
                let rows = offsets[block] - from;
                outputs.push(Tensor::<f32>::zeros(context.device(), &[rows, 6])?);
            }
        }
        let outputs: Vec<&View> = outputs.iter().map(|t| t.view()).collect();
        let call = group.reduce_scatter_offset(&x, &outputs);
        let found = run(call.offsets(offsets).destinations(&owners), &stream_of(&group)?);
        check_err!(found, Error::Failed(Failure::CallMismatch { .. }));
        context.meet()?;
    }
    Ok(())
}
