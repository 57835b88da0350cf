//! Experts' rows back to their tokens, and summed there.
#![allow(unsafe_code, reason = "reads memory that peers write")]

use smallvec::SmallVec;
use symmem_collectives::numerics::WeightedSum;
use symmem_hal::types::DType;
use symmem_sync::host::{Ended, Session};
use symmem_sync::protocol::Peers;

use super::super::plan::{CombinePlan, NOWHERE, RANK_SHIFT};
use super::super::shape::Shape;
use crate::host::{Lane, read_word, record};
use crate::verdict::Finding;

pub(super) fn combine(lane: &Lane<'_>, plan: &CombinePlan) -> Result<(), Ended> {
    let shape = plan.routed.shape(lane.world());
    let row = plan.row();
    let rows = (0..shape.world).map(|rank| {
        let rows = lane.peer(plan.peers, rank, plan.offset, row * shape.capacity)?;
        Ok(rows.cast_const())
    });
    let rows: SmallVec<[*const u8; 16]> = rows.collect::<Result<_, _>>()?;
    if lane.world() == 1 {
        return sum(lane, plan, shape, &rows);
    }
    let all = Peers::All;
    let mut session = Session::begin(lane.context, lane.memory, lane.args, all, all)?;
    // Whoever is in this call has its experts' rows ready.
    session.agree()?;
    sum(lane, plan, shape, &rows)?;
    // Whoever returns may overwrite them: nobody reads on.
    session.raise(1);
    session.await_all(1)?;
    lane.finish(session, 1, plan.routed.group_completion != 0)
}

/// Sums the rows of each token, where they lie in memory of the ranks, whose first rows are at `rows`, or would
/// be.
pub(crate) fn sum(
    lane: &Lane<'_>,
    plan: &CombinePlan,
    shape: Shape,
    rows: &[*const u8],
) -> Result<(), Ended> {
    let found = read_word(lane, plan.routed.tokens)?;
    let tokens = found.min(plan.output_rows) as usize;
    if found > plan.output_rows {
        let finding = Finding::new(Finding::TOKENS, 0, found, plan.output_rows);
        record(lane, plan.routed.status, Some((lane.me(), finding)), 0)?;
    }
    let dtype = u8::try_from(plan.dtype).ok().and_then(DType::from_code).ok_or(Ended)?;
    let adder = WeightedSum::new(dtype).map_err(|_| Ended)?;
    let (count, row) = (plan.count as usize, plan.row() as usize);
    let output = lane.follow(plan.output, row as u64 * plan.output_rows)?;
    let choices = tokens * shape.choices;
    let places = lane.follow(plan.routed.places, 8 * choices as u64)?.cast::<u64>();
    let weights = match plan.weights.is_null() {
        true => None,
        false => Some(lane.follow(plan.weights, 4 * choices as u64)?.cast::<f32>()),
    };
    let mut found: SmallVec<[(u64, f32); 16]> = SmallVec::new();
    let mut parts: SmallVec<[(f32, *const u8); 16]> = SmallVec::new();
    for token in 0..tokens {
        found.clear();
        for at in token * shape.choices..(token + 1) * shape.choices {
            // SAFETY: as many places and weights as choices were followed; the former are this rank's own.
            let (place, weight) = unsafe {
                let weight = weights.map_or(1.0, |weights| weights.add(at).read_unaligned());
                (places.add(at).read(), weight)
            };
            if place != NOWHERE {
                found.push((place, weight));
            }
        }
        if shape.is_by_rank() {
            // A rank has one row for all choices of a token, summed there.
            found.sort_unstable_by_key(|(place, _)| *place);
            found.dedup_by_key(|(place, _)| *place);
        }
        parts.clear();
        parts.extend(found.iter().map(|(place, weight)| {
            let (rank, at) = (place >> RANK_SHIFT, place & ((1 << RANK_SHIFT) - 1));
            (*weight, rows[rank as usize].wrapping_add(at as usize * row))
        }));
        // SAFETY: a place is a row within a rank's capacity, which was followed, as was the output for as
        // many tokens; output and rows are apart (`Combine::plan`). The rows' rank is in this call, after all
        // that its stream did before.
        unsafe { adder.sum(&parts, output.add(token * row), count) };
    }
    Ok(())
}
