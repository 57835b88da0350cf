//! The all-reduce.

use symmem::collectives::{AllReduceError, Call, CallError};
use symmem::hal::types::Bytes;
use symmem::prelude::*;

use super::Operation;
use crate::bench::check::{Data, Pattern, Seed};
use crate::bench::member::{Member, RankError};
use crate::bench::report::{Report, Row};
use crate::bench::timing::{Pace, Separation, Timing};

/// All-reduces of several sizes.
#[derive(Clone, Debug)]
pub struct AllReduce {
    pub dtype: DType,
    pub op: ReduceOp,
    pub algorithm: Algorithm,
    /// Each a multiple of the element's size.
    pub sizes: Vec<Bytes>,
    pub in_place: bool,
    pub symmetric: bool,
    pub pace: Pace,
    pub seed: Seed,
}

/// Where one size's input and output lie; the same place for both in place.
struct Buffers {
    input: View,
    output: View,
}

impl Operation for AllReduce {
    fn name(&self) -> &'static str {
        "all-reduce"
    }

    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    fn describe(&self) -> String {
        let place = if self.in_place { "in place" } else { "out of place" };
        let memory = if self.symmetric { "symmetric" } else { "plain" };
        format!("{} of {}, {place}, {memory} memory", self.op, self.dtype)
    }

    fn isolated(&self) -> &'static str {
        "an untimed barrier, then one operation"
    }

    fn checked(&self) -> &'static str {
        "every element, on fresh data before and after, against an independent reduction"
    }

    fn sizes(&self) -> &[Bytes] {
        &self.sizes
    }

    fn bus_factor(&self, ranks: usize) -> f64 {
        2.0 * (ranks as f64 - 1.0) / ranks as f64
    }

    fn measure(
        &self,
        member: &Member<'_>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), RankError> {
        self.measure_issued(member, report, &|buffers| {
            Ok(self.call(member, buffers).on(&member.stream)?)
        })
    }
}

impl AllReduce {
    /// As `measure`, of what `issue` enqueues for the buffers it is given.
    fn measure_issued(
        &self,
        member: &Member<'_>,
        report: &mut dyn FnMut(Report),
        issue: &dyn Fn(&Buffers) -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        let largest = self.sizes.iter().copied().max().unwrap_or_default();
        let input = member.allocate(largest, self.symmetric)?;
        let output = match self.in_place {
            true => input.clone(),
            false => member.allocate(largest, self.symmetric)?,
        };
        for (part, bytes) in self.sizes.iter().enumerate() {
            let layout = Layout::flat(bytes.get() / self.dtype.size() as u64);
            let view = |of| View::new(of, Bytes::ZERO, self.dtype, layout.clone());
            let buffers = Buffers { input: view(&input)?, output: view(&output)? };
            let seed = self.seed.part(part as u64);
            match self.call(member, &buffers).chosen() {
                Ok(algorithm) => {
                    let timing = self.row(member, &buffers, seed, &mut || issue(&buffers))?;
                    let algorithm = algorithm.name().to_owned();
                    report(Report::Row(Row { bytes: bytes.get(), algorithm, timing }));
                }
                // Every rank finds the same, before anything is sent.
                Err(e @ AllReduceError::Call(CallError::TooLargeForPackets { .. })) => {
                    report(Report::Skipped { bytes: bytes.get(), because: e.to_string() });
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn call<'a>(
        &self,
        member: &Member<'a>,
        buffers: &'a Buffers,
    ) -> Call<'a, symmem::collectives::AllReduce<'a>> {
        let call = member.group.all_reduce(&buffers.input).into(&buffers.output);
        call.op(self.op).algorithm(self.algorithm)
    }

    /// Checks, measures and checks again one size.
    fn row(
        &self,
        member: &Member<'_>,
        buffers: &Buffers,
        seed: Seed,
        issue: &mut dyn FnMut() -> Result<(), RankError>,
    ) -> Result<Timing, RankError> {
        self.check(member, buffers, Data::Random(seed.part(1)), issue)?;
        // Checked last, so that these inputs are what is measured: no subnormals, no NaNs.
        let timed = Data::Small(seed.part(2));
        self.check(member, buffers, timed, issue)?;
        let timing = Timing::take(member, self.pace, Separation::Barrier, issue)?;
        if !self.in_place {
            self.expect(member, buffers, timed, "timed")?;
        }
        self.check(member, buffers, Data::Random(seed.part(3)), issue)?;
        Ok(timing)
    }

    /// One operation on fresh inputs and an output that is wrong everywhere.
    fn check(
        &self,
        member: &Member<'_>,
        buffers: &Buffers,
        data: Data,
        issue: &mut dyn FnMut() -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        let count = buffers.input.count();
        if !self.in_place {
            let expected = Pattern::reduced(data, self.dtype, self.op, member.ranks(), count);
            expected.poison().write(&buffers.output)?;
        }
        let input = Pattern::input(data, self.dtype, self.op, member.rank(), count);
        input.write(&buffers.input)?;
        issue()?;
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
        let count = buffers.output.count();
        let expected = Pattern::reduced(data, self.dtype, self.op, member.ranks(), count);
        expected.compare(&buffers.output)?.map_err(|wrong| {
            let (op, dtype, data) = (self.op, self.dtype, data.name());
            let bytes = buffers.output.bytes();
            let what = format!("{which} all-reduce of {bytes} ({op} of {dtype}, {data})");
            RankError::Wrong { what, wrong }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::process::ExitCode;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::bench::args::Backend;
    use crate::bench::drive::{self, DriveError};
    use crate::bench::show::Progress;
    use crate::bench::{BenchError, drive::RankFault};

    const RANKS: usize = 3;
    /// The rank whose output is damaged, where, and by the how manieth of its operations.
    const DAMAGED: usize = 1;
    const INDEX: u64 = 700;

    fn all_reduce(in_place: bool) -> AllReduce {
        AllReduce {
            dtype: DType::F32,
            op: ReduceOp::Sum,
            algorithm: Algorithm::Auto,
            sizes: vec![Bytes::kib(4)],
            in_place,
            symmetric: true,
            pace: Pace::Iterations(3),
            seed: Seed::new(1),
        }
    }

    /// Flips the lowest bit of one element after one of the operations of one rank.
    struct Damaging {
        inner: AllReduce,
        call: u64,
        calls: AtomicU64,
    }

    impl Operation for Damaging {
        fn measure(
            &self,
            member: &Member<'_>,
            report: &mut dyn FnMut(Report),
        ) -> Result<(), RankError> {
            self.inner.measure_issued(member, report, &|buffers| {
                self.inner.call(member, buffers).on(&member.stream)?;
                member.finish()?;
                if member.rank() == DAMAGED
                    && self.calls.fetch_add(1, Ordering::Relaxed) == self.call
                {
                    let at = Bytes(buffers.output.offset().get() + 4 * INDEX);
                    let mut byte = [0];
                    buffers.output.memory().read(at, &mut byte)?;
                    buffers.output.memory().write(at, &[byte[0] ^ 1])?;
                }
                Ok(())
            })
        }

        fn name(&self) -> &'static str {
            self.inner.name()
        }

        fn dtype(&self) -> &'static str {
            self.inner.dtype()
        }

        fn describe(&self) -> String {
            self.inner.describe()
        }

        fn isolated(&self) -> &'static str {
            self.inner.isolated()
        }

        fn checked(&self) -> &'static str {
            self.inner.checked()
        }

        fn sizes(&self) -> &[Bytes] {
            self.inner.sizes()
        }

        fn bus_factor(&self, ranks: usize) -> f64 {
            self.inner.bus_factor(ranks)
        }
    }

    #[test]
    fn one_flipped_bit_ends_the_benchmark_and_is_named() {
        // Two checks, three isolated iterations, three batches of one, one check.
        let runs = [0, 1, 7, 8].map(|call| (false, call)).into_iter().chain([(true, 0), (true, 8)]);
        for ((in_place, call), backend) in
            runs.flat_map(|run| [Backend::Host, Backend::Stub].map(|backend| (run, backend)))
        {
            let damaging = Damaging { inner: all_reduce(in_place), call, calls: AtomicU64::new(0) };
            let progress = Progress::new(1);
            let error = drive::threads(&damaging, backend, RANKS, &progress).unwrap_err();
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
            let damaging =
                Damaging { inner: all_reduce(in_place), call: u64::MAX, calls: AtomicU64::new(0) };
            let progress = Progress::new(1);
            let collected = drive::threads(&damaging, Backend::Host, RANKS, &progress).unwrap();
            assert_eq!(collected.lines.len(), 1);
            assert_eq!(damaging.calls.into_inner(), 9);
        }
    }
}
