//! What comes to whom, and back.

use half::{bf16, f16};
use symmem_hal::StreamMode;
use symmem_hal::types::{Element, F8E4M3};
use symmem_mem::{Completion, Options, Tensor};
use symmem_moe::{Layout, Moe as _, Overflow, Reason, RoutedError as Error};
use symmem_sync::Lanes as _;

use super::super::routes::{Routes, element};
use super::harness::{
    HIDDEN, POISON, Scene, any, layouts, quantised, random, routing, setting, ways,
};
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
    test!(shrinking_tokens_with_delays).seconds(120),
    test!(a_graph_with_any_number_of_tokens),
    test!(under_group_completion),
];

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
        let route = ways(context)[seed as usize % 2];
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
    let small = Tensor::<u8>::zeros(device, &[count])?;
    small.write(&(0..count).map(|token| token as u8 + 1).collect::<Vec<_>>())?;
    let there_small = Tensor::<u8>::zeros(device, &[setting.capacity])?;
    group.rendezvous(&there_small, &group.wait())?;
    let there_names = Tensor::<u64>::zeros(device, &[setting.capacity])?;
    let there_bytes = Tensor::<u8>::zeros(device, &[setting.capacity, 3])?;
    group.rendezvous(&there_names, &group.wait())?;
    group.rendezvous(&there_bytes, &group.wait())?;
    for route in ways(context) {
        scene.poison()?;
        there_names.write(&vec![0; setting.capacity as usize])?;
        there_bytes.write(&vec![0; 3 * setting.capacity as usize])?;
        there_small.write(&vec![0; setting.capacity as usize])?;
        context.ready()?;
        context.meet()?;
        let call = scene.routing.dispatch(&x, &indices, &scene.rows).weights(&weights).route(route);
        // Rows of odd lengths, of which those of all tokens end anywhere.
        let call = call.payload(&bytes, &there_bytes).payload(&small, &there_small);
        call.payload(&names, &there_names).run()?;
        scene.check(&routes, 9)?;
        for (row, from) in routes.arrived(me).rows.iter().enumerate() {
            let expected = from.map_or(0, |from| from.token as u8 + 1);
            check_eq!(there_small.to_vec()?[row], expected, "row {row}");
        }
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
        let none = super::super::reshaped(scene.made.slice(0, 0)?.view(), &[0, HIDDEN as u64])?;
        check_err!(scene.routing.resend(&none, &scene.rows).run(), Error::NotDispatched);
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
