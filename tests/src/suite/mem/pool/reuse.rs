//! When a block's bytes are used again.

use symmem_hal::StreamMode;
use symmem_hal::types::Bytes;
use symmem_mem::{Tensor, collect};

use super::super::{exchange_marks, mark, meet_in};
use super::{all_of, pool};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::support::eventually;
use crate::support::observe::Holdings;
use crate::{check, check_eq, test};

pub(in crate::suite::mem) const TESTS: &[Test] = &[
    test!(a_dropped_block_waits_for_every_rank).at_least(2),
    test!(a_view_of_a_peers_block_keeps_it).at_least(2),
    test!(two_places_are_used_in_turn),
    test!(a_block_returns_after_its_group_has_ended),
    test!(a_block_of_two_groups_waits_for_both).at_least(3),
    test!(an_id_keeps_its_rendezvous),
    test!(work_in_flight_keeps_its_block),
    test!(nothing_is_left_of_a_thousand_blocks),
];

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
