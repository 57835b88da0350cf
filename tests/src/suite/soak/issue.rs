//! Issues the steps of the soak.

use symmem_collectives::{Call, Collective as Called, Collectives as _};
use symmem_hal::types::{Bytes, DType, Layout, Rank, ReduceOp};
use symmem_hal::{Stream, StreamMode};
use symmem_mem::call::Operation;
use symmem_mem::{Allocation, Group, SymmetricMemory, View};
use symmem_sync::{Channel, Lane, Puts as _, Signals as _};

use super::draw::{ARENA, ARENAS, Collective, Kind, Region, STREAMS, SYMMETRIC_OUTPUT, Step};
use super::image::{input_of, output_of};
use crate::runner::{Context, TestError, Verdict};
use crate::suite::sync::stream_of;

/// A group's memory and streams.
pub(super) struct Field<'c> {
    pub context: &'c Context,
    pub group: &'c Group,
    pub arenas: [Allocation; ARENAS],
    pub streams: [Stream; STREAMS],
    target: SymmetricMemory,
    next: Rank,
    previous: Rank,
}

impl<'c> Field<'c> {
    /// Collective.
    pub(super) fn new(context: &'c Context, group: &'c Group) -> Result<Self, TestError> {
        let device = context.device();
        let arena = || Allocation::new(device, Bytes::new(ARENA));
        let arenas = [arena()?, arena()?, arena()?, arena()?];
        let whole = |n: usize| View::new(&arenas[n], Bytes::ZERO, DType::U8, Layout::flat(ARENA));
        group.rendezvous(&whole(2)?, &group.wait())?;
        let target = group.rendezvous(&whole(SYMMETRIC_OUTPUT)?, &group.wait())?;
        let worker = || device.stream(StreamMode::Worker);
        let streams = [stream_of(group)?, worker()?, worker()?];
        let next = context.neighbour(group, 1)?;
        let previous = context.neighbour(group, context.size() - 1)?;
        Ok(Field { context, group, arenas, streams, target, next, previous })
    }

    fn view(&self, region: &Region, dtype: DType, layout: Layout) -> Result<View, TestError> {
        Ok(View::new(&self.arenas[region.arena], Bytes::new(region.at), dtype, layout)?)
    }

    fn flat(&self, region: &Region, dtype: DType) -> Result<View, TestError> {
        self.view(region, dtype, Layout::flat(region.bytes / dtype.size() as u64))
    }

    /// Enqueues a step.
    pub(super) fn issue(&self, lanes: &[Lane<'_>], step: &Step, stream: &Stream) -> Verdict {
        let Field { group, next, previous, .. } = self;
        match &step.kind {
            Kind::Collective(collective) => {
                let lane = lanes[collective.lane];
                self.issue_collective(step, collective, lane, stream)
            }
            Kind::Barrier { channel } => Ok(group.barrier(Channel(*channel)).on(stream)?),
            Kind::Signals { channel } => {
                group.put_signal(*next, Channel(*channel)).on(stream)?;
                Ok(group.wait_signal(*previous, Channel(*channel)).on(stream)?)
            }
            Kind::Puts { channel } => {
                let source = self.flat(&step.input, DType::U8)?;
                let put = self.target.put_with_signal(&source, *next, Channel(*channel));
                put.offset(step.output.at).on(stream)?;
                Ok(group.wait_signal(*previous, Channel(*channel)).on(stream)?)
            }
        }
    }

    fn issue_collective(
        &self,
        step: &Step,
        collective: &Collective,
        lane: Lane<'_>,
        stream: &Stream,
    ) -> Verdict {
        let (group, ranks, dtype) = (self.group, self.context.size() as u64, step.elements.dtype);
        let (me, by) = (self.context.rank(), collective.algorithm);
        let op = step.elements.op.unwrap_or(ReduceOp::Sum);
        let root = group.rank_at(collective.root)?;
        let input = input_of(step, collective, me, ranks);
        let output = output_of(step, collective, me, ranks);
        let columns = collective.count / collective.rows.unwrap_or(1);
        let table = |region: &Region, rows: u64, columns: u64| {
            self.view(region, dtype, Layout::contiguous(&[rows, columns])?)
        };
        let (x, y) = (self.flat(&input, dtype), self.flat(&output, dtype));
        match (collective.operation, collective.rows) {
            (Operation::AllReduce, _) => {
                on(group.all_reduce(&x?).op(op).algorithm(by).lane(lane).into(&y?), stream)?;
            }
            (Operation::Reduce, _) => {
                let x = x?;
                on(group.reduce(&x, root).op(op).algorithm(by).lane(lane).into(&y?), stream)?;
            }
            (Operation::Broadcast, _) => {
                on(group.broadcast(&x?, root).algorithm(by).lane(lane).into(&y?), stream)?;
            }
            (Operation::AllGather, _) => {
                on(group.all_gather(&x?).algorithm(by).lane(lane).into(&y?), stream)?;
            }
            (Operation::AllToAll, _) => {
                on(group.all_to_all(&x?).algorithm(by).lane(lane).into(&y?), stream)?;
            }
            (Operation::ReduceScatter, None) => {
                let x = x?;
                on(group.reduce_scatter(&x).op(op).algorithm(by).lane(lane).into(&y?), stream)?;
            }
            (Operation::ReduceScatter, Some(rows)) => {
                let x = table(&input, rows, columns * ranks)?;
                let y = table(&output, rows, columns)?;
                let call = group.reduce_scatter(&x).op(op).last_dim();
                on(call.algorithm(by).lane(lane).into(&y), stream)?;
            }
            (Operation::AllToAllNd, rows) => {
                let rows = rows.unwrap_or(1);
                let wide = |region| table(region, rows, columns * ranks);
                let tall = |region| table(region, rows * ranks, columns);
                let (x, y) = match collective.scatter {
                    0 => (tall(&input)?, wide(&output)?),
                    _ => (wide(&input)?, tall(&output)?),
                };
                let call = group.all_to_all_nd(&x, &y);
                let call = call.dims(collective.scatter, 1 - collective.scatter);
                on(call.algorithm(by).lane(lane), stream)?;
            }
            (Operation::ReduceScatterOffset, _) => {
                let Collective { blocks, count, .. } = collective;
                let (mut ends, mut owners, mut mine) = (Vec::new(), Vec::new(), Vec::new());
                let (mut rows, mut at) = (0, output.at);
                for (height, owner) in blocks {
                    rows += height;
                    ends.push(rows);
                    owners.push(group.rank_at(*owner)?);
                    if *owner == me {
                        let bytes = height * count * dtype.size() as u64;
                        mine.push(table(&Region { at, bytes, ..output }, *height, *count)?);
                        at += bytes;
                    }
                }
                let x = table(&input, rows, *count)?;
                let mine: Vec<&View> = mine.iter().collect();
                let call = group.reduce_scatter_offset(&x, &mine).op(op);
                let call = call.offsets(&ends).destinations(&owners);
                on(call.algorithm(by).lane(lane), stream)?;
            }
            (other, _) => return Err(TestError::failed(format!("the soak has no {other:?}"))),
        }
        Ok(())
    }
}

fn on<O: Called>(call: Call<'_, O>, stream: &Stream) -> Result<(), O::Error> {
    call.on(stream)
}
