//! The halves on a CPU.
//!
//! A half is an operation of the lane, and a lane's operations follow each other: whose header of the receive
//! half is there has ended the send half before it, so that no other word says that rows have come.
#![allow(unsafe_code, reason = "kernels: read their argument blocks; copy memory that peers write")]

use smallvec::SmallVec;
use symmem_hal::LaunchContext;
use symmem_sync::host::{Ended, Session};
use symmem_sync::protocol::Peers;

use super::plan::{Arrival, ReceiveBackPlan, ReceivePlan, SendBackPlan, SendPlan};
use crate::host::{Lane, read_words, record, write_words};
use crate::routing::host::combine::sum;
use crate::routing::host::dispatch::{Carrier, Indices, Places, no_expert, tokens};
use crate::routing::host::routed;
use crate::routing::plan::{Chosen, NOWHERE, RANK_SHIFT, Record, Routed};
use crate::verdict::Finding;

macro_rules! kernels {
    ($($name:ident: $body:ident of $plan:ty;)+) => {$(
        pub(crate) unsafe fn $name(context: &LaunchContext<'_>, args: *const u8) {
            // SAFETY: this kernel's arguments are an `OnHost` of such a plan (KERNELS).
            unsafe { routed::<$plan>(context, args, |lane, plan| half(lane, &plan.routed(), || $body(lane, plan))) }
        }
    )+};
}

kernels! {
    run_send: send of SendPlan;
    run_receive: receive of ReceivePlan;
    run_send_back: send_back of SendBackPlan;
    run_receive_back: receive_back of ReceiveBackPlan;
}

trait OfRouted {
    fn routed(&self) -> Routed;
}

macro_rules! of_routed {
    ($($plan:ty => $($field:ident).+;)+) => {$(
        impl OfRouted for $plan {
            fn routed(&self) -> Routed {
                self.$($field).+
            }
        }
    )+};
}

of_routed! {
    SendPlan => routed;
    ReceivePlan => routed;
    SendBackPlan => routed;
    ReceiveBackPlan => combine.routed;
}

/// Does `body` once every rank is in the same call.
fn half(
    lane: &Lane<'_>,
    routed: &Routed,
    body: impl FnOnce() -> Result<(), Ended>,
) -> Result<(), Ended> {
    if lane.world() == 1 {
        return body();
    }
    let all = Peers::All;
    let mut session = Session::begin(lane.context, lane.memory, lane.args, all, all)?;
    session.agree()?;
    body()?;
    lane.finish(session, 0, routed.group_completion != 0)
}

/// Stores each token once in the landing of every rank that it goes to, in the place of this rank's rows.
///
/// A peer that is in this call has that landing free.
fn send(lane: &Lane<'_>, plan: &SendPlan) -> Result<(), Ended> {
    let (shape, me) = (plan.routed.shape(lane.world()), lane.me());
    let (tokens, mut finding) = tokens(lane, plan.count, plan.source_rows)?;
    let choices = tokens * shape.choices as u64;
    let indices = Indices::new(lane, plan.indices, plan.index, choices)?;
    let places = Places(lane.follow(plan.routed.places, 8 * choices)?.cast());
    let weights = match plan.weights.is_null() {
        true => None,
        false => Some(lane.follow(plan.weights, 4 * choices)?.cast::<f32>()),
    };
    // SAFETY: as many weights as choices were followed.
    let weight = |at: usize| weights.map_or(1.0, |w| unsafe { w.add(at).read_unaligned() });
    let mut carrier = Carrier::new(lane, &plan.payload, plan.source_rows, shape.capacity)?;
    let bytes = plan.record_bytes * shape.capacity;
    let records: SmallVec<[*mut u8; 16]> = (0..shape.world)
        .map(|rank| lane.peer(plan.record_peers, rank, plan.record_offset, bytes))
        .collect::<Result<_, _>>()?;
    let mut sent: SmallVec<[u64; 16]> = SmallVec::from_elem(0, shape.world);
    for token in 0..tokens as usize {
        carrier.begin(token);
        let choices = token * shape.choices..(token + 1) * shape.choices;
        for at in choices.clone() {
            let Some(expert) = indices.expert(at, shape.experts) else {
                if indices.at(at) != -1 && finding.what == 0 {
                    finding = no_expert(indices.at(at), at, shape.experts);
                }
                places.set(at, NOWHERE);
                continue;
            };
            let target = shape.owner(expert);
            let goes_there = |at: &usize| {
                let place = places.get(*at);
                place != NOWHERE && (place >> RANK_SHIFT) as usize == target
            };
            if let Some(same) = (choices.start..at).find(goes_there) {
                places.set(at, places.get(same));
                continue;
            }
            let row = me as u64 * shape.tokens + sent[target];
            sent[target] += 1;
            places.set(at, (target as u64) << RANK_SHIFT | row);
            let row = row as usize;
            carrier.store(token, target, row);
            let record = Record {
                source: me as u32,
                token: token as u32,
                choice: (at - choices.start) as u32,
                weight: weight(at),
                from: row as u64,
                next: NOWHERE,
            };
            let to = records[target].wrapping_add(row * plan.record_bytes as usize);
            // SAFETY: a row of this rank's place in the target's landing, which has room for as many tokens as a
            // rank may have and is this rank's alone to write in this call, which the target is in; a record
            // has room for every choice after its head.
            unsafe {
                to.cast::<Record>().write_unaligned(record);
                let to = to.add(size_of::<Record>()).cast::<Chosen>();
                for (i, at) in choices.clone().enumerate() {
                    let expert = indices.expert(at, shape.experts);
                    let local = expert.filter(|expert| shape.owner(*expert) == target);
                    let expert = local.map_or(-1, |e| (e - shape.first(target)) as i32);
                    to.add(i).write_unaligned(Chosen { expert, weight: weight(at) });
                }
            }
        }
    }
    for (target, rows) in sent.iter().enumerate() {
        let bytes = (shape.world * size_of::<Arrival>()) as u64;
        let arrivals = lane.peer(plan.arrival_peers, target, plan.arrival_offset, bytes)?;
        let arrival = Arrival { rows: if finding.what == 0 { *rows } else { 0 }, finding };
        // SAFETY: this rank's arrival at the target, which is in this call.
        unsafe { arrivals.cast::<Arrival>().add(me).write_unaligned(arrival) };
    }
    write_words(lane, plan.routed.tokens, &[tokens])
}

/// Tells how many rows have come from each rank; none, if any rank's tokens were wrong.
fn receive(lane: &Lane<'_>, plan: &ReceivePlan) -> Result<(), Ended> {
    let shape = plan.routed.shape(lane.world());
    let words = shape.world * size_of::<Arrival>() / 8;
    let arrivals: SmallVec<[u64; 64]> = read_words(lane, plan.arrivals, words)?;
    let arrivals: &[Arrival] = bytemuck::cast_slice(&arrivals);
    let found = |(rank, arrival): (usize, &Arrival)| {
        (arrival.finding.what != 0).then_some((rank, arrival.finding))
    };
    let verdict: Option<(usize, Finding)> = arrivals.iter().enumerate().find_map(found);
    let rows = arrivals.iter().map(|a| if verdict.is_none() { a.rows.cast_signed() } else { 0 });
    let starts = (0..shape.world as u64).map(|rank| (rank * shape.tokens).cast_signed());
    let groups: SmallVec<[i64; 32]> = rows.chain(starts).collect();
    write_words(lane, plan.routed.groups, &groups)?;
    if verdict.is_some() {
        write_words(lane, plan.routed.tokens, &[0_u64])?;
    }
    record(lane, plan.routed.status, verdict, 0)
}

/// Stores what has been made of each rank's rows in that rank's landing, in the place of this rank's.
fn send_back(lane: &Lane<'_>, plan: &SendBackPlan) -> Result<(), Ended> {
    let (shape, me) = (plan.routed.shape(lane.world()), lane.me());
    let groups: SmallVec<[i64; 32]> = read_words(lane, plan.routed.groups, shape.world)?;
    let rows = lane.follow(plan.rows, plan.row * shape.capacity)?;
    for step in 1..=shape.world {
        let source = (me + step) % shape.world;
        // Whoever wrote that, there is room for no more on either side.
        let rows_from = u64::try_from(groups[source]).unwrap_or(0).min(shape.tokens);
        let bytes = rows_from * plan.row;
        let landing = lane.peer(plan.peers, source, plan.offset, plan.row * shape.capacity)?;
        let part = |rank: usize| (rank as u64 * shape.tokens * plan.row) as usize;
        // SAFETY: no more rows than a rank's place has on either side; the landing is this rank's to write
        // there in this call, which its rank is in, and apart from the rows.
        unsafe {
            let (from, to) = (rows.add(part(source)), landing.add(part(me)));
            from.copy_to_nonoverlapping(to, bytes as usize);
        }
    }
    Ok(())
}

/// Sums the rows of each token, of those that have come back.
fn receive_back(lane: &Lane<'_>, plan: &ReceiveBackPlan) -> Result<(), Ended> {
    let (shape, me) = (plan.combine.routed.shape(lane.world()), lane.me() as u64);
    let row = plan.combine.row();
    let back = lane.follow(plan.rows, row * shape.capacity)?.cast_const();
    // Row i of this rank's place at a rank has come back as row i of that rank's place here.
    let place = |rank: u64| (rank * shape.tokens * row) as usize;
    let first = |rank| back.wrapping_add(place(rank)).wrapping_sub(place(me));
    let rows: SmallVec<[*const u8; 16]> = (0..shape.world as u64).map(first).collect();
    sum(lane, &plan.combine, shape, &rows)
}
