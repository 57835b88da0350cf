//! Bits: a value is what the inputs at its index make of it, whatever else is in the message, by
//! whatever algorithm, size, place or operation it was computed.

use std::collections::BTreeSet;

use symmem_collectives::{Algorithm, Collectives as _};
use symmem_hal::types::{Bytes, DType, ReduceOp};
use symmem_mem::call::Operation;
use symmem_mem::{Allocation, Group, Options, Tensor};
use symmem_sync::Lanes as _;

use super::data::random;
use super::harness::{affordable, read, run, write};
use super::sizes::{end_of, least_workspace};
use crate::runner::{Context, Test, TestError, Verdict, options};
use crate::suite::sync::stream_of;
use crate::{check, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_value_does_not_depend_on_the_size_of_its_message).seconds(120),
    test!(operations_agree_on_every_bit).seconds(120),
];

type Half = half::bf16;

/// A tensor of random values of this rank's, and its sum over all ranks.
struct Whole {
    group: Group,
    x: Tensor<Half>,
    sum: Vec<u8>,
}

impl Whole {
    fn new(context: &Context, group: Group, count: u64) -> Result<Self, TestError> {
        let x = Tensor::<Half>::zeros(context.device(), &[count])?;
        let mine = random(DType::BF16, count, context.seed(), 0, context.rank() as u64);
        write(&x, &mine)?;
        let y = Tensor::<Half>::zeros(context.device(), &[count])?;
        run(group.all_reduce(&x).into(&y), &stream_of(&group)?)?;
        let sum = read(&y)?;
        let digest = sum.iter().fold(0u64, |d, b| d.wrapping_mul(31) ^ u64::from(*b));
        context.same("bits of the whole", digest);
        Ok(Whole { group, x, sum })
    }

    /// That elements from `start` on have the bits that they have in the whole.
    fn check(&self, what: &str, found: &[u8], start: u64) -> Verdict {
        let expected = &self.sum[2 * start as usize..][..found.len()];
        let differ = found.chunks(2).zip(expected.chunks(2)).position(|(f, e)| f != e);
        check!(differ.is_none(), "{what}: element {differ:?} from {start} on has other bits");
        Ok(())
    }
}

/// Parts of a tensor, each with every size at which anything changes, one element less and one more:
/// where the choice, the number of pieces and the slices do.
fn a_value_does_not_depend_on_the_size_of_its_message(context: &Context) -> Verdict {
    let workspace = Bytes::new(least_workspace(context)?.get() + 64 * 1024);
    let group = context.group_with(&Options { workspace, ..options(context.size()) })?;
    let (layout, stream) = (*group.lane()?.layout(), stream_of(&group)?);
    let (packets, chunk) = (layout.packet_capacity().get(), layout.chunk_capacity().get());
    // Enough for some of the sizes, also where many ranks share the cores.
    let count = affordable(context, 3 * chunk / 2 + 400).max(128 * context.size() as u64);
    let whole = Whole::new(context, group, count)?;
    let (group, size) = (&whole.group, context.size() as u64);
    let mut sizes = BTreeSet::from([2, packets, chunk, 2 * chunk, 128 * size, 256 * size]);
    let memory = Allocation::new(context.device(), Bytes::new(2 * count))?;
    for algorithm in [Algorithm::Packet, Algorithm::OneShot] {
        sizes.extend(end_of(group, &memory, algorithm, 2 * count)?);
    }
    sizes.retain(|bytes| bytes / 2 < count);
    check!(sizes.len() >= 3, "only {sizes:?}");
    let y = Tensor::<Half>::zeros(context.device(), &[count])?;
    for (n, bytes) in (0..).zip(sizes) {
        for length in [bytes / 2 - 1, bytes / 2, bytes / 2 + 1] {
            // From the front, from the back, and from an odd place between.
            let room = count - length;
            for start in [0, room, ((room / 2) | 1).min(room)] {
                let (part, out) = (whole.x.slice(start, length)?, y.slice(start, length)?);
                let by = Algorithm::of(Operation::AllReduce);
                let named = by[(n + length as usize) % by.len()];
                for algorithm in [Algorithm::Auto, named] {
                    if algorithm == Algorithm::Packet && 2 * length > packets {
                        continue;
                    }
                    context.step(format_args!("{length} from {start} by {algorithm}"));
                    run(group.all_reduce(&part).into(&out).algorithm(algorithm), &stream)?;
                    let what = format!("{length} elements by {algorithm}");
                    whole.check(&what, &read(&out)?, start)?;
                }
            }
        }
    }
    Ok(())
}

/// The sums that a reduce, a reduce-scatter with an all-gather, and a reduce-scatter of blocks come to
/// are those of the all-reduce, to the bit.
fn operations_agree_on_every_bit(context: &Context) -> Verdict {
    let size = context.size() as u64;
    for each in [1, 7, 500, affordable(context, 20_000 / size)] {
        let count = each * size;
        let whole = Whole::new(context, context.group()?, count)?;
        let (group, stream) = (&whole.group, stream_of(&whole.group)?);
        let mine = context.rank() as u64 * each;
        let tensor = |count| Tensor::<Half>::zeros(context.device(), &[count]);
        for root in [0, context.size() - 1] {
            let (root, y) = (group.rank_at(root)?, tensor(count)?);
            run(group.reduce(&whole.x, root).into(&y), &stream)?;
            if group.rank() == root {
                whole.check("a reduce", &read(&y)?, 0)?;
            }
        }
        let (part, all) = (tensor(each)?, tensor(count)?);
        run(group.reduce_scatter(&whole.x).op(ReduceOp::Sum).into(&part), &stream)?;
        whole.check("a reduce-scatter", &read(&part)?, mine)?;
        run(group.all_gather(&part).into(&all), &stream)?;
        whole.check("a reduce-scatter and an all-gather", &read(&all)?, 0)?;
        // As a column: each rank's block is as many rows.
        let rows = Tensor::<Half>::zeros(context.device(), &[count, 1])?;
        write(&rows, &read(&whole.x)?)?;
        let block = Tensor::<Half>::zeros(context.device(), &[each, 1])?;
        run(group.reduce_scatter_offset(&rows, &[&block]), &stream)?;
        whole.check("a reduce-scatter of blocks", &read(&block)?, mine)?;
    }
    Ok(())
}
