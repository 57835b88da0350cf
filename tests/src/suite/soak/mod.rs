//! Mixed operations, many and long: nothing is lost, stale, shifted or stuck.
//!
//! A generator that is the same on every rank draws the operation, type, operator, size, algorithm,
//! memory, stream and lane of each step, and barriers and signals between; groups begin a little
//! before their epochs turn over, and go for new ones. A batch of steps is in flight at once, each in
//! memory of its own. Then every byte of that memory is compared with what a model says, those that
//! nobody may touch too; and what all ranks have alike, by a checksum through the runner.

mod draw;
mod image;
mod issue;
mod model;

use std::time::{Duration, Instant};

use symmem_collectives::{Collectives as _, ReduceOp};
use symmem_hal::types::DType;
use symmem_mem::call::Operation;
use symmem_mem::{Completion, Group, Options, Tensor};
use symmem_sync::protocol::Epoch;
use symmem_sync::{Channel, Lane, Lanes as _, Signals as _};

use crate::runner::{Context, PATIENT, Test, TestError, Verdict, options};
use crate::support::random::Random;
use crate::{check, test};

use draw::{ARENAS, Draw, Kind, LANES, Step};
use image::Image;
use issue::Field;

/// The tests.
#[must_use]
pub fn tests() -> Vec<Test> {
    vec![test!(mixed_operations).ranks(2, 8)]
}

/// Operations in flight at once, at most.
const BATCH: usize = 48;

/// How often rank 0 says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// When to end.
#[derive(Clone, Copy)]
enum End {
    Operations(u64),
    Time(Duration),
}

struct Soak<'c> {
    context: &'c Context,
    end: End,
    since: Instant,
    told: Instant,
    operations: u64,
    /// Of what all ranks have alike.
    checksum: u64,
    random: Random,
}

fn mixed_operations(context: &Context) -> Verdict {
    let end = match (context.soak(), context.soak_time()) {
        (true, Some(time)) => End::Time(time),
        (true, None) => End::Operations(1_000_000),
        (false, _) => End::Operations(if context.size() > 4 { 1000 } else { 4000 }),
    };
    let now = Instant::now();
    let random = Random::new(context.seed(), &[]);
    let mut soak = Soak { context, end, since: now, told: now, operations: 0, checksum: 0, random };
    for generation in 0u64.. {
        let (before, checksum) = (soak.operations, soak.checksum);
        let goes_on = soak.generation(generation)?;
        check!(soak.operations > before && soak.checksum != checksum, "nothing was done");
        context.same(format_args!("checksum of group {generation}"), soak.checksum);
        if !goes_on {
            break;
        }
    }
    if context.soak() {
        soak.tell();
    }
    Ok(())
}

impl Soak<'_> {
    fn tell(&self) {
        if self.context.rank() == 0 {
            let (time, done) = (self.since.elapsed().as_secs_f64(), self.operations);
            let rate = done as f64 / time;
            eprintln!("{done} operations in {time:.1} s: {rate:.0} a second, no fault");
        }
    }

    /// Operations of one group; whether another is to follow.
    fn generation(&mut self, generation: u64) -> Result<bool, TestError> {
        let context = self.context;
        // All lanes come to the turn, by a third of the operations each.
        let turn = [Epoch::MIDDLE, Epoch::MAX][self.random.below(2) as usize];
        let first_epoch = turn.get() - self.random.below(100) as u32;
        let completion = [Completion::Local, Completion::Local, Completion::Group];
        let options = Options {
            first_epoch,
            max_lanes: LANES as u32,
            checked: self.random.below(2) == 0,
            completion: completion[self.random.below(3) as usize],
            ..options(context.size())
        };
        let group = context.group_with(&options)?;
        let lanes = group.lanes(LANES as u32, &PATIENT)?;
        for lane in &lanes {
            lane.prepare()?;
        }
        let field = Field::new(context, &group)?;
        let seed = Random::new(context.seed(), &[generation]);
        let mut draw = Draw::new(seed, context.size(), *lanes[0].layout());
        let operations = if context.soak() { 10_000 } else { 1300 };
        let until = self.operations + operations;
        let mut batch = 0;
        while self.operations < until {
            let steps = draw.batch(BATCH);
            // By a graph, again and again with new data, or call by call.
            let replays = if draw.random.below(5) == 0 { 1 + draw.random.below(3) } else { 0 };
            context.step(format_args!("group {generation} from {first_epoch}, batch {batch}"));
            self.run(&field, &lanes, &draw, steps, replays)?;
            batch += 1;
            if context.soak() && self.told.elapsed() > PROGRESS {
                self.told = Instant::now();
                self.tell();
            }
            if batch % 16 == 0 && !self.goes_on(&group)? {
                return Ok(false);
            }
        }
        group.check()?;
        self.goes_on(&group)
    }

    /// The same answer on all ranks: by the clock of each.
    fn goes_on(&self, group: &Group) -> Result<bool, TestError> {
        match self.end {
            End::Operations(all) => Ok(self.operations < all),
            End::Time(time) => {
                let mine = Tensor::<u32>::zeros(self.context.device(), &[1])?;
                mine.write(&[u32::from(self.since.elapsed() < time)])?;
                group.all_reduce(&mine).op(ReduceOp::Min).run()?;
                Ok(mine.to_vec()? == [1])
            }
        }
    }

    /// Runs a batch, as often as it is replayed, each time with other data.
    fn run(
        &mut self,
        field: &Field<'_>,
        lanes: &[Lane<'_>],
        draw: &Draw,
        mut steps: Vec<Step>,
        replays: u64,
    ) -> Verdict {
        let graph = match replays {
            0 => None,
            _ => Some(capture(field, lanes, &steps)?),
        };
        for round in 0..replays.max(1) {
            for step in &mut steps {
                step.elements.key = step.elements.key.wrapping_add(round);
            }
            let poison = (self.random.next() | 0x80) as u8;
            let (me, ranks) = (field.context.rank(), field.context.size());
            let mut image = Image::poisoned(draw.used(), poison, me, ranks);
            steps.iter().for_each(|step| image.offer(step));
            for (arena, bytes) in field.arenas.iter().zip(&image.arenas) {
                arena.memory().write(arena.offset(), bytes)?;
            }
            // Others put into this rank's memory once they are told that it is ready.
            field.group.barrier(Channel(0)).run()?;
            match &graph {
                Some(graph) => graph.launch(&field.streams[1], &PATIENT)?,
                None => {
                    for step in &steps {
                        field.issue(lanes, step, &field.streams[step.stream])?;
                    }
                }
            }
            // Beside them.
            steps.iter().for_each(|step| image.take(step));
            for stream in &field.streams {
                stream.synchronize(&PATIENT)?;
            }
            self.compare(field, &steps, &image)?;
            self.operations += steps.len() as u64;
        }
        Ok(())
    }

    fn compare(&mut self, field: &Field<'_>, steps: &[Step], expected: &Image) -> Verdict {
        let mut found: [Vec<u8>; ARENAS] = Default::default();
        for ((arena, found), expected) in field.arenas.iter().zip(&mut found).zip(&expected.arenas)
        {
            found.resize(expected.len(), 0);
            arena.memory().read(arena.offset(), found)?;
        }
        for (n, (found, expected)) in found.iter().zip(&expected.arenas).enumerate() {
            if found == expected {
                continue;
            }
            let at = found.iter().zip(expected).position(|(f, e)| f != e).unwrap_or(0);
            let (found, expected) = (found[at], expected[at]);
            let is_at =
                |r: &draw::Region| r.arena == n && (r.at..r.at + r.bytes).contains(&(at as u64));
            let of = steps.iter().enumerate().find(|(_, s)| is_at(&s.input) || is_at(&s.output));
            let last = steps.iter().rfind(|s| s.input.at.max(s.output.at) <= at as u64);
            return Err(TestError::failed(format!(
                "byte {at} of arena {n} is {found:#x}, not {expected:#x}: of {of:?} (after {last:?})"
            )));
        }
        for step in steps {
            self.checksum = self.checksum.rotate_left(1).wrapping_add(match &step.kind {
                Kind::Collective(c) if is_common(c.operation) => {
                    let r = &step.output;
                    sum(&found[r.arena][r.at as usize..][..r.bytes as usize])
                }
                _ => 1,
            });
        }
        Ok(())
    }
}

/// Whether every rank gets the same.
fn is_common(operation: Operation) -> bool {
    matches!(operation, Operation::AllReduce | Operation::AllGather | Operation::Broadcast)
}

/// A sum to which every byte's place matters.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes
        .chunks(8)
        .map(|chunk| chunk.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte)));
    words.fold(bytes.len() as u64, |sum, word| {
        (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

fn capture(
    field: &Field<'_>,
    lanes: &[Lane<'_>],
    steps: &[Step],
) -> Result<symmem_hal::Graph, TestError> {
    let reductions: Vec<(DType, ReduceOp)> =
        steps.iter().filter_map(|s| Some((s.elements.dtype, s.elements.op?))).collect();
    field.group.prepare(&reductions)?;
    let stream = &field.streams[1];
    stream.begin_capture()?;
    for step in steps {
        field.issue(lanes, step, stream)?;
    }
    let graph = stream.end_capture()?;
    field.context.ready()?;
    Ok(graph)
}
