//! Dispatch and combine in halves.

use half::bf16;
use symmem_collectives::Collectives as _;
use symmem_hal::types::{DType, F8E4M3, RankSet};
use symmem_hal::{Fault as _, Stream, StreamMode, Wait};
use symmem_mem::call::Operation;
use symmem_mem::{Failure, Group, Options, RendezvousError, Tensor, View};
use symmem_moe::{
    HalfError as Error, Landing, LandingError, LandingOptions, Layout, Moe as _, Reason, Received,
    TensorMismatch,
};
use symmem_sync::Lanes as _;

use super::dispatch::{expert_of, quantised};
use super::routes::{Routes, Setting, element};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict, options};
use crate::suite::sync::stream_of;
use crate::support::random::Random;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(there_and_back).seconds(120),
    test!(quantised_rows),
    test!(no_more_rows_back_than_there_is_room_for),
    test!(other_work_between_the_halves),
    test!(a_third_live_result_is_refused),
    test!(a_captured_send_keeps_its_landing),
    test!(experts_that_there_are_not),
    test!(many_rounds_with_delays).seconds(120),
    test!(halves_of_two_lanes),
    test!(bad_options_and_tensors_are_refused),
    test!(other_options_are_refused_everywhere).at_least(2),
    test!(a_missing_rank_is_named).at_least(2),
];

const ROW: usize = 24;
const POISON: f32 = -12288.0;

fn setting(context: &Context, experts: usize, choices: usize, tokens: u64) -> Setting {
    let ranks = context.size();
    let capacity = ranks as u64 * tokens;
    Setting { ranks, experts, choices, tokens, layout: Layout::RankMajor, capacity }
}

struct Scene<'c> {
    context: &'c Context,
    setting: Setting,
    landing: Landing,
    made: Tensor<bf16>,
}

impl<'c> Scene<'c> {
    fn new(context: &'c Context, group: &Group, setting: Setting) -> Result<Self, TestError> {
        let Setting { experts, choices, tokens, .. } = setting;
        let options = LandingOptions::new(experts, choices, tokens, ROW as u64, DType::BF16);
        let landing = group.landing(&options, &group.wait())?;
        check_eq!(landing.capacity(), setting.capacity);
        let made = Tensor::zeros(context.device(), &[setting.capacity, ROW as u64])?;
        Ok(Scene { context, setting, landing, made })
    }

    /// Any routes within the setting.
    fn routes(&self, random: &mut Random) -> Routes {
        let Setting { experts, tokens, .. } = self.setting;
        let choose = |r: &mut Random, _| r.below(experts as u64 + 1) as i64 - 1;
        Routes::new(self.setting, random, |r, _| r.below(tokens + 1), choose)
    }

    fn inputs(&self, routes: &Routes, seed: u64) -> Result<Inputs, TestError> {
        let (device, me) = (self.context.device(), self.context.rank());
        let count = routes.tokens(me);
        let shape = [count as u64, self.setting.choices as u64];
        let x = Tensor::zeros(device, &[count as u64, ROW as u64])?;
        let (indices, weights) = (Tensor::zeros(device, &shape)?, Tensor::zeros(device, &shape)?);
        let all = (0..count).flat_map(|token| (0..ROW).map(move |at| (token, at)));
        x.write(&all.map(|(token, at)| element(seed, me, token, at)).collect::<Vec<_>>())?;
        indices
            .write(&routes.indices[me].concat().iter().map(|i| *i as i32).collect::<Vec<_>>())?;
        weights.write(&routes.weights[me].concat())?;
        Ok(Inputs { x, indices, weights })
    }

    /// That what was received is what the model says.
    fn check(&self, routes: &Routes, received: &Received<'_>, seed: u64) -> Verdict {
        let arrived = routes.arrived(self.context.rank());
        let groups = received.groups().to_vec()?;
        for (source, (count, start)) in arrived.groups.iter().enumerate() {
            let found = (groups[source] as u64, groups[self.setting.ranks + source] as u64);
            check_eq!(found, (*count, *start), "rows from rank {source}");
        }
        let rows = Tensor::<bf16>::try_from(received.rows().clone())?.to_vec()?;
        for (row, from) in arrived.rows.iter().enumerate() {
            // What is in other rows is a former result's.
            let Some(from) = from else { continue };
            let found = &rows[row * ROW..][..ROW];
            let right = found
                .iter()
                .enumerate()
                .all(|(at, v)| v.to_bits() == element(seed, from.source, from.token, at).to_bits());
            check!(right, "row {row} is not {from:?}");
        }
        let origins = received.origins()?;
        check_eq!(origins.len(), arrived.rows.iter().flatten().count(), "origins");
        for origin in origins {
            let Some(from) = arrived.rows[origin.row as usize] else {
                return Err(TestError::failed(format!("{origin:?} of no row")));
            };
            let is = (origin.source.index(), origin.token as usize, origin.choice as usize);
            check_eq!(is, (from.source, from.token, from.choice));
            let weight = routes.weights[from.source][from.token][from.choice];
            check_eq!(origin.weight.to_bits(), weight.to_bits());
        }
        Ok(())
    }

    /// What this rank's experts make of the rows that it has received, summed for each.
    fn apply(&self, received: &Received<'_>) -> Verdict {
        let rows = Tensor::<bf16>::try_from(received.rows().clone())?.to_vec()?;
        let mut made = vec![bf16::from_f32(f32::NAN); rows.len()];
        let (chosen, first) = (received.chosen()?, self.landing.local_experts().start);
        for origin in received.origins()? {
            let range = origin.row as usize * ROW..(origin.row as usize + 1) * ROW;
            for (to, x) in made[range.clone()].iter_mut().zip(&rows[range]) {
                let mut sum: Option<f32> = None;
                for (local, weight) in chosen[origin.row as usize].iter().flatten() {
                    let expert = expert_of(first + local, x.to_f32());
                    let term = weight * bf16::from_f32(expert).to_f32();
                    sum = Some(sum.map_or(term, |sum| sum + term));
                }
                *to = bf16::from_f32(sum.unwrap_or(f32::NAN));
            }
        }
        Ok(self.made.write(&made)?)
    }

    fn output(&self, tokens: usize) -> Result<(Tensor<bf16>, View), TestError> {
        let output = Tensor::zeros(self.context.device(), &[tokens as u64 + 1, ROW as u64])?;
        output.write(&vec![bf16::from_f32(POISON); (tokens + 1) * ROW])?;
        let view = super::reshaped(&output, &[tokens as u64 + 1, ROW as u64])?;
        Ok((output, view))
    }

    fn check_output(&self, routes: &Routes, output: &Tensor<bf16>, seed: u64) -> Verdict {
        let me = self.context.rank();
        for (token, found) in output.to_vec()?.chunks_exact(ROW).enumerate() {
            for (at, found) in found.iter().enumerate() {
                let expected = if token < routes.tokens(me) {
                    let x = element(seed, me, token, at);
                    routes.combined(me, token, x, |_| true, expert_of)
                } else {
                    bf16::from_f32(POISON)
                };
                check_eq!(found.to_bits(), expected.to_bits(), "token {token}, element {at}");
            }
        }
        Ok(())
    }

    /// The way back of a result.
    fn back(&self, routes: &Routes, received: &Received<'_>, seed: u64) -> Verdict {
        self.apply(received)?;
        received.send_back(&self.made).run()?;
        self.made.write(&vec![bf16::from_f32(f32::NAN); self.made.count() as usize])?;
        let (output, view) = self.output(routes.tokens(self.context.rank()))?;
        received.receive_back(&view).run()?;
        self.check_output(routes, &output, seed)
    }

    fn round(&self, random: &mut Random) -> Verdict {
        let (routes, seed) = (self.routes(random), random.next());
        let Inputs { x, indices, weights } = self.inputs(&routes, seed)?;
        let sent = self.landing.send(&x, &indices).weights(&weights).run()?;
        x.write(&vec![bf16::from_f32(f32::NAN); x.count() as usize])?;
        let received = sent.receive()?;
        self.check(&routes, &received, seed)?;
        self.back(&routes, &received, seed)
    }
}

struct Inputs {
    x: Tensor<bf16>,
    indices: Tensor<i32>,
    weights: Tensor<f32>,
}

fn random(context: &Context, name: u64) -> Random {
    Random::new(context.seed(), &[200 + name])
}

fn there_and_back(context: &Context) -> Verdict {
    let mut random = random(context, 1);
    let group = context.group()?;
    let cases: &[(usize, usize)] =
        if context.size() > 8 { &[(5, 2)] } else { &[(1, 1), (2, 2), (8, 3), (31, 8)] };
    for (experts, choices) in cases {
        let scene = Scene::new(context, &group, setting(context, *experts, *choices, 6))?;
        for round in 0..3 {
            context.step(format_args!("{choices} of {experts} experts, round {round}"));
            scene.round(&mut random)?;
        }
    }
    Ok(())
}

/// Counts are the caller's to read, and nobody keeps him from writing them.
fn no_more_rows_back_than_there_is_room_for(context: &Context) -> Verdict {
    let mut random = random(context, 14);
    let (group, me) = (context.group()?, context.rank());
    let scene = Scene::new(context, &group, setting(context, 6, 2, 5))?;
    let poison = bf16::from_f32(POISON);
    for count in [i64::MAX, 1 << 40, 6, -1, i64::MIN] {
        context.step(format_args!("{count} rows"));
        let routes = scene.routes(&mut random);
        let Inputs { x, indices, weights } = scene.inputs(&routes, 1)?;
        let received = scene.landing.send(&x, &indices).weights(&weights).run()?.receive()?;
        let mut groups = received.groups().to_vec()?;
        groups[..context.size()].fill(count);
        scene.apply(&received)?;
        received.groups().write(&groups)?;
        received.send_back(&scene.made).run()?;
        let (output, view) = scene.output(routes.tokens(me))?;
        received.receive_back(&view).run()?;
        // All rows that there is room for, or none: then sums are of what was there before.
        if count > 0 {
            scene.check_output(&routes, &output, 1)?;
        } else {
            let last = output.to_vec()?.split_off(routes.tokens(me) * ROW);
            check!(last.iter().all(|v| v.to_bits() == poison.to_bits()), "past the tokens");
        }
    }
    Ok(())
}

fn quantised_rows(context: &Context) -> Verdict {
    const WIDE: usize = 200;
    let mut random = random(context, 2);
    let (group, device, me) = (context.group()?, context.device(), context.rank());
    let setting = setting(context, 6, 2, 4);
    let options = LandingOptions::new(6, 2, 4, WIDE as u64, DType::F32).quantised();
    let landing = group.landing(&options, &group.wait())?;
    let choose = |r: &mut Random, _| r.below(7) as i64 - 1;
    let routes = Routes::new(setting, &mut random, |r, _| r.below(5), choose);
    let value = |rank, token, at| element(3, rank, token, at).to_f32() / 7.0;
    let count = routes.tokens(me);
    let x = Tensor::<f32>::zeros(device, &[count as u64, WIDE as u64])?;
    let all = (0..count).flat_map(|token| (0..WIDE).map(move |at| (token, at)));
    x.write(&all.map(|(token, at)| value(me, token, at)).collect::<Vec<_>>())?;
    let indices = Tensor::<i64>::zeros(device, &[count as u64, 2])?;
    indices.write(&routes.indices[me].concat())?;
    let received = landing.send(&x, &indices).run()?.receive()?;
    let rows = Tensor::<F8E4M3>::try_from(received.rows().clone())?.to_vec()?;
    let Some(scales) = received.scales() else { return Err(TestError::failed("no scales")) };
    let scales = Tensor::<f32>::try_from(scales.clone())?.to_vec()?;
    for (row, from) in routes.arrived(me).rows.iter().enumerate() {
        let Some(from) = from else { continue };
        let wide: Vec<f32> = (0..WIDE).map(|at| value(from.source, from.token, at)).collect();
        let (codes, expected) = quantised(&wide);
        check_eq!(&scales[2 * row..][..2], &expected[..], "scales of row {row}");
        check!(rows[row * WIDE..][..WIDE].iter().map(|code| code.0).eq(codes), "row {row}");
    }
    Ok(())
}

fn streams(context: &Context, group: &Group) -> Result<Vec<Stream>, TestError> {
    let worker = context.device().stream(StreamMode::Worker).ok();
    Ok([Some(stream_of(group)?), worker].into_iter().flatten().collect())
}

/// A collective, and other halves, on the same lane.
fn other_work_between_the_halves(context: &Context) -> Verdict {
    let mut random = random(context, 3);
    let group = context.group()?;
    let scene = Scene::new(context, &group, setting(context, 6, 2, 5))?;
    let ones = Tensor::<u32>::zeros(context.device(), &[100])?;
    for stream in streams(context, &group)? {
        for _ in 0..3 {
            let (a, b) = (scene.routes(&mut random), scene.routes(&mut random));
            let (first, second) = (scene.inputs(&a, 1)?, scene.inputs(&b, 2)?);
            ones.write(&[1; 100])?;
            let call = scene.landing.send(&first.x, &first.indices).weights(&first.weights);
            let sent = call.on(&stream)?;
            group.all_reduce(&ones).on(&stream)?;
            let call = scene.landing.send(&second.x, &second.indices).weights(&second.weights);
            let sent_second = call.on(&stream)?;
            let received_second = sent_second.receive_on(&stream)?;
            let received = sent.receive_on(&stream)?;
            stream.synchronize(&PATIENT)?;
            scene.check(&a, &received, 1)?;
            scene.check(&b, &received_second, 2)?;
            check!(ones.to_vec()?.iter().all(|v| *v == context.size() as u32), "a wrong sum");
            scene.back(&b, &received_second, 2)?;
            scene.back(&a, &received, 1)?;
        }
    }
    Ok(())
}

fn a_third_live_result_is_refused(context: &Context) -> Verdict {
    let mut random = random(context, 4);
    let group = context.group()?;
    let scene = Scene::new(context, &group, setting(context, 4, 2, 4))?;
    for _ in 0..2 {
        let all: Vec<_> = (0..3).map(|_| scene.routes(&mut random)).collect();
        let inputs: Vec<_> = all
            .iter()
            .zip(0..)
            .map(|(routes, seed)| scene.inputs(routes, seed))
            .collect::<Result<_, _>>()?;
        let send = |i: usize| {
            let Inputs { x, indices, weights } = &inputs[i];
            scene.landing.send(x, indices).weights(weights).run()
        };
        let first = send(0)?.receive()?;
        let second = send(1)?.receive()?;
        check_err!(send(2), Error::LandingBusy);
        // Not even with the second one gone: it is the first one's turn.
        scene.back(&all[1], &second, 1)?;
        drop(second);
        check_err!(send(2), Error::LandingBusy);
        scene.check(&all[0], &first, 0)?;
        scene.back(&all[0], &first, 0)?;
        drop(first);
        let third = send(2)?.receive()?;
        scene.check(&all[2], &third, 2)?;
        scene.back(&all[2], &third, 2)?;
    }
    group.check()?;
    Ok(())
}

fn a_captured_send_keeps_its_landing(context: &Context) -> Verdict {
    let mut random = random(context, 5);
    let (device, me) = (context.device(), context.rank());
    for stream in
        [StreamMode::Inline, StreamMode::Worker].iter().filter_map(|m| device.stream(*m).ok())
    {
        let group = context.group()?;
        let most = 4_u64;
        let scene = Scene::new(context, &group, setting(context, 5, 2, most))?;
        let x = Tensor::<bf16>::zeros(device, &[most, ROW as u64])?;
        let indices = Tensor::<i32>::zeros(device, &[most, 2])?;
        let weights = Tensor::<f32>::zeros(device, &[most, 2])?;
        let count = Tensor::<i64>::zeros(device, &[1])?;
        let output = Tensor::<bf16>::zeros(device, &[most, ROW as u64])?;
        group.lane()?.prepare()?;
        group.prepare_moe()?;
        check_err!(scene.landing.send(&x, &indices).capture(&stream), Error::Capture { .. });
        stream.begin_capture()?;
        check_err!(scene.landing.send(&x, &indices).on(&stream), Error::Capture { .. });
        let call = scene.landing.send(&x, &indices).weights(&weights).tokens(&count);
        let received = call.capture(&stream)?.receive_on(&stream)?;
        // Each expert is the identity here: what came goes back.
        received.send_back(received.rows()).on(&stream)?;
        received.receive_back(&output).on(&stream)?;
        let graph = stream.end_capture()?;
        context.ready()?;
        for round in 0..4 {
            context.step(format_args!("launch {round}"));
            let routes = scene.routes(&mut random);
            let inputs = scene.inputs(&routes, round)?;
            x.slice(0, inputs.x.count())?.write(&inputs.x.to_vec()?)?;
            indices.slice(0, inputs.indices.count())?.write(&inputs.indices.to_vec()?)?;
            weights.slice(0, inputs.weights.count())?.write(&inputs.weights.to_vec()?)?;
            count.write(&[routes.tokens(me) as i64])?;
            graph.launch(&stream, &PATIENT)?;
            stream.synchronize(&PATIENT)?;
            scene.check(&routes, &received, round)?;
            for (token, found) in
                output.to_vec()?.chunks_exact(ROW).take(routes.tokens(me)).enumerate()
            {
                let choices = &routes.indices[me][token];
                let mut ranks: Vec<_> = choices.iter().filter(|e| **e >= 0).collect();
                ranks.sort_unstable_by_key(|e| scene.setting.owner(**e as usize));
                ranks.dedup_by_key(|e| scene.setting.owner(**e as usize));
                for (at, found) in found.iter().enumerate() {
                    let x = element(round, me, token, at).to_f32();
                    let expected = bf16::from_f32((1..ranks.len()).fold(x, |sum, _| sum + x));
                    let expected = if ranks.is_empty() { bf16::ZERO } else { expected };
                    check_eq!(found.to_bits(), expected.to_bits(), "token {token}");
                }
            }
            // Others have the other landing to themselves, one at a time.
            scene.round(&mut random)?;
            scene.check(&routes, &received, round)?;
        }
        let routes = scene.routes(&mut random);
        let inputs = scene.inputs(&routes, 9)?;
        let one = scene.landing.send(&inputs.x, &inputs.indices).run()?;
        check_err!(scene.landing.send(&inputs.x, &inputs.indices).run(), Error::LandingBusy);
        let _ = one.receive()?;
        // The graph keeps it, as the result does.
        drop(received);
        let one = scene.landing.send(&inputs.x, &inputs.indices).run()?.receive()?;
        check_err!(scene.landing.send(&inputs.x, &inputs.indices).run(), Error::LandingBusy);
        drop((one, graph));
        scene.round(&mut random)?;
    }
    Ok(())
}

fn experts_that_there_are_not(context: &Context) -> Verdict {
    let mut random = random(context, 6);
    let (group, ranks) = (context.group()?, context.size());
    let scene = Scene::new(context, &group, setting(context, 5, 2, 4))?;
    for value in [5, -2] {
        let culprit = random.below(ranks as u64) as usize;
        let choose = |r: &mut Random, _| r.below(5) as i64;
        let mut routes = Routes::new(scene.setting, &mut random, |_, _| 4, choose);
        routes.indices[culprit][1][0] = value;
        let inputs = scene.inputs(&routes, 1)?;
        let sent = scene.landing.send(&inputs.x, &inputs.indices).run()?;
        let Err(Error::Refused(refusal)) = sent.receive() else {
            return Err(TestError::failed("no refusal"));
        };
        context.same("refusal", refusal);
        let reason = Reason::NoExpert { index: 2, value, experts: 5 };
        check_eq!((refusal.rank.index(), refusal.reason), (culprit, reason));
        check_eq!(refusal.ranks(), RankSet::one(culprit));
        group.check()?;
        scene.round(&mut random)?;
        // On a stream, the verdict tells.
        if let Ok(stream) = context.device().stream(StreamMode::Worker) {
            let sent = scene.landing.send(&inputs.x, &inputs.indices).on(&stream)?;
            // Every rank gets the same, whenever it looks.
            let received = sent.receive_on(&stream)?;
            received.send_back(received.rows()).on(&stream).or_else(tolerate)?;
            stream.synchronize(&PATIENT)?;
            check!(received.groups().to_vec()?[..ranks].iter().all(|rows| *rows == 0));
            let _ = group.verdict(group.lane()?);
        }
    }
    Ok(())
}

/// A call that gives nothing tells of a refusal before it, and has been issued.
fn tolerate(error: Error) -> Result<(), Error> {
    if let Error::Refused(_) = error { Ok(()) } else { Err(error) }
}

fn many_rounds_with_delays(context: &Context) -> Verdict {
    let mut random = random(context, 7);
    let group = context.group()?;
    let scene = Scene::new(context, &group, setting(context, 7, 3, 4))?;
    let rounds = if context.size() > 8 { 4 } else { 40 };
    for round in 0..rounds {
        let pause = random.below(300);
        if context.rank() == round % context.size() {
            std::thread::sleep(std::time::Duration::from_micros(pause));
        }
        scene.round(&mut random)?;
    }
    Ok(())
}

/// All halves are on the lane of the first one.
fn halves_of_two_lanes(context: &Context) -> Verdict {
    let mut random = random(context, 8);
    let two = Options { max_lanes: 2, ..options(context.size()) };
    let group = context.group_with(&two)?;
    let lanes = group.lanes(2, &group.wait())?;
    let scene = Scene::new(context, &group, setting(context, 4, 2, 4))?;
    let (a, b) = (scene.routes(&mut random), scene.routes(&mut random));
    let (first, second) = (scene.inputs(&a, 1)?, scene.inputs(&b, 2)?);
    let call = scene.landing.send(&first.x, &first.indices).weights(&first.weights);
    let received = call.lane(lanes[1]).run()?.receive()?;
    scene.check(&a, &received, 1)?;
    let wrong = received.send_back(&scene.made).lane(lanes[0]).run();
    check_err!(wrong, Error::Lane { expected: 1, found: 0 });
    let call = scene.landing.send(&second.x, &second.indices).weights(&second.weights);
    check_err!(call.run(), Error::Lane { expected: 1, found: 0 });
    // Neither took a landing.
    let received_second = call.lane(lanes[1]).run()?.receive()?;
    scene.check(&b, &received_second, 2)?;
    scene.back(&b, &received_second, 2)?;
    scene.back(&a, &received, 1)
}

fn bad_options_and_tensors_are_refused(context: &Context) -> Verdict {
    let (group, device) = (context.group()?, context.device());
    let of = |options: LandingOptions| group.landing(&options, &group.wait());
    check_err!(of(LandingOptions::new(0, 1, 1, 8, DType::F32)), LandingError::Options(_));
    check_err!(of(LandingOptions::new(1, 1, 1, 8, DType::I32)), LandingError::Type(_));
    let f8 = LandingOptions::new(1, 1, 1, 8, DType::F8E4M3).quantised();
    check_err!(of(f8), LandingError::Type(_));
    let scene = Scene::new(context, &group, setting(context, 4, 2, 4))?;
    let x = Tensor::<bf16>::zeros(device, &[3, ROW as u64])?;
    let indices = Tensor::<i32>::zeros(device, &[3, 2])?;
    indices.write(&[-1; 6])?;
    type T = TensorMismatch;
    let wrong = |found: Result<(), Error>| match found {
        Err(Error::Tensor(wrong)) => Ok(wrong),
        other => Err(TestError::failed(format!("{other:?}"))),
    };
    let many = Tensor::<bf16>::zeros(device, &[5, ROW as u64])?;
    let found = wrong(scene.landing.send(&many, &indices).run().map(drop))?;
    check_eq!(found, T::TooManyRows { what: "x", most: 4, found: 5 });
    let narrow = Tensor::<bf16>::zeros(device, &[3, 5])?;
    let found = wrong(scene.landing.send(&narrow, &indices).run().map(drop))?;
    check_eq!(found, T::Row { what: "x", expected: ROW as u64, found: 5 });
    let wide = Tensor::<f32>::zeros(device, &[3, ROW as u64])?;
    check_err!(scene.landing.send(&wide, &indices).run(), Error::Call(_));
    let found = wrong(scene.landing.send(&x, &indices.slice(0, 5)?).run().map(drop))?;
    check_eq!(found, T::Count { what: "indices", expected: 6, found: 5 });
    // None of them has had an effect, nor taken a landing.
    let received = scene.landing.send(&x, &indices).run()?.receive()?;
    let found = wrong(received.send_back(&x).run())?;
    check!(matches!(found, T::Rows { what: "rows", .. }), "{found}");
    received.send_back(received.rows()).run()?;
    let found = wrong(received.receive_back(&many.slice(0, 2 * ROW as u64)?).run())?;
    check!(matches!(found, T::Row { .. } | T::TooFewRows { .. }), "{found}");
    received.receive_back(&x).run()?;
    group.check()?;
    Ok(())
}

fn other_options_are_refused_everywhere(context: &Context) -> Verdict {
    let group = context.group()?;
    let row = ROW as u64 + u64::from(context.rank() == 0);
    let found = group.landing(&LandingOptions::new(4, 2, 4, row, DType::BF16), &group.wait());
    let error = check_err!(found, LandingError::Rendezvous(RendezvousError::Mismatch { .. }));
    context.same("error", &error);
    Scene::new(context, &group, setting(context, 4, 2, 4))?.round(&mut random(context, 9))
}

fn a_missing_rank_is_named(context: &Context) -> Verdict {
    let group = context.group()?;
    let last = context.size() - 1;
    let scene = Scene::new(context, &group, setting(context, 4, 2, 4))?;
    scene.round(&mut random(context, 10))?;
    context.meet()?;
    if context.rank() != last {
        let x = Tensor::<bf16>::zeros(context.device(), &[3, ROW as u64])?;
        let indices = Tensor::<i32>::zeros(context.device(), &[3, 2])?;
        let wait = Wait::timeout(context.brief());
        let stream = stream_of(&group)?;
        let _ = scene.landing.send(&x, &indices).wait(&wait).on(&stream);
        let _ = stream.synchronize(&PATIENT);
        let failure = check_err!(group.check(), Failure::TimedOut { .. });
        check_eq!(failure.ranks(), RankSet::one(last));
        let Failure::TimedOut { operation, .. } = &failure else { return Ok(()) };
        check_eq!(*operation, Some(Operation::DispatchSend));
        context.same("failure", &failure);
    }
    context.meet()
}
