//! The exchange of splits and rows on a CPU.
#![allow(
    unsafe_code,
    reason = "a kernel: reads its argument block; copies memory that peers write"
)]

use smallvec::SmallVec;
use symmem_hal::LaunchContext;
use symmem_sync::host::{Ended, Session};
use symmem_sync::protocol::Peers;

use super::plan::{HostPlan, Vdev};
use super::shape::{Matrix, message};
use crate::host::{Lane, kernel, read_words, record, write_words};

pub(crate) unsafe fn run(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: this kernel's arguments are a HostPlan (KERNELS), which outlives this call unwritten.
    let plan = unsafe { &*args.cast::<HostPlan>() };
    // SAFETY: the lane's part is of the operation that this kernel was launched for.
    unsafe { kernel(context, plan.lane, &plan.vdev, exchange) }
}

/// Words that a rank keeps of all ranks' splits: without an allocation up to 8 ranks of 7 experts each.
type Words = SmallVec<[u64; 512]>;

fn exchange(lane: &Lane<'_>, plan: &Vdev) -> Result<(), Ended> {
    let shape = plan.shape(lane.world());
    let (me, count, words) = (lane.me(), shape.splits(), shape.words());
    let splits: SmallVec<[i64; 64]> = read_words(lane, plan.in_splits, count)?;
    let offsets: Option<SmallVec<[i64; 64]>> = match plan.in_offsets.is_null() {
        true => None,
        false => Some(read_words(lane, plan.in_offsets, count)?),
    };
    let mut all: Words = SmallVec::from_elem(0, shape.world * words);
    let own = &mut all[me * words..][..words];
    message(&splits, offsets.as_deref(), plan.input_rows, plan.capacity, own);
    if lane.world() == 1 {
        let matrix = Matrix { shape, words: &all };
        let verdict = matrix.verdict(plan.drop != 0);
        let output = lane.follow(plan.output, plan.row * plan.capacity)?;
        if verdict.is_none() {
            send(lane, plan, &matrix, &splits, offsets.as_deref(), 0, output)?;
        }
        return finish(lane, plan, &matrix, verdict);
    }
    let mut session = Session::begin(lane.context, lane.memory, lane.args, Peers::All, Peers::All)?;
    let raised = lane.gather(&mut session, &mut all, words)?;
    let matrix = Matrix { shape, words: &all };
    let verdict = matrix.verdict(plan.drop != 0);
    if verdict.is_none() {
        // The message of a peer says that its output is its own to be written.
        for step in 1..=lane.world() {
            let target = (me + step) % lane.world();
            let output = lane.peer(
                plan.peers,
                target,
                plan.peer_offset,
                plan.row * matrix.capacity(target),
            )?;
            send(lane, plan, &matrix, &splits, offsets.as_deref(), target, output)?;
        }
        session.raise(raised + 1);
        session.await_all(raised + 1)?;
    }
    finish(lane, plan, &matrix, verdict)?;
    let raised = raised + u32::from(verdict.is_none());
    lane.finish(session, raised, plan.group_completion != 0)
}

/// Copies the rows that this rank has for `target` into its output.
fn send(
    lane: &Lane<'_>,
    plan: &Vdev,
    matrix: &Matrix<'_>,
    splits: &[i64],
    offsets: Option<&[i64]>,
    target: usize,
    output: *mut u8,
) -> Result<(), Ended> {
    let (shape, me, row) = (matrix.shape, lane.me(), plan.row as usize);
    let input = lane.follow(plan.input, plan.row * plan.input_rows)?;
    let capacity = matrix.capacity(target);
    // Of splits that are by rank, those before this rank's follow each other.
    let mut next: i64 = splits[..shape.input(target, 0)].iter().sum();
    matrix.place(target, |source, bin, at, rows| {
        if source != me {
            return;
        }
        let index = shape.input(target, bin);
        let from = offsets.map_or(next, |offsets| offsets[index]) as usize;
        next += splits[index];
        let kept = rows.min(capacity.saturating_sub(at)) as usize;
        if kept == 0 {
            return;
        }
        // SAFETY: the splits were found right, so that the rows lie in the input; those of the target
        // end within its capacity, and no other rank's rows have the same place. It shares no byte
        // with the input (`launch`).
        unsafe {
            let (from, to) = (input.add(from * row), output.add(at as usize * row));
            from.copy_to_nonoverlapping(to, kept * row);
        }
    });
    Ok(())
}

/// Writes the output splits, with where the rows of each begin, and what became of the call.
fn finish(
    lane: &Lane<'_>,
    plan: &Vdev,
    matrix: &Matrix<'_>,
    verdict: Option<(usize, crate::verdict::Finding)>,
) -> Result<(), Ended> {
    let (shape, count) = (matrix.shape, matrix.shape.splits());
    let mut out: SmallVec<[i64; 128]> = SmallVec::from_elem(0, 2 * count);
    let mut dropped = 0;
    if verdict.is_none() {
        let capacity = matrix.capacity(lane.me());
        matrix.place(lane.me(), |source, bin, at, rows| {
            let (index, kept) = (shape.output(source, bin), rows.min(capacity.saturating_sub(at)));
            dropped = u64::saturating_add(dropped, rows - kept);
            out[index] = kept.cast_signed();
            out[count + index] = i64::try_from(at).unwrap_or(i64::MAX);
        });
    }
    write_words(lane, plan.out_splits, &out)?;
    record(lane, plan.status, verdict, dropped)
}
