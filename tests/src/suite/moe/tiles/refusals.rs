//! What one rank finds wrong alone, before any effect; and what ranks find of each other's calls.

use symmem_collectives::{CallError, Collectives as _, ReduceOp};
use symmem_hal::types::{Bytes, DType, Layout, Rank};
use symmem_hal::{Device, Fault as _, Kind, StreamMode};
use symmem_mem::{Allocation, Failure, Group, Tensor, View};
use symmem_moe::{Moe as _, TileReduceError as Error};
use symmem_sync::Lanes as _;

use super::harness::{Case, Place, check_case, run};
use crate::runner::{Context, Test, TestError, Verdict};
use crate::suite::sync::stream_of;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(roots_that_are_none),
    test!(outputs_that_are_missing_or_needless),
    test!(shapes_and_types_that_do_not_fit),
    test!(overlaps_that_are_not_in_place),
    test!(what_is_of_another_backend_or_group),
    test!(another_call).at_least(2).seconds(120),
    test!(another_place_in_symmetric_memory).at_least(2),
];

/// Bad calls on the first rank alone, then a good one on all; and the other way round.
fn alone(context: &Context, bad: impl Fn(&Group) -> Verdict) -> Verdict {
    let group = context.group()?;
    for rank in [0, context.size() - 1] {
        if context.rank() == rank {
            bad(&group)?;
        }
        group.check()?;
        let case = Case::new(vec![Place::new(0, 1, [5, 7], 9)], vec![rank]);
        check_case(context, &group, &case, rank as u64)?;
    }
    Ok(())
}

fn refused(found: Result<(), Error>) -> Result<Error, TestError> {
    let error = check_err!(found, _);
    check_eq!(error.kind(), Kind::InvalidArgument);
    Ok(error)
}

fn tensor(context: &Context, shape: &[u64]) -> Result<Tensor<f32>, TestError> {
    Ok(Tensor::zeros(context.device(), shape)?)
}

fn roots_that_are_none(context: &Context) -> Verdict {
    let ranks = context.size();
    let stranger = context.world()?.rank_at(ranks - 1)?;
    alone(context, |group| {
        let stream = stream_of(group)?;
        let (x, y) = (tensor(context, &[4, 6])?, tensor(context, &[4, 6])?);
        let me = group.rank();
        let tiles = [x.view(), x.view()];
        let call = |tiles: &[&View], roots: &[Rank]| {
            run(group.multi_root_tile_reduce(tiles, Some(&y), roots), &stream)
        };
        let error = refused(call(&[], &[]))?;
        check!(matches!(error, Error::NoTiles), "{error}");
        let error = refused(call(&tiles, &[me]))?;
        check!(matches!(error, Error::Roots { tiles: 2, roots: 1 }), "{error}");
        let error = refused(call(&tiles, &[me, me]))?;
        let twice = matches!(error, Error::RootTwice { rank, first: 0, second: 1 } if rank == me);
        check!(twice, "{error}");
        let error = refused(call(&tiles[..1], &[stranger]))?;
        check!(matches!(error, Error::Call(CallError::Rank(_))), "{error}");
        let error = refused(run(group.tile_reduce(&x, &y, stranger), &stream))?;
        check!(matches!(error, Error::Call(CallError::Rank(_))), "{error}");
        check!(y.to_vec()?.iter().all(|v| *v == 0.0), "a refused call wrote");
        Ok(())
    })
}

fn outputs_that_are_missing_or_needless(context: &Context) -> Verdict {
    alone(context, |group| {
        let stream = stream_of(group)?;
        let (x, y) = (tensor(context, &[4, 6])?, tensor(context, &[4, 6])?);
        let tiles = [x.view()];
        let mine = [group.rank()];
        let error = refused(run(group.multi_root_tile_reduce(&tiles, None, &mine), &stream))?;
        check!(matches!(error, Error::NoOutput { tile: 0 }), "{error}");
        if group.size() > 1 {
            let other = [context.neighbour(group, 1)?];
            let call = group.multi_root_tile_reduce(&tiles, Some(&y), &other);
            let error = refused(run(call, &stream))?;
            check!(matches!(error, Error::NeedlessOutput), "{error}");
        }
        Ok(())
    })
}

fn shapes_and_types_that_do_not_fit(context: &Context) -> Verdict {
    alone(context, |group| {
        let stream = stream_of(group)?;
        let (me, device) = (group.rank(), context.device());
        let x = tensor(context, &[4, 6])?;
        for shape in [[4, 5], [5, 6], [6, 4]] {
            let y = tensor(context, &shape)?;
            let error = refused(run(group.tile_reduce(&x, &y, me), &stream))?;
            let shapes =
                matches!(error, Error::Shape { tile: (4, 6), output } if output == shape.into());
            check!(shapes, "{error}");
        }
        let y = tensor(context, &[4, 6])?;
        let memory = Allocation::new(device, Bytes::kib(1))?;
        for (shape, strides) in
            [(&[4, 6][..], &[5, 1][..]), (&[4, 6], &[6, 2]), (&[2, 2, 6], &[12, 6, 1]), (&[], &[])]
        {
            let layout = Layout::strided(shape, strides)?;
            let other = View::new(&memory, Bytes::ZERO, DType::F32, layout.clone())?;
            let error = refused(run(group.tile_reduce(&other, &y, me), &stream))?;
            let named = matches!(&error, Error::NotRows { tile: 0, layout: l } if **l == layout);
            check!(named, "{error}");
            let error = refused(run(group.tile_reduce(&x, &other, me), &stream))?;
            let named = matches!(&error, Error::OutputNotRows { layout: l } if **l == layout);
            check!(named, "{error}");
        }
        let integers = Tensor::<i32>::zeros(device, &[4, 6])?;
        let error = refused(run(group.tile_reduce(&x, &integers, me), &stream))?;
        let types =
            Error::Call(CallError::DType { input: DType::F32, output: DType::I32 }).to_string();
        check_eq!(error.to_string(), types);
        if group.size() > 1 {
            let tiles = [x.view(), integers.view()];
            let roots = [me, context.neighbour(group, 1)?];
            let call = group.multi_root_tile_reduce(&tiles, Some(&y), &roots);
            let error = refused(run(call, &stream))?;
            let expected = DType::F32;
            let named = matches!(error, Error::Types { tile: 1, expected: e, found: DType::I32 }
                if e == expected);
            check!(named, "{error}");
        }
        let error = refused(run(group.tile_reduce(&x, &y, me).op(ReduceOp::Xor), &stream))?;
        check!(matches!(error, Error::Call(CallError::Op(_))), "{error}");
        Ok(())
    })
}

/// In place is the very tile; all else that shares an element is refused, also with another's tile.
fn overlaps_that_are_not_in_place(context: &Context) -> Verdict {
    alone(context, |group| {
        let stream = stream_of(group)?;
        let me = group.rank();
        let memory = Allocation::new(context.device(), Bytes::kib(4))?;
        memory.memory().write(Bytes::ZERO, &[0; 4096])?;
        let view = |at: u64, shape: [u64; 2], stride: u64| {
            let layout = Layout::strided(&shape, &[stride, 1])?;
            Ok::<_, TestError>(View::new(&memory, Bytes::new(4 * at), DType::F32, layout)?)
        };
        let x = view(40, [4, 6], 20)?;
        // Beside it by an element or a row, before or after it, and at the same place with another stride.
        let others =
            [(41, 20), (39, 20), (60, 20), (20, 20), (40, 21), (35, 20), (45, 20), (63, 7)];
        for (at, stride) in others {
            let y = view(at, [4, 6], stride)?;
            let error = refused(run(group.tile_reduce(&x, &y, me), &stream))?;
            check!(matches!(error, Error::Call(CallError::Overlap)), "{at}, {stride}: {error}");
        }
        if group.size() > 1 {
            let other = view(300, [4, 6], 20)?;
            let roots = [me, context.neighbour(group, 1)?];
            let tiles = [&x, &other];
            // Of the second tile another is the root, also where it is the first one.
            for (tiles, y) in [(tiles, &other), (tiles, &view(302, [4, 6], 20)?), ([&x, &x], &x)] {
                let call = group.multi_root_tile_reduce(&tiles, Some(y), &roots);
                let error = refused(run(call, &stream))?;
                check!(matches!(error, Error::Call(CallError::Overlap)), "{error}");
            }
        }
        let mut found = vec![1; 4096];
        memory.memory().read(Bytes::ZERO, &mut found)?;
        check!(found.iter().all(|byte| *byte == 0), "a refused call wrote");
        Ok(())
    })
}

fn what_is_of_another_backend_or_group(context: &Context) -> Verdict {
    let another = context.group()?;
    alone(context, |group| {
        let stream = stream_of(group)?;
        let me = group.rank();
        let elsewhere = match context.device() {
            Device::Host(_) => Device::stub(99),
            _ => Device::host(),
        };
        let (x, y) = (tensor(context, &[4, 6])?, tensor(context, &[4, 6])?);
        let theirs = Tensor::<f32>::zeros(&elsewhere, &[4, 6])?;
        let other_stream = elsewhere.stream(StreamMode::Worker)?;
        let mut found = vec![
            ("input", group.tile_reduce(&theirs, &y, me).on(&stream)),
            ("output", group.tile_reduce(&x, &theirs, me).on(&stream)),
            ("stream", group.tile_reduce(&x, &y, me).on(&other_stream)),
        ];
        let tiles = [x.view(), theirs.view()];
        if group.size() > 1 {
            let roots = [me, context.neighbour(group, 1)?];
            let call = group.multi_root_tile_reduce(&tiles, Some(&y), &roots);
            found.push(("input", call.on(&stream)));
        }
        for (expected, found) in found {
            let error = check_err!(found, Error::Call(CallError::Backend { .. }));
            let named = matches!(&error, Error::Call(CallError::Backend { what, .. })
                if *what == expected);
            check!(named, "{error}; expected the {expected}");
        }
        let error = refused(run(group.tile_reduce(&x, &y, me).lane(another.lane()?), &stream))?;
        check!(matches!(error, Error::Call(CallError::Lane)), "{error}");
        Ok(())
    })
}

/// What one rank is asked for, and all others.
#[derive(Clone, Copy, Debug)]
struct Asked {
    is_one: bool,
    /// Rows and columns of each tile.
    shapes: &'static [[u64; 2]],
    roots: &'static [usize],
    dtype: DType,
    op: ReduceOp,
    tag: u64,
}

const ASKED: Asked = Asked {
    is_one: false,
    shapes: &[[4, 6], [3, 8]],
    roots: &[0, 1],
    dtype: DType::F32,
    op: ReduceOp::Sum,
    tag: 0,
};

impl Asked {
    fn issue(&self, context: &Context, group: &Group) -> Result<Result<(), Error>, TestError> {
        let memory = Allocation::new(context.device(), Bytes::kib(64))?;
        let view = |at: u64, shape: &[u64; 2]| {
            let layout = Layout::contiguous(shape)?;
            Ok::<_, TestError>(View::new(&memory, Bytes::new(at), self.dtype, layout)?)
        };
        let tiles = self.shapes.iter().enumerate().map(|(i, shape)| view(4096 * i as u64, shape));
        let tiles: Vec<View> = tiles.collect::<Result<_, _>>()?;
        let mine = self.roots.iter().position(|root| *root == context.rank());
        let output = mine.map(|tile| view(60_000, &self.shapes[tile])).transpose()?;
        let roots: Vec<Rank> =
            self.roots.iter().map(|root| group.rank_at(*root)).collect::<Result<_, _>>()?;
        let stream = stream_of(group)?;
        if self.is_one {
            let output = output.as_ref().unwrap_or(&tiles[0]);
            let call = group.tile_reduce(&tiles[0], output, roots[0]).op(self.op).tag(self.tag);
            return Ok(run(call, &stream));
        }
        let tiles: Vec<&View> = tiles.iter().collect();
        let call = group.multi_root_tile_reduce(&tiles, output.as_ref(), &roots);
        Ok(run(call.op(self.op).tag(self.tag), &stream))
    }
}

/// The last rank issues a call that differs: all are told in that very call.
fn another_call(context: &Context) -> Verdict {
    let one = Asked { is_one: true, shapes: &[[4, 6]], roots: &[0], ..ASKED };
    let pairs = [
        (Asked { shapes: &[[4, 6], [8, 3]], ..ASKED }, ASKED),
        (Asked { shapes: &[[4, 6], [3, 9]], ..ASKED }, ASKED),
        (Asked { shapes: &[[4, 6], [3, 0]], ..ASKED }, ASKED),
        (Asked { roots: &[1, 0], ..ASKED }, ASKED),
        (Asked { shapes: &[[4, 6]], roots: &[0], ..ASKED }, ASKED),
        (Asked { dtype: DType::I32, ..ASKED }, ASKED),
        (Asked { op: ReduceOp::Max, ..ASKED }, ASKED),
        (Asked { tag: 1, ..ASKED }, ASKED),
        (Asked { is_one: false, ..one }, one),
        (Asked { roots: &[1], ..one }, one),
        (Asked { shapes: &[[6, 4]], ..one }, one),
        (Asked { shapes: &[[200, 60]], ..one }, one),
    ];
    for (odd, others) in pairs {
        context.step(format_args!("{odd:?} among {others:?}"));
        let group = context.group()?;
        let is_odd = context.rank() + 1 == context.size();
        let found = if is_odd { odd } else { others }.issue(context, &group)?;
        let error = check_err!(found, Error::Failed(Failure::CallMismatch { .. }));
        check_eq!(error.kind(), Kind::Disagreement);
        check_err!(group.check(), Failure::CallMismatch { .. });
        context.meet()?;
    }
    // Another operation of the same elements.
    let group = context.group()?;
    let x = tensor(context, &[4, 6])?;
    let found = if context.rank() == 0 {
        one.issue(context, &group)?.map_err(|error| error.to_string())
    } else {
        let call = group.all_reduce(&x);
        let found = crate::suite::collectives::harness::run(call, &stream_of(&group)?);
        found.map_err(|error| error.to_string())
    };
    check_err!(found, _);
    check_err!(group.check(), Failure::CallMismatch { .. });
    Ok(())
}

/// Where it lies, and how far its rows are apart there, is part of the call.
fn another_place_in_symmetric_memory(context: &Context) -> Verdict {
    let place = Place::new(0, 8, [50, 300], 320);
    let second = Place { at: 8 + 50 * 320, ..place };
    for (odd, of_second) in [
        (Place { at: 12, ..place }, second),
        (Place { stride: 324, ..place }, second),
        (place, Place { at: second.at + 4, ..second }),
        (place, Place { stride: 316, ..second }),
    ] {
        let group = context.group()?;
        let memory = Allocation::new(context.device(), Bytes::mib(1))?;
        let all = View::new(&memory, Bytes::ZERO, DType::U8, Layout::flat(1 << 20))?;
        group.rendezvous(&all, &group.wait())?;
        let is_odd = context.rank() + 1 == context.size();
        let places = if is_odd { [odd, of_second] } else { [place, second] };
        let views = places.map(|place| place.view(&memory, DType::F32));
        let [a, b] = &views;
        let (a, b) = (a.clone()?, b.clone()?);
        let output = tensor(context, &[50, 300])?;
        let output = (context.rank() < 2).then_some(output.view());
        let roots = [group.rank_at(0)?, group.rank_at(1)?];
        let tiles = [&a, &b];
        let call = group.multi_root_tile_reduce(&tiles, output, &roots);
        check_err!(run(call, &stream_of(&group)?), Error::Failed(Failure::CallMismatch { .. }));
        context.meet()?;
    }
    Ok(())
}
