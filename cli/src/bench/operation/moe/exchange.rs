//! One rank's tensors for so many tokens, and the calls.

use symmem::hal::types::Bytes;
use symmem::moe::Layout as Rows;
use symmem::prelude::*;

use super::Part;
use super::placement::{Arrived, Placement};
use super::routes::{Arrangement, Setting};
use super::rows::{self, Tokens};
use crate::bench::member::{Member, RankError};

/// One rank's tensors.
pub struct Exchange<'a> {
    placement: Placement<'a>,
    arrived: Arrived,
    /// Tokens and choices in the order of experts, where the caller puts rows in it.
    order: Vec<(usize, usize)>,
    /// What is dispatched, a row for each token; of all-to-all-v for each choice.
    x: View,
    /// Where it arrives, and what experts make of that.
    rows: View,
    scales: Option<View>,
    made: View,
    /// What comes back, a row for each token; of all-to-all-v for each choice.
    back: View,
    way: Way,
}

/// By which calls.
enum Way {
    Routed { routing: Routing, indices: View, weights: View },
    Splits { splits: View, arrived: View, back: View, align: u64 },
}

impl<'a> Exchange<'a> {
    /// Collective.
    pub fn new(member: &Member<'_>, placement: Placement<'a>) -> Result<Self, RankError> {
        let Placement { setting, routes } = placement;
        let Setting { hidden, dtype, quantised, arrangement, experts, top_k, .. } = *setting;
        let (me, tokens, capacity) = (member.rank(), routes.tokens as u64, placement.capacity());
        let tensor = |dtype: DType, shape: &[u64], symmetric: bool| {
            let layout = Layout::contiguous(shape)?;
            let bytes = Bytes(shape.iter().product::<u64>() * dtype.size() as u64);
            let allocation = member.allocate(bytes, symmetric)?;
            Ok::<_, RankError>(View::new(&allocation, Bytes::ZERO, dtype, layout)?)
        };
        let by_choice = matches!(arrangement, Arrangement::Vdev { .. });
        let sent = if by_choice { tokens * top_k as u64 } else { tokens };
        let x = tensor(dtype, &[sent, hidden], false)?;
        let kind = if quantised { DType::F8E4M3 } else { dtype };
        let received = tensor(kind, &[capacity, hidden], true)?;
        let scales = match quantised {
            true => Some(tensor(DType::F32, &[capacity, rows::scales(hidden)], true)?),
            false => None,
        };
        let made = tensor(dtype, &[capacity, hidden], true)?;
        let back = tensor(dtype, &[sent, hidden], by_choice)?;
        let way = if let Arrangement::Vdev { align } = arrangement {
            let splits = tensor(DType::I64, &[experts as u64], false)?;
            splits.write(&placement.splits(me))?;
            let both = || tensor(DType::I64, &[2, experts as u64], false);
            Way::Splits { splits, arrived: both()?, back: both()?, align }
        } else {
            let options = RoutingOptions::new(experts, top_k, tokens);
            let options = match arrangement {
                Arrangement::Padded => options.layout(Rows::Padded { rows: placement.room() }),
                Arrangement::RankMajor => options.layout(Rows::RankMajor),
                Arrangement::Compact { align } | Arrangement::Vdev { align } => {
                    options.layout(Rows::Compact { align }).capacity(capacity)
                }
            };
            let routing = member.group.routing(&options, &member.group.wait())?;
            let indices = tensor(DType::I32, &[tokens, top_k as u64], false)?;
            let experts: Vec<i32> = routes.experts_of(me).iter().map(|e| e.cast_signed()).collect();
            indices.write(&experts)?;
            let weights = tensor(DType::F32, &[tokens, top_k as u64], false)?;
            weights.write(routes.weights_of(me))?;
            Way::Routed { routing, indices, weights }
        };
        let order = if by_choice { placement.by_expert(me) } else { Vec::new() };
        let arrived = placement.arrived(me);
        Ok(Exchange { placement, arrived, order, x, rows: received, scales, made, back, way })
    }

    /// Enqueues a part.
    pub fn issue(&self, member: &Member<'_>, part: Part) -> Result<(), RankError> {
        match part {
            Part::Dispatch => self.dispatch(member),
            Part::Combine => self.combine(member),
            Part::Round => {
                self.dispatch(member)?;
                self.combine(member)
            }
        }
    }

    fn dispatch(&self, member: &Member<'_>) -> Result<(), RankError> {
        let Exchange { x, rows, scales, .. } = self;
        match &self.way {
            Way::Routed { routing, indices, weights } => {
                let route = self.placement.setting.route;
                let mut call = routing.dispatch(x, indices, rows).route(route);
                if let Some(scales) = scales {
                    call = call.quantised(scales);
                }
                // Who sums a token's rows needs them; elsewhere they stay with the token.
                if self.is_by_rank() {
                    call = call.weights(weights);
                }
                Ok(call.on(&member.stream)?)
            }
            Way::Splits { splits, arrived, align, .. } => {
                let call = member.group.all_to_all_vdev_2d(x, splits, rows, arrived);
                Ok(call.major_align(*align).on(&member.stream)?)
            }
        }
    }

    fn combine(&self, member: &Member<'_>) -> Result<(), RankError> {
        let Exchange { made, back, .. } = self;
        match &self.way {
            Way::Routed { routing, weights, .. } => {
                let call = routing.combine(made, back);
                let call = if self.is_by_rank() { call } else { call.weights(weights) };
                Ok(call.on(&member.stream)?)
            }
            Way::Splits { arrived, back: splits, .. } => {
                let call = member.group.all_to_all_vdev_2d_offset(made, arrived, back, splits);
                Ok(call.on(&member.stream)?)
            }
        }
    }

    fn is_by_rank(&self) -> bool {
        self.placement.setting.arrangement == Arrangement::RankMajor
    }

    /// Writes what the calls read, and to what they write what is wrong.
    pub fn fill(&self, member: &Member<'_>, tokens: &Tokens<'_>) -> Result<(), RankError> {
        let me = member.rank();
        rows::write(&self.x, |row, to| match self.order.get(row) {
            Some((token, _)) => tokens.sent(me, *token, to),
            None => tokens.sent(me, row, to),
        })?;
        rows::write(&self.made, |row, to| tokens.returned(me, self.arrived.rows[row], to))?;
        rows::spoil(&self.rows, |row, to| {
            tokens.received(self.arrived.rows[row], to);
            self.arrived.rows[row].is_some()
        })?;
        if let Some(scales) = &self.scales {
            rows::spoil(scales, |row, to| {
                tokens.scales(self.arrived.rows[row], to);
                self.arrived.rows[row].is_some()
            })?;
        }
        rows::spoil(&self.back, |row, to| {
            self.expect_back(me, tokens, row, to);
            true
        })
    }

    /// Experts that do nothing.
    #[cfg(test)]
    pub fn return_as_received(&self) -> Result<(), RankError> {
        let mut bytes = vec![0; self.rows.bytes().get() as usize];
        self.rows.memory().read(self.rows.offset(), &mut bytes)?;
        Ok(self.made.memory().write(self.made.offset(), &bytes)?)
    }

    /// Compares all that a part has written.
    pub fn compare(
        &self,
        member: &Member<'_>,
        tokens: &Tokens<'_>,
        part: Part,
        what: &str,
    ) -> Result<(), RankError> {
        let me = member.rank();
        member.group.verdict(member.group.lane()?)?;
        if part != Part::Combine {
            self.compare_groups(what)?;
            let rows = &self.arrived.rows;
            let row = |row: usize, to: &mut Vec<u8>| tokens.received(rows[row], to);
            rows::compare(&self.rows, &format!("the rows that arrived in {what}"), row)?;
            if let Some(scales) = &self.scales {
                let row = |row: usize, to: &mut Vec<u8>| tokens.scales(rows[row], to);
                rows::compare(scales, &format!("the scales that arrived in {what}"), row)?;
            }
        }
        if part != Part::Dispatch {
            let row = |row: usize, to: &mut Vec<u8>| self.expect_back(me, tokens, row, to);
            rows::compare(&self.back, &format!("what came back in {what}"), row)?;
        }
        Ok(())
    }

    fn expect_back(&self, me: usize, tokens: &Tokens<'_>, row: usize, to: &mut Vec<u8>) {
        match self.order.get(row) {
            Some(choice) => tokens.back(me, *choice, to),
            None => tokens.combined(me, row, to),
        }
    }

    /// That the device says how many rows there are of each expert or rank, and where.
    fn compare_groups(&self, what: &str) -> Result<(), RankError> {
        let found = match &self.way {
            Way::Routed { routing, .. } => routing.groups().to_vec()?,
            Way::Splits { arrived, .. } => {
                let mut found = vec![0; arrived.count() as usize];
                arrived.read(&mut found)?;
                found
            }
        };
        let (counts, starts) = found.split_at(found.len() / 2);
        let groups = self.arrived.groups.iter().zip(counts.iter().zip(starts));
        for (index, ((count, first), found)) in groups.enumerate() {
            // Where there are no rows it does not matter where.
            let first = if *count == 0 { found.1.cast_unsigned() } else { *first };
            if (*found.0, *found.1) != (count.cast_signed(), first.cast_signed()) {
                let expected = format!("{count} rows from {first} on");
                let found = format!("{} rows from {} on", found.0, found.1);
                let what = format!("the groups of rows of {what}");
                return Err(rows::wrong(what, index, expected, found, counts.len()));
            }
        }
        Ok(())
    }
}
