//! Groups of some of the ranks.

use symmem_hal::{Fault as _, Kind, Wait};
use symmem_mem::{Group, RankError, SubgroupError, Tensor};

use super::{exchange_marks, meet_in};
use crate::runner::{Context, Test, TestError, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(overlapping_groups_and_then_all).at_least(3),
    test!(every_pair).ranks(2, 8),
    test!(members_in_another_order).at_least(2),
    test!(the_same_list_is_another_group_each_time),
    test!(groups_of_one),
    test!(bad_members_are_refused_alone).at_least(2),
    test!(a_split_by_colour_and_key).at_least(2),
    test!(a_split_of_a_split).at_least(4),
    test!(a_split_may_leave_ranks_out).at_least(2),
    test!(one_allocation_in_all_and_in_its_half).at_least(2),
    test!(halves_meet_without_each_other).at_least(2),
];

/// A rendezvous in the group works, and shows its members' memory and nobody else's.
fn check_works(context: &Context, group: &Group, round: u32) -> Verdict {
    let tensor = Tensor::<u32>::zeros(context.device(), &[33])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    exchange_marks(context, group, &handle, &tensor, round)
}

fn pair(context: &Context, ranks: [usize; 2]) -> Result<Option<Group>, SubgroupError> {
    let Ok(world) = context.world() else { return Ok(None) };
    if !ranks.contains(&context.rank()) {
        return Ok(None);
    }
    let ranks = ranks.map(|r| world.rank_at(r));
    let [a, b] = ranks;
    world.subgroup([a?, b?]).create(&world.wait()).map(Some)
}

/// Groups {0, 1} and {1, 2}, which some ranks are not in, in either order; then all ranks.
fn overlapping_groups_and_then_all(context: &Context) -> Verdict {
    for round in 0..3 {
        for ranks in [[0, 1], [1, 2]] {
            context.step(format_args!("round {round}, ranks {ranks:?}"));
            if let Some(group) = pair(context, ranks)? {
                check_eq!(group.global_ranks(), ranks.map(|r| r as u32));
                check_works(context, &group, round)?;
                check_works(context, &group, round + 10)?;
            }
        }
        context.step(format_args!("round {round}, all"));
        check_works(context, &context.group()?, round)?;
    }
    Ok(())
}

fn every_pair(context: &Context) -> Verdict {
    let mut groups = Vec::new();
    for a in 0..context.size() {
        for b in a + 1..context.size() {
            context.step(format_args!("making {a}, {b}"));
            groups.extend(pair(context, [a, b])?);
        }
    }
    for group in &groups {
        context.step(format_args!("using {:?}", group.global_ranks()));
        check_works(context, group, 1)?;
    }
    Ok(())
}

fn members_in_another_order(context: &Context) -> Verdict {
    let world = context.world()?;
    let mut ranks: Vec<_> = world.ranks().collect();
    ranks.reverse();
    let group = world.subgroup(ranks).create(&world.wait())?;
    let last = context.size() - 1;
    check_eq!(group.rank().index(), last - context.rank());
    let globals: Vec<u32> = (0..context.size() as u32).rev().collect();
    check_eq!(group.global_ranks(), globals);
    check_works(context, &group, 1)
}

fn the_same_list_is_another_group_each_time(context: &Context) -> Verdict {
    let groups = [context.group()?, context.group()?, context.group()?];
    for (round, group) in (0..).zip(&groups) {
        context.same(format_args!("id {round}"), group.id());
        check_works(context, group, round)?;
    }
    for (i, group) in groups.iter().enumerate() {
        for other in &groups[..i] {
            check!(group.id() != other.id() && group.scope() != other.scope(), "one id twice");
            check_err!(other.index_of(group.rank()), RankError::OtherGroup { .. });
        }
    }
    Ok(())
}

fn groups_of_one(context: &Context) -> Verdict {
    let world = context.world()?;
    // With nobody to meet, no time is needed.
    let group = world.subgroup([world.rank()]).create(&world.wait())?;
    check_eq!(group.size(), 1);
    check_eq!(group.rank().index(), 0);
    check_works(context, &group, 1)
}

fn bad_members_are_refused_alone(context: &Context) -> Verdict {
    let world = context.world()?;
    let other = context.group()?;
    let next = context.neighbour(world, 1)?;
    let create = |ranks: Vec<_>| world.subgroup(ranks).create(&Wait::millis(0));
    let error = check_err!(create(vec![next]), SubgroupError::NotMember { .. });
    check_eq!(error.kind(), Kind::InvalidArgument);
    check_err!(create(vec![]), SubgroupError::NotMember { .. });
    check_err!(
        create(vec![world.rank(), next, next]),
        SubgroupError::Twice { rank } if *rank == next
    );
    check_err!(
        create(vec![world.rank(), other.rank()]),
        SubgroupError::Rank(RankError::OtherGroup { .. })
    );
    // Nobody noticed: groups of the same ranks are still made by all.
    check_works(context, &context.group()?, 1)
}

fn a_split_by_colour_and_key(context: &Context) -> Verdict {
    let world = context.world()?;
    let (me, size) = (context.rank(), context.size());
    // Odd and even ranks apart, the last one first.
    let group = world
        .split(Some((me % 2) as u32), (size - me) as u32, &world.wait())?
        .ok_or_else(|| TestError::failed("a colour, but no group"))?;
    let expected: Vec<u32> = (0..size as u32).rev().filter(|r| *r as usize % 2 == me % 2).collect();
    check_eq!(group.global_ranks(), expected);
    check_works(context, &group, 1)?;
    // Equal keys keep the order.
    let group = world.split(Some(7), 3, &world.wait())?;
    let group = group.ok_or_else(|| TestError::failed("a colour, but no group"))?;
    let expected: Vec<u32> = (0..size as u32).collect();
    check_eq!(group.global_ranks(), expected);
    check_works(context, &group, 2)
}

fn a_split_of_a_split(context: &Context) -> Verdict {
    let world = context.world()?;
    let missing = || TestError::failed("a colour, but no group");
    let half = (context.rank() * 2 / context.size()) as u32;
    let group = world.split(Some(half), 0, &world.wait())?.ok_or_else(missing)?;
    let inner = (group.rank().index() % 2) as u32;
    let group = group.split(Some(inner), 0, &world.wait())?.ok_or_else(missing)?;
    check!(group.global_ranks().contains(&(context.rank() as u32)), "{:?}", group.global_ranks());
    check_works(context, &group, 1)
}

fn a_split_may_leave_ranks_out(context: &Context) -> Verdict {
    let world = context.world()?;
    let colour = (context.rank() > 0).then_some(u32::MAX);
    let group = world.split(colour, 0, &world.wait())?;
    check_eq!(group.is_some(), context.rank() > 0);
    if let Some(group) = group {
        check_eq!(group.size(), context.size() - 1);
        check_works(context, &group, 1)?;
        meet_in(&group)?;
    }
    context.meet()
}

/// The half of the ranks that this one is in, as a group: lower or upper.
fn half(context: &Context) -> Result<Group, TestError> {
    let world = context.world()?;
    let upper = 2 * context.rank() >= context.size();
    let group = world.split(Some(u32::from(upper)), 0, &world.wait())?;
    group.ok_or_else(|| TestError::failed("a colour, but no group"))
}

/// Each group's handle has that group's ranks and shows the one memory.
fn one_allocation_in_all_and_in_its_half(context: &Context) -> Verdict {
    let (all, half) = (context.group()?, half(context)?);
    let tensor = Tensor::<u32>::zeros(context.device(), &[50])?;
    let in_all = all.rendezvous(&tensor, &all.wait())?;
    let in_half = half.rendezvous(tensor.slice(10, 20)?, &half.wait())?;
    check_eq!((in_all.world_size(), in_all.rank()), (context.size(), all.rank()));
    check_eq!((in_half.world_size(), in_half.rank()), (half.size(), half.rank()));
    check_eq!(in_half.buffer_size(), in_all.buffer_size());
    check_eq!(in_half.global_ranks(), half.global_ranks());
    exchange_marks(context, &half, &in_half, &tensor, 1)?;
    exchange_marks(context, &all, &in_all, &tensor, 2)?;
    // What is written through one is seen through the other.
    let next = context.neighbour(&half, 1)?;
    in_half.remote(next)?.write(&[context.rank() as u32 + 1; 20])?;
    meet_in(&all)?;
    let globals: Vec<usize> = half.global_ranks().iter().map(|r| *r as usize).collect();
    let from = globals[(half.rank().index() + half.size() - 1) % half.size()];
    let mine = Tensor::<u32>::try_from(in_all.remote(all.rank())?)?.to_vec()?;
    check_eq!(mine[10..30], [from as u32 + 1; 20]);
    check_eq!(mine[30..], [super::mark(context.rank() as u32, 2); 20]);
    meet_in(&all)
}

/// The lower half makes groups and rendezvous while no rank of the upper half does anything; then all
/// meet as if nothing had been.
fn halves_meet_without_each_other(context: &Context) -> Verdict {
    let half = half(context)?;
    let upper = half.global_ranks()[0] != 0;
    for (round, turn) in [false, true, false].into_iter().enumerate() {
        if turn == upper {
            for n in 0..=round as u32 {
                check_works(context, &half, n)?;
                let part = half.subgroup(half.ranks()).create(&half.wait())?;
                check_works(context, &part, n)?;
            }
        }
        context.meet()?;
        let all = context.group()?;
        check_works(context, &all, 7)?;
    }
    // At the same time, too, each as often as it likes.
    for n in 0..if upper { 5 } else { 9 } {
        check_works(context, &half, n)?;
    }
    check_works(context, &context.group()?, 8)
}
