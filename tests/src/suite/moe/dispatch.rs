//! Dispatch and combine of routed tokens.

use half::{bf16, f16};
use symmem_hal::types::{DType, Element, F8E4M3, RankSet};
use symmem_hal::{Fault as _, Kind, StreamMode, Wait};
use symmem_mem::call::Operation;
use symmem_mem::{Completion, Failure, Group, Options, RendezvousError, Tensor};
use symmem_moe::{
    Layout, Moe as _, Overflow, Reason, Refusal, Route, RoutedError as Error, Routing,
    RoutingError, RoutingOptions, RoutingOptionsError, TensorMismatch,
};
use symmem_sync::Lanes as _;

use super::routes::{From, Routes, Setting, element};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict, options};
use crate::support::random::Random;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(random_routes_in_every_layout).seconds(120),
    test!(any_number_of_experts_and_choices).seconds(120),
    test!(skewed_routes).seconds(120),
    test!(ranks_without_tokens),
    test!(quantised_rows).seconds(120),
    test!(several_tensors_at_once),
    test!(the_same_tokens_again),
    test!(two_routings_in_turn),
    test!(too_many_rows_are_refused_everywhere),
    test!(what_does_not_fit_is_dropped_in_order),
    test!(experts_that_there_are_not),
    test!(shrinking_tokens_with_delays).seconds(120),
    test!(a_graph_with_any_number_of_tokens),
    test!(under_group_completion),
    test!(choices_that_no_packets_hold),
    test!(other_options_are_refused_everywhere).at_least(2),
    test!(bad_options_and_tensors_are_refused),
    test!(a_missing_rank_is_named).at_least(2),
];

const HIDDEN: usize = 24;

fn layouts(tokens: u64, choices: usize, ranks: usize) -> [Layout; 4] {
    let most = tokens * (choices * ranks) as u64;
    [
        Layout::Compact { align: 0 },
        Layout::Compact { align: 8 },
        Layout::Padded { rows: most },
        Layout::RankMajor,
    ]
}

fn setting(
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

fn routing(group: &Group, setting: Setting, overflow: Overflow) -> Result<Routing, RoutingError> {
    let Setting { experts, choices, tokens, layout, capacity, .. } = setting;
    let mut options =
        RoutingOptions::new(experts, choices, tokens).layout(layout).overflow(overflow);
    if let Layout::Compact { .. } = layout {
        options = options.capacity(capacity);
    }
    group.routing(&options, &group.wait())
}

/// One routing, and tensors for it.
struct Scene<'c> {
    context: &'c Context,
    setting: Setting,
    routing: Routing,
    rows: Tensor<bf16>,
    made: Tensor<bf16>,
    /// Whether every other dispatch shows all tokens to all ranks.
    gathers: bool,
}

const ROUTES: [Route; 2] = [Route::Direct, Route::Gathered];

// Exact in every type.
const POISON: f32 = -12288.0;

impl<'c> Scene<'c> {
    fn new(
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
    fn choices(&self, routes: &Routes) -> Result<(Tensor<i64>, Tensor<f32>), TestError> {
        let (device, me) = (self.context.device(), self.context.rank());
        let shape = [routes.tokens(me) as u64, self.setting.choices as u64];
        let (indices, weights) = (Tensor::zeros(device, &shape)?, Tensor::zeros(device, &shape)?);
        indices.write(&routes.indices[me].concat())?;
        weights.write(&routes.weights[me].concat())?;
        Ok((indices, weights))
    }

    fn x(&self, routes: &Routes, seed: u64) -> Result<Tensor<bf16>, TestError> {
        let me = self.context.rank();
        let count = routes.tokens(me);
        let x = Tensor::zeros(self.context.device(), &[count as u64, HIDDEN as u64])?;
        let all = (0..count).flat_map(|token| (0..HIDDEN).map(move |at| (token, at)));
        x.write(&all.map(|(token, at)| element(seed, me, token, at)).collect::<Vec<_>>())?;
        Ok(x)
    }

    fn poison(&self) -> Verdict {
        let poison = vec![bf16::from_f32(POISON); self.rows.count() as usize];
        Ok(self.rows.write(&poison)?)
    }

    /// That rows, groups and origins are those of the model, and padding is as it was.
    fn check(&self, routes: &Routes, seed: u64) -> Verdict {
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
    fn apply(&self, routes: &Routes) -> Verdict {
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
    fn combine(&self, routes: &Routes, weights: &Tensor<f32>, seed: u64) -> Verdict {
        let (me, setting) = (self.context.rank(), self.setting);
        let count = routes.tokens(me);
        let output =
            Tensor::<bf16>::zeros(self.context.device(), &[count as u64 + 1, HIDDEN as u64])?;
        output.write(&vec![bf16::from_f32(POISON); (count + 1) * HIDDEN])?;
        let output_view = output.slice(0, (count * HIDDEN) as u64)?;
        let shaped = super::reshaped(&output_view, &[count as u64, HIDDEN as u64])?;
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

    fn dispatch(&self, routes: &Routes, seed: u64) -> Result<Tensor<f32>, TestError> {
        let (indices, weights) = self.choices(routes)?;
        let x = self.x(routes, seed)?;
        self.poison()?;
        let route = ROUTES[if self.gathers { seed as usize % 2 } else { 0 }];
        self.routing.dispatch(&x, &indices, &self.rows).weights(&weights).route(route).run()?;
        Ok(weights)
    }

    /// There and back.
    fn round(&self, routes: &Routes, seed: u64) -> Verdict {
        let weights = self.dispatch(routes, seed)?;
        self.check(routes, seed)?;
        self.apply(routes)?;
        self.combine(routes, &weights, seed)
    }
}

pub(super) fn expert_of(expert: usize, x: f32) -> f32 {
    x * ((expert % 7) as f32 + 0.5) + expert as f32
}

fn random(context: &Context, name: u64) -> Random {
    Random::new(context.seed(), &[100 + name])
}

/// Some expert, or now and then none.
fn any(experts: usize) -> impl Fn(&mut Random, usize) -> i64 {
    move |r, _| r.below(experts as u64 + 1) as i64 - 1
}

fn random_routes_in_every_layout(context: &Context) -> Verdict {
    let mut random = random(context, 1);
    let group = context.group()?;
    let tokens = if context.size() > 8 { 3 } else { 17 };
    for layout in layouts(tokens, 3, context.size()) {
        let setting = setting(context, 8, 3, tokens, layout);
        let scene = Scene::new(context, &group, setting, Overflow::Error)?;
        for round in 0..3 {
            context.step(format_args!("{layout:?}, round {round}"));
            let few = |r: &mut Random, _| r.below(tokens + 1);
            let routes = Routes::new(setting, &mut random, few, any(8));
            scene.round(&routes, random.next())?;
        }
    }
    Ok(())
}

fn any_number_of_experts_and_choices(context: &Context) -> Verdict {
    let mut random = random(context, 2);
    let group = context.group()?;
    let cases: &[(usize, usize)] = match context.size() {
        ..=8 => &[(1, 1), (2, 2), (3, 1), (5, 8), (16, 4), (31, 2), (257, 5)],
        _ => &[(1, 1), (7, 2), (257, 3)],
    };
    for (n, (experts, choices)) in cases.iter().enumerate() {
        let layout = layouts(5, *choices, context.size())[n % 4];
        context.step(format_args!("{experts} experts, {choices} choices, {layout:?}"));
        let setting = setting(context, *experts, *choices, 5, layout);
        let scene = Scene::new(context, &group, setting, Overflow::Error)?;
        let routes = Routes::new(setting, &mut random, |r, _| r.below(6), any(*experts));
        scene.round(&routes, random.next())?;
    }
    Ok(())
}

/// All to one expert; the same expert twice; none at all; all experts by every token.
fn skewed_routes(context: &Context) -> Verdict {
    type Choose = fn(&mut Random, usize) -> i64;
    let mut random = random(context, 3);
    let group = context.group()?;
    let chosen: [Choose; 4] = [|_, _| 5, |r, _| r.below(2) as i64, |_, _| -1, |_, k| k as i64];
    let tokens = if context.size() > 8 { 2 } else { 7 };
    for layout in layouts(tokens, 6, context.size()) {
        let setting = setting(context, 6, 6, tokens, layout);
        let scene = Scene::new(context, &group, setting, Overflow::Error)?;
        for (case, choose) in chosen.into_iter().enumerate() {
            context.step(format_args!("{layout:?}, case {case}"));
            let routes = Routes::new(setting, &mut random, |_, _| tokens, choose);
            scene.round(&routes, random.next())?;
        }
    }
    Ok(())
}

fn ranks_without_tokens(context: &Context) -> Verdict {
    let mut random = random(context, 4);
    let group = context.group()?;
    for layout in layouts(4, 2, context.size()) {
        let setting = setting(context, 4, 2, 4, layout);
        let scene = Scene::new(context, &group, setting, Overflow::Error)?;
        for case in 0..4 {
            context.step(format_args!("{layout:?}, case {case}"));
            let tokens = |_: &mut Random, rank: usize| match case {
                0 => 0,
                1 => u64::from(rank == 0),
                2 => u64::from(rank != 0) * 4,
                _ => (rank % 2) as u64 * 3,
            };
            let routes = Routes::new(setting, &mut random, tokens, any(4));
            scene.round(&routes, random.next())?;
        }
    }
    Ok(())
}

/// Elements as the quantiser's definition says, and its scales.
pub(super) fn quantised(row: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in row.chunks(128) {
        let most = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let scale = if most == 0.0 { 1.0 } else { most / 448.0 };
        scales.push(scale);
        codes.extend(block.iter().map(|x| F8E4M3::from_f32((x / scale).clamp(-448.0, 448.0)).0));
    }
    (codes, scales)
}

fn quantised_of<T: Element>(
    context: &Context,
    hidden: usize,
    narrow: impl Fn(f32) -> T,
    widen: impl Fn(T) -> f32,
) -> Verdict {
    let mut random = random(context, 5);
    let (group, device, me) = (context.group()?, context.device(), context.rank());
    for layout in layouts(4, 2, context.size()) {
        context.step(format_args!("{} of {hidden}, {layout:?}", T::DTYPE));
        let setting = setting(context, 6, 2, 4, layout);
        let routing = routing(&group, setting, Overflow::Error)?;
        let routes = Routes::new(setting, &mut random, |r, _| r.below(5), any(6));
        let seed = random.next();
        let value = |rank: usize, token: usize, at: usize| {
            let block = at / 128;
            // One block of nothing but zeros, others of very different sizes.
            let size = [1.0, 0.0, 1e-3, 1e3][(token + block) % 4];
            narrow(element(seed, rank, token, at).to_f32() * size)
        };
        let tokens = routes.tokens(me);
        let x = Tensor::<T>::zeros(device, &[tokens as u64, hidden as u64])?;
        let all = (0..tokens).flat_map(|token| (0..hidden).map(move |at| (token, at)));
        x.write(&all.map(|(token, at)| value(me, token, at)).collect::<Vec<_>>())?;
        let indices = Tensor::<i32>::zeros(device, &[tokens as u64, 2])?;
        indices
            .write(&routes.indices[me].concat().iter().map(|i| *i as i32).collect::<Vec<_>>())?;
        let blocks = hidden.div_ceil(128);
        let rows = Tensor::<F8E4M3>::zeros(device, &[setting.capacity, hidden as u64])?;
        let scales = Tensor::<f32>::zeros(device, &[setting.capacity, blocks as u64])?;
        group.rendezvous(&rows, &group.wait())?;
        group.rendezvous(&scales, &group.wait())?;
        rows.write(&vec![F8E4M3(0x55); rows.count() as usize])?;
        scales.write(&vec![POISON; scales.count() as usize])?;
        let route = ROUTES[seed as usize % 2];
        routing.dispatch(&x, &indices, &rows).quantised(&scales).route(route).run()?;
        let (rows, scales) = (rows.to_vec()?, scales.to_vec()?);
        for (row, from) in routes.arrived(me).rows.iter().enumerate() {
            let found = &rows[row * hidden..][..hidden];
            let found_scales = &scales[row * blocks..][..blocks];
            let Some(from) = from else {
                let untouched = found.iter().all(|code| code.0 == 0x55)
                    && found_scales.iter().all(|scale| *scale == POISON);
                check!(untouched, "padding row {row}");
                continue;
            };
            let wide: Vec<f32> =
                (0..hidden).map(|at| widen(value(from.source, from.token, at))).collect();
            let (codes, expected) = quantised(&wide);
            check_eq!(found_scales, &expected[..], "scales of row {row}");
            check!(found.iter().map(|code| code.0).eq(codes), "row {row}");
        }
    }
    Ok(())
}

fn quantised_rows(context: &Context) -> Verdict {
    let hidden = if context.size() > 8 { 130 } else { 300 };
    quantised_of(context, hidden, bf16::from_f32, bf16::to_f32)?;
    quantised_of(context, 128, f16::from_f32, f16::to_f32)?;
    quantised_of(context, 257, |x| x, |x| x)
}

fn name(rank: usize, token: usize) -> u64 {
    (rank as u64) << 32 | token as u64 | 1 << 60
}

fn part(rank: usize, token: usize) -> [u8; 3] {
    [rank as u8, token as u8, 77]
}

fn several_tensors_at_once(context: &Context) -> Verdict {
    let mut random = random(context, 6);
    let (group, device, me) = (context.group()?, context.device(), context.rank());
    let layout = Layout::Compact { align: 4 };
    let setting = setting(context, 5, 3, 6, layout);
    let scene = Scene::new(context, &group, setting, Overflow::Error)?;
    let routes = Routes::new(setting, &mut random, |r, _| r.below(7), any(5));
    let (indices, weights) = scene.choices(&routes)?;
    let x = scene.x(&routes, 9)?;
    let count = routes.tokens(me) as u64;
    let (names, bytes) =
        (Tensor::<u64>::zeros(device, &[count])?, Tensor::<u8>::zeros(device, &[count, 3])?);
    names.write(&(0..count as usize).map(|token| name(me, token)).collect::<Vec<_>>())?;
    bytes.write(&(0..count as usize).flat_map(|token| part(me, token)).collect::<Vec<_>>())?;
    let there_names = Tensor::<u64>::zeros(device, &[setting.capacity])?;
    let there_bytes = Tensor::<u8>::zeros(device, &[setting.capacity, 3])?;
    group.rendezvous(&there_names, &group.wait())?;
    group.rendezvous(&there_bytes, &group.wait())?;
    for route in ROUTES {
        scene.poison()?;
        there_names.write(&vec![0; setting.capacity as usize])?;
        there_bytes.write(&vec![0; 3 * setting.capacity as usize])?;
        context.ready()?;
        context.meet()?;
        let call = scene.routing.dispatch(&x, &indices, &scene.rows).weights(&weights).route(route);
        call.payload(&names, &there_names).payload(&bytes, &there_bytes).run()?;
        scene.check(&routes, 9)?;
        check_several(&routes, me, &there_names.to_vec()?, &there_bytes.to_vec()?)?;
    }
    Ok(())
}

fn check_several(routes: &Routes, me: usize, names: &[u64], bytes: &[u8]) -> Verdict {
    for (row, from) in routes.arrived(me).rows.iter().enumerate() {
        let (expected, expected_bytes) =
            from.map_or((0, [0; 3]), |f| (name(f.source, f.token), part(f.source, f.token)));
        check_eq!(names[row], expected, "row {row}");
        check_eq!(bytes[3 * row..][..3], expected_bytes, "row {row}");
    }
    Ok(())
}

/// Other rows of the same tokens, without their choices.
fn the_same_tokens_again(context: &Context) -> Verdict {
    let mut random = random(context, 7);
    let group = context.group()?;
    for layout in layouts(5, 2, context.size()) {
        context.step(format_args!("{layout:?}"));
        let setting = setting(context, 6, 2, 5, layout);
        let scene = Scene::new(context, &group, setting, Overflow::Error)?;
        let early = scene.routing.resend(&scene.made, &scene.rows).run();
        check_err!(early, Error::NotDispatched | Error::Tensor(_));
        let routes = Routes::new(setting, &mut random, |r, _| r.below(6), any(6));
        let weights = scene.dispatch(&routes, 1)?;
        for seed in 2..4 {
            scene.poison()?;
            scene.routing.resend(&scene.x(&routes, seed)?, &scene.rows).run()?;
            scene.check(&routes, seed)?;
            scene.apply(&routes)?;
            scene.combine(&routes, &weights, seed)?;
        }
    }
    Ok(())
}

/// One routing's dispatch, another's, then the first one's combine: each has its own memory.
fn two_routings_in_turn(context: &Context) -> Verdict {
    let mut random = random(context, 8);
    let group = context.group()?;
    let of = |experts, tokens, layout| {
        let setting = setting(context, experts, 2, tokens, layout);
        Scene::new(context, &group, setting, Overflow::Error)
    };
    let first = of(6, 8, Layout::Compact { align: 2 })?;
    let second = of(9, 4, Layout::RankMajor)?;
    for round in 0..3 {
        let a = Routes::new(first.setting, &mut random, |r, _| r.below(9), any(6));
        let b = Routes::new(second.setting, &mut random, |r, _| r.below(5), any(9));
        let weights_a = first.dispatch(&a, round)?;
        let weights_b = second.dispatch(&b, 100 + round)?;
        first.check(&a, round)?;
        first.apply(&a)?;
        second.apply(&b)?;
        second.combine(&b, &weights_b, 100 + round)?;
        first.combine(&a, &weights_a, round)?;
    }
    Ok(())
}

fn refused(context: &Context, found: Result<(), Error>) -> Result<Refusal, TestError> {
    let Err(Error::Refused(refusal)) = found else {
        return Err(TestError::failed(format!("{found:?} is no refusal")));
    };
    context.same("refusal", refusal);
    Ok(refusal)
}

fn too_many_rows_are_refused_everywhere(context: &Context) -> Verdict {
    let mut random = random(context, 9);
    let group = context.group()?;
    for layout in [Layout::Compact { align: 4 }, Layout::Padded { rows: 3 }] {
        let mut setting = setting(context, 4, 2, 6, layout);
        if let Layout::Compact { .. } = layout {
            setting.capacity = 5;
        }
        let scene = Scene::new(context, &group, setting, Overflow::Error)?;
        // All to the first expert, whose rank has no room for as many.
        let routes = Routes::new(setting, &mut random, |_, _| 6, |_, _| 0);
        context.step(format_args!("{layout:?}"));
        scene.poison()?;
        let (indices, _) = scene.choices(&routes)?;
        let x = scene.x(&routes, 1)?;
        let found = scene.routing.dispatch(&x, &indices, &scene.rows).run();
        let refusal = refused(context, found)?;
        let owner = setting.owner(0);
        let over = routes.arrived(owner).over;
        let Reason::Overflow { needed, capacity } = refusal.reason else {
            return Err(TestError::failed(format!("{refusal}")));
        };
        check_eq!((refusal.rank.index(), Some((needed, capacity))), (owner, over));
        check!(scene.rows.to_vec()?.iter().all(|v| v.to_f32() == POISON), "something has moved");
        check!(scene.routing.groups().to_vec()?.iter().all(|count| *count == 0), "groups");
        check!(scene.routing.origins()?.is_empty(), "origins");
        group.check()?;
        // One token each of the first two ranks fits.
        let first = |_: &mut Random, choice: usize| if choice == 0 { 0 } else { -1 };
        let few = Routes::new(setting, &mut random, |_, rank| u64::from(rank < 2), first);
        scene.round(&few, 2)?;
    }
    Ok(())
}

fn what_does_not_fit_is_dropped_in_order(context: &Context) -> Verdict {
    let mut random = random(context, 10);
    let group = context.group()?;
    for layout in
        [Layout::Compact { align: 0 }, Layout::Compact { align: 4 }, Layout::Padded { rows: 3 }]
    {
        let mut setting = setting(context, 4, 3, 6, layout);
        if let Layout::Compact { .. } = layout {
            setting.capacity = 11;
        }
        let scene = Scene::new(context, &group, setting, Overflow::Drop)?;
        for round in 0..3 {
            context.step(format_args!("{layout:?}, round {round}"));
            let routes = Routes::new(setting, &mut random, |r, _| 3 + r.below(4), any(4));
            scene.round(&routes, round)?;
            let expected = routes.arrived(context.rank()).dropped;
            check_eq!(group.take_dropped(group.lane()?)?, expected, "dropped");
            group.verdict(group.lane()?)?;
        }
    }
    Ok(())
}

fn experts_that_there_are_not(context: &Context) -> Verdict {
    let mut random = random(context, 11);
    let (group, ranks) = (context.group()?, context.size());
    for overflow in [Overflow::Error, Overflow::Drop] {
        let setting = setting(context, 5, 2, 4, Layout::Compact { align: 0 });
        let scene = Scene::new(context, &group, setting, overflow)?;
        let right = Routes::new(setting, &mut random, |_, _| 4, any(5));
        for (value, route) in [5, -2, i64::MAX, i64::MIN].into_iter().zip(ROUTES.repeat(2)) {
            let culprit = random.below(ranks as u64) as usize;
            let mut routes = right.clone();
            routes.indices[culprit][2][1] = value;
            scene.poison()?;
            let (indices, _) = scene.choices(&routes)?;
            let x = scene.x(&routes, 1)?;
            let refusal = refused(
                context,
                scene.routing.dispatch(&x, &indices, &scene.rows).route(route).run(),
            )?;
            let reason = Reason::NoExpert { index: 5, value, experts: 5 };
            check_eq!((refusal.rank.index(), refusal.reason), (culprit, reason));
            check!(
                scene.rows.to_vec()?.iter().all(|v| v.to_f32() == POISON),
                "something has moved"
            );
        }
        scene.round(&right, 2)?;
    }
    Ok(())
}

/// The same memory again and again, for fewer and fewer tokens, each rank late now and then.
fn shrinking_tokens_with_delays(context: &Context) -> Verdict {
    let mut random = random(context, 12);
    let group = context.group()?;
    let tokens = if context.size() > 8 { 3 } else { 10 };
    let setting = setting(context, 7, 2, tokens, Layout::Compact { align: 1 });
    let scene = Scene::new(context, &group, setting, Overflow::Error)?;
    for most in (0..=tokens).rev() {
        for late in 0..context.size().min(3) {
            let routes = Routes::new(setting, &mut random, |r, _| r.below(most + 1), any(7));
            let pause = random.below(400);
            if context.rank() == late {
                std::thread::sleep(std::time::Duration::from_micros(pause));
            }
            scene.round(&routes, random.next())?;
        }
    }
    Ok(())
}

fn a_graph_with_any_number_of_tokens(context: &Context) -> Verdict {
    let mut random = random(context, 13);
    let (device, me) = (context.device(), context.rank());
    let modes = [StreamMode::Inline, StreamMode::Worker];
    for stream in modes.iter().filter_map(|mode| device.stream(*mode).ok()) {
        let group = context.group()?;
        let most = 6_u64;
        let setting = setting(context, 5, 2, most, Layout::Compact { align: 4 });
        let scene = Scene::new(context, &group, setting, Overflow::Error)?;
        let x = Tensor::<bf16>::zeros(device, &[most, HIDDEN as u64])?;
        let indices = Tensor::<i64>::zeros(device, &[most, 2])?;
        let weights = Tensor::<f32>::zeros(device, &[most, 2])?;
        let count = Tensor::<i64>::zeros(device, &[1])?;
        let output = Tensor::<bf16>::zeros(device, &[most, HIDDEN as u64])?;
        group.lane()?.prepare()?;
        group.prepare_moe()?;
        stream.begin_capture()?;
        let call = scene.routing.dispatch(&x, &indices, &scene.rows);
        call.weights(&weights).tokens(&count).on(&stream)?;
        scene.routing.combine(&scene.rows, &output).weights(&weights).on(&stream)?;
        let graph = stream.end_capture()?;
        context.ready()?;
        for round in 0..5 {
            context.step(format_args!("launch {round}"));
            let routes = Routes::new(setting, &mut random, |r, _| r.below(most + 1), any(5));
            let tokens = routes.tokens(me);
            let old = scene.x(&routes, round)?.to_vec()?;
            x.slice(0, old.len() as u64)?.write(&old)?;
            let (chosen, weighed) = scene.choices(&routes)?;
            indices.slice(0, chosen.count())?.write(&chosen.to_vec()?)?;
            weights.slice(0, weighed.count())?.write(&weighed.to_vec()?)?;
            count.write(&[tokens as i64])?;
            output.write(&vec![bf16::from_f32(POISON); output.count() as usize])?;
            scene.poison()?;
            // Before a peer's launch stores into this rank's rows.
            context.meet()?;
            graph.launch(&stream, &PATIENT)?;
            stream.synchronize(&PATIENT)?;
            scene.check(&routes, round)?;
            let found = output.to_vec()?;
            for (token, found) in found.chunks_exact(HIDDEN).enumerate() {
                for (at, found) in found.iter().enumerate() {
                    let expected = if token < tokens {
                        let x = element(round, me, token, at);
                        routes.combined(me, token, x, |_| true, |_, x| x)
                    } else {
                        bf16::from_f32(POISON)
                    };
                    check_eq!(found.to_bits(), expected.to_bits(), "token {token} of {tokens}");
                }
            }
            context.meet()?;
        }
        // More tokens than there are rows.
        count.write(&[most as i64 + 1])?;
        context.meet()?;
        graph.launch(&stream, &PATIENT)?;
        stream.synchronize(&PATIENT)?;
        let Err(symmem_moe::VerdictError::Refused(refusal)) = group.verdict(group.lane()?) else {
            return Err(TestError::failed("no refusal"));
        };
        check_eq!(refusal.reason, Reason::Tokens { value: most as i64 + 1, rows: most });
        context.same("refusal", refusal);
        group.check()?;
    }
    Ok(())
}

fn under_group_completion(context: &Context) -> Verdict {
    let mut random = random(context, 14);
    let whole = Options { completion: Completion::Group, ..options(context.size()) };
    let group = context.group_with(&whole)?;
    for layout in layouts(4, 2, context.size()) {
        let setting = setting(context, 5, 2, 4, layout);
        let scene = Scene::new(context, &group, setting, Overflow::Error)?;
        let routes = Routes::new(setting, &mut random, |r, _| r.below(5), any(5));
        scene.round(&routes, random.next())?;
    }
    Ok(())
}

/// In the smallest workspace, counts go through staging, piece by piece.
fn choices_that_no_packets_hold(context: &Context) -> Verdict {
    let mut random = random(context, 15);
    let workspace = crate::suite::collectives::least_workspace(context)?;
    let group = context.group_with(&Options { workspace, ..options(context.size()) })?;
    let setting = setting(context, 1500, 2, 4, Layout::Compact { align: 0 });
    let mut scene = Scene::new(context, &group, setting, Overflow::Error)?;
    scene.gathers = false;
    for _ in 0..2 {
        let routes = Routes::new(setting, &mut random, |r, _| r.below(5), any(1500));
        scene.round(&routes, random.next())?;
    }
    let (indices, x) = (Tensor::<i64>::zeros(context.device(), &[0, 2])?, scene.made.slice(0, 0)?);
    let x = super::reshaped(&x, &[0, HIDDEN as u64])?;
    let call = scene.routing.dispatch(&x, &indices, &scene.rows).route(Route::Gathered);
    check_err!(call.run(), Error::TooLargeToGather { .. });
    Ok(())
}

fn other_options_are_refused_everywhere(context: &Context) -> Verdict {
    let group = context.group()?;
    let tokens = 8 + u64::from(context.rank() == 1);
    let found = group.routing(&RoutingOptions::new(4, 2, tokens), &group.wait());
    let error = check_err!(found, RoutingError::Rendezvous(RendezvousError::Mismatch { .. }));
    context.same("error", &error);
    // The group goes on.
    let setting = setting(context, 4, 2, 3, Layout::RankMajor);
    let scene = Scene::new(context, &group, setting, Overflow::Error)?;
    let routes = Routes::new(setting, &mut random(context, 16), |_, _| 3, any(4));
    scene.round(&routes, 1)
}

fn bad_options_and_tensors_are_refused(context: &Context) -> Verdict {
    let (group, device) = (context.group()?, context.device());
    let of = |options: RoutingOptions| group.routing(&options, &group.wait());
    type Wrong = RoutingOptionsError;
    check_err!(
        of(RoutingOptions::new(0, 1, 1)),
        RoutingError::Options(Wrong::Experts { experts: 0 })
    );
    check_err!(of(RoutingOptions::new(1, 0, 1)), RoutingError::Options(Wrong::Choices { .. }));
    check_err!(of(RoutingOptions::new(1, 1, 1 << 32)), RoutingError::Options(Wrong::Tokens { .. }));
    let by_rank = RoutingOptions::new(1, 1, 1).layout(Layout::RankMajor);
    check_err!(of(by_rank.clone().capacity(3)), RoutingError::Options(Wrong::Capacity { .. }));
    let huge = RoutingOptions::new(1, 1, 1).capacity(1 << 48);
    check_err!(of(huge), RoutingError::Options(Wrong::Rows { .. }));

    let setting = setting(context, 4, 2, 4, Layout::RankMajor);
    let scene = Scene::new(context, &group, setting, Overflow::Error)?;
    let routing = &scene.routing;
    let x = Tensor::<bf16>::zeros(device, &[3, HIDDEN as u64])?;
    let indices = Tensor::<i64>::zeros(device, &[3, 2])?;
    let wrong = |found: Result<(), Error>| match found {
        Err(Error::Tensor(wrong)) => Ok(wrong),
        other => Err(TestError::failed(format!("{other:?}"))),
    };
    type T = TensorMismatch;
    let private = Tensor::<bf16>::zeros(device, &[setting.capacity, HIDDEN as u64])?;
    let found = wrong(routing.dispatch(&x, &indices, &private).run())?;
    check_eq!(found, T::NotSymmetric { what: "rows" });
    let many = Tensor::<bf16>::zeros(device, &[5, HIDDEN as u64])?;
    let found = wrong(routing.dispatch(&many, &indices, &scene.rows).run())?;
    check_eq!(found, T::TooManyRows { what: "x", most: 4, found: 5 });
    let few = indices.slice(0, 4)?;
    let found = wrong(routing.dispatch(&x, &few, &scene.rows).run())?;
    check_eq!(found, T::Count { what: "indices", expected: 6, found: 4 });
    let found =
        wrong(routing.dispatch(&x, &Tensor::<u8>::zeros(device, &[6])?, &scene.rows).run())?;
    check_eq!(found, T::DType { what: "indices", expected: "i32 or i64", found: DType::U8 });
    let short = super::reshaped(scene.rows.slice(0, HIDDEN as u64)?.view(), &[1, HIDDEN as u64])?;
    let found = wrong(routing.dispatch(&x, &indices, &short).run())?;
    check_eq!(found, T::Rows { what: "rows", expected: setting.capacity, found: 1 });
    let inside =
        super::reshaped(scene.rows.slice(0, 3 * HIDDEN as u64)?.view(), &[3, HIDDEN as u64])?;
    let found = wrong(routing.dispatch(&inside, &indices, &scene.rows).run())?;
    check!(matches!(found, T::Overlap { .. }), "{found}");
    let call = routing.dispatch(&x, &indices, &scene.rows);
    let call = (0..4).fold(call, |call, _| call.payload(&x, &scene.made));
    check_err!(call.run(), Error::TooManyPayloads { .. });
    check_err!(routing.combine(&scene.made, &x).run(), Error::NotDispatched);
    // None of them has had an effect.
    routing.dispatch(&x, &indices, &scene.rows).run()?;
    let weights = Tensor::<f32>::zeros(device, &[3, 2])?;
    check_err!(routing.combine(&scene.made, &x).weights(&weights).run(), Error::WeightsByRank);
    let found = wrong(routing.combine(&private, &x).run())?;
    check_eq!(found, T::NotSymmetric { what: "rows" });
    let small = Tensor::<bf16>::zeros(device, &[2, HIDDEN as u64])?;
    let found = wrong(routing.combine(&scene.made, &small).run())?;
    check_eq!(found, T::TooFewRows { what: "output", least: 3, found: 2 });
    let error = Error::Tensor(found);
    check_eq!(error.kind(), Kind::InvalidArgument);
    group.check()?;
    Ok(routing.combine(&scene.made, &x).run()?)
}

fn a_missing_rank_is_named(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    let setting = setting(context, 4, 2, 3, Layout::Compact { align: 0 });
    let scene = Scene::new(context, &group, setting, Overflow::Error)?;
    let routes = Routes::new(setting, &mut random(context, 17), |_, _| 3, any(4));
    let weights = scene.dispatch(&routes, 1)?;
    context.meet()?;
    if context.rank() != last {
        let output = Tensor::<bf16>::zeros(context.device(), &[3, HIDDEN as u64])?;
        let wait = Wait::timeout(context.brief());
        let call = scene.routing.combine(&scene.made, &output).weights(&weights);
        let failure = super::failure(call.wait(&wait), &group)?;
        check_eq!(failure.ranks(), RankSet::one(last));
        let Failure::TimedOut { operation, .. } = &failure else {
            return Err(TestError::failed(format!("{failure}")));
        };
        check_eq!(*operation, Some(Operation::Combine));
        context.same("failure", &failure);
    }
    context.meet()
}
