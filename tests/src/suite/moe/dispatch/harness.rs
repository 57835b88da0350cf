//! A routing with its tensors, and what must come of them.

use half::bf16;
use symmem_hal::types::{BackendKind, F8E4M3};
use symmem_mem::{Group, Tensor};
use symmem_moe::{Layout, Moe as _, Overflow, Route, Routing, RoutingError, RoutingOptions};

use super::super::routes::{From, Routes, Setting, element};
use crate::runner::{Context, TestError, Verdict};
use crate::support::random::Random;
use crate::{check, check_eq};

pub(super) const HIDDEN: usize = 24;

pub(super) fn layouts(tokens: u64, choices: usize, ranks: usize) -> [Layout; 4] {
    let most = tokens * (choices * ranks) as u64;
    [
        Layout::Compact { align: 0 },
        Layout::Compact { align: 8 },
        Layout::Padded { rows: most },
        Layout::RankMajor,
    ]
}

pub(super) fn setting(
    context: &Context,
    experts: usize,
    choices: usize,
    tokens: u64,
    layout: Layout,
) -> Setting {
    let ranks = context.size();
    let each = experts.div_ceil(ranks) as u64;
    let capacity = match layout {
        Layout::Padded { rows } => each * rows,
        Layout::RankMajor => ranks as u64 * tokens,
        Layout::Compact { align } => tokens * (ranks * choices) as u64 + align * each,
        _ => 0,
    };
    Setting { ranks, experts, choices, tokens, layout, capacity }
}

pub(super) fn routing(
    group: &Group,
    setting: Setting,
    overflow: Overflow,
) -> Result<Routing, RoutingError> {
    let Setting { experts, choices, tokens, layout, capacity, .. } = setting;
    let mut options =
        RoutingOptions::new(experts, choices, tokens).layout(layout).overflow(overflow);
    if let Layout::Compact { .. } = layout {
        options = options.capacity(capacity);
    }
    group.routing(&options, &group.wait())
}

/// One routing, and tensors for it.
pub(super) struct Scene<'c> {
    pub(super) context: &'c Context,
    pub(super) setting: Setting,
    pub(super) routing: Routing,
    pub(super) rows: Tensor<bf16>,
    pub(super) made: Tensor<bf16>,
    /// Whether every other dispatch shows all tokens to all ranks.
    pub(super) gathers: bool,
}

/// Those that there are: on GPUs tokens go one way.
pub(super) fn ways(context: &Context) -> [Route; 2] {
    let gathers = context.device().kind() != BackendKind::Cuda;
    [Route::Direct, if gathers { Route::Gathered } else { Route::Auto }]
}

// Exact in every type.
pub(super) const POISON: f32 = -12288.0;

impl<'c> Scene<'c> {
    pub(super) fn new(
        context: &'c Context,
        group: &Group,
        setting: Setting,
        overflow: Overflow,
    ) -> Result<Self, TestError> {
        let routing = routing(group, setting, overflow)?;
        check_eq!(routing.capacity(), setting.capacity);
        let shape = [setting.capacity, HIDDEN as u64];
        let rows = Tensor::zeros(context.device(), &shape)?;
        let made = Tensor::zeros(context.device(), &shape)?;
        group.rendezvous(&rows, &group.wait())?;
        group.rendezvous(&made, &group.wait())?;
        Ok(Scene { context, setting, routing, rows, made, gathers: true })
    }

    /// This rank's choices and weights on the device.
    pub(super) fn choices(&self, routes: &Routes) -> Result<(Tensor<i64>, Tensor<f32>), TestError> {
        let (device, me) = (self.context.device(), self.context.rank());
        let shape = [routes.tokens(me) as u64, self.setting.choices as u64];
        let (indices, weights) = (Tensor::zeros(device, &shape)?, Tensor::zeros(device, &shape)?);
        indices.write(&routes.indices[me].concat())?;
        weights.write(&routes.weights[me].concat())?;
        Ok((indices, weights))
    }

    pub(super) fn x(&self, routes: &Routes, seed: u64) -> Result<Tensor<bf16>, TestError> {
        let me = self.context.rank();
        let count = routes.tokens(me);
        let x = Tensor::zeros(self.context.device(), &[count as u64, HIDDEN as u64])?;
        let all = (0..count).flat_map(|token| (0..HIDDEN).map(move |at| (token, at)));
        x.write(&all.map(|(token, at)| element(seed, me, token, at)).collect::<Vec<_>>())?;
        Ok(x)
    }

    pub(super) fn poison(&self) -> Verdict {
        let poison = vec![bf16::from_f32(POISON); self.rows.count() as usize];
        Ok(self.rows.write(&poison)?)
    }

    /// That rows, groups and origins are those of the model, and padding is as it was.
    pub(super) fn check(&self, routes: &Routes, seed: u64) -> Verdict {
        let me = self.context.rank();
        let arrived = routes.arrived(me);
        let groups = self.routing.groups().to_vec()?;
        let (counts, starts) = groups.split_at(groups.len() / 2);
        for (i, (count, start)) in arrived.groups.iter().enumerate() {
            check_eq!(counts[i] as u64, *count, "rows of group {i}");
            check!(*count == 0 || starts[i] as u64 == *start, "group {i} begins at {}", starts[i]);
        }
        check!(counts[arrived.groups.len()..].iter().all(|count| *count == 0), "{counts:?}");
        let rows = self.rows.to_vec()?;
        for (row, (found, from)) in rows.chunks_exact(HIDDEN).zip(&arrived.rows).enumerate() {
            let right = found.iter().enumerate().all(|(at, value)| {
                let expected =
                    from.map_or(bf16::from_f32(POISON), |f| element(seed, f.source, f.token, at));
                value.to_bits() == expected.to_bits()
            });
            check!(right, "row {row} is not {from:?}");
        }
        let origins = self.routing.origins()?;
        let mut expected: Vec<_> = arrived.rows.iter().enumerate().collect();
        expected.retain(|(_, from)| from.is_some());
        check_eq!(origins.len(), expected.len(), "origins");
        let mut found = origins;
        found.sort_by_key(|origin| origin.row);
        for (origin, (row, from)) in found.iter().zip(expected) {
            let Some(From { source, token, choice }) = *from else { continue };
            let is = (origin.row, origin.source.index(), origin.token, origin.choice as usize);
            check_eq!(is, (row as u64, source, token as u64, choice), "origin");
            let weight = routes.weights[source][token][choice];
            check_eq!(origin.weight.to_bits(), weight.to_bits(), "weight of row {row}");
        }
        Ok(())
    }

    /// What each expert makes of its rows: no two the same, so that an identity cannot pass.
    pub(super) fn apply(&self, routes: &Routes) -> Verdict {
        let (me, setting) = (self.context.rank(), self.setting);
        let arrived = routes.arrived(me);
        let rows = self.rows.to_vec()?;
        let mut made = vec![bf16::from_f32(f32::NAN); rows.len()];
        let chosen = self.routing.chosen()?;
        for (row, from) in arrived.rows.iter().enumerate() {
            let Some(from) = from else { continue };
            let range = row * HIDDEN..(row + 1) * HIDDEN;
            let inputs = rows[range.clone()].iter();
            for (to, x) in made[range].iter_mut().zip(inputs) {
                if setting.layout == Layout::RankMajor {
                    let mut sum: Option<f32> = None;
                    for (local, weight) in chosen[row].iter().flatten() {
                        let expert = self.routing.local_experts().start + local;
                        let term = weight * bf16::from_f32(expert_of(expert, x.to_f32())).to_f32();
                        sum = Some(sum.map_or(term, |sum| sum + term));
                    }
                    *to = bf16::from_f32(sum.unwrap_or(f32::NAN));
                } else {
                    let expert = routes.indices[from.source][from.token][from.choice] as usize;
                    *to = bf16::from_f32(expert_of(expert, x.to_f32()));
                }
            }
        }
        Ok(self.made.write(&made)?)
    }

    /// Combines what the experts have made, and compares each token.
    pub(super) fn combine(&self, routes: &Routes, weights: &Tensor<f32>, seed: u64) -> Verdict {
        let (me, setting) = (self.context.rank(), self.setting);
        let count = routes.tokens(me);
        let output =
            Tensor::<bf16>::zeros(self.context.device(), &[count as u64 + 1, HIDDEN as u64])?;
        output.write(&vec![bf16::from_f32(POISON); (count + 1) * HIDDEN])?;
        let output_view = output.slice(0, (count * HIDDEN) as u64)?;
        let shaped = super::super::reshaped(&output_view, &[count as u64, HIDDEN as u64])?;
        let call = self.routing.combine(&self.made, &shaped);
        match setting.layout {
            Layout::RankMajor => call.run()?,
            _ => call.weights(weights).run()?,
        }
        let arrived: Vec<_> = (0..setting.ranks).map(|rank| routes.arrived(rank)).collect();
        let found = output.to_vec()?;
        for (token, found) in found.chunks_exact(HIDDEN).enumerate() {
            if token == count {
                check!(found.iter().all(|v| v.to_f32() == POISON), "a row past the last");
                continue;
            }
            let kept = |choice: usize| {
                let owner = setting.owner(routes.indices[me][token][choice] as usize);
                let is = |from: &Option<From>| {
                    from.is_some_and(|f| {
                        let by_rank = setting.layout == Layout::RankMajor;
                        f.source == me && f.token == token && (by_rank || f.choice == choice)
                    })
                };
                arrived[owner].rows.iter().any(is)
            };
            let kept: Vec<bool> = (0..setting.choices)
                .map(|k| routes.indices[me][token][k] >= 0 && kept(k))
                .collect();
            for (at, found) in found.iter().enumerate() {
                let x = element(seed, me, token, at);
                let expected = routes.combined(me, token, x, |k| kept[k], expert_of);
                check_eq!(found.to_bits(), expected.to_bits(), "token {token}, element {at}");
            }
        }
        Ok(())
    }

    pub(super) fn dispatch(&self, routes: &Routes, seed: u64) -> Result<Tensor<f32>, TestError> {
        let (indices, weights) = self.choices(routes)?;
        let x = self.x(routes, seed)?;
        self.poison()?;
        let route = ways(self.context)[if self.gathers { seed as usize % 2 } else { 0 }];
        self.routing.dispatch(&x, &indices, &self.rows).weights(&weights).route(route).run()?;
        Ok(weights)
    }

    /// There and back.
    pub(super) fn round(&self, routes: &Routes, seed: u64) -> Verdict {
        let weights = self.dispatch(routes, seed)?;
        self.check(routes, seed)?;
        self.apply(routes)?;
        self.combine(routes, &weights, seed)
    }
}

pub(in crate::suite::moe) fn expert_of(expert: usize, x: f32) -> f32 {
    x * ((expert % 7) as f32 + 0.5) + expert as f32
}

pub(super) fn random(context: &Context, name: u64) -> Random {
    Random::new(context.seed(), &[100 + name])
}

/// Some expert, or now and then none.
pub(super) fn any(experts: usize) -> impl Fn(&mut Random, usize) -> i64 {
    move |r, _| r.below(experts as u64 + 1) as i64 - 1
}

/// Elements as the quantiser's definition says, and its scales.
pub(in crate::suite::moe) fn quantised(row: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in row.chunks(128) {
        let most = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let scale = if most == 0.0 { 1.0 } else { most / 448.0 };
        scales.push(scale);
        codes.extend(block.iter().map(|x| F8E4M3::from_f32((x / scale).clamp(-448.0, 448.0)).0));
    }
    (codes, scales)
}
