//! Plain loops for where rows go, written from the layouts' definitions.

use crate::support::random::Random;

/// How rows travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A split for each rank.
    Flat,
    /// A split for each expert of each rank, by rank; received by expert, each expert's rows at a multiple.
    Dispatch { align: u64 },
    /// A split for each expert of each rank, by expert, wherever its rows are; received by rank.
    Combine,
}

/// Splits of all ranks, and where the rows of each begin in the input.
#[derive(Clone, Debug)]
pub(super) struct Splits {
    pub form: Form,
    pub ranks: usize,
    /// Experts of a rank.
    pub experts: usize,
    /// By rank.
    pub splits: Vec<Vec<i64>>,
    pub offsets: Vec<Vec<i64>>,
    /// Rows of each rank's input.
    pub rows: Vec<u64>,
}

/// What a rank receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    /// Of each row of the output: the rank and the row that it came from.
    pub rows: Vec<Option<(usize, u64)>>,
    pub splits: Vec<i64>,
    pub offsets: Vec<i64>,
    pub dropped: u64,
}

impl Splits {
    /// Splits by `draw`; the rows follow each other, or lie apart where the form says where they are.
    pub(super) fn new(
        form: Form,
        ranks: usize,
        experts: usize,
        random: &mut Random,
        mut draw: impl FnMut(&mut Random, usize, usize) -> i64,
    ) -> Self {
        let experts = if form == Form::Flat { 1 } else { experts };
        let count = ranks * experts;
        let mut all = Splits {
            form,
            ranks,
            experts,
            splits: Vec::new(),
            offsets: Vec::new(),
            rows: Vec::new(),
        };
        for rank in 0..ranks {
            let splits: Vec<i64> = (0..count).map(|entry| draw(random, rank, entry)).collect();
            let mut at = 0;
            let mut offsets = Vec::new();
            for split in &splits {
                if form == Form::Combine {
                    at += random.below(3) as i64;
                }
                offsets.push(at);
                at += split.max(&0);
            }
            all.rows.push(at as u64 + random.below(3));
            all.splits.push(splits);
            all.offsets.push(offsets);
        }
        all
    }

    /// The splits, with the offsets behind where the form has those.
    pub(super) fn input(&self, rank: usize) -> Vec<i64> {
        match self.form {
            Form::Combine => [&self.splits[rank][..], &self.offsets[rank][..]].concat(),
            _ => self.splits[rank].clone(),
        }
    }

    /// What a rank with so many rows of output receives.
    pub(super) fn received(&self, me: usize, capacity: u64) -> Received {
        let mut received = Received {
            rows: vec![None; capacity as usize],
            splits: Vec::new(),
            offsets: Vec::new(),
            dropped: 0,
        };
        let mut at = 0_u64;
        let mut take = |source: usize, entry: usize, at: &mut u64| {
            received.offsets.push(*at as i64);
            let mut kept = 0;
            for row in 0..self.splits[source][entry] {
                let from = (self.offsets[source][entry] + row) as u64;
                match received.rows.get_mut(*at as usize) {
                    Some(place) => {
                        *place = Some((source, from));
                        kept += 1;
                    }
                    None => received.dropped += 1,
                }
                *at += 1;
            }
            received.splits.push(kept);
        };
        match self.form {
            Form::Flat => (0..self.ranks).for_each(|source| take(source, me, &mut at)),
            Form::Dispatch { align } => {
                for expert in 0..self.experts {
                    let start = at;
                    for source in 0..self.ranks {
                        take(source, me * self.experts + expert, &mut at);
                    }
                    if align > 0 {
                        while at == start || !(at - start).is_multiple_of(align) {
                            at += 1;
                        }
                    }
                }
            }
            Form::Combine => {
                for source in 0..self.ranks {
                    for expert in 0..self.experts {
                        take(source, expert * self.ranks + me, &mut at);
                    }
                }
            }
        }
        received
    }

    /// Rows that every rank has room for what it receives with.
    pub(super) fn room(&self) -> u64 {
        let needed = |rank: usize| {
            let all = self.received(rank, 1 << 16);
            all.rows.iter().rposition(Option::is_some).map_or(0, |last| last as u64 + 1)
        };
        (0..self.ranks).map(needed).max().unwrap_or(0)
    }
}

/// A byte of a rank's row: no two rows are alike.
pub(super) fn byte(seed: u64, rank: usize, row: u64, at: usize) -> u8 {
    Random::new(seed, &[rank as u64, row, at as u64 / 8]).next().to_le_bytes()[at % 8]
}

/// A rank's rows.
pub(super) fn bytes(seed: u64, rank: usize, rows: u64, row_bytes: usize) -> Vec<u8> {
    let all = (0..rows).flat_map(|row| (0..row_bytes).map(move |at| (row, at)));
    all.map(|(row, at)| byte(seed, rank, row, at)).collect()
}
