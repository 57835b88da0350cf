//! What a handle tells of the members, and views of their memory and pads.

use symmem_hal::types::{Bytes, DType, Layout};
use symmem_mem::{PeerError, RankError, Tensor, View, ViewError};

use super::{bytes_view, meet_in};
use crate::runner::{Context, Test, TestError, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_handle_knows_its_group_and_device),
    test!(ranks_have_global_ranks).at_least(2),
    test!(buffers_begin_at_the_allocation),
    test!(every_ranks_tensor_in_one_call),
    test!(pads_are_views),
    test!(pads_are_apart_from_data),
    test!(pads_are_bounded),
    test!(a_larger_pad_has_more),
];

fn a_handle_knows_its_group_and_device(context: &Context) -> Verdict {
    let group = context.group()?;
    let handle = group.rendezvous(bytes_view(context, 100)?, &group.wait())?;
    check_eq!(handle.device().uuid(), context.device().uuid());
    check_eq!(handle.group_name(), format!("{:016x}", group.id()));
    context.same("group name", handle.group_name());
    check!(context.group()?.id() != group.id(), "two groups of one name");
    check_eq!((handle.world_size(), handle.rank()), (context.size(), group.rank()));
    for rank in group.ranks() {
        check!(handle.can_access(rank)?, "rank {rank} is out of reach");
    }
    let stranger = context.group()?.rank_at(0)?;
    check_err!(handle.can_access(stranger), RankError::OtherGroup { .. });
    Ok(())
}

fn ranks_have_global_ranks(context: &Context) -> Verdict {
    let world = context.world()?;
    // The last rank first.
    let reversed =
        (0..context.size()).rev().map(|i| world.rank_at(i)).collect::<Result<Vec<_>, _>>()?;
    let group = world.subgroup(reversed).options(world.options().clone()).create(&world.wait())?;
    let handle = group.rendezvous(bytes_view(context, 100)?, &group.wait())?;
    let expected: Vec<u32> = (0..context.size() as u32).rev().collect();
    check_eq!(handle.global_ranks(), expected);
    check!(!handle.global_ranks_dev().is_null(), "no table on the device");
    check_eq!(handle.rank().index(), context.size() - 1 - context.rank());
    Ok(())
}

fn buffers_begin_at_the_allocation(context: &Context) -> Verdict {
    let group = context.group()?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[64])?;
    let values: Vec<u32> = (0..64).map(|i| (context.rank() as u32) << 8 | i).collect();
    tensor.write(&values)?;
    let handle = group.rendezvous(tensor.slice(16, 8)?, &group.wait())?;
    meet_in(&group)?;
    for rank in group.ranks() {
        let at = |i: u32| (rank.index() as u32) << 8 | i;
        let word = |view: View| -> Result<u32, TestError> {
            Ok(Tensor::<u32>::try_from(view)?.to_vec()?[0])
        };
        check_eq!(word(handle.buffer(rank, Bytes::ZERO, DType::U32, Layout::flat(1))?)?, at(0));
        check_eq!(word(handle.peer(rank, Bytes::ZERO, DType::U32, Layout::flat(1))?)?, at(16));
        check_eq!(
            word(handle.buffer(rank, Bytes::new(252), DType::U32, Layout::flat(1))?)?,
            at(63)
        );
        // Any shape and type that fits.
        let square =
            handle.buffer(rank, Bytes::new(128), DType::U64, Layout::contiguous(&[4, 4])?)?;
        check_eq!(square.layout().shape(), [4, 4]);
        for (offset, count) in [(252, 2), (256, 1), (0, 65)] {
            let found = handle.buffer(rank, Bytes::new(offset), DType::U32, Layout::flat(count));
            let error = check_err!(found, PeerError::View { .. });
            check!(error.to_string().starts_with(&format!("rank {rank}: ")), "{error}");
        }
    }
    meet_in(&group)
}

fn every_ranks_tensor_in_one_call(context: &Context) -> Verdict {
    let group = context.group()?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[3, 5])?;
    tensor.write(&[context.rank() as u32 + 1; 15])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    meet_in(&group)?;
    let all = handle.remotes()?;
    check_eq!(all.len(), context.size());
    for (rank, view) in all.into_iter().enumerate() {
        check_eq!(view.layout().shape(), [3, 5]);
        check_eq!(Tensor::<u32>::try_from(view)?.to_vec()?, [rank as u32 + 1; 15]);
    }
    meet_in(&group)
}

fn pads_are_views(context: &Context) -> Verdict {
    let group = context.group()?;
    let handle = group.rendezvous(bytes_view(context, 100)?, &group.wait())?;
    let size = handle.signal_pad_size();
    for rank in group.ranks() {
        let pad = handle.signal_pad(rank)?;
        check_eq!((pad.dtype(), pad.count()), (DType::U32, size.get() / 4));
        check_eq!(pad.ptr(), handle.signal_pad_ptrs()[rank.index()]);
        let all = Layout::flat(size.get() / 8);
        let wide = handle.signal_pad_part(rank, Bytes::ZERO, DType::U64, all)?;
        check_eq!((wide.count(), wide.ptr()), (size.get() / 8, pad.ptr()));
        let part = handle.signal_pad_part(
            rank,
            Bytes::new(16),
            DType::U32,
            Layout::contiguous(&[2, 3])?,
        )?;
        check_eq!(part.layout().shape(), [2, 3]);
        check_eq!(part.ptr(), pad.slice(4, 1)?.ptr());
    }
    // A word of the receiver's pad, seen by the receiver. One that no channel of this test uses.
    let next = handle.signal_pad(context.neighbour(&group, 1)?)?;
    next.slice(next.count() - 1, 1)?.write(&[context.rank() as u32 + 1])?;
    meet_in(&group)?;
    let own = handle.signal_pad(group.rank())?;
    let from = (context.rank() + context.size() - 1) % context.size();
    let found = Tensor::<u32>::try_from(own.slice(own.count() - 1, 1)?)?.to_vec()?;
    check_eq!(found, [from as u32 + 1]);
    Ok(())
}

fn pads_are_apart_from_data(context: &Context) -> Verdict {
    let group = context.group()?;
    // New pads are empty, also where memory was used before, and whatever is done to the data.
    for count in [0, 1000] {
        let tensor = Tensor::<u32>::zeros(context.device(), &[count])?;
        let handle = group.rendezvous(&tensor, &group.wait())?;
        tensor.write(&vec![u32::MAX; count as usize])?;
        for rank in group.ranks() {
            let pad = Tensor::<u32>::try_from(handle.signal_pad(rank)?)?.to_vec()?;
            check!(pad.iter().all(|word| *word == 0), "rank {rank}'s pad is not empty");
        }
        meet_in(&group)?;
    }
    Ok(())
}

fn pads_are_bounded(context: &Context) -> Verdict {
    let group = context.group()?;
    let handle = group.rendezvous(bytes_view(context, 100)?, &group.wait())?;
    let size = handle.signal_pad_size();
    for rank in group.ranks() {
        let end = size.get() - 4;
        handle.signal_pad_part(rank, Bytes::new(end), DType::U32, Layout::flat(1))?;
        for (offset, count) in [(end, 2), (size.get(), 1), (0, size.get() / 4 + 1), (1 << 62, 1)] {
            let found =
                handle.signal_pad_part(rank, Bytes::new(offset), DType::U32, Layout::flat(count));
            let error = check_err!(found, PeerError::View { cause: ViewError::PastEnd { .. }, .. });
            check!(error.to_string().starts_with(&format!("rank {rank}: ")), "{error}");
        }
        let found = handle.signal_pad_part(rank, Bytes::new(2), DType::U32, Layout::flat(1));
        check_err!(found, PeerError::View { cause: ViewError::Misaligned { .. }, .. });
    }
    let stranger = context.group()?.rank_at(0)?;
    check_err!(handle.signal_pad(stranger), PeerError::Rank(RankError::OtherGroup { .. }));
    let size = context.size();
    let made_up = symmem_hal::types::Rank::in_scope(size as u32, group.scope());
    check_err!(handle.signal_pad(made_up), PeerError::Rank(RankError::OutOfRange { .. }));
    context.meet()
}

fn a_larger_pad_has_more(context: &Context) -> Verdict {
    let mut options = crate::runner::options(context.size());
    options.pad = Bytes::new(2 * 9216);
    let group = context.group_with(&options)?;
    let handle = group.rendezvous(bytes_view(context, 8)?, &group.wait())?;
    check_eq!(handle.signal_pad_size(), options.pad);
    let pad = handle.signal_pad(group.rank())?;
    check_eq!(pad.count(), options.pad.get() / 4);
    pad.slice(pad.count() - 1, 1)?.write(&[1u32])?;
    Ok(())
}
