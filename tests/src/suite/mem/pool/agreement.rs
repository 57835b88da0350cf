//! What ranks agree on about blocks.

use symmem_hal::types::{Bytes, DType, Layout, RankSet};
use symmem_hal::{Fault as _, Kind};
use symmem_mem::{Mismatch, NotSymmetric, PeerError, RendezvousError, SymmetricMemory, Tensor};

use super::super::{exchange_marks, mark, meet_in};
use super::{after, all_of, block, pool};
use crate::runner::{Context, Test, TestError, Verdict};
use crate::support::observe::Holdings;
use crate::{check, check_eq, check_err, test};

pub(in crate::suite::mem) const TESTS: &[Test] = &[
    test!(blocks_are_symmetric_where_they_lie),
    test!(kernels_find_the_block_in_its_tables),
    test!(peers_are_bounded_by_the_block),
    test!(a_segment_is_mapped_once),
    test!(blocks_of_no_bytes_have_a_rendezvous),
    test!(growing_asks_nobody).at_least(2),
    test!(freeing_in_another_order_is_harmless).at_least(2),
    test!(blocks_in_other_places_are_found).at_least(2),
    test!(blocks_of_other_segments_are_found).at_least(2),
    test!(a_new_block_at_an_old_place_is_a_stranger),
];

/// Two blocks and a view with an offset in the second: every rank sees every rank's, and nothing else
/// is touched.
fn blocks_are_symmetric_where_they_lie(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let tensors = [pool.empty::<u32>(&[75])?, pool.empty::<u32>(&[33])?];
    let handles = [
        group.rendezvous(&tensors[0], &group.wait())?,
        group.rendezvous(&tensors[1], &group.wait())?,
    ];
    check_eq!(tensors[1].offset(), Bytes::new(512));
    check_eq!(handles[1].offset(), Bytes::ZERO, "the block is the buffer");
    check_eq!(handles[1].buffer_size(), Bytes::new(132));
    check_eq!([handles[0].ordinal(), handles[1].ordinal()], [1, 2]);
    for (handle, tensor) in handles.iter().zip(&tensors) {
        exchange_marks(context, &group, handle, tensor, 1)?;
    }
    let part = tensors[1].slice(3, 20)?;
    let handle = group.rendezvous(&part, &symmem_hal::Wait::millis(0))?;
    check_eq!((handle.offset(), handle.ordinal()), (Bytes::new(12), 2));
    exchange_marks(context, &group, &handle, &part, 2)?;
    for rank in group.ranks() {
        let global = group.global_ranks()[rank.index()];
        let words = handle.buffer(rank, Bytes::ZERO, DType::U32, Layout::flat(33))?;
        let words = Tensor::<u32>::try_from(words)?.to_vec()?;
        let mut expected = [mark(global, 1); 33];
        expected[3..23].fill(mark(global, 2));
        check_eq!(words, expected, "rank {rank}");
        let first = Tensor::<u32>::try_from(handles[0].remote(rank)?)?.to_vec()?;
        check_eq!(first, [mark(global, 1); 75], "rank {rank}'s other block");
    }
    meet_in(&group)
}

fn kernels_find_the_block_in_its_tables(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let first = pool.empty::<u32>(&[10])?;
    let second = pool.empty::<u32>(&[10])?;
    let before = group.rendezvous(&first, &group.wait())?;
    let handle = group.rendezvous(second.slice(4, 2)?, &group.wait())?;
    let buffers = handle.buffer_ptrs();
    check_eq!(buffers[context.rank()], second.ptr());
    check_eq!(handle.peer_ptr(group.rank())?, after(second.ptr(), 16)?);
    for (other, own) in before.buffer_ptrs().iter().zip(&buffers) {
        check_eq!(after(*other, 256)?, *own);
    }
    check!(before.buffer_ptrs_dev() != handle.buffer_ptrs_dev(), "one table for two blocks");
    check!(!handle.buffer_ptrs_dev().is_null(), "no table");
    Ok(())
}

fn peers_are_bounded_by_the_block(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let [_below, tensor, _above] =
        [pool.empty::<u32>(&[64])?, pool.empty::<u32>(&[16])?, pool.empty::<u32>(&[64])?];
    let handle = group.rendezvous(tensor.slice(8, 8)?, &group.wait())?;
    for rank in group.ranks() {
        let peer =
            |offset, count| handle.peer(rank, Bytes::new(offset), DType::U32, Layout::flat(count));
        let buffer = |offset, count| {
            handle.buffer(rank, Bytes::new(offset), DType::U32, Layout::flat(count))
        };
        peer(28, 1)?;
        buffer(0, 16)?;
        for found in [peer(0, 9), peer(32, 1), peer(1 << 60, 1), buffer(0, 17), buffer(64, 1)] {
            let error = check_err!(found, PeerError::View { .. });
            check!(
                matches!(&error, PeerError::View { rank: named, .. } if *named == rank),
                "{error}"
            );
        }
    }
    context.meet()
}

fn a_segment_is_mapped_once(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let first = pool.empty::<u32>(&[10])?;
    let handle = group.rendezvous(&first, &group.wait())?;
    // The tables of the blocks to come are in place.
    let second = pool.empty::<u32>(&[10])?;
    group.rendezvous(&second, &group.wait())?;
    let before = Holdings::of_all_ranks(context)?;
    let mut kept: Vec<(Tensor<u32>, SymmetricMemory)> = Vec::new();
    for _ in 0..50 {
        let tensor = pool.empty::<u32>(&[10])?;
        let handle = group.rendezvous(&tensor, &group.wait())?;
        kept.push((tensor, handle));
    }
    check_eq!(pool.usage().segments, 1);
    before.check_no_more(context)?;
    exchange_marks(context, &group, &kept[49].1, &kept[49].0, 3)?;
    check_eq!(handle.ordinal(), 1);
    Ok(())
}

fn blocks_of_no_bytes_have_a_rendezvous(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let blocks = [block(&pool, 0)?, block(&pool, 0)?];
    for (n, block) in (1..).zip(&blocks) {
        let handle = group.rendezvous(all_of(block)?, &group.wait())?;
        check_eq!((handle.ordinal(), handle.buffer_size()), (n, Bytes::ZERO));
        for view in handle.remotes()? {
            view.read::<u8>(&mut [])?;
        }
    }
    context.meet()
}

/// Ranks allocate different numbers of blocks, and one pool grows: nobody waits for anybody.
fn growing_asks_nobody(context: &Context) -> Verdict {
    let group = context.group()?;
    let (shared, own) = (pool(context), pool(context));
    let tensor = shared.empty::<u32>(&[100])?;
    if context.rank() == 0 {
        let blocks = (0..10).map(|_| block(&own, 60 << 10)).collect::<Result<Vec<_>, _>>()?;
        check_eq!(own.usage().segments, 10);
        drop(blocks);
    }
    let handle = group.rendezvous(&tensor, &group.wait())?;
    exchange_marks(context, &group, &handle, &tensor, 1)
}

fn freeing_in_another_order_is_harmless(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let [a, b, c] = [pool.empty::<u32>(&[64])?, pool.empty(&[64])?, pool.empty(&[64])?];
    if context.rank() == 0 {
        drop(a);
        drop(b);
    } else {
        drop(b);
        drop(a);
    }
    let [a, b] = [pool.empty::<u32>(&[64])?, pool.empty::<u32>(&[64])?];
    for (round, tensor) in [&a, &b, &c].into_iter().enumerate() {
        let handle = group.rendezvous(tensor, &group.wait())?;
        exchange_marks(context, &group, &handle, tensor, u32::try_from(round)?)?;
    }
    Ok(())
}

fn mismatch(
    found: Result<SymmetricMemory, RendezvousError>,
    context: &Context,
) -> Result<Mismatch, TestError> {
    let error = check_err!(found, RendezvousError::Mismatch(_));
    check_eq!(error.kind(), Kind::Disagreement);
    context.same("verdict", &error);
    match error {
        RendezvousError::Mismatch(mismatch) => Ok(mismatch),
        other => Err(TestError::failed(other.to_string())),
    }
}

fn expected(context: &Context, field: &str, odd: &str, others: &str) -> Mismatch {
    let last = context.size() - 1;
    let values =
        vec![(others.to_owned(), RankSet::first(last)), (odd.to_owned(), RankSet::one(last))];
    Mismatch { field: field.to_owned(), values }
}

/// Ranks drop different blocks, and the next ones come to lie differently: an error on every rank,
/// whether the segment is new to the group or not.
fn blocks_in_other_places_are_found(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let odd = context.rank() + 1 == context.size();
    for mapped in [false, true] {
        context.step(format_args!("segment mapped before: {mapped}"));
        let [a, b] = [pool.empty::<u32>(&[64])?, pool.empty::<u32>(&[64])?];
        let c = pool.empty::<u32>(&[64])?;
        if mapped {
            group.rendezvous(&c, &group.wait())?;
        }
        let kept = if odd { (drop(b), a).1 } else { (drop(a), b).1 };
        let tensor = pool.empty::<u32>(&[64])?;
        let found = mismatch(group.rendezvous(&tensor, &group.wait()), context)?;
        check_eq!(found, expected(context, "the offset in the segment", "256", "0"));
        check_err!(group.symmetric(&tensor), NotSymmetric { .. });
        drop((kept, tensor, c));
        group.reclaim(&group.wait())?;
    }
    // Alike again, it works.
    let tensor = pool.empty::<u32>(&[64])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    exchange_marks(context, &group, &handle, &tensor, 9)
}

/// One rank's pool has grown since, so its next block is of another segment.
fn blocks_of_other_segments_are_found(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let first = pool.empty::<u8>(&[40 << 10])?;
    let handle = group.rendezvous(&first, &group.wait())?;
    let odd = context.rank() + 1 == context.size();
    let filler = odd.then(|| pool.empty::<u8>(&[20 << 10])).transpose()?;
    let tensor = pool.empty::<u8>(&[20 << 10])?;
    let found = mismatch(group.rendezvous(&tensor, &group.wait()), context)?;
    check_eq!(found, expected(context, "the rendezvous of the segment", "this one", "1"));
    drop((filler, tensor));
    check_eq!(handle.ordinal(), 1);
    context.meet()
}

/// What was agreed on was the block, not the place.
fn a_new_block_at_an_old_place_is_a_stranger(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let tensor = pool.empty::<u32>(&[64])?;
    let at = tensor.ptr();
    let first = group.rendezvous(&tensor, &group.wait())?.ordinal();
    drop(tensor);
    group.reclaim(&group.wait())?;
    let tensor = pool.empty::<u32>(&[64])?;
    check_eq!(tensor.ptr(), at);
    check_err!(group.symmetric(&tensor), NotSymmetric { .. });
    check!(group.mapping(&tensor).is_none(), "operations take it for symmetric");
    let handle = group.rendezvous(&tensor, &group.wait())?;
    check_eq!(handle.ordinal(), first + 1);
    exchange_marks(context, &group, &handle, &tensor, 1)
}
