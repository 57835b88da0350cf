//! What rows hold: tokens, what experts make of them, and what comes of those; by plain arithmetic.

use symmem::hal::types::{DType, F8E4M3};
use symmem::prelude::*;

use super::placement::{From, Placement};
use super::routes::{Arrangement, Setting};
use crate::bench::check::{Seed, Wrong, from_f32, spell, to_f32};
use crate::bench::member::RankError;

/// Elements after which tokens' data repeats: a prime.
const PERIOD: usize = 65_521;
/// How far apart in it tokens begin that follow each other, so that as many begin at different elements.
const STRIDE: usize = 40_503;

/// What stays where nothing is written.
const UNTOUCHED: u8 = 0xa5;

/// Elements that have a scale in common, and the largest number that they are scaled to.
const BLOCK: usize = 128;
const LARGEST: f32 = 448.0;

/// Scales of a row.
pub fn scales(hidden: u64) -> u64 {
    hidden.div_ceil(BLOCK as u64)
}

/// Every rank's tokens, by a seed.
pub struct Tokens<'a> {
    placement: Placement<'a>,
    /// One period, and as many elements more as a token has.
    values: Vec<f32>,
}

impl<'a> Tokens<'a> {
    pub fn new(placement: Placement<'a>, seed: Seed) -> Self {
        let Setting { dtype, hidden, .. } = *placement.setting;
        let value = |index: usize| {
            // From -4 to 4.
            let x = (seed.keyed(&[index as u64]) >> 40) as f32 / (1 << 21) as f32 - 4.0;
            to_f32(dtype, from_f32(dtype, x))
        };
        let mut values: Vec<f32> = (0..PERIOD).map(value).collect();
        values.extend_from_within(..(hidden as usize).min(PERIOD));
        while values.len() < PERIOD + hidden as usize {
            values.push(values[values.len() - PERIOD]);
        }
        Tokens { placement, values }
    }

    fn setting(&self) -> &'a Setting {
        self.placement.setting
    }

    /// A token.
    fn token(&self, rank: usize, token: usize) -> &[f32] {
        let index = rank * self.placement.routes.tokens + token;
        &self.values[index % PERIOD * STRIDE % PERIOD..][..self.setting().hidden as usize]
    }

    /// A token as an expert gets it.
    fn arrived(&self, rank: usize, token: usize) -> Vec<f32> {
        let token = self.token(rank, token);
        if !self.setting().quantised {
            return token.to_vec();
        }
        let (codes, scales) = quantise(token);
        let of = |(i, code): (usize, &F8E4M3)| code.to_f32() * scales[i / BLOCK];
        codes.iter().enumerate().map(of).collect()
    }

    /// What an expert makes of an element: no two experts the same, none what it was given.
    fn made(&self, expert: u32, x: f32) -> f32 {
        let factor = 1.5 + (expert % 61) as f32 / 32.0;
        let summand = 0.5 + (expert / 61 % 61) as f32 / 16.0;
        self.rounded(factor * x + summand)
    }

    fn rounded(&self, x: f32) -> f32 {
        let dtype = self.setting().dtype;
        to_f32(dtype, from_f32(dtype, x))
    }

    /// A row of what a rank dispatches.
    pub fn sent(&self, rank: usize, token: usize, to: &mut Vec<u8>) {
        encode(self.setting().dtype, self.token(rank, token), to);
    }

    /// A row that a rank has received.
    pub fn received(&self, from: Option<From>, to: &mut Vec<u8>) {
        let Setting { dtype, hidden, quantised, .. } = *self.setting();
        match from {
            Some(from) => {
                let token = self.token(from.source as usize, from.token as usize);
                match quantised {
                    true => to.extend(quantise(token).0.iter().map(|code| code.0)),
                    false => encode(dtype, token, to),
                }
            }
            None => {
                let size = if quantised { 1 } else { dtype.size() };
                to.resize(to.len() + hidden as usize * size, UNTOUCHED);
            }
        }
    }

    /// The scales of a row that a rank has received.
    pub fn scales(&self, from: Option<From>, to: &mut Vec<u8>) {
        match from {
            Some(from) => {
                let token = self.token(from.source as usize, from.token as usize);
                to.extend(quantise(token).1.iter().flat_map(|scale| scale.to_ne_bytes()));
            }
            None => {
                let bytes = 4 * scales(self.setting().hidden) as usize;
                to.resize(to.len() + bytes, UNTOUCHED);
            }
        }
    }

    /// What the experts of a rank make of a row that it has received.
    pub fn returned(&self, me: usize, from: Option<From>, to: &mut Vec<u8>) {
        let Setting { dtype, hidden, arrangement, .. } = *self.setting();
        let Some(from) = from else {
            return to.resize(to.len() + hidden as usize * dtype.size(), UNTOUCHED);
        };
        let (source, token) = (from.source as usize, from.token as usize);
        let x = self.arrived(source, token);
        if arrangement == Arrangement::RankMajor {
            encode(dtype, &self.summed(source, token, &x, Some(me)), to);
            return;
        }
        let expert = self.placement.routes.experts(source, token)[from.choice as usize];
        let made: Vec<f32> = x.iter().map(|x| self.made(expert, *x)).collect();
        encode(dtype, &made, to);
    }

    /// What a token gets back.
    pub fn combined(&self, rank: usize, token: usize, to: &mut Vec<u8>) {
        let Setting { dtype, ranks, arrangement, .. } = *self.setting();
        let x = self.arrived(rank, token);
        if arrangement != Arrangement::RankMajor {
            encode(dtype, &self.summed(rank, token, &x, None), to);
            return;
        }
        let experts = self.placement.routes.experts(rank, token);
        let mut sum: Option<Vec<f32>> = None;
        for owner in 0..ranks {
            if !experts.iter().any(|expert| self.setting().owner(*expert as usize) == owner) {
                continue;
            }
            let part = self.summed(rank, token, &x, Some(owner)).into_iter();
            let part = part.map(|x| self.rounded(x));
            sum = Some(match sum {
                None => part.collect(),
                Some(sum) => sum.into_iter().zip(part).map(|(sum, x)| sum + x).collect(),
            });
        }
        encode(dtype, &sum.unwrap_or_default(), to);
    }

    /// What one choice of a token gets back, of all-to-all-v.
    pub fn back(&self, rank: usize, (token, choice): (usize, usize), to: &mut Vec<u8>) {
        let expert = self.placement.routes.experts(rank, token)[choice];
        let made: Vec<f32> =
            self.token(rank, token).iter().map(|x| self.made(expert, *x)).collect();
        encode(self.setting().dtype, &made, to);
    }

    /// The weighted sum of what the experts of a rank, or all, make of a token, in the order of its choices,
    /// each operation rounded to f32.
    fn summed(&self, rank: usize, token: usize, x: &[f32], owner: Option<usize>) -> Vec<f32> {
        let experts = self.placement.routes.experts(rank, token);
        let choices = experts.iter().zip(self.placement.routes.weights(rank, token));
        let is_of = |expert: &u32| {
            owner.is_none_or(|owner| self.setting().owner(*expert as usize) == owner)
        };
        let mut sum: Option<Vec<f32>> = None;
        for (expert, weight) in choices.filter(|(expert, _)| is_of(expert)) {
            let terms = x.iter().map(|x| weight * self.made(*expert, *x));
            sum = Some(match sum {
                None => terms.collect(),
                Some(sum) => sum.into_iter().zip(terms).map(|(sum, term)| sum + term).collect(),
            });
        }
        sum.unwrap_or_default()
    }
}

/// The codes and the scales of a row, as [`Routing::dispatch`](symmem::moe::Routing::dispatch) says.
fn quantise(x: &[f32]) -> (Vec<F8E4M3>, Vec<f32>) {
    let (mut codes, mut scales) = (Vec::with_capacity(x.len()), Vec::new());
    for block in x.chunks(BLOCK) {
        let largest = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let scale = if largest == 0.0 { 1.0 } else { largest / LARGEST };
        let code = |x: &f32| F8E4M3::from_f32((x / scale).clamp(-LARGEST, LARGEST));
        codes.extend(block.iter().map(code));
        scales.push(scale);
    }
    (codes, scales)
}

fn encode(dtype: DType, values: &[f32], to: &mut Vec<u8>) {
    match dtype.size() {
        2 => to.extend(values.iter().flat_map(|x| (from_f32(dtype, *x) as u16).to_ne_bytes())),
        _ => to.extend(values.iter().flat_map(|x| (from_f32(dtype, *x) as u32).to_ne_bytes())),
    }
}

/// Bytes that are read or written at a time, or one row.
const PIECE: usize = 1 << 20;

/// Writes rows, each of which `row` appends to what it is given.
pub fn write(view: &View, mut row: impl FnMut(usize, &mut Vec<u8>)) -> Result<(), RankError> {
    pieces(view, |at, rows, bytes| {
        rows.for_each(|index| row(index, bytes));
        Ok(view.memory().write(at, bytes)?)
    })
}

/// Writes rows that are wrong in every byte, but where nothing is to be written.
pub fn spoil(
    view: &View,
    mut row: impl FnMut(usize, &mut Vec<u8>) -> bool,
) -> Result<(), RankError> {
    write(view, |index, bytes| {
        let start = bytes.len();
        if row(index, bytes) {
            bytes[start..].iter_mut().for_each(|byte| *byte = !*byte);
        }
    })
}

/// Compares rows with what they must be; `which` says of what, for an error.
pub fn compare(
    view: &View,
    which: &str,
    mut row: impl FnMut(usize, &mut Vec<u8>),
) -> Result<(), RankError> {
    let (dtype, size) = (view.dtype(), view.dtype().size());
    let (mut first, mut wrong, mut found) = (None, 0, Vec::new());
    pieces(view, |at, rows, bytes| {
        rows.for_each(|index| row(index, bytes));
        found.resize(bytes.len(), 0);
        view.memory().read(at, &mut found)?;
        if found == *bytes {
            return Ok(());
        }
        let start = (at.get() - view.offset().get()) / size as u64;
        let pairs = bytes.chunks_exact(size).zip(found.chunks_exact(size));
        for (index, (want, got)) in (start..).zip(pairs).filter(|(_, (want, got))| want != got) {
            wrong += 1;
            first.get_or_insert_with(|| (index, word(want), word(got)));
        }
        Ok(())
    })?;
    let Some((index, want, got)) = first else { return Ok(()) };
    let [expected, found] = [want, got].map(|word| spell(dtype, word));
    let wrong = Wrong { index, expected, found, wrong, count: view.count() };
    Err(RankError::Wrong { what: which.to_owned(), wrong })
}

/// One wrong thing of so many.
pub fn wrong(what: String, index: usize, expected: String, found: String, of: usize) -> RankError {
    let wrong = Wrong { index: index as u64, expected, found, wrong: 1, count: of as u64 };
    RankError::Wrong { what, wrong }
}

fn word(element: &[u8]) -> u64 {
    let mut word = [0; 8];
    let at = if cfg!(target_endian = "big") { 8 - element.len() } else { 0 };
    word[at..at + element.len()].copy_from_slice(element);
    u64::from_ne_bytes(word)
}

/// Calls `each` for some rows of a view at a time: where they begin in its memory, which, and room for their bytes.
fn pieces(
    view: &View,
    mut each: impl FnMut(Bytes, std::ops::Range<usize>, &mut Vec<u8>) -> Result<(), RankError>,
) -> Result<(), RankError> {
    let [rows, row @ ..] = view.layout().shape() else { return Ok(()) };
    let (rows, row) = (*rows as usize, row.iter().product::<u64>() as usize * view.dtype().size());
    let mut bytes = Vec::new();
    let step = (PIECE / row.max(1)).max(1);
    for start in (0..rows).step_by(step) {
        bytes.clear();
        let at = Bytes(view.offset().get() + (start * row) as u64);
        each(at, start..rows.min(start + step), &mut bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::routes::Routes;
    use super::super::routes::tests::setting;
    use super::*;

    #[test]
    fn tokens_differ_and_experts_too() {
        let setting = Setting { hidden: 200_000, ..setting(2, 128, 2, 0.0) };
        let routes = Routes::new(&setting, 40).unwrap();
        let placement = Placement { setting: &setting, routes: &routes };
        let tokens = Tokens::new(placement, Seed::new(3));
        assert_eq!(tokens.token(0, 0).len(), 200_000);
        for other in [(0, 1), (1, 0), (1, 39)] {
            assert_ne!(tokens.token(0, 0)[..64], tokens.token(other.0, other.1)[..64]);
        }
        let made = |expert| [0.0, 1.0, -3.0].map(|x| tokens.made(expert, x));
        for expert in 0..128 {
            assert!(made(expert) != [0.0, 1.0, -3.0]);
            assert!((0..expert).all(|other| made(other) != made(expert)), "{expert}");
        }
    }

    #[test]
    fn one_wrong_element_is_found_and_named() {
        let device = Device::host();
        let allocation = Allocation::new(&device, Bytes(2 * 7 * 300)).unwrap();
        let layout = Layout::contiguous(&[7, 300]).unwrap();
        let view = View::new(&allocation, Bytes::ZERO, DType::BF16, layout).unwrap();
        let row = |index: usize, to: &mut Vec<u8>| to.resize(to.len() + 600, index as u8);
        write(&view, row).unwrap();
        compare(&view, "rows", row).unwrap();
        view.slice(700, 1).unwrap().write(&[bf16::from_bits(0x0909)]).unwrap();
        let RankError::Wrong { what, wrong } = compare(&view, "rows", row).unwrap_err() else {
            unreachable!("the comparison itself went well");
        };
        assert_eq!((what.as_str(), wrong.index, wrong.wrong, wrong.count), ("rows", 700, 1, 2100));
        spoil(&view, |index, to| {
            row(index, to);
            index != 3
        })
        .unwrap();
        let RankError::Wrong { wrong, .. } = compare(&view, "rows", row).unwrap_err() else {
            unreachable!("the comparison itself went well");
        };
        assert_eq!((wrong.index, wrong.wrong), (0, 1800));
    }

    #[test]
    fn codes_and_scales_are_those_of_the_definition() {
        let mut x = vec![0.0; 130];
        (x[0], x[1], x[2]) = (448.0, -1.0, 17.0);
        let (codes, scales) = quantise(&x);
        assert_eq!(scales, [1.0, 1.0]);
        assert_eq!(
            codes[..3].iter().map(|code| code.to_f32()).collect::<Vec<_>>(),
            [448.0, -1.0, 16.0]
        );
        assert_eq!(quantise(&[-2.0, 1.0]).1, [2.0 / 448.0]);
    }
}
