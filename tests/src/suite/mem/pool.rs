//! Pools: where blocks are, what ranks agree on, and when bytes are used again.

use symmem_hal::types::{Bytes, DType, Layout, RankSet};
use symmem_hal::{DevicePtr, Fault as _, Kind, StreamMode};
use symmem_mem::{
    Allocation, MemoryPool, Mismatch, NotSymmetric, PeerError, PersistentError, RendezvousError,
    SymmetricMemory, Tensor, View, collect, is_symmetric,
};

use super::{exchange_marks, mark, meet_in};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::support::eventually;
use crate::support::observe::Holdings;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(any_address_in_a_block_is_symmetric).local(),
    test!(the_same_size_comes_back_at_the_same_address).local(),
    test!(blocks_of_no_bytes_have_addresses_of_their_own).local(),
    test!(freed_neighbours_grow_together).local(),
    test!(a_block_larger_than_a_segment_has_its_own).local(),
    test!(unused_segments_are_trimmed).local(),
    test!(too_large_a_block_says_how_much_there_is).local(),
    test!(views_lie_in_their_block).local(),
    test!(an_id_is_the_same_memory_each_time).local(),
    test!(blocks_outlive_their_pool).local(),
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
    test!(a_dropped_block_waits_for_every_rank).at_least(2),
    test!(a_view_of_a_peers_block_keeps_it).at_least(2),
    test!(two_places_are_used_in_turn),
    test!(a_block_returns_after_its_group_has_ended),
    test!(a_block_of_two_groups_waits_for_both).at_least(3),
    test!(an_id_keeps_its_rendezvous),
    test!(work_in_flight_keeps_its_block),
    test!(nothing_is_left_of_a_thousand_blocks),
];

/// Small segments, so that tests reach their ends.
fn pool(context: &Context) -> MemoryPool {
    MemoryPool::with_segments(context.device(), Bytes::kib(64))
}

fn block(pool: &MemoryPool, bytes: u64) -> Result<Allocation, TestError> {
    Ok(pool.allocate(Bytes::new(bytes))?)
}

/// A view of all of a block, as bytes.
fn all_of(block: &Allocation) -> Result<View, TestError> {
    Ok(View::new(block, Bytes::ZERO, DType::U8, Layout::flat(block.bytes().get()))?)
}

fn after(base: DevicePtr, bytes: u64) -> Result<DevicePtr, TestError> {
    base.checked_add(Bytes::new(bytes)).ok_or_else(|| TestError::failed("no such address"))
}

fn any_address_in_a_block_is_symmetric(context: &Context) -> Verdict {
    let pool = pool(context);
    let sizes = [1, 255, 256, 257, 5000];
    let blocks = sizes.iter().map(|bytes| block(&pool, *bytes)).collect::<Result<Vec<_>, _>>()?;
    for (block, &bytes) in blocks.iter().zip(&sizes) {
        check_eq!(block.bytes(), Bytes::new(bytes));
        check_eq!(block.base().get() % MemoryPool::ALIGNMENT, 0, "{bytes} bytes");
        for offset in [0, bytes / 2, bytes - 1] {
            let address = after(block.base(), offset)?;
            check!(is_symmetric(address), "{offset} into {bytes} bytes");
            check!(Allocation::containing(address).as_ref() == Some(block), "another block");
        }
    }
    // What no block has is not symmetric, although peers may map it: behind a block, and behind all.
    check!(!is_symmetric(after(blocks[0].base(), 1)?), "the rest of a block's last unit");
    check!(!is_symmetric(after(blocks[4].base(), 5120)?), "the free end of a segment");
    let gone = blocks[2].base();
    drop(blocks);
    check!(!is_symmetric(gone), "a dropped block");
    Ok(())
}

fn the_same_size_comes_back_at_the_same_address(context: &Context) -> Verdict {
    let pool = pool(context);
    let blocks = [3000, 700, 3000, 300].map(|bytes| block(&pool, bytes));
    let [a, b, c, d] = blocks;
    let (a, b, c, d) = (a?, b?, c?, d?);
    let (at_b, at_c) = (b.base(), c.base());
    drop(b);
    let again = block(&pool, 700)?;
    check_eq!(again.base(), at_b);
    drop((again, c));
    // Each fits best where its like was, in whatever order they come.
    check_eq!(block(&pool, 3000)?.base(), at_b, "700 and 3000 free bytes have grown together");
    let small = block(&pool, 700)?;
    check_eq!(small.base(), at_b);
    check_eq!(block(&pool, 3000)?.base(), at_c);
    drop((a, small, d));
    check_eq!(pool.usage().live, Bytes::ZERO);
    Ok(())
}

fn blocks_of_no_bytes_have_addresses_of_their_own(context: &Context) -> Verdict {
    let pool = pool(context);
    let (a, b) = (block(&pool, 0)?, block(&pool, 0)?);
    check!(a.base() != b.base(), "two blocks at {:?}", a.base());
    check_eq!(a.bytes(), Bytes::ZERO);
    check!(Allocation::containing(a.base()).as_ref() == Some(&a), "not found");
    check!(is_symmetric(b.base()), "not found");
    all_of(&a)?.read::<u8>(&mut [])?;
    Ok(())
}

fn freed_neighbours_grow_together(context: &Context) -> Verdict {
    let pool = pool(context);
    let size = pool.usage();
    check_eq!((size.segments, size.reserved), (0, Bytes::ZERO), "memory before the first block");
    let blocks = (0..256).map(|_| block(&pool, 256)).collect::<Result<Vec<_>, _>>()?;
    let usage = pool.usage();
    check_eq!((usage.segments, usage.live), (1, Bytes::kib(64)));
    check_eq!(usage.largest, Bytes::ZERO);
    let (even, odd): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
    drop(even);
    check_eq!(pool.usage().largest, Bytes::new(256));
    drop(odd);
    let usage = pool.usage();
    check_eq!(
        (usage.live, usage.retired, usage.largest),
        (Bytes::ZERO, Bytes::ZERO, Bytes::kib(64))
    );
    let whole = block(&pool, 64 << 10)?;
    check_eq!(pool.usage().segments, 1);
    drop(whole);
    Ok(())
}

fn a_block_larger_than_a_segment_has_its_own(context: &Context) -> Verdict {
    let pool = pool(context);
    let small = block(&pool, 100)?;
    let large = block(&pool, (16 << 20) + 1)?;
    let usage = pool.usage();
    check_eq!(usage.segments, 2);
    check_eq!(usage.reserved, Bytes::new((64 << 10) + (16 << 20) + 256));
    check!(small.memory().base() != large.memory().base(), "one segment");
    let last = View::new(&large, Bytes::mib(16), DType::U8, Layout::flat(1))?;
    last.write(&[7u8])?;
    let mut found = [0u8];
    last.read(&mut found)?;
    check_eq!(found, [7]);
    Ok(())
}

fn unused_segments_are_trimmed(context: &Context) -> Verdict {
    collect();
    let before = Holdings::now()?;
    let pool = pool(context);
    let blocks = (0..4).map(|_| block(&pool, 60 << 10)).collect::<Result<Vec<_>, _>>()?;
    check_eq!(Holdings::now()?.mappings, before.mappings + 4);
    check_eq!(pool.trim(), Bytes::ZERO, "segments with blocks went");
    let (even, odd): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
    drop(odd);
    check_eq!(pool.trim(), Bytes::kib(128));
    check_eq!(pool.usage().segments, 2);
    check_eq!(Holdings::now()?.mappings, before.mappings + 2);
    for (n, block) in even {
        all_of(&block)?.write(&vec![n as u8; 60 << 10])?;
    }
    check_eq!(pool.trim(), Bytes::kib(128));
    check_eq!(Holdings::now()?, before);
    // It grows again.
    block(&pool, 100)?;
    Ok(())
}

fn too_large_a_block_says_how_much_there_is(context: &Context) -> Verdict {
    let pool = pool(context);
    for bytes in [1 << 50, u64::MAX - 100, u64::MAX] {
        let error =
            check_err!(pool.allocate(Bytes::new(bytes)), symmem_hal::AllocError::Segment(_));
        check_eq!(error.kind(), Kind::Exhausted);
        check!(error.to_string().contains("available"), "{error}");
    }
    check_eq!(pool.usage().segments, 0);
    // It is none the worse.
    block(&pool, 100)?;
    Ok(())
}

fn views_lie_in_their_block(context: &Context) -> Verdict {
    let pool = pool(context);
    let _first = block(&pool, 300)?;
    let second = block(&pool, 100)?;
    check_eq!(second.offset(), Bytes::new(512));
    let view =
        |offset, count| View::new(&second, Bytes::new(offset), DType::U32, Layout::flat(count));
    check_eq!(view(96, 1)?.ptr(), after(second.base(), 96)?);
    // Where it is in its segment, which is what `memory` is.
    check_eq!(view(96, 1)?.offset(), Bytes::new(608));
    for (offset, count) in [(96, 2), (100, 1), (0, 26), (u64::MAX - 3, 1), (0, u64::MAX / 4)] {
        let found = view(offset, count);
        let error = check_err!(found, symmem_mem::ViewError::PastEnd { .. });
        check!(
            matches!(error, symmem_mem::ViewError::PastEnd { offset: o, size, .. }
                if o == Bytes::new(offset) && size == Bytes::new(100)),
            "{error}"
        );
    }
    Ok(())
}

fn an_id_is_the_same_memory_each_time(context: &Context) -> Verdict {
    let pool = pool(context);
    let memory = pool.persistent(7, Bytes::new(5000))?;
    let at = memory.base();
    all_of(&memory)?.slice(100, 1)?.write(&[9u8])?;
    let error = check_err!(pool.persistent(7, Bytes::new(5000)), PersistentError::InUse { id: 7 });
    check_eq!(error.kind(), Kind::InvalidArgument);
    // A view is a use, too; what an address finds is the use that goes on.
    let view = all_of(&memory)?;
    let found = Allocation::containing(after(at, 4999)?);
    drop(memory);
    check_err!(pool.persistent(7, Bytes::new(5000)), PersistentError::InUse { .. });
    drop(view);
    check!(found.is_some(), "not found by its address");
    check_err!(pool.persistent(7, Bytes::new(5000)), PersistentError::InUse { .. });
    drop(found);
    check!(!is_symmetric(at), "found while nobody uses it");
    let error = check_err!(pool.persistent(7, Bytes::new(4999)), PersistentError::Size { .. });
    check!(error.to_string().contains("5000") && error.to_string().contains("4999"), "{error}");
    // Others come and go; it stays where it is, with what it holds.
    let others = (0..20).map(|_| Allocation::new(context.device(), Bytes::new(5000)));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    let again = pool.persistent(7, Bytes::new(5000))?;
    check_eq!(again.base(), at);
    let mut byte = [0u8];
    all_of(&again)?.slice(100, 1)?.read(&mut byte)?;
    check_eq!(byte, [9]);
    check!(pool.persistent(8, Bytes::new(5000))?.base() != at, "two ids, one memory");
    check_eq!(pool.persistent(9, Bytes::ZERO)?.bytes(), Bytes::ZERO);
    drop((others, again));
    Ok(())
}

fn blocks_outlive_their_pool(context: &Context) -> Verdict {
    collect();
    let before = Holdings::now()?;
    let pool = pool(context);
    let tensor = pool.empty::<u32>(&[100])?;
    let kept = pool.persistent(1, Bytes::new(100))?;
    drop(pool);
    tensor.write(&[5; 100])?;
    check_eq!(tensor.to_vec()?, [5; 100]);
    drop((tensor, kept));
    collect();
    check_eq!(Holdings::now()?, before);
    Ok(())
}

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

fn a_dropped_block_waits_for_every_rank(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let tensor = pool.empty::<u32>(&[64])?;
    let at = tensor.ptr();
    tensor.write(&[7; 64])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    let zero = group.rank_at(0)?;
    let mine = (tensor, handle);
    let mine = if context.rank() == 0 {
        drop(mine);
        let usage = pool.usage();
        check_eq!((usage.live, usage.retired), (Bytes::ZERO, Bytes::new(256)));
        let other = pool.empty::<u32>(&[64])?;
        check!(other.ptr() != at, "used again while peers have it");
        other.write(&[1; 64])?;
        None
    } else {
        Some(mine)
    };
    // Meeting does not make it free: the others still have it.
    group.reclaim(&group.wait())?;
    if let Some((tensor, handle)) = mine {
        let theirs = Tensor::<u32>::try_from(handle.remote(zero)?)?.to_vec()?;
        check_eq!(theirs, [7; 64], "dropped memory has changed");
        drop((tensor, handle));
    } else {
        check_eq!(pool.usage().retired, Bytes::new(256));
    }
    group.reclaim(&group.wait())?;
    check_eq!(pool.usage().retired, Bytes::ZERO);
    let again = pool.empty::<u32>(&[64])?;
    check_eq!(again.ptr(), at);
    let handle = group.rendezvous(&again, &group.wait())?;
    exchange_marks(context, &group, &handle, &again, 2)
}

fn a_view_of_a_peers_block_keeps_it(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let tensor = pool.empty::<u32>(&[64])?;
    let at = tensor.ptr();
    tensor.write(&[7; 64])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    context.meet()?;
    let zero = group.rank_at(0)?;
    let mut view = None;
    if context.rank() == 1 {
        view = Some(handle.remote(zero)?.slice(60, 2)?);
    }
    drop((tensor, handle));
    group.reclaim(&group.wait())?;
    let other = pool.empty::<u32>(&[64])?;
    check!(other.ptr() != at, "used again while a view shows it");
    other.write(&[1; 64])?;
    context.meet()?;
    if let Some(view) = view {
        check_eq!(Tensor::<u32>::try_from(view)?.to_vec()?, [7, 7]);
    }
    group.reclaim(&group.wait())?;
    drop(other);
    check_eq!(pool.empty::<u32>(&[64])?.ptr(), at);
    context.meet()
}

fn two_places_are_used_in_turn(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let mut places = Vec::new();
    for round in 0..20 {
        let tensor = pool.empty::<u32>(&[100])?;
        let handle = group.rendezvous(&tensor, &group.wait())?;
        exchange_marks(context, &group, &handle, &tensor, round)?;
        if !places.contains(&tensor.offset()) {
            places.push(tensor.offset());
        }
    }
    check!(places.len() <= 2, "places {places:?}");
    check_eq!(pool.usage().segments, 1);
    Ok(())
}

/// A group ends, and its block is dropped after it: the next meeting of all its ranks, in another
/// group, frees it.
fn a_block_returns_after_its_group_has_ended(context: &Context) -> Verdict {
    let pool = pool(context);
    let tensor = pool.empty::<u32>(&[64])?;
    let at = tensor.ptr();
    let first = context.group()?;
    let handle = first.rendezvous(&tensor, &first.wait())?;
    exchange_marks(context, &first, &handle, &tensor, 1)?;
    drop((handle, first));
    drop(tensor);
    let second = context.group()?;
    second.reclaim(&second.wait())?;
    check_eq!(pool.usage().retired, Bytes::ZERO);
    check_eq!(pool.empty::<u32>(&[64])?.ptr(), at);
    Ok(())
}

fn a_block_of_two_groups_waits_for_both(context: &Context) -> Verdict {
    let all = context.group()?;
    let pool = pool(context);
    let tensor = pool.empty::<u32>(&[64])?;
    let in_all = all.rendezvous(&tensor, &all.wait())?;
    // The first two ranks, and each of the others alone.
    let color = if context.rank() < 2 { 0 } else { context.rank() as u32 };
    let part = all.split(Some(color), 0, &all.wait())?;
    let part = part.ok_or_else(|| TestError::failed("a colour, and no group"))?;
    let in_part = part.rendezvous(&tensor, &part.wait())?;
    exchange_marks(context, &part, &in_part, &tensor, 1)?;
    exchange_marks(context, &all, &in_all, &tensor, 2)?;
    drop((tensor, in_all, in_part));
    // Free in its part, not yet in all.
    part.reclaim(&part.wait())?;
    check_eq!(pool.usage().retired, Bytes::new(256));
    all.reclaim(&all.wait())?;
    check_eq!(pool.usage().retired, Bytes::ZERO);
    context.meet()
}

fn an_id_keeps_its_rendezvous(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let memory = pool.persistent(3, Bytes::new(400))?;
    let ordinal = group.rendezvous(all_of(&memory)?, &group.wait())?.ordinal();
    drop(memory);
    let memory = pool.persistent(3, Bytes::new(400))?;
    // Nobody is asked.
    let handle = group.rendezvous(all_of(&memory)?, &symmem_hal::Wait::millis(0))?;
    check_eq!(handle.ordinal(), ordinal);
    context.meet()
}

/// Puts are enqueued and their sources dropped at once: what was in them arrives.
fn work_in_flight_keeps_its_block(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let stream = context.device().stream(StreamMode::Worker)?;
    const COUNT: u64 = 4000;
    let target = pool.empty::<u32>(&[COUNT * 8])?;
    let handle = group.rendezvous(&target, &group.wait())?;
    let next = context.neighbour(&group, 1)?;
    for part in 0..8 {
        let source = pool.empty::<u32>(&[COUNT])?;
        source.write(&vec![mark(context.rank() as u32, part); COUNT as usize])?;
        handle.put(&source, next).offset(u64::from(part) * COUNT).on(&stream)?;
    }
    stream.synchronize(&PATIENT)?;
    meet_in(&group)?;
    let from = (context.rank() + context.size() - 1) % context.size();
    let found = target.to_vec()?;
    for part in 0..8 {
        let range = part as usize * COUNT as usize..(part as usize + 1) * COUNT as usize;
        let expected = mark(from as u32, part);
        check!(found[range].iter().all(|word| *word == expected), "part {part} is not whole");
    }
    check_eq!(pool.usage().live, Bytes::new(COUNT * 32));
    Ok(())
}

fn nothing_is_left_of_a_thousand_blocks(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = pool(context);
    let round = |round: u64| -> Verdict {
        let tensor = pool.empty::<u8>(&[1 + round * 37 % 5000])?;
        let handle = group.rendezvous(&tensor, &group.wait())?;
        check_eq!(handle.world_size(), context.size());
        Ok(())
    };
    (0..10).try_for_each(round)?;
    let before = Holdings::of_all_ranks(context)?;
    let used = pool.usage().reserved;
    for n in 0..1000 {
        if n % 100 == 0 {
            context.step(format_args!("block {n}"));
        }
        round(n)?;
    }
    check_eq!(pool.usage().reserved, used, "the pool has grown");
    before.check_no_more(context)?;
    drop(pool);
    context.meet()?;
    check!(eventually(|| collect() == Bytes::ZERO), "{} are still retired", collect());
    context.meet()
}
