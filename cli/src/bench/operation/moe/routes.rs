//! Which experts tokens choose: functions of a seed, rank, token and choice, by arithmetic that gives the
//! same on every machine, so that ranks need not tell each other, nor programs that are compared.
//!
//! `tools/compare/moe.py` has the same.

use symmem::hal::types::{DType, RankSet};
use symmem::moe::Route;
use symmem::prelude::*;

use crate::bench::check::{Seed, mix};
use crate::bench::member::{Member, RankError};

/// How received rows lie, and by which calls they travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Dispatch and combine; by expert, each beginning at a multiple of `align` rows, or 0.
    Compact { align: u64 },
    /// Dispatch and combine; by expert, with as much room for each.
    Padded,
    /// Dispatch and combine; by rank.
    RankMajor,
    /// All-to-all-v with splits on the device, and its way back; by expert, as `Compact`.
    Vdev { align: u64 },
}

impl Arrangement {
    pub fn name(self) -> &'static str {
        match self {
            Arrangement::Compact { .. } => "compact",
            Arrangement::Padded => "padded",
            Arrangement::RankMajor => "rank-major",
            Arrangement::Vdev { .. } => "vdev",
        }
    }

    /// The rows that each expert's begin at a multiple of.
    pub fn align(self) -> u64 {
        match self {
            Arrangement::Compact { align } | Arrangement::Vdev { align } => align,
            Arrangement::Padded | Arrangement::RankMajor => 0,
        }
    }
}

/// What was asked for, but for the number of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    pub ranks: usize,
    /// Elements of a token.
    pub hidden: u64,
    pub experts: usize,
    pub top_k: usize,
    /// Expert e is as likely as (e + 1)^-skew.
    pub skew: f64,
    pub dtype: DType,
    /// Whether rows are dispatched as f8e4m3.
    pub quantised: bool,
    pub arrangement: Arrangement,
    /// How rows come to their ranks.
    pub route: Route,
    pub seed: Seed,
}

impl Setting {
    /// The first expert of a rank.
    pub fn first(&self, rank: usize) -> usize {
        rank * self.experts / self.ranks
    }

    /// The rank of an expert.
    pub fn owner(&self, expert: usize) -> usize {
        ((expert + 1) * self.ranks - 1) / self.experts
    }
}

/// What makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RoutesError {
    #[error(
        "--top-k {top_k}: a token cannot choose more than the {experts} experts that there are"
    )]
    Choices { top_k: usize, experts: usize },
    #[error("--layout vdev: {experts} experts are not as many for each of {ranks} ranks")]
    Uneven { experts: usize, ranks: usize },
    #[error("--layout vdev moves rows as they are: without --quantised")]
    Quantised,
    #[error("--layout vdev has one way: without --route")]
    Route,
    #[error("--align is of the layouts compact and vdev")]
    Align,
    #[error(
        "{ranks} ranks of {tokens} tokens that choose {top_k} experts: more than {MOST} choices"
    )]
    TooMany { ranks: usize, tokens: u64, top_k: usize },
    #[error("rows of {hidden} elements: more bytes than a rank can have")]
    Rows { hidden: u64 },
}

/// Choices of all tokens that this program keeps in mind.
const MOST: u64 = 1 << 28;

/// Choices of all ranks' tokens, and the weights of those.
#[derive(Clone, Debug)]
pub struct Routes {
    pub tokens: usize,
    top_k: usize,
    /// By rank, token and choice.
    experts: Vec<u32>,
    weights: Vec<f32>,
}

/// How often an expert is drawn that the token has already, before the next free one is taken.
const DRAWS: u64 = 64;

impl Routes {
    pub fn new(setting: &Setting, tokens: u64) -> Result<Self, RoutesError> {
        let Setting { ranks, top_k, experts, .. } = *setting;
        if top_k > experts {
            return Err(RoutesError::Choices { top_k, experts });
        }
        let count = (ranks as u64).checked_mul(tokens).and_then(|n| n.checked_mul(top_k as u64));
        let Some(count @ ..=MOST) = count else {
            return Err(RoutesError::TooMany { ranks, tokens, top_k });
        };
        let ends = ends(experts, setting.skew);
        let mut routes = Routes {
            tokens: tokens as usize,
            top_k,
            experts: Vec::with_capacity(count as usize),
            weights: Vec::with_capacity(count as usize),
        };
        for rank in 0..ranks {
            for token in 0..routes.tokens {
                let first = routes.experts.len();
                for choice in 0..top_k as u64 {
                    let word = |n| setting.seed.keyed(&[rank as u64, token as u64, choice, n]);
                    let draw = |n| ends.partition_point(|end| *end <= word(n) >> 11);
                    let taken = |e: &usize| routes.experts[first..].contains(&(*e as u32));
                    let drawn = (0..DRAWS).map(draw).find(|expert| !taken(expert));
                    let next = || (1..experts).map(|i| (draw(DRAWS - 1) + i) % experts);
                    let expert = drawn.or_else(|| next().find(|expert| !taken(expert)));
                    routes.experts.push(expert.unwrap_or_default() as u32);
                    routes.weights.push(((word(DRAWS) >> 56) as f32 + 1.0) / 256.0);
                }
            }
        }
        Ok(routes)
    }

    fn range(&self, rank: usize, token: usize) -> std::ops::Range<usize> {
        let first = (rank * self.tokens + token) * self.top_k;
        first..first + self.top_k
    }

    /// The experts of a token.
    pub fn experts(&self, rank: usize, token: usize) -> &[u32] {
        &self.experts[self.range(rank, token)]
    }

    pub fn weights(&self, rank: usize, token: usize) -> &[f32] {
        &self.weights[self.range(rank, token)]
    }

    /// The experts of all of a rank's tokens.
    pub fn experts_of(&self, rank: usize) -> &[u32] {
        &self.experts[self.range(rank, 0).start..self.range(rank + 1, 0).start]
    }

    pub fn weights_of(&self, rank: usize) -> &[f32] {
        &self.weights[self.range(rank, 0).start..self.range(rank + 1, 0).start]
    }

    /// One number for all of it.
    pub fn digest(&self) -> u64 {
        let all = self.experts.iter().zip(&self.weights);
        all.fold(self.tokens as u64, |digest, (expert, weight)| {
            mix(digest ^ (u64::from(*expert) << 32 | u64::from(weight.to_bits())))
        })
    }
}

/// Of 2^53 draws, where those of each expert end.
fn ends(experts: usize, skew: f64) -> Vec<u64> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=experts)
        .map(|i| {
            sum += power(i as f64, skew);
            sum
        })
        .collect();
    let scale = (1_u64 << 53) as f64;
    let mut ends: Vec<u64> = sums.iter().map(|part| (part / sum * scale) as u64).collect();
    if let Some(last) = ends.last_mut() {
        *last = 1 << 53;
    }
    ends
}

/// x^-y for x from 1, by operations that IEEE 754 defines to the bit: a library's differ in the last one.
fn power(x: f64, y: f64) -> f64 {
    const LN_2: f64 = std::f64::consts::LN_2;
    let (mut mantissa, mut exponent) = (x, 0.0);
    while mantissa >= 2.0 {
        mantissa *= 0.5;
        exponent += 1.0;
    }
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let series = (0..30).rev().fold(0.0, |sum, i| sum * (t * t) + 1.0 / f64::from(2 * i + 1));
    let log = -y * (exponent * LN_2 + 2.0 * t * series);
    let halvings = (-log / LN_2).ceil();
    let rest = log + halvings * LN_2;
    let result = (1..=20).rev().fold(1.0, |sum, i| 1.0 + rest * sum / f64::from(i));
    (0..halvings as u32).fold(result, |result, _| result * 0.5)
}

/// Routes are of another number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--ranks {asked}, in a group of {found}")]
pub struct OtherRanks {
    pub asked: usize,
    pub found: usize,
}

impl Fault for OtherRanks {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}

/// The ranks do not have the same routes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} has other routes than most: {found:#018x} instead of {expected:#018x}; is it another build?"
)]
pub struct OtherRoutes {
    rank: usize,
    expected: u64,
    found: u64,
}

impl Fault for OtherRoutes {
    fn kind(&self) -> Kind {
        Kind::Disagreement
    }

    fn ranks(&self) -> RankSet {
        RankSet::from_iter([self.rank])
    }
}

/// That every rank has the same routes. Collective.
///
/// # Errors
///
/// [`OtherRoutes`], the same on every rank, names the first rank that has others than most, or than the
/// lowest rank where none are in the majority.
pub fn prove(member: &Member<'_>, digest: u64) -> Result<(), RankError> {
    match differing(&member.gather(digest)?) {
        None => Ok(()),
        Some(other) => Err(other.into()),
    }
}

fn differing(digests: &[u64]) -> Option<OtherRoutes> {
    let count = |digest: &u64| digests.iter().filter(|other| *other == digest).count();
    // Of equally many the last is the greatest to `max_by_key`: backwards, that is the lowest rank's.
    let expected = *digests.iter().rev().max_by_key(|digest| count(digest))?;
    let rank = digests.iter().position(|digest| *digest != expected)?;
    Some(OtherRoutes { rank, expected, found: digests[rank] })
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    pub fn setting(ranks: usize, experts: usize, top_k: usize, skew: f64) -> Setting {
        Setting {
            ranks,
            hidden: 8,
            experts,
            top_k,
            skew,
            dtype: DType::BF16,
            quantised: false,
            arrangement: Arrangement::Compact { align: 0 },
            route: Route::Auto,
            seed: Seed::new(0),
        }
    }

    #[test]
    fn choices_of_a_token_differ_and_exist() {
        for (experts, top_k, skew) in [(1, 1, 0.0), (2, 2, 16.0), (7, 7, 0.0), (300, 8, 1.2)] {
            let setting = setting(3, experts, top_k, skew);
            let routes = Routes::new(&setting, 50).unwrap();
            for (rank, token) in (0..3).flat_map(|rank| (0..50).map(move |token| (rank, token))) {
                let mut chosen = routes.experts(rank, token).to_vec();
                chosen.sort_unstable();
                chosen.dedup();
                assert_eq!(chosen.len(), top_k);
                assert!(chosen.iter().all(|expert| (*expert as usize) < experts));
                let weights = routes.weights(rank, token);
                assert!(weights.iter().all(|weight| *weight > 0.0 && *weight <= 1.0));
            }
        }
    }

    #[test]
    fn experts_are_as_likely_as_the_skew_says() {
        for skew in [0.0, 1.0, 1.5] {
            let routes = Routes::new(&setting(2, 4, 1, skew), 40_000).unwrap();
            let likely: Vec<f64> = (1..=4).map(|i| f64::from(i).powf(-skew)).collect();
            let all: f64 = likely.iter().sum();
            for (expert, likely) in (0..).zip(&likely) {
                let count = routes.experts.iter().filter(|e| **e == expert).count() as f64;
                let expected = 80_000.0 * likely / all;
                assert!(
                    (count - expected).abs() < 5.0 * expected.sqrt(),
                    "{skew} {expert} {count}"
                );
            }
        }
    }

    #[test]
    fn powers_are_powers() {
        for x in [1.0, 2.0, 3.0, 10.0, 255.0, 256.0, 100_003.0] {
            for y in [0.0, 0.5, 1.0, 1.7, 16.0_f64] {
                let (found, expected) = (power(x, y), f64::powf(x, -y));
                assert!((found - expected).abs() <= 1e-13 * expected, "{x} {y}: {found}");
            }
        }
    }

    #[test]
    fn routes_are_the_same_everywhere() {
        // The other program that has them says the same: tools/compare/moe.py.
        let digest = |experts, top_k, skew| {
            Routes::new(&setting(2, experts, top_k, skew), 16).unwrap().digest()
        };
        assert_eq!(digest(8, 2, 0.0), 0x1d6d_0a45_9174_f90d);
        assert_eq!(digest(64, 8, 1.2), 0x3b4c_075d_717e_091b);
    }

    #[test]
    fn every_expert_has_the_rank_that_has_it() {
        for (ranks, experts) in [(1, 1), (3, 8), (4, 2), (5, 64), (8, 8)] {
            let setting = setting(ranks, experts, 1, 0.0);
            for expert in 0..experts {
                let owner = setting.owner(expert);
                assert!((setting.first(owner)..setting.first(owner + 1)).contains(&expert));
            }
        }
    }

    #[test]
    fn who_has_other_routes_is_named() {
        let rank = |digests: &[u64]| differing(digests).map(|other| other.rank);
        assert_eq!(rank(&[7, 7, 7]), None);
        assert_eq!(rank(&[7, 8]), Some(1));
        assert_eq!(rank(&[8, 7, 7]), Some(0));
        assert_eq!(rank(&[7, 7, 8, 9]), Some(2));
        let text = differing(&[7, 7, 8]).unwrap().to_string();
        assert!(text.contains("rank 2 has other routes") && text.contains("0x0000000000000008"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let error = Routes::new(&setting(2, 4, 5, 0.0), 1).unwrap_err();
        assert_eq!(error, RoutesError::Choices { top_k: 5, experts: 4 });
        let error = Routes::new(&setting(2, 4, 4, 0.0), 1 << 26).unwrap_err();
        assert!(matches!(error, RoutesError::TooMany { .. }));
        let error = Routes::new(&setting(2, 4, 4, 0.0), u64::MAX).unwrap_err();
        assert!(matches!(error, RoutesError::TooMany { .. }));
    }
}
