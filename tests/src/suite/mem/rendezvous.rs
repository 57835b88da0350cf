//! Rendezvous and what it gives: every member's memory, where it is said to be.

use symmem_hal::types::{Bytes, DType, Layout};
use symmem_hal::{Device, Fault as _, Kind, Wait};
use symmem_mem::{
    Allocation, NotSymmetric, PeerError, RankError, RendezvousError, Tensor, View, ViewError,
};

use super::{bytes_view, exchange_marks};
use crate::runner::{Context, Test, TestError, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(every_rank_sees_every_rank),
    test!(a_second_rendezvous_asks_nobody),
    test!(operations_honour_the_offset),
    test!(zero_bytes_have_a_rendezvous_too),
    test!(ordinals_count_in_each_group),
    test!(one_allocation_in_two_groups),
    test!(many_allocations_are_told_apart),
    test!(peer_views_lie_in_the_peers_memory),
    test!(ranks_of_another_group_are_refused),
    test!(only_own_memory_of_the_device_is_accepted),
    test!(an_address_finds_its_handle),
    test!(tables_hold_every_ranks_address),
    test!(more_than_two_gibibytes).ranks(2, 2).seconds(300),
];

fn every_rank_sees_every_rank(context: &Context) -> Verdict {
    let group = context.group()?;
    for round in 0..5 {
        let tensor = Tensor::<u32>::zeros(context.device(), &[1000 + u64::from(round)])?;
        let handle = group.rendezvous(&tensor, &group.wait())?;
        check_eq!(handle.world_size(), context.size());
        check_eq!(handle.rank().index(), context.rank());
        check!(handle.world_within_direct_access(), "not within direct access");
        exchange_marks(context, &group, &handle, &tensor, round)?;
    }
    Ok(())
}

fn a_second_rendezvous_asks_nobody(context: &Context) -> Verdict {
    let group = context.group()?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[64])?;
    let first = group.rendezvous(&tensor, &group.wait())?;
    if context.rank() == 0 {
        // Nobody else comes, and no time is given to them.
        let again = group.rendezvous(&tensor, &Wait::millis(0))?;
        check_eq!(again.ordinal(), first.ordinal());
        let part = group.rendezvous(tensor.slice(10, 3)?, &Wait::millis(0))?;
        check_eq!(part.ordinal(), first.ordinal());
        check_eq!(part.offset(), Bytes::new(40));
    }
    context.meet()
}

fn operations_honour_the_offset(context: &Context) -> Verdict {
    let group = context.group()?;
    let allocation = Allocation::new(context.device(), Bytes::new(4096))?;
    let view = View::new(&allocation, Bytes::new(264), DType::U32, Layout::flat(100))?;
    let tensor = Tensor::<u32>::try_from(view)?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    check_eq!(handle.offset(), Bytes::new(264));
    check_eq!(handle.buffer_size(), Bytes::new(4096));
    exchange_marks(context, &group, &handle, &tensor, 1)?;
    // Only what lies in the view was written.
    for rank in group.ranks() {
        let base = handle.peer(rank, Bytes::ZERO, DType::U32, Layout::flat(1))?;
        check_eq!(base.offset(), Bytes::new(264), "rank {rank}");
        let mut all = [0; 4096];
        base.memory().read(Bytes::ZERO, &mut all)?;
        let outside = all[..264].iter().chain(&all[664..]);
        check!(outside.copied().all(|b| b == 0), "memory of rank {rank} was written outside");
    }
    Ok(())
}

fn zero_bytes_have_a_rendezvous_too(context: &Context) -> Verdict {
    let group = context.group()?;
    let view = bytes_view(context, 0)?;
    let handle = group.rendezvous(&view, &group.wait())?;
    check_eq!(handle.buffer_size(), Bytes::ZERO);
    let (buffers, pads) = (handle.buffer_ptrs(), handle.signal_pad_ptrs());
    for rank in group.ranks() {
        handle.remote(rank)?.read::<u8>(&mut [])?;
        let (buffer, pad) = (buffers[rank.index()], pads[rank.index()]);
        check!(buffer != pad && !buffer.is_null() && !pad.is_null(), "{buffer:?}, {pad:?}");
        let past = handle.peer(rank, Bytes::ZERO, DType::U8, Layout::flat(1));
        check_err!(past, PeerError::View { .. });
    }
    context.meet()
}

fn ordinals_count_in_each_group(context: &Context) -> Verdict {
    let groups = [context.group()?, context.group()?];
    for expected in 1..4 {
        for group in &groups {
            let view = bytes_view(context, 100)?;
            check_eq!(group.rendezvous(&view, &group.wait())?.ordinal(), expected);
        }
    }
    context.same("ids", format_args!("{:x} {:x}", groups[0].id(), groups[1].id()));
    check!(groups[0].id() != groups[1].id(), "two groups have one id");
    Ok(())
}

fn one_allocation_in_two_groups(context: &Context) -> Verdict {
    let groups = [context.group()?, context.group()?];
    let tensor = Tensor::<u32>::zeros(context.device(), &[16])?;
    let first = groups[0].rendezvous(&tensor, &groups[0].wait())?;
    let second = groups[1].rendezvous(&tensor, &groups[1].wait())?;
    exchange_marks(context, &groups[0], &first, &tensor, 1)?;
    exchange_marks(context, &groups[1], &second, &tensor, 2)?;
    drop((first, groups));
    // The second group's handle keeps what it needs.
    exchange_marks(context, second.group(), &second, &tensor, 3)
}

/// All alive at once, found again by their addresses and by a second rendezvous.
fn many_allocations_are_told_apart(context: &Context) -> Verdict {
    let group = context.group()?;
    // Threads share the descriptors that a process may have, 1024 as a rule.
    let many = 256.min(768 / context.size() as u32);
    let word = |n: u32, rank: usize| n << 8 | rank as u32;
    let mut all = Vec::new();
    for n in 0..many {
        let tensor = Tensor::<u32>::zeros(context.device(), &[1])?;
        tensor.write(&[word(n, context.rank())])?;
        let handle = group.rendezvous(&tensor, &group.wait())?;
        all.push((tensor, handle));
    }
    super::meet_in(&group)?;
    for (n, (tensor, handle)) in (0..many).zip(&all).rev() {
        check_eq!(handle.ordinal(), u64::from(n) + 1);
        check_eq!(group.symmetric(tensor)?.ordinal(), handle.ordinal());
        check_eq!(group.rendezvous(tensor, &Wait::millis(0))?.ordinal(), handle.ordinal());
        for rank in group.ranks() {
            let theirs = Tensor::<u32>::try_from(handle.remote(rank)?)?.to_vec()?;
            check_eq!(theirs, [word(n, rank.index())], "allocation {n} of rank {rank}");
        }
    }
    super::meet_in(&group)
}

fn peer_views_lie_in_the_peers_memory(context: &Context) -> Verdict {
    let group = context.group()?;
    let allocation = Allocation::new(context.device(), Bytes::new(128))?;
    let view = View::new(&allocation, Bytes::new(64), DType::F32, Layout::flat(16))?;
    let handle = group.rendezvous(&view, &group.wait())?;
    for rank in group.ranks() {
        // 64 bytes remain behind the offset.
        handle.peer(rank, Bytes::new(60), DType::F32, Layout::flat(1))?;
        handle.peer(rank, Bytes::new(64), DType::F32, Layout::flat(0))?;
        for (offset, count) in [(60, 2), (64, 1), (0, 17), (1 << 40, 1), (u64::MAX - 3, 1)] {
            let found = handle.peer(rank, Bytes::new(offset), DType::F32, Layout::flat(count));
            let error = check_err!(found, PeerError::View { .. });
            check!(
                matches!(&error, PeerError::View { rank: named, cause: ViewError::PastEnd { .. }
                    | ViewError::Misaligned { .. } } if *named == rank),
                "{count} at {offset} of rank {rank}: {error}"
            );
        }
        let found = handle.peer(rank, Bytes::new(2), DType::F32, Layout::flat(1));
        check_err!(found, PeerError::View { cause: ViewError::Misaligned { .. }, .. });
    }
    Ok(())
}

fn ranks_of_another_group_are_refused(context: &Context) -> Verdict {
    let (group, other) = (context.group()?, context.group()?);
    let handle = group.rendezvous(bytes_view(context, 8)?, &group.wait())?;
    let stranger = other.rank_at(0)?;
    let expected = RankError::OtherGroup { rank: stranger };
    let error = check_err!(handle.remote(stranger), PeerError::Rank(_));
    check_eq!(error, PeerError::Rank(expected));
    check_eq!(error.kind(), Kind::InvalidArgument);
    check_eq!(check_err!(handle.peer_ptr(stranger), RankError::OtherGroup { .. }), expected);
    check_eq!(check_err!(group.index_of(stranger), RankError::OtherGroup { .. }), expected);
    let size = group.size();
    let expected = RankError::OutOfRange { index: size, size };
    check_eq!(check_err!(group.rank_at(size), RankError::OutOfRange { .. }), expected);
    // A rank made up: in the group's scope, but none of its.
    let made_up = symmem_hal::types::Rank::in_scope(u32::try_from(size)?, group.scope());
    check_eq!(check_err!(group.index_of(made_up), RankError::OutOfRange { .. }), expected);
    check_err!(handle.remote(made_up), PeerError::Rank(RankError::OutOfRange { .. }));
    check_err!(handle.peer_ptr(made_up), RankError::OutOfRange { .. });
    // Also where the offset is past everything.
    let view = bytes_view(context, 64)?.slice(8, 8)?;
    let handle = group.rendezvous(&view, &group.wait())?;
    let found = handle.peer(stranger, Bytes(u64::MAX), DType::U8, Layout::flat(1));
    check_err!(found, PeerError::Rank(RankError::OtherGroup { .. }));
    context.meet()
}

fn only_own_memory_of_the_device_is_accepted(context: &Context) -> Verdict {
    let group = context.group()?;
    let handle = group.rendezvous(bytes_view(context, 64)?, &group.wait())?;
    let peers = handle.remote(context.neighbour(&group, 1)?)?;
    let error =
        check_err!(group.rendezvous(&peers, &Wait::millis(0)), RendezvousError::NotAllocated);
    check_eq!(error.kind(), Kind::InvalidArgument);
    let elsewhere = match context.device() {
        Device::Host(_) => Device::stub(77),
        _ => Device::host(),
    };
    let tensor = Tensor::<u8>::zeros(&elsewhere, &[64])?;
    let error = check_err!(
        group.rendezvous(&tensor, &Wait::millis(0)),
        RendezvousError::OtherDevice { .. }
    );
    check_eq!(error.kind(), Kind::InvalidArgument);
    // Neither was noticed by anybody: the next one has the next ordinal on every rank.
    let next = group.rendezvous(bytes_view(context, 64)?, &group.wait())?;
    check_eq!(next.ordinal(), handle.ordinal() + 1);
    Ok(())
}

fn an_address_finds_its_handle(context: &Context) -> Verdict {
    let (group, other) = (context.group()?, context.group()?);
    let tensor = Tensor::<u32>::zeros(context.device(), &[100])?;
    let error = check_err!(group.symmetric(&tensor), NotSymmetric { .. });
    check_eq!(error.address, tensor.ptr().get());
    let handle = group.rendezvous(&tensor, &group.wait())?;
    let found = group.symmetric(tensor.slice(99, 1)?)?;
    check_eq!(found.ordinal(), handle.ordinal());
    check_eq!(found.offset(), Bytes::new(396));
    check_eq!(found.buffer_ptrs(), handle.buffer_ptrs());
    check_err!(other.symmetric(&tensor), NotSymmetric { .. });
    let local = Tensor::<u32>::zeros(context.device(), &[100])?;
    check_err!(group.symmetric(&local), NotSymmetric { .. });
    context.meet()
}

fn tables_hold_every_ranks_address(context: &Context) -> Verdict {
    let group = context.group()?;
    let tensor = Tensor::<u64>::zeros(context.device(), &[8])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    let buffers = handle.buffer_ptrs();
    check_eq!(buffers.len(), context.size());
    check_eq!(buffers[context.rank()], tensor.ptr());
    check_eq!(handle.signal_pad_size(), group.options().pad);
    for (index, rank) in group.ranks().enumerate() {
        check_eq!(handle.peer_ptr(rank)?, buffers[index]);
        check_eq!(handle.remote(rank)?.ptr(), buffers[index]);
        check_eq!(handle.signal_pad_ptrs()[index], group.pad_ptr(index));
    }
    let mut distinct = buffers.clone();
    distinct.sort();
    distinct.dedup();
    check_eq!(distinct.len(), buffers.len(), "two ranks have one address");
    check!(!handle.buffer_ptrs_dev().is_null(), "no table on the device");
    Ok(())
}

fn more_than_two_gibibytes(context: &Context) -> Verdict {
    if !context.soak() {
        return Err(TestError::skipped("takes gibibytes of memory: asked for by --soak"));
    }
    let count = (2 << 30) + 4096 + 1;
    let group = context.group()?;
    let view = bytes_view(context, count)?;
    let handle = group.rendezvous(&view, &group.wait())?;
    let one = Tensor::<u8>::zeros(context.device(), &[1])?;
    one.write(&[u8::try_from(context.rank() + 1)?])?;
    handle.put(&one, group.rank()).offset(count - 1).run()?;
    context.meet()?;
    // All of it into another rank's, from one's own.
    let next = context.neighbour(&group, 1)?;
    let found = handle.put(&view, next).offset(1).run();
    check_err!(found, symmem_mem::TransferError::Peer(_));
    handle.get(&one, next).offset(count - 1).run()?;
    handle.put(&view, group.rank()).run()?;
    check_eq!(one.to_vec()?, [u8::try_from(next.index() + 1)?]);
    for rank in group.ranks() {
        let theirs = handle.peer(rank, Bytes::new(count - 1), DType::U8, Layout::flat(1))?;
        let mut found = [0u8];
        theirs.read(&mut found)?;
        check_eq!(usize::from(found[0]), rank.index() + 1);
    }
    context.meet()
}
