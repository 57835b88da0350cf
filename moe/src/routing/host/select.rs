//! Few tokens: every rank shows all of its own to all others, and each takes what is for its experts.
#![allow(unsafe_code, reason = "copies memory that peers write")]

use smallvec::SmallVec;
use symmem_sync::host::{Ended, Session};
use symmem_sync::protocol::Peers;

use super::super::plan::{Chosen, NOWHERE, Record};
use super::super::shape::{Counts, Placed};
use super::dispatch::{Carrier, Dispatch, Indices};
use crate::host::{record, write_words};

/// What a rank shows, in its staging: its message, its choices, their weights, and its rows of each tensor.
struct Shown {
    indices: usize,
    weights: usize,
    /// Of the rows of each tensor, and their end.
    rows: SmallVec<[usize; 5]>,
}

impl Shown {
    fn new(work: &Dispatch<'_>) -> Self {
        let (plan, shape) = (work.plan, work.shape);
        let choices = shape.tokens as usize * shape.choices;
        let indices = 8 * shape.words();
        let weights = indices + choices * plan.index as usize;
        let mut at = (weights + choices * 4).next_multiple_of(16);
        let mut rows = SmallVec::from_iter([at]);
        for payload in work.payloads() {
            at = (at + (shape.tokens * payload.source_row) as usize).next_multiple_of(16);
            rows.push(at);
        }
        Shown { indices, weights, rows }
    }
}

impl Dispatch<'_> {
    /// Routes tokens by their choices: one exchange instead of two, of all tokens to all ranks.
    pub(super) fn select(&self) -> Result<(), Ended> {
        let (lane, plan, shape) = (self.lane, self.plan, self.shape);
        let (words, me) = (shape.words(), self.me);
        let mut all: SmallVec<[u64; 512]> = SmallVec::from_elem(0, shape.world * words);
        self.count(&mut all[me * words..][..words])?;
        let tokens = all[me * words];
        let peers = Peers::All;
        let mut session = Session::begin(lane.context, lane.memory, lane.args, peers, peers)?;
        let shown = Shown::new(self);
        self.show(&shown, session.staging(me, 0), &all[me * words..][..words])?;
        session.raise(1);
        session.agree()?;
        for step in 1..shape.world {
            let peer = (me + step) % shape.world;
            session.await_flag(peer, 1)?;
            let to = all[peer * words..][..words].as_mut_ptr();
            // SAFETY: a message was stored there before the peer's step.
            unsafe { session.staging(peer, 0).cast::<u64>().copy_to_nonoverlapping(to, words) };
        }
        let counts = Counts { shape, words: &all };
        let verdict = counts.verdict(plan.drop != 0);
        if verdict.is_none() {
            self.place(&counts, tokens)?;
            self.take(&shown, &counts, |rank| session.staging(rank, 0))?;
        }
        let dropped = self.tell(&counts, verdict.is_none())?;
        write_words(lane, plan.routed.tokens, &[if verdict.is_none() { tokens } else { 0 }])?;
        record(lane, plan.routed.status, verdict, dropped)?;
        self.end(Some(session), 1)
    }

    /// Stores what this rank shows.
    fn show(&self, shown: &Shown, staging: *mut u8, message: &[u64]) -> Result<(), Ended> {
        let (plan, shape) = (self.plan, self.shape);
        let tokens = message[0];
        let choices = tokens * shape.choices as u64;
        let mut ranges: SmallVec<[_; 8]> = SmallVec::new();
        ranges.push((shown.indices, plan.indices, choices * u64::from(plan.index)));
        if !plan.weights.is_null() {
            ranges.push((shown.weights, plan.weights, choices * 4));
        }
        for (payload, at) in self.payloads().iter().zip(&shown.rows) {
            ranges.push((*at, payload.source, tokens * payload.source_row));
        }
        // SAFETY: all of it fits in a staging (`Dispatch::plan`), which is this rank's own to write.
        unsafe { staging.cast::<u64>().copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        for (at, from, bytes) in ranges {
            let from = self.lane.follow(from, bytes)?;
            // SAFETY: as above; as many bytes of the caller's are there.
            unsafe { from.copy_to_nonoverlapping(staging.add(at), bytes as usize) };
        }
        Ok(())
    }

    /// Copies the rows of all ranks' tokens that have chosen an expert of this rank.
    fn take(
        &self,
        shown: &Shown,
        counts: &Counts<'_>,
        staging: impl Fn(usize) -> *mut u8,
    ) -> Result<(), Ended> {
        let (plan, shape, lane, me) = (self.plan, self.shape, self.lane, self.me);
        let first = shape.bins_of(me).start;
        let bins = shape.bins_of(me).len();
        // By source and bin.
        let mut next: SmallVec<[(u64, u64); 64]> = SmallVec::from_elem((0, 0), shape.world * bins);
        counts.place(me, |Placed { bin, source, at, end, .. }| {
            next[source * bins + bin - first] = (at, end);
        });
        let records = lane.follow(plan.records, plan.record_bytes * shape.capacity)?;
        let mut carriers: SmallVec<[Carrier<'_>; 4]> = SmallVec::new();
        for payload in self.payloads() {
            carriers.push(Carrier::new(lane, payload, plan.source_rows, shape.capacity)?);
        }
        for source in 0..shape.world {
            let base = staging(source);
            let indices = Indices::at_address(base.wrapping_add(shown.indices), plan.index);
            let weights = base.wrapping_add(shown.weights).cast::<f32>();
            let has_weights = !plan.weights.is_null();
            let weight = |at: usize| {
                if !has_weights {
                    return 1.0;
                }
                // SAFETY: as many weights as choices were stored there, where the calls have any: all or none.
                unsafe { weights.add(at).read_unaligned() }
            };
            for (carrier, at) in carriers.iter_mut().zip(&shown.rows) {
                carrier.restart(base.wrapping_add(*at).cast_const());
            }
            for token in 0..counts.tokens(source) as usize {
                let choices = token * shape.choices..(token + 1) * shape.choices;
                let local = |at: usize| {
                    let expert = indices.expert(at, shape.experts)?;
                    (shape.owner(expert) == me).then_some(expert)
                };
                // What other rows of the token are copies of, when others of its tensors follow.
                let mut from = None;
                for at in choices.clone() {
                    let Some(expert) = local(at) else { continue };
                    if shape.is_by_rank() && (choices.start..at).any(|at| local(at).is_some()) {
                        break;
                    }
                    let (row, end) = &mut next[source * bins + shape.bin(expert) - first];
                    let to = *row;
                    *row = to.saturating_add(1);
                    if to >= *end {
                        continue;
                    }
                    for carrier in &mut carriers {
                        carrier.store(token, me, to as usize);
                    }
                    let head = Record {
                        source: source as u32,
                        token: token as u32,
                        choice: (at - choices.start) as u32,
                        weight: weight(at),
                        from: *from.get_or_insert(to),
                        next: NOWHERE,
                    };
                    let place = records.wrapping_add((to * plan.record_bytes) as usize);
                    // SAFETY: a row within the capacity, of this rank's own; a record has room for every
                    // choice after its head, where rows lie by rank.
                    unsafe {
                        place.cast::<Record>().write_unaligned(head);
                        if shape.is_by_rank() {
                            let to = place.add(size_of::<Record>()).cast::<Chosen>();
                            for (i, at) in choices.clone().enumerate() {
                                let expert = local(at).map_or(-1, |e| (e - shape.first(me)) as i32);
                                to.add(i).write_unaligned(Chosen { expert, weight: weight(at) });
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
