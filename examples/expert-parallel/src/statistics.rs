//! What the layers moved, and how evenly.

use symmem::prelude::{Collectives, Group, ReduceOp};

/// What one layer moved, of one rank.
#[derive(Clone, Debug)]
pub struct Load {
    /// This rank's tokens.
    tokens: u64,
    /// Rows that came here, of each local expert.
    received: Vec<u64>,
    /// Choices of experts on other ranks.
    away: u64,
    /// Copies that these needed: one for each token and rank.
    copies: u64,
}

impl Load {
    /// Of the choices of this rank's tokens, and the rows that its experts got.
    pub fn new(
        group: &Group,
        experts: usize,
        choices: usize,
        chosen: &[i32],
        received: Vec<u64>,
    ) -> Self {
        let (me, ranks) = (group.rank().index(), group.size());
        let rank_of = |expert: usize| {
            (0..ranks).find(|&rank| minilm::share(experts, rank, ranks).contains(&expert))
        };
        let (mut away, mut copies) = (0, 0);
        for token in chosen.chunks(choices) {
            let ranks = token.iter().filter_map(|&expert| rank_of(usize::try_from(expert).ok()?));
            let mut others: Vec<usize> = ranks.filter(|&rank| rank != me).collect();
            away += others.len() as u64;
            // Experts ascend, and their ranks with them.
            others.dedup();
            copies += others.len() as u64;
        }
        Load { tokens: (chosen.len() / choices) as u64, received, away, copies }
    }
}

/// Loads of all ranks: of each layer, of each rank.
pub struct Loads {
    experts: usize,
    layers: Vec<Vec<Load>>,
}

impl Loads {
    /// Every rank's. Collective.
    pub fn gather(group: &Group, experts: usize, mine: &[Load]) -> anyhow::Result<Self> {
        let (me, ranks) = (group.rank().index(), group.size());
        // One line a rank: three numbers, then rows of each expert of all ranks.
        let line = 3 + experts;
        let first = minilm::share(experts, me, ranks).start;
        let mut all = vec![0_u64; mine.len() * ranks * line];
        for (layer, load) in all.chunks_mut(ranks * line).zip(mine) {
            let line = &mut layer[me * line..][..line];
            line[..3].copy_from_slice(&[load.tokens, load.away, load.copies]);
            line[3 + first..][..load.received.len()].copy_from_slice(&load.received);
        }
        group.all_reduce_in_place(&mut all, ReduceOp::Sum)?;
        let load = |(rank, line): (usize, &[u64])| Load {
            tokens: line[0],
            received: line[3..][minilm::share(experts, rank, ranks)].to_vec(),
            away: line[1],
            copies: line[2],
        };
        let layer = |layer: &[u64]| layer.chunks(line).enumerate().map(load).collect();
        Ok(Loads { experts, layers: all.chunks(ranks * line).map(layer).collect() })
    }

    /// A line for each layer and rank.
    pub fn print(&self) {
        println!("layer  rank  tokens  rows in  rows away  in copies  saved");
        let (mut away, mut copies) = (0, 0);
        for (i, layer) in self.layers.iter().enumerate() {
            for (rank, load) in layer.iter().enumerate() {
                let rows: u64 = load.received.iter().sum();
                println!(
                    "{i:>5}{rank:>6}{:>8}{rows:>9}{:>11}{:>11}{:>6.0}%",
                    load.tokens,
                    load.away,
                    load.copies,
                    saved(load.away, load.copies)
                );
                (away, copies) = (away + load.away, copies + load.copies);
            }
            let ranks: Vec<u64> = layer.iter().map(|load| load.received.iter().sum()).collect();
            let experts: Vec<u64> = layer.iter().flat_map(|load| &load.received).copied().collect();
            println!(
                "       busiest rank {:.2} of the mean, busiest expert {:.2}",
                imbalance(&ranks),
                imbalance(&experts)
            );
        }
        println!(
            "{} experts: {away} rows went to other ranks in {copies} copies, {:.0} % saved",
            self.experts,
            saved(away, copies)
        );
    }
}

/// In percent.
fn saved(away: u64, copies: u64) -> f64 {
    if away == 0 { 0.0 } else { 100.0 * (1.0 - copies as f64 / away as f64) }
}

/// The largest of some loads, divided by their mean.
fn imbalance(loads: &[u64]) -> f64 {
    let (most, sum) = (loads.iter().max().copied().unwrap_or(0), loads.iter().sum::<u64>());
    if sum == 0 { 1.0 } else { most as f64 * loads.len() as f64 / sum as f64 }
}
