//! Groups of some of the ranks.

use symmem_hal::{Fault as _, Kind, Wait};
use symmem_mem::{Group, RankError, SubgroupError, Tensor};

use super::{exchange_marks, meet_in};
use crate::runner::{Context, Test, Verdict};
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
        .ok_or_else(|| crate::runner::TestError::failed("a colour, but no group"))?;
    let expected: Vec<u32> = (0..size as u32).rev().filter(|r| *r as usize % 2 == me % 2).collect();
    check_eq!(group.global_ranks(), expected);
    check_works(context, &group, 1)?;
    // Equal keys keep the order.
    let group = world.split(Some(7), 3, &world.wait())?;
    let group = group.ok_or_else(|| crate::runner::TestError::failed("a colour, but no group"))?;
    let expected: Vec<u32> = (0..size as u32).collect();
    check_eq!(group.global_ranks(), expected);
    check_works(context, &group, 2)
}

fn a_split_of_a_split(context: &Context) -> Verdict {
    let world = context.world()?;
    let missing = || crate::runner::TestError::failed("a colour, but no group");
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
