//! Routes of tokens, and plain loops for what comes of them, written from the definitions.

use half::bf16;
use symmem_moe::Layout;

use crate::support::random::Random;

/// What a routing is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub ranks: usize,
    pub experts: usize,
    pub choices: usize,
    /// Most tokens of a rank.
    pub tokens: u64,
    pub layout: Layout,
    /// Rows of a rank's outputs.
    pub capacity: u64,
}

/// Who has which tokens, and what those have chosen.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    pub setting: Setting,
    /// By rank and token: `choices` experts each, or -1.
    pub indices: Vec<Vec<Vec<i64>>>,
    pub weights: Vec<Vec<Vec<f32>>>,
}

/// A row that a rank receives: whose token, which, and of its choices the one that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct From {
    pub source: usize,
    pub token: usize,
    pub choice: usize,
}

/// What a rank receives.
#[derive(Clone, Debug)]
pub(super) struct Arrived {
    /// By row.
    pub rows: Vec<Option<From>>,
    /// Rows and first row of each local expert, or of each source.
    pub groups: Vec<(u64, u64)>,
    pub dropped: u64,
    /// Of the groups, the most rows that one needs and the room it has, where that is not enough.
    pub over: Option<(u64, u64)>,
}

impl Setting {
    /// The rank of an expert: they are dealt out in order, as evenly as it goes.
    pub(super) fn owner(&self, expert: usize) -> usize {
        (0..self.ranks)
            .find(|rank| expert < (rank + 1) * self.experts / self.ranks)
            .unwrap_or(self.ranks - 1)
    }

    pub(super) fn local(&self, rank: usize) -> Vec<usize> {
        (0..self.experts).filter(|expert| self.owner(*expert) == rank).collect()
    }
}

impl Routes {
    /// Tokens of each rank by `tokens`, their choices by `choose`.
    pub(super) fn new(
        setting: Setting,
        random: &mut Random,
        mut tokens: impl FnMut(&mut Random, usize) -> u64,
        mut choose: impl FnMut(&mut Random, usize) -> i64,
    ) -> Self {
        let (mut indices, mut weights) = (Vec::new(), Vec::new());
        for rank in 0..setting.ranks {
            let count = tokens(random, rank).min(setting.tokens) as usize;
            let choices = 0..setting.choices;
            indices.push(
                (0..count).map(|_| choices.clone().map(|k| choose(random, k)).collect()).collect(),
            );
            let mut weight = || (random.below(2000) as f32 - 700.0) / 512.0;
            weights.push((0..count).map(|_| choices.clone().map(|_| weight()).collect()).collect());
        }
        Routes { setting, indices, weights }
    }

    pub(super) fn tokens(&self, rank: usize) -> usize {
        self.indices[rank].len()
    }

    /// What `me` receives, row by row.
    pub(super) fn arrived(&self, me: usize) -> Arrived {
        let setting = &self.setting;
        let capacity = setting.capacity as usize;
        let mut arrived =
            Arrived { rows: vec![None; capacity], groups: Vec::new(), dropped: 0, over: None };
        if setting.layout == Layout::RankMajor {
            for source in 0..setting.ranks {
                let first = source as u64 * setting.tokens;
                let mut at = first;
                for (token, choices) in self.indices[source].iter().enumerate() {
                    let mine = |e: &i64| *e >= 0 && setting.owner(*e as usize) == me;
                    if let Some(choice) = choices.iter().position(mine) {
                        arrived.rows[at as usize] = Some(From { source, token, choice });
                        at += 1;
                    }
                }
                arrived.groups.push((at - first, first));
            }
            return arrived;
        }
        let mut next = 0_u64;
        for (index, expert) in setting.local(me).into_iter().enumerate() {
            let (first, end, room) = match setting.layout {
                Layout::Padded { rows } => (index as u64 * rows, (index as u64 + 1) * rows, rows),
                _ => (next, setting.capacity, setting.capacity),
            };
            // Where a bin has no rows, it needs none.
            let (mut at, mut kept, mut last) = (first, 0, 0);
            for source in 0..setting.ranks {
                for (token, choices) in self.indices[source].iter().enumerate() {
                    for (choice, chosen) in choices.iter().enumerate() {
                        if *chosen != expert as i64 {
                            continue;
                        }
                        if at < end {
                            arrived.rows[at as usize] = Some(From { source, token, choice });
                            kept += 1;
                        } else {
                            arrived.dropped += 1;
                        }
                        at += 1;
                        last = at;
                    }
                }
            }
            let needed = if let Layout::Padded { .. } = setting.layout {
                last.saturating_sub(first)
            } else {
                last
            };
            if needed > room && arrived.over.is_none_or(|(most, _)| needed > most) {
                arrived.over = Some((needed, room));
            }
            arrived.groups.push((kept, first));
            next = at;
            if let Layout::Compact { align: align @ 1.. } = setting.layout {
                next = first + (at - first).max(1).next_multiple_of(align);
            }
        }
        arrived
    }

    /// What a combine gives `me`'s token, an element of it: of rows that each expert has made from the
    /// token's by `expert(rank of the expert, expert, x)`, each rounded to bf16. `kept` says whether a
    /// choice's row has arrived.
    pub(super) fn combined(
        &self,
        me: usize,
        token: usize,
        x: bf16,
        kept: impl Fn(usize) -> bool,
        expert: impl Fn(usize, f32) -> f32,
    ) -> bf16 {
        let setting = &self.setting;
        let choices = &self.indices[me][token];
        let weights = &self.weights[me][token];
        let made = |k: usize| bf16::from_f32(expert(choices[k] as usize, x.to_f32())).to_f32();
        let live = |k: &usize| choices[*k] >= 0 && kept(*k);
        if setting.layout == Layout::RankMajor {
            // Each rank has summed its own choices, weighted and in order, and rounded.
            let mut total: Option<f32> = None;
            for rank in 0..setting.ranks {
                let of_rank = |k: &usize| setting.owner(choices[*k] as usize) == rank;
                let mut part: Option<f32> = None;
                for k in (0..setting.choices).filter(live).filter(of_rank) {
                    let term = weights[k] * made(k);
                    part = Some(part.map_or(term, |part| part + term));
                }
                if let Some(part) = part.map(|part| bf16::from_f32(part).to_f32()) {
                    total = Some(total.map_or(part, |total| total + part));
                }
            }
            return bf16::from_f32(total.unwrap_or(0.0));
        }
        let mut total: Option<f32> = None;
        for k in (0..setting.choices).filter(live) {
            let term = weights[k] * made(k);
            total = Some(total.map_or(term, |total| total + term));
        }
        bf16::from_f32(total.unwrap_or(0.0))
    }
}

/// An element of a rank's token.
pub(super) fn element(seed: u64, rank: usize, token: usize, at: usize) -> bf16 {
    let bits = Random::new(seed, &[rank as u64, token as u64, at as u64]).next();
    bf16::from_f32((bits % 4001) as f32 / 64.0 - 31.0)
}
