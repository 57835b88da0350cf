//! Tokens to the ranks of their experts, one copy for each rank.
#![allow(unsafe_code, reason = "copies memory that peers write")]

use smallvec::SmallVec;
use symmem_collectives::numerics::BlockQuantiser;
use symmem_hal::DevicePtr;
use symmem_hal::types::DType;
use symmem_sync::host::{Ended, Session};
use symmem_sync::protocol::Peers;

use super::super::plan::{Chosen, DispatchPlan, NOWHERE, Payload, RANK_SHIFT, Record};
use super::super::shape::{Counts, HEAD, Placed, Shape};
use crate::host::{Lane, read_word, record, write_words};
use crate::verdict::Finding;

/// A number for each bin: without an allocation for as many experts as models have today.
type PerBin = SmallVec<[u64; 256]>;

pub(super) fn dispatch(lane: &Lane<'_>, plan: &DispatchPlan) -> Result<(), Ended> {
    let shape = plan.routed.shape(lane.world());
    let work = Dispatch { lane, plan, shape, me: lane.me() };
    if plan.indices.is_null() {
        return work.again();
    }
    // Where there is nobody to show anything to, nothing is shown.
    if plan.shows != 0 && lane.world() > 1 { work.select() } else { work.anew() }
}

/// One launch.
pub(super) struct Dispatch<'a> {
    pub lane: &'a Lane<'a>,
    pub plan: &'a DispatchPlan,
    pub shape: Shape,
    pub me: usize,
}

impl Dispatch<'_> {
    /// Routes tokens by their choices, and sends them.
    fn anew(&self) -> Result<(), Ended> {
        let (lane, plan, shape) = (self.lane, self.plan, self.shape);
        let words = shape.words();
        let mut all: SmallVec<[u64; 512]> = SmallVec::from_elem(0, shape.world * words);
        self.count(&mut all[self.me * words..][..words])?;
        let tokens = all[self.me * words];
        let mut session = match lane.world() {
            1 => None,
            _ => {
                Some(Session::begin(lane.context, lane.memory, lane.args, Peers::All, Peers::All)?)
            }
        };
        let mut raised = match &mut session {
            Some(session) => lane.gather(session, &mut all, words)?,
            None => 0,
        };
        let counts = Counts { shape, words: &all };
        let verdict = counts.verdict(plan.drop != 0);
        if verdict.is_none() {
            self.place(&counts, tokens)?;
            self.send(tokens, true)?;
            if let Some(session) = &mut session {
                raised += 1;
                session.raise(raised);
                session.await_all(raised)?;
            }
        }
        let dropped = self.tell(&counts, verdict.is_none())?;
        self.spread()?;
        write_words(lane, plan.routed.tokens, &[if verdict.is_none() { tokens } else { 0 }])?;
        record(lane, plan.routed.status, verdict, dropped)?;
        self.end(session, raised)
    }

    /// Sends other rows of the same tokens.
    fn again(&self) -> Result<(), Ended> {
        let (lane, plan) = (self.lane, self.plan);
        let found = read_word(lane, plan.routed.tokens)?;
        let tokens = found.min(plan.source_rows);
        if found > tokens {
            let finding = Finding::new(Finding::TOKENS, 0, found, tokens);
            record(lane, plan.routed.status, Some((self.me, finding)), 0)?;
        }
        if lane.world() == 1 {
            self.send(tokens, false)?;
            return self.spread();
        }
        let all = Peers::All;
        let mut session = Session::begin(lane.context, lane.memory, lane.args, all, all)?;
        // Whoever is in this call lets its output be written.
        session.agree()?;
        self.send(tokens, false)?;
        session.raise(1);
        session.await_all(1)?;
        self.spread()?;
        self.end(Some(session), 1)
    }

    pub(super) fn end(&self, session: Option<Session<'_>>, raised: u32) -> Result<(), Ended> {
        let of_group = self.plan.routed.group_completion != 0;
        session.map_or(Ok(()), |session| self.lane.finish(session, raised, of_group))
    }

    /// The tensors that it carries.
    pub(super) fn payloads(&self) -> &[Payload] {
        &self.plan.payloads[..self.plan.payload_count as usize]
    }

    /// Writes this rank's message: its tokens, what is wrong with them, and its rows for each bin.
    pub(super) fn count(&self, words: &mut [u64]) -> Result<(), Ended> {
        let (plan, shape) = (self.plan, self.shape);
        let (tokens, mut finding) = tokens(self.lane, plan.count, plan.source_rows)?;
        let indices = self.indices(tokens)?;
        for token in 0..tokens as usize {
            let mut seen = SmallVec::<[usize; 16]>::new();
            for at in token * shape.choices..(token + 1) * shape.choices {
                let Some(expert) = indices.expert(at, shape.experts) else {
                    let value = indices.at(at);
                    if value != -1 && finding.what == 0 {
                        finding = no_expert(value, at, shape.experts);
                    }
                    continue;
                };
                let bin = shape.bin(expert);
                // One row for all choices of a rank.
                if shape.is_by_rank() {
                    if seen.contains(&bin) {
                        continue;
                    }
                    seen.push(bin);
                }
                words[HEAD + bin] += 1;
            }
        }
        words[..HEAD].copy_from_slice(&[tokens, finding.what, finding.value, finding.limit]);
        if finding.what != 0 {
            words[HEAD..].fill(0);
        }
        Ok(())
    }

    fn indices(&self, tokens: u64) -> Result<Indices, Ended> {
        let choices = tokens * self.shape.choices as u64;
        Indices::new(self.lane, self.plan.indices, self.plan.index, choices)
    }

    /// Decides where each choice of each token goes.
    pub(super) fn place(&self, counts: &Counts<'_>, tokens: u64) -> Result<(), Ended> {
        let shape = self.shape;
        let mut next: PerBin = SmallVec::from_elem(0, shape.bins());
        let mut ends = next.clone();
        for target in 0..shape.world {
            counts.place(target, |Placed { bin, source, at, end, .. }| {
                if source == self.me {
                    (next[bin], ends[bin]) = (at, end);
                }
            });
        }
        let (indices, places) = (self.indices(tokens)?, self.places(tokens)?);
        for token in 0..tokens as usize {
            let choices = token * shape.choices..(token + 1) * shape.choices;
            for at in choices.clone() {
                let Some(expert) = indices.expert(at, shape.experts) else {
                    places.set(at, NOWHERE);
                    continue;
                };
                let (bin, owner) = (shape.bin(expert), shape.owner(expert));
                let of_rank = |at: &usize| (places.get(*at) >> RANK_SHIFT) as usize == owner;
                let same = (choices.start..at).find(of_rank).filter(|_| shape.is_by_rank());
                if let Some(same) = same {
                    places.set(at, places.get(same));
                    continue;
                }
                let row = next[bin];
                next[bin] = row.saturating_add(1);
                let place = (owner as u64) << RANK_SHIFT | row;
                places.set(at, if row < ends[bin] { place } else { NOWHERE });
            }
        }
        Ok(())
    }

    fn places(&self, tokens: u64) -> Result<Places, Ended> {
        let words = tokens * self.shape.choices as u64;
        Ok(Places(self.lane.follow(self.plan.routed.places, 8 * words)?.cast()))
    }

    /// Stores each token's payload once in every rank that it goes to, and, if `anew`, a record of each row.
    fn send(&self, tokens: u64, anew: bool) -> Result<(), Ended> {
        let (plan, shape, lane) = (self.plan, self.shape, self.lane);
        let mut carriers: SmallVec<[Carrier; 4]> = SmallVec::new();
        for payload in self.payloads() {
            carriers.push(Carrier::new(lane, payload, plan.source_rows, shape.capacity)?);
        }
        let bytes = plan.record_bytes * shape.capacity;
        let records: SmallVec<[*mut u8; 16]> = (0..shape.world)
            .map(|rank| lane.peer(plan.record_peers, rank, plan.record_offset, bytes))
            .collect::<Result<_, _>>()?;
        let places = self.places(tokens)?;
        let indices = if anew { Some(self.indices(tokens)?) } else { None };
        let weights = lane.follow(plan.weights, tokens * 4 * shape.choices as u64);
        let weights = if plan.weights.is_null() { None } else { Some(weights?.cast::<f32>()) };
        // SAFETY: as many weights as choices were followed.
        let weight = |at: usize| weights.map_or(1.0, |w| unsafe { w.add(at).read_unaligned() });
        for token in 0..tokens as usize {
            let choices = token * shape.choices..(token + 1) * shape.choices;
            for carrier in &mut carriers {
                carrier.begin(token);
            }
            for at in choices.clone() {
                let place = places.get(at);
                if place == NOWHERE {
                    continue;
                }
                let (target, row) = split(place);
                let goes_there = |at: &usize| split(places.get(*at)).0 == target;
                let first = choices.clone().find(goes_there).unwrap_or(at);
                if first == at {
                    for carrier in &mut carriers {
                        carrier.store(token, target, row);
                    }
                }
                let Some(indices) = &indices else { continue };
                if first != at && shape.is_by_rank() {
                    continue;
                }
                let record = Record {
                    source: self.me as u32,
                    token: token as u32,
                    choice: (at - choices.start) as u32,
                    weight: weight(at),
                    from: split(places.get(first)).1 as u64,
                    next: NOWHERE,
                };
                let to = records[target].wrapping_add(row * plan.record_bytes as usize);
                // SAFETY: the row lies within the target's capacity, and is this rank's alone to write in
                // this call, which the target is in.
                unsafe { to.cast::<Record>().write_unaligned(record) };
                if shape.is_by_rank() {
                    let chosen = choices.clone().map(|at| {
                        let expert = indices.expert(at, shape.experts);
                        let local = expert.filter(|expert| shape.owner(*expert) == target);
                        let expert = local.map_or(-1, |e| (e - shape.first(target)) as i32);
                        Chosen { expert, weight: weight(at) }
                    });
                    let to = to.wrapping_add(size_of::<Record>()).cast::<Chosen>();
                    for (i, chosen) in chosen.enumerate() {
                        // SAFETY: a record has room for every choice after its head.
                        unsafe { to.add(i).write_unaligned(chosen) };
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes how many rows this rank received, and where. How many more were sent to it.
    pub(super) fn tell(&self, counts: &Counts<'_>, is_good: bool) -> Result<u64, Ended> {
        let shape = self.shape;
        let count = shape.groups();
        let mut groups: SmallVec<[i64; 128]> = SmallVec::from_elem(0, 2 * count);
        let mut dropped = 0;
        if is_good {
            let first = shape.bins_of(self.me).start;
            counts.place(self.me, |placed| {
                let at = if shape.is_by_rank() { placed.source } else { placed.bin - first };
                if shape.is_by_rank() || placed.source == 0 {
                    groups[count + at] = i64::try_from(placed.at).unwrap_or(i64::MAX);
                }
                groups[at] += placed.kept().cast_signed();
                dropped += placed.rows - placed.kept();
            });
        }
        write_words(self.lane, self.plan.routed.groups, &groups)?;
        Ok(dropped)
    }

    /// Copies the payload of tokens that several experts of this rank have chosen to all their rows.
    fn spread(&self) -> Result<(), Ended> {
        let (plan, shape, lane) = (self.plan, self.shape, self.lane);
        if shape.is_by_rank() {
            return Ok(());
        }
        let count = shape.groups();
        let groups: SmallVec<[i64; 128]> =
            crate::host::read_words(lane, plan.routed.groups, 2 * count)?;
        let records = lane.follow(plan.records, plan.record_bytes * shape.capacity)?;
        for group in 0..count {
            // Whoever wrote that, there are no more rows.
            let [rows, start] =
                [group, count + group].map(|at| u64::try_from(groups[at]).unwrap_or(0));
            let end = start.saturating_add(rows).min(shape.capacity);
            for row in start as usize..end.max(start) as usize {
                let record =
                    records.wrapping_add(row * plan.record_bytes as usize).cast::<Record>();
                // SAFETY: every kept row has a record, stored before the step of its writer that was
                // awaited, in this call or in the one that routed these tokens.
                let from = unsafe { (&raw const (*record).from).read_unaligned() } as usize;
                if from == row || from as u64 >= shape.capacity {
                    continue;
                }
                for payload in self.payloads() {
                    let pairs =
                        [(payload.target, payload.row), (payload.scales, payload.scale_row)];
                    for (base, bytes) in pairs.into_iter().filter(|(base, _)| !base.is_null()) {
                        let base = lane.follow(base, bytes * shape.capacity)?;
                        let bytes = bytes as usize;
                        // SAFETY: two rows of this rank's own output, which differ; the one that is read
                        // was stored before the same step.
                        unsafe {
                            let (from, to) = (base.add(from * bytes), base.add(row * bytes));
                            from.copy_to_nonoverlapping(to, bytes);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// How many tokens there are, by a word on the device or else as many as rows, and what is wrong with that.
pub(crate) fn tokens(
    lane: &Lane<'_>,
    count: DevicePtr,
    rows: u64,
) -> Result<(u64, Finding), Ended> {
    if count.is_null() {
        return Ok((rows, Finding::default()));
    }
    match read_word(lane, count)? {
        found if found > rows => Ok((rows, Finding::new(Finding::TOKENS, 0, found, rows))),
        found => Ok((found, Finding::default())),
    }
}

/// A choice that is no expert and does not say none.
pub(crate) fn no_expert(value: i64, index: usize, experts: usize) -> Finding {
    Finding::new(Finding::NO_EXPERT, index, value.cast_unsigned(), experts as u64)
}

/// The rank and the row of a place.
pub(crate) fn split(place: u64) -> (usize, usize) {
    ((place >> RANK_SHIFT) as usize, (place & ((1 << RANK_SHIFT) - 1)) as usize)
}

/// The experts that tokens have chosen, where the caller's are.
pub(crate) struct Indices {
    at: *const u8,
    bytes: usize,
}

impl Indices {
    /// Those of `choices` choices.
    pub(crate) fn new(
        lane: &Lane<'_>,
        at: DevicePtr,
        bytes: u32,
        choices: u64,
    ) -> Result<Self, Ended> {
        let at = lane.follow(at, choices * u64::from(bytes))?;
        Ok(Indices { at: at.cast_const(), bytes: bytes as usize })
    }

    /// Those at an address, which has as many as are asked for.
    pub(super) fn at_address(at: *mut u8, bytes: u32) -> Self {
        Indices { at: at.cast_const(), bytes: bytes as usize }
    }

    pub(crate) fn at(&self, index: usize) -> i64 {
        let at = self.at.wrapping_add(index * self.bytes);
        // SAFETY: every index is below the number of choices that were followed; they are i32 or i64
        // (`Dispatch::plan`), and nobody writes them during the operation.
        unsafe {
            match self.bytes {
                4 => at.cast::<i32>().read_unaligned().into(),
                _ => at.cast::<i64>().read_unaligned(),
            }
        }
    }

    /// `None` for no expert, or one that there is not.
    pub(crate) fn expert(&self, index: usize, experts: usize) -> Option<usize> {
        usize::try_from(self.at(index)).ok().filter(|expert| *expert < experts)
    }
}

/// Where choices went: this rank's own memory, behind a pointer since a kernel before wrote it.
pub(crate) struct Places(pub *mut u64);

impl Places {
    pub(crate) fn get(&self, at: usize) -> u64 {
        // SAFETY: every index is below the number of choices that were followed.
        unsafe { self.0.add(at).read() }
    }

    pub(crate) fn set(&self, at: usize, place: u64) {
        // SAFETY: as in `get`.
        unsafe { self.0.add(at).write(place) };
    }
}

/// Brings one tensor's rows to the ranks.
pub(crate) struct Carrier<'a> {
    payload: &'a Payload,
    source: *const u8,
    /// By rank: rows, and scales.
    targets: SmallVec<[(*mut u8, *mut u8); 16]>,
    quantiser: Option<BlockQuantiser>,
    /// The token's quantised row and scales, once it was needed.
    made: Option<usize>,
    row: Vec<u8>,
    scales: Vec<f32>,
}

impl<'a> Carrier<'a> {
    pub(crate) fn new(
        lane: &Lane<'_>,
        payload: &'a Payload,
        source_rows: u64,
        capacity: u64,
    ) -> Result<Self, Ended> {
        let target = |rank: usize| {
            let rows = lane.peer(payload.peers, rank, payload.offset, payload.row * capacity)?;
            let has_scales = !payload.scales.is_null();
            let bytes = payload.scale_row * capacity;
            let scales = match has_scales {
                true => lane.peer(payload.scale_peers, rank, payload.scale_offset, bytes)?,
                false => core::ptr::null_mut(),
            };
            Ok((rows, scales))
        };
        let quantiser = match payload.dtype {
            0 => None,
            code => {
                let dtype = u8::try_from(code).ok().and_then(DType::from_code).ok_or(Ended)?;
                Some(BlockQuantiser::new(dtype).map_err(|_| Ended)?)
            }
        };
        let (row, scales) = match quantiser {
            Some(_) => (payload.row as usize, payload.scale_row as usize / 4),
            None => (0, 0),
        };
        Ok(Carrier {
            payload,
            source: lane.follow(payload.source, payload.source_row * source_rows)?.cast_const(),
            targets: (0..lane.world()).map(target).collect::<Result<_, _>>()?,
            quantiser,
            made: None,
            row: vec![0; row],
            scales: vec![0.0; scales],
        })
    }

    /// Takes rows from elsewhere from now on.
    pub(super) fn restart(&mut self, source: *const u8) {
        (self.source, self.made) = (source, None);
    }

    pub(crate) fn begin(&mut self, token: usize) {
        self.made = self.made.filter(|made| *made == token);
    }

    /// Stores a token's row as a rank's.
    pub(crate) fn store(&mut self, token: usize, target: usize, row: usize) {
        let bytes = self.payload.row as usize;
        let source = self.source.wrapping_add(token * self.payload.source_row as usize);
        let (rows, scales) = self.targets[target];
        let Some(quantiser) = &self.quantiser else {
            // SAFETY: a row of the source, and one of the target that is this rank's alone to write in
            // this call, which the target is in.
            unsafe { source.copy_to_nonoverlapping(rows.add(row * bytes), bytes) };
            return;
        };
        if self.made != Some(token) {
            let (to, scales) = (self.row.as_mut_ptr(), self.scales.as_mut_ptr());
            // SAFETY: a row of the source has as many elements as a quantised one has bytes, and the
            // buffers are as long as a row of the target and its scales.
            unsafe { quantiser.quantise(source, bytes, to, scales) };
            self.made = Some(token);
        }
        let scale_bytes = self.payload.scale_row as usize;
        // SAFETY: as above, of rows and of scales.
        unsafe {
            self.row.as_ptr().copy_to_nonoverlapping(rows.add(row * bytes), bytes);
            let from = self.scales.as_ptr().cast::<u8>();
            from.copy_to_nonoverlapping(scales.add(row * scale_bytes), scale_bytes);
        }
    }
}
