//! A collective over message sizes.

use symmem::hal::types::Bytes;
use symmem::prelude::*;

use super::{Call, Collective, Operation, Place};
use crate::bench::check::{Data, Inputs, Seed};
use crate::bench::limit;
use crate::bench::member::{Member, RankError};
use crate::bench::report::{Report, Row};
use crate::bench::timing::{Iteration, Pace, Ready, Replay, Separation, Timing};

/// Where buffers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The smaller of input and output lies in the larger one.
    pub in_place: bool,
    /// Peers know the buffers.
    pub symmetric: bool,
}

impl Default for Placement {
    fn default() -> Self {
        Placement { in_place: false, symmetric: true }
    }
}

/// A collective over message sizes, with everything that was asked about it.
#[derive(Clone, Debug)]
pub struct Sweep<C> {
    pub collective: C,
    pub dtype: DType,
    /// Each a multiple of the collective's granule.
    pub sizes: Vec<Bytes>,
    pub placement: Placement,
    /// Whether to measure what the machine could do at best.
    pub limit: bool,
    /// Whether operations are captured in graphs.
    pub graph: bool,
    /// Whether results are checked.
    pub check: bool,
    pub pace: Pace,
    pub seed: Seed,
}

/// One rank's memory for the largest size.
pub(super) struct Memory {
    input: Allocation,
    output: Allocation,
}

/// One size's part of that.
pub(super) struct Buffers {
    place: Place,
    pub input: View,
    pub output: View,
}

impl<C: Collective> Operation for Sweep<C> {
    fn name(&self) -> &'static str {
        self.collective.name()
    }

    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    fn describe(&self) -> String {
        let place = if self.placement.in_place { "in place" } else { "out of place" };
        let memory = if self.placement.symmetric { "symmetric" } else { "plain" };
        let graph = if self.graph { ", in graphs" } else { "" };
        format!("{}, {place}, {memory} memory{graph}", self.collective.describe(self.dtype))
    }

    fn isolated(&self) -> &'static str {
        "an untimed barrier, then one operation"
    }

    fn checked(&self) -> &'static str {
        match self.check {
            true => "every element, on fresh data before and after, against an independent model",
            false => "nothing",
        }
    }

    fn sizes(&self) -> &[Bytes] {
        &self.sizes
    }

    fn bus_factor(&self, ranks: usize) -> f64 {
        self.collective.bus_factor(ranks)
    }

    fn measure(
        &self,
        member: &Member<'_>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), RankError> {
        // Loaded by every rank before one waits for another.
        let reduction = self.collective.reduces().map(|op| (self.dtype, op));
        member.group.prepare(reduction.as_slice())?;
        let capturing = if self.graph { Some(member.capturing()?) } else { None };
        let member = capturing.as_ref().unwrap_or(member);
        if self.limit {
            let sizes: Vec<_> = self.sizes.iter().copied().map(limit::Size::from).collect();
            limit::measure(member, &sizes, self.pace, report)?;
        }
        let memory = self.allocate(member)?;
        for (part, size) in self.sizes.iter().enumerate() {
            let buffers = self.buffers(member, &memory, *size)?;
            let Buffers { input, output, .. } = &buffers;
            let call = Call { group: member.group, stream: &member.stream, input, output };
            let bytes = size.get();
            match self.collective.algorithm(&call) {
                Ok(algorithm) => {
                    let seed = self.seed.part(part as u64);
                    let issue = || self.collective.issue(&call);
                    let timing = match self.graph {
                        false => self.row(member, &buffers, seed, &mut Ready(&issue))?,
                        true => {
                            self.row(member, &buffers, seed, &mut Replay::new(member, &issue))?
                        }
                    };
                    let (checked, routed) = (self.check, None);
                    report(Report::Row(Row { bytes, algorithm, checked, routed, timing }));
                }
                // Sizes ascend: what takes a smaller one and not this one is asked for too much.
                Err(error) if part > 0 && error.is_refusal() => {
                    report(Report::Skipped { bytes, because: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<C: Collective> Sweep<C> {
    /// Collective where memory is symmetric.
    pub(super) fn allocate(&self, member: &Member<'_>) -> Result<Memory, RankError> {
        let Placement { in_place, symmetric } = self.placement;
        let (mut input, mut output) = (Bytes::ZERO, Bytes::ZERO);
        for size in &self.sizes {
            // What is symmetric is as large on every rank, however much of it each needs.
            for rank in 0..member.ranks() {
                let count = size.get() / self.dtype.size() as u64;
                let shape = self.collective.shape(rank, member.ranks(), count);
                input = input.max(self.bytes(shape.input));
                output = output.max(self.bytes(shape.output));
            }
        }
        if in_place {
            let both = member.allocate(input.max(output), symmetric)?;
            return Ok(Memory { input: both.clone(), output: both });
        }
        let input = member.allocate(input, symmetric)?;
        Ok(Memory { input, output: member.allocate(output, symmetric)? })
    }

    pub(super) fn buffers(
        &self,
        member: &Member<'_>,
        memory: &Memory,
        size: Bytes,
    ) -> Result<Buffers, RankError> {
        let place = self.place(member, size);
        let shape = place.shape;
        let offset = match self.placement.in_place {
            true => self.bytes(self.collective.in_place(&place)),
            false => Bytes::ZERO,
        };
        let view = |of, layout, inner: bool| {
            let offset = if inner { offset } else { Bytes::ZERO };
            View::new(of, offset, self.dtype, layout)
        };
        let (from, to) = self.collective.layouts(&place)?;
        Ok(Buffers {
            place,
            input: view(&memory.input, from, shape.input < shape.output)?,
            output: view(&memory.output, to, shape.output < shape.input)?,
        })
    }

    fn place(&self, member: &Member<'_>, size: Bytes) -> Place {
        let count = size.get() / self.dtype.size() as u64;
        let ranks = member.ranks();
        let shape = self.collective.shape(member.rank(), ranks, count);
        Place { rank: member.rank(), ranks, shape, in_place: self.placement.in_place }
    }

    fn bytes(&self, count: u64) -> Bytes {
        Bytes(count * self.dtype.size() as u64)
    }

    /// Checks, measures and checks again one size.
    fn row(
        &self,
        member: &Member<'_>,
        buffers: &Buffers,
        seed: Seed,
        timed: &mut dyn Iteration,
    ) -> Result<Timing, RankError> {
        if !self.check {
            self.inputs(buffers, Data::Small(seed))
                .of(buffers.place.rank)
                .write(&buffers.input, 0)?;
            return Timing::take(member, self.pace, Separation::Barrier, timed);
        }
        self.check(member, buffers, Data::Random(seed.part(1)), timed)?;
        // Checked last, so that these inputs are what is measured: no subnormals, no NaNs.
        let measured = Data::Small(seed.part(2));
        self.check(member, buffers, measured, timed)?;
        let timing = Timing::take(member, self.pace, Separation::Barrier, timed)?;
        // In place, inputs of later iterations are outputs of earlier ones.
        if !self.placement.in_place {
            self.expect(member, buffers, measured, "timed")?;
        }
        self.check(member, buffers, Data::Random(seed.part(3)), timed)?;
        Ok(timing)
    }

    fn inputs(&self, buffers: &Buffers, data: Data) -> Inputs {
        let Place { ranks, shape, .. } = buffers.place;
        let op = self.collective.reduces();
        Inputs { data, dtype: self.dtype, op, ranks, count: shape.input }
    }

    /// One operation on fresh inputs and an output that is wrong everywhere.
    pub(super) fn check(
        &self,
        member: &Member<'_>,
        buffers: &Buffers,
        data: Data,
        timed: &mut dyn Iteration,
    ) -> Result<(), RankError> {
        timed.prepare(1)?;
        let inputs = self.inputs(buffers, data);
        let place = &buffers.place;
        inputs.expected(&self.collective.expected(place)).spoil(&buffers.output)?;
        // Second, since in place it is part of what was spoilt.
        inputs.of(place.rank).write(&buffers.input, 0)?;
        if self.collective.is_one_sided() {
            member.barrier()?;
        }
        timed.run(1)?;
        member.finish()?;
        self.expect(member, buffers, data, "checked")
    }

    fn expect(
        &self,
        member: &Member<'_>,
        buffers: &Buffers,
        data: Data,
        which: &str,
    ) -> Result<(), RankError> {
        let place = &buffers.place;
        let expected = self.inputs(buffers, data).expected(&self.collective.expected(place));
        let one_sided = self.collective.is_one_sided();
        if one_sided {
            member.barrier()?;
        }
        let compared = expected.compare(&buffers.output)?;
        if one_sided {
            member.barrier()?;
        }
        compared.map_err(|wrong| {
            let (name, bytes) =
                (self.name(), self.bytes(place.shape.input.max(place.shape.output)));
            let what = self.collective.describe(self.dtype);
            let what = format!("{which} {name} of {bytes} ({what}, {})", data.name());
            RankError::Wrong { what, wrong }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::process::ExitCode;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::{AllReduce, Shape};
    use super::*;
    use crate::bench::check::Part;
    use crate::bench::devices::Backend;
    use crate::bench::drive::{self, DriveError};
    use crate::bench::show::Progress;
    use crate::bench::timing::Isolated;
    use crate::bench::{BenchError, drive::RankFault};

    const RANKS: usize = 3;
    /// The rank whose output is damaged, where, and by the how manieth of its operations.
    const DAMAGED: usize = 1;
    const INDEX: u64 = 700;

    /// Flips the lowest bit of one element after one of the operations of one rank.
    struct Damaging {
        inner: AllReduce,
        call: u64,
        calls: AtomicU64,
    }

    fn damaging(in_place: bool, call: u64) -> Sweep<Damaging> {
        let inner = AllReduce { op: ReduceOp::Sum, algorithm: Algorithm::Auto };
        Sweep {
            collective: Damaging { inner, call, calls: AtomicU64::new(0) },
            dtype: DType::F32,
            sizes: vec![Bytes::kib(4)],
            placement: Placement { in_place, symmetric: true },
            limit: false,
            graph: false,
            check: true,
            pace: Pace { isolated: Isolated::Iterations(3), batch: None },
            seed: Seed::new(1),
        }
    }

    impl Collective for Damaging {
        fn issue(&self, call: &Call<'_>) -> Result<(), RankError> {
            self.inner.issue(call)?;
            if !call.stream.is_inline() {
                call.stream.synchronize(&call.group.wait())?;
            }
            if call.group.rank().index() == DAMAGED
                && self.calls.fetch_add(1, Ordering::Relaxed) == self.call
            {
                let at = Bytes(call.output.offset().get() + 4 * INDEX);
                let mut byte = [0];
                call.output.memory().read(at, &mut byte)?;
                call.output.memory().write(at, &[byte[0] ^ 1])?;
            }
            Ok(())
        }

        fn name(&self) -> &'static str {
            self.inner.name()
        }

        fn describe(&self, dtype: DType) -> String {
            self.inner.describe(dtype)
        }

        fn reduces(&self) -> Option<ReduceOp> {
            self.inner.reduces()
        }

        fn granule(&self, ranks: usize) -> u64 {
            self.inner.granule(ranks)
        }

        fn shape(&self, rank: usize, ranks: usize, count: u64) -> Shape {
            self.inner.shape(rank, ranks, count)
        }

        fn in_place(&self, place: &Place) -> u64 {
            self.inner.in_place(place)
        }

        fn bus_factor(&self, ranks: usize) -> f64 {
            self.inner.bus_factor(ranks)
        }

        fn expected(&self, place: &Place) -> Vec<Part> {
            self.inner.expected(place)
        }

        fn algorithm(&self, call: &Call<'_>) -> Result<String, RankError> {
            self.inner.algorithm(call)
        }
    }

    #[test]
    fn one_flipped_bit_ends_the_benchmark_and_is_named() {
        // Two checks, three isolated iterations, three batches of one, one check.
        let runs = [0, 1, 7, 8].map(|call| (false, call)).into_iter().chain([(true, 0), (true, 8)]);
        for ((in_place, call), backend) in
            runs.flat_map(|run| [Backend::Host, Backend::Stub].map(|backend| (run, backend)))
        {
            let damaging = damaging(in_place, call);
            let progress = Progress::new(1);
            let error = drive::threads(&damaging, backend.into(), RANKS, &progress).unwrap_err();
            let DriveError::Rank { rank, fault: RankFault::Wrong { what, wrong } } = &error else {
                panic!("operation {call} on {backend:?}: {error}");
            };
            assert_eq!((*rank, wrong.index, wrong.wrong, wrong.count), (DAMAGED, INDEX, 1, 1024));
            assert_ne!(wrong.expected, wrong.found);
            let which = if call == 7 { "timed" } else { "checked" };
            assert!(what.starts_with(&format!("{which} all-reduce of 4 KiB")), "{what}");
            let text = error.to_string();
            for part in ["rank 1: ", "index 700: ", &wrong.expected, &wrong.found] {
                assert!(text.contains(part), "{part} in {text}");
            }
            let failure = crate::Failure::from(BenchError::from(error));
            assert_eq!(failure.exit_code(), ExitCode::FAILURE);
        }
    }

    #[test]
    fn undamaged_it_has_results() {
        for in_place in [false, true] {
            let damaging = damaging(in_place, u64::MAX);
            let progress = Progress::new(1);
            let collected =
                drive::threads(&damaging, Backend::Host.into(), RANKS, &progress).unwrap();
            assert_eq!(collected.lines.len(), 1);
            assert_eq!(damaging.collective.calls.into_inner(), 9);
        }
    }
}
