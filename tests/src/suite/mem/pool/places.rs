//! Where blocks are.

use symmem_hal::types::{Bytes, DType, Layout};
use symmem_hal::{Fault as _, Kind};
use symmem_mem::{Allocation, MemoryPool, PersistentError, View, collect, is_symmetric};

use super::{after, all_of, block, pool};
use crate::runner::{Context, Test, TestError, Verdict};
use crate::support::observe::Holdings;
use crate::{check, check_eq, check_err, test};

pub(in crate::suite::mem) const TESTS: &[Test] = &[
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
    test!(threads_allocate_at_once).local(),
];

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
        let error = check_err!(
            pool.allocate(Bytes::new(bytes)),
            symmem_hal::AllocError::Segment(_) | symmem_hal::AllocError::Exhausted { .. }
        );
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

/// Blocks of threads that grow a pool at the same time do not share bytes, and all are counted.
fn threads_allocate_at_once(context: &Context) -> Verdict {
    const THREADS: usize = 8;
    let pool = pool(context);
    let begin = std::sync::Barrier::new(THREADS);
    let work = || -> Result<Vec<Allocation>, TestError> {
        begin.wait();
        (0..20).map(|_| block(&pool, 10 << 10)).collect()
    };
    let made = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    let mut blocks = Vec::new();
    for of_one in made {
        blocks.extend(of_one.map_err(|_| TestError::failed("a thread panicked"))??);
    }
    check_eq!(pool.usage().live, Bytes::kib(10 * 20 * THREADS as u64));
    let mut places: Vec<_> = blocks.iter().map(|b| b.base().get()).collect();
    places.sort_unstable();
    check!(places.windows(2).all(|pair| pair[1] - pair[0] >= 10 << 10), "{places:x?}");
    drop(blocks);
    check_eq!(pool.usage().live, Bytes::ZERO);
    check!(pool.trim() > Bytes::ZERO, "no segment was let go of");
    check_eq!(pool.usage().reserved, Bytes::ZERO);
    Ok(())
}
