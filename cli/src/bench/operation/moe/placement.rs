//! Where routed rows lie, and how many bytes travel: from the layouts' definitions, and from nothing that the
//! library says.

use super::routes::{Arrangement, Routes, Setting};

/// A row that a rank receives: whose token, which, and for which of its choices; of rows by rank, for the
/// first that the rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct From {
    pub source: u32,
    pub token: u32,
    pub choice: u32,
}

/// What a rank receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// By row of its outputs; `None` where nothing is written.
    pub rows: Vec<Option<From>>,
    /// Rows, and the first of them, by local expert; of rows by rank, by source; of all-to-all-v, by local
    /// expert and source.
    pub groups: Vec<(u64, u64)>,
}

/// Rows that travel on behalf of one rank's tokens and experts, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Rows of the rank that sends or receives the most.
    pub busiest: u64,
    /// The same without rows that stay on their rank.
    pub across: u64,
    /// Rows of this rank's own tokens.
    pub own: u64,
}

/// Routes, and where they lead.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    pub setting: &'a Setting,
    pub routes: &'a Routes,
}

impl Placement<'_> {
    /// Tokens' choices of each expert.
    fn chosen(&self) -> Vec<u64> {
        let mut counts = vec![0; self.setting.experts];
        for rank in 0..self.setting.ranks {
            for expert in self.routes.experts_of(rank) {
                counts[*expert as usize] += 1;
            }
        }
        counts
    }

    /// Rows that each expert has room for, where all have as much.
    pub fn room(&self) -> u64 {
        self.chosen().into_iter().max().unwrap_or(0).max(1)
    }

    /// Rows of every rank's outputs: enough for the rank that receives the most.
    pub fn capacity(&self) -> u64 {
        let setting = self.setting;
        let chosen = self.chosen();
        let of_rank = |rank: usize| &chosen[setting.first(rank)..setting.first(rank + 1)];
        let align = setting.arrangement.align();
        let rows = |rank| match setting.arrangement {
            Arrangement::RankMajor => (setting.ranks * self.routes.tokens) as u64,
            Arrangement::Padded => setting.experts.div_ceil(setting.ranks) as u64 * self.room(),
            Arrangement::Compact { .. } | Arrangement::Vdev { .. } => {
                of_rank(rank).iter().map(|count| padded(*count, align)).sum()
            }
        };
        (0..setting.ranks).map(rows).max().unwrap_or(0).max(1)
    }

    /// What a rank receives.
    pub fn arrived(&self, me: usize) -> Arrived {
        let Setting { ranks, arrangement, .. } = *self.setting;
        let mut arrived =
            Arrived { rows: vec![None; self.capacity() as usize], groups: Vec::new() };
        if arrangement == Arrangement::RankMajor {
            for source in 0..ranks {
                let first = source * self.routes.tokens;
                let mut at = first;
                for token in 0..self.routes.tokens {
                    let experts = self.routes.experts(source, token);
                    let mine = |expert: &u32| self.setting.owner(*expert as usize) == me;
                    if let Some(choice) = experts.iter().position(mine) {
                        arrived.rows[at] = Some(from(source, token, choice));
                        at += 1;
                    }
                }
                arrived.groups.push(((at - first) as u64, first as u64));
            }
            return arrived;
        }
        let local = self.setting.first(me)..self.setting.first(me + 1);
        let mut bins: Vec<Vec<From>> = vec![Vec::new(); local.len()];
        for source in 0..ranks {
            for token in 0..self.routes.tokens {
                for (choice, expert) in self.routes.experts(source, token).iter().enumerate() {
                    let expert = *expert as usize;
                    if local.contains(&expert) {
                        bins[expert - local.start].push(from(source, token, choice));
                    }
                }
            }
        }
        let (room, mut next) = (self.room(), 0);
        for bin in bins {
            let first = next;
            arrived.rows[first as usize..]
                .iter_mut()
                .zip(&bin)
                .for_each(|(to, row)| *to = Some(*row));
            if let Arrangement::Vdev { .. } = arrangement {
                let mut at = first;
                for source in 0..ranks as u32 {
                    let count = bin.iter().filter(|row| row.source == source).count() as u64;
                    arrived.groups.push((count, at));
                    at += count;
                }
            } else {
                arrived.groups.push((bin.len() as u64, first));
            }
            next = first
                + match arrangement {
                    Arrangement::Padded => room,
                    _ => padded(bin.len() as u64, arrangement.align()),
                };
        }
        arrived
    }

    /// Tokens' choices of a rank in the order of experts, in which all-to-all-v is given rows: token and choice.
    pub fn by_expert(&self, me: usize) -> Vec<(usize, usize)> {
        let top_k = self.setting.top_k;
        let experts = self.routes.experts_of(me);
        let mut order: Vec<usize> = (0..experts.len()).collect();
        order.sort_by_key(|at| experts[*at]);
        order.into_iter().map(|at| (at / top_k, at % top_k)).collect()
    }

    /// Rows of a rank for each expert.
    pub fn splits(&self, me: usize) -> Vec<i64> {
        let mut splits = vec![0; self.setting.experts];
        for expert in self.routes.experts_of(me) {
            splits[*expert as usize] += 1;
        }
        splits
    }

    /// Rows that travel in a dispatch: for each rank that a token goes to, or for each of its choices.
    pub fn dispatched(&self, me: usize) -> Traffic {
        match self.setting.arrangement {
            Arrangement::Vdev { .. } => self.traffic(me, false),
            _ => self.traffic(me, true),
        }
    }

    /// Rows that travel in a combine.
    pub fn combined(&self, me: usize) -> Traffic {
        self.traffic(me, self.setting.arrangement == Arrangement::RankMajor)
    }

    fn traffic(&self, me: usize, once_a_rank: bool) -> Traffic {
        let ranks = self.setting.ranks;
        let mut rows = vec![0_u64; ranks * ranks];
        for source in 0..ranks {
            for token in 0..self.routes.tokens {
                let experts = self.routes.experts(source, token);
                let owner = |expert: &u32| self.setting.owner(*expert as usize);
                for (choice, expert) in experts.iter().enumerate() {
                    let target = owner(expert);
                    if once_a_rank && experts[..choice].iter().any(|e| owner(e) == target) {
                        continue;
                    }
                    rows[source * ranks + target] += 1;
                }
            }
        }
        let row = |source: usize, target: usize| rows[source * ranks + target];
        let of_source = |rank: usize| (0..ranks).map(|target| row(rank, target)).sum::<u64>();
        let of_target = |rank: usize| (0..ranks).map(|source| row(source, rank)).sum::<u64>();
        let most = |rank: usize| of_source(rank).max(of_target(rank));
        let all = || 0..ranks;
        Traffic {
            busiest: all().map(most).max().unwrap_or(0),
            across: all().map(|rank| most(rank) - row(rank, rank)).max().unwrap_or(0),
            own: of_source(me),
        }
    }
}

fn from(source: usize, token: usize, choice: usize) -> From {
    From { source: source as u32, token: token as u32, choice: choice as u32 }
}

/// Rows that an expert takes.
fn padded(rows: u64, align: u64) -> u64 {
    match align {
        0 => rows,
        _ => rows.max(1).next_multiple_of(align),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::routes::tests::setting;
    use super::*;

    fn each(ranks: usize, check: impl Fn(&Placement<'_>)) {
        for (experts, top_k) in [(8, 2), (8, 8), (3, 2), (16, 5)] {
            for arrangement in [
                Arrangement::Compact { align: 0 },
                Arrangement::Compact { align: 8 },
                Arrangement::Padded,
                Arrangement::RankMajor,
                Arrangement::Vdev { align: 3 },
            ] {
                let setting = Setting { arrangement, ..setting(ranks, experts, top_k, 1.0) };
                let routes = Routes::new(&setting, 9).unwrap();
                check(&Placement { setting: &setting, routes: &routes });
            }
        }
    }

    #[test]
    fn every_choice_arrives_once_and_where_groups_say() {
        for ranks in [1, 2, 3, 8] {
            each(ranks, |placement| {
                let mut seen = 0;
                for me in 0..ranks {
                    let arrived = placement.arrived(me);
                    let rows = arrived.rows.iter().flatten().count() as u64;
                    assert_eq!(rows, arrived.groups.iter().map(|(count, _)| count).sum::<u64>());
                    for (count, first) in &arrived.groups {
                        let group = &arrived.rows[*first as usize..(first + count) as usize];
                        assert!(group.iter().all(Option::is_some));
                    }
                    seen += rows;
                }
                let by_rank = placement.setting.arrangement == Arrangement::RankMajor;
                let sent: u64 = (0..ranks).map(|me| placement.traffic(me, by_rank).own).sum();
                assert_eq!(seen, sent);
            });
        }
    }

    #[test]
    fn traffic_counts_a_copy_once() {
        // Two ranks with two experts each; all tokens choose all experts.
        let setting = setting(2, 4, 4, 0.0);
        let routes = Routes::new(&setting, 10).unwrap();
        let placement = Placement { setting: &setting, routes: &routes };
        assert_eq!(placement.dispatched(0), Traffic { busiest: 20, across: 10, own: 20 });
        assert_eq!(placement.combined(1), Traffic { busiest: 40, across: 20, own: 40 });
        let vdev = Setting { arrangement: Arrangement::Vdev { align: 0 }, ..setting };
        let placement = Placement { setting: &vdev, ..placement };
        assert_eq!(placement.dispatched(0), placement.combined(0));
        let by_rank = Setting { arrangement: Arrangement::RankMajor, ..setting };
        let placement = Placement { setting: &by_rank, ..placement };
        assert_eq!(placement.combined(0), Traffic { busiest: 20, across: 10, own: 20 });
        let alone = super::super::routes::tests::setting(1, 4, 4, 0.0);
        let placement = Placement { setting: &alone, ..placement };
        assert_eq!(placement.dispatched(0), Traffic { busiest: 10, across: 0, own: 10 });
    }

    #[test]
    fn rows_in_the_order_of_experts_are_as_many_as_the_splits() {
        let setting = setting(3, 6, 2, 1.0);
        let routes = Routes::new(&setting, 20).unwrap();
        let placement = Placement { setting: &setting, routes: &routes };
        let order = placement.by_expert(1);
        let mut at = 0;
        for (expert, split) in placement.splits(1).into_iter().enumerate() {
            for (token, choice) in &order[at..at + split as usize] {
                assert_eq!(routes.experts(1, *token)[*choice] as usize, expert);
            }
            at += split as usize;
        }
        assert_eq!(at, order.len());
    }
}
