//! One rank issues another call than the others: every rank is told, on both sides, before it takes
//! the other's data for its own.

use symmem_collectives::{Algorithm, AllReduceError, Collectives as _};
use symmem_hal::types::{Bytes, DType, Layout, ReduceOp};
use symmem_hal::{Fault as _, Kind};
use symmem_mem::{Allocation, Failure, Group, MemoryPool, View};

use super::harness::run;
use crate::runner::{Context, Test, TestError, Verdict};
use crate::suite::sync::stream_of;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(another_count).at_least(2),
    test!(nothing_here_and_something_there).at_least(2),
    test!(another_operator).at_least(2),
    test!(another_type_of_the_same_size).at_least(2),
    test!(another_algorithm).at_least(2),
    test!(another_tag).at_least(2),
    test!(another_order).at_least(2),
    test!(one_call_more).at_least(2),
    test!(another_symmetric_memory).at_least(2),
    test!(another_block_of_a_pool).at_least(2),
    test!(another_offset_in_symmetric_memory).at_least(2),
    test!(symmetric_here_and_private_there).at_least(2),
    test!(other_groups_go_on).at_least(3),
];

/// What is asked of one rank, or of all others.
#[derive(Clone, Copy, Debug)]
struct Call {
    dtype: DType,
    op: ReduceOp,
    count: u64,
    algorithm: Algorithm,
    tag: u64,
    /// Bytes from the start of the memory.
    offset: u64,
}

const CALL: Call = Call {
    dtype: DType::F32,
    op: ReduceOp::Sum,
    count: 100,
    algorithm: Algorithm::Auto,
    tag: 0,
    offset: 0,
};

/// A group, and memory for the calls.
struct Scene<'c> {
    context: &'c Context,
    group: Group,
    memory: [Allocation; 2],
}

impl<'c> Scene<'c> {
    fn new(context: &'c Context) -> Result<Self, TestError> {
        let allocate = || Allocation::new(context.device(), Bytes::kib(64));
        Ok(Scene { context, group: context.group()?, memory: [allocate()?, allocate()?] })
    }

    fn is_odd(&self) -> bool {
        self.context.rank() + 1 == self.context.size()
    }

    fn rendezvous(&self, which: usize) -> Verdict {
        let all = self.view(which, DType::U8, 0, 65536)?;
        self.group.rendezvous(&all, &self.group.wait())?;
        Ok(())
    }

    fn view(&self, which: usize, dtype: DType, offset: u64, count: u64) -> Result<View, TestError> {
        Ok(View::new(&self.memory[which], Bytes::new(offset), dtype, Layout::flat(count))?)
    }

    /// Issues a call on one of the two memories.
    fn issue(&self, which: usize, call: Call) -> Result<Result<(), AllReduceError>, TestError> {
        let view = self.view(which, call.dtype, call.offset, call.count)?;
        let operation = self.group.all_reduce(&view).op(call.op).tag(call.tag);
        Ok(run(operation.algorithm(call.algorithm), &stream_of(&self.group)?))
    }

    /// Issues a call and waits until it has ended on every rank: a failure of the next one ends what
    /// is still under way.
    fn issue_by_all(&self, which: usize, call: Call) -> Verdict {
        self.issue(which, call)??;
        self.context.meet()
    }

    /// The last rank issues one call and all others another: every rank fails of the mismatch, the
    /// group stays failed, and a fresh group does not care.
    fn check_told(&self, odd: Call, others: Call) -> Verdict {
        self.context.step(format_args!("{odd:?} against {others:?}"));
        let found = self.issue(0, if self.is_odd() { odd } else { others })?;
        self.check_failed(found)
    }

    fn check_failed(&self, found: Result<(), AllReduceError>) -> Verdict {
        let error = check_err!(found, AllReduceError::Failed(Failure::CallMismatch { .. }));
        check_eq!(error.kind(), Kind::Disagreement);
        let AllReduceError::Failed(failure) = &error else { return Ok(()) };
        let Failure::CallMismatch { rank, reporter, mine, theirs, .. } = failure else {
            return Ok(());
        };
        check!(mine != theirs, "{failure}: the same call on both sides");
        let (odd, me) = (self.context.size() - 1, self.context.rank());
        // The odd rank on one side, any of the others on the other. Which side a rank is told as
        // may not be its own where it had not come yet, but it is never told of itself.
        check!(
            rank != reporter && (rank.index() == odd || reporter.index() == odd),
            "{failure}: rank {odd} issued the other call"
        );
        check!(rank.index() != me, "{failure}: this rank is told of itself");
        // Sticky, and the same at every look.
        let again = check_err!(self.issue(1, CALL)?, AllReduceError::Failed(_));
        check_eq!(again.to_string(), failure.to_string());
        check_eq!(check_err!(self.group.check(), Failure::CallMismatch { .. }), failure.clone());
        self.context.meet()?;
        let fresh = Scene::new(self.context)?;
        Ok(fresh.issue(0, CALL)??)
    }
}

fn another_count(context: &Context) -> Verdict {
    for count in [99, 101, 16_000] {
        Scene::new(context)?.check_told(Call { count, ..CALL }, CALL)?;
    }
    // Beyond one chunk, where one side has more of them.
    let call = |count| Call { count, dtype: DType::U8, algorithm: Algorithm::TwoShot, ..CALL };
    Scene::new(context)?.check_told(call(65_536), call(65_535))
}

fn nothing_here_and_something_there(context: &Context) -> Verdict {
    Scene::new(context)?.check_told(Call { count: 0, ..CALL }, CALL)?;
    Scene::new(context)?.check_told(CALL, Call { count: 0, ..CALL })
}

fn another_operator(context: &Context) -> Verdict {
    for algorithm in [Algorithm::Packet, Algorithm::OneShot, Algorithm::TwoShot] {
        let others = Call { algorithm, ..CALL };
        Scene::new(context)?.check_told(Call { op: ReduceOp::Max, ..others }, others)?;
    }
    Ok(())
}

fn another_type_of_the_same_size(context: &Context) -> Verdict {
    Scene::new(context)?.check_told(Call { dtype: DType::I32, ..CALL }, CALL)?;
    let others = Call { dtype: DType::F16, ..CALL };
    Scene::new(context)?.check_told(Call { dtype: DType::BF16, ..others }, others)
}

fn another_algorithm(context: &Context) -> Verdict {
    let by = |algorithm| Call { algorithm, ..CALL };
    for (odd, others) in [
        (Algorithm::OneShot, Algorithm::TwoShot),
        (Algorithm::TwoShot, Algorithm::OneShot),
        (Algorithm::Packet, Algorithm::OneShot),
        (Algorithm::TwoShot, Algorithm::Packet),
    ] {
        Scene::new(context)?.check_told(by(odd), by(others))?;
    }
    Ok(())
}

fn another_tag(context: &Context) -> Verdict {
    Scene::new(context)?.check_told(Call { tag: 1, ..CALL }, CALL)
}

/// Two calls, the other way round on one rank.
fn another_order(context: &Context) -> Verdict {
    let scene = Scene::new(context)?;
    let mut calls = [CALL, Call { op: ReduceOp::Min, ..CALL }];
    if scene.is_odd() {
        calls.reverse();
    }
    scene.issue_by_all(0, CALL)?;
    let found = scene.issue(0, calls[0])?;
    check_err!(scene.issue(0, calls[1])?, AllReduceError::Failed(_));
    scene.check_failed(found)
}

/// One rank issues a call twice that the others issue once, and goes on as they do.
fn one_call_more(context: &Context) -> Verdict {
    let scene = Scene::new(context)?;
    scene.issue_by_all(0, CALL)?;
    let next = Call { op: ReduceOp::Max, ..CALL };
    let found = scene.issue(0, if scene.is_odd() { CALL } else { next })?;
    scene.check_failed(found)
}

fn two_shot(offset: u64) -> Call {
    Call { algorithm: Algorithm::TwoShot, offset, ..CALL }
}

/// Both are symmetric, but of another rendezvous.
fn another_symmetric_memory(context: &Context) -> Verdict {
    let scene = Scene::new(context)?;
    scene.rendezvous(0)?;
    scene.rendezvous(1)?;
    scene.issue_by_all(1, two_shot(0))?;
    let found = scene.issue(usize::from(scene.is_odd()), two_shot(0))?;
    scene.check_failed(found)
}

/// Both blocks are symmetric, and of one segment.
fn another_block_of_a_pool(context: &Context) -> Verdict {
    let pool = MemoryPool::new(context.device());
    let allocate = || pool.allocate(Bytes::kib(64));
    let scene = Scene { memory: [allocate()?, allocate()?], ..Scene::new(context)? };
    scene.rendezvous(0)?;
    scene.rendezvous(1)?;
    scene.issue_by_all(1, two_shot(0))?;
    let found = scene.issue(usize::from(scene.is_odd()), two_shot(0))?;
    scene.check_failed(found)
}

fn another_offset_in_symmetric_memory(context: &Context) -> Verdict {
    let scene = Scene::new(context)?;
    scene.rendezvous(0)?;
    scene.issue_by_all(0, two_shot(128))?;
    let found = scene.issue(0, two_shot(if scene.is_odd() { 4 } else { 0 }))?;
    scene.check_failed(found)
}

fn symmetric_here_and_private_there(context: &Context) -> Verdict {
    let scene = Scene::new(context)?;
    scene.rendezvous(0)?;
    let found = scene.issue(usize::from(scene.is_odd()), two_shot(0))?;
    scene.check_failed(found)
}

/// A sub-group fails; a group that overlaps it, and the group of all, go on.
fn other_groups_go_on(context: &Context) -> Verdict {
    let all = Scene::new(context)?;
    let world = context.world()?;
    let (me, size) = (context.rank(), context.size());
    let pair = |ranks: [usize; 2]| -> Result<Option<Group>, TestError> {
        if !ranks.contains(&me) {
            return Ok(None);
        }
        let [a, b] = ranks.map(|r| world.rank_at(r));
        Ok(Some(world.subgroup([a?, b?]).create(&world.wait())?))
    };
    let (failing, sound) = (pair([0, 1])?, pair([1, 2])?);
    for group in [&failing, &sound].into_iter().flatten() {
        context.prepare(group)?;
    }
    context.meet()?;
    let issue = |group: &Group, op| -> Result<Result<(), AllReduceError>, TestError> {
        let view = all.view(0, DType::F32, 0, 100)?;
        Ok(run(group.all_reduce(&view).op(op), &stream_of(group)?))
    };
    if let Some(group) = &failing {
        let op = if me == 0 { ReduceOp::Sum } else { ReduceOp::Max };
        check_err!(issue(group, op)?, AllReduceError::Failed(Failure::CallMismatch { .. }));
    }
    for _ in 0..5 {
        if let Some(group) = &sound {
            issue(group, ReduceOp::Sum)??;
            group.check()?;
        }
        all.issue(0, CALL)??;
        all.group.check()?;
    }
    if let Some(group) = &failing {
        check_err!(group.check(), Failure::CallMismatch { .. });
    }
    check_eq!(all.group.size(), size);
    Ok(())
}
