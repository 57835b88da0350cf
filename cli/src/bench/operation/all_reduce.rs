//! The all-reduce.

use symmem::collectives::AllReduceError;
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
pub struct Buffers {
    pub input: View,
    pub output: View,
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
                    let mut issue = || Ok(self.call(member, &buffers).on(&member.stream)?);
                    let timing = self.row(member, &buffers, seed, &mut issue)?;
                    let algorithm = algorithm.name().to_owned();
                    report(Report::Row(Row { bytes: bytes.get(), algorithm, timing }));
                }
                // Every rank finds the same, before anything is sent.
                Err(e @ AllReduceError::TooLargeForPackets { .. }) => {
                    report(Report::Skipped { bytes: bytes.get(), because: e.to_string() });
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

impl AllReduce {
    fn call<'a>(
        &self,
        member: &Member<'a>,
        buffers: &'a Buffers,
    ) -> symmem::collectives::AllReduce<'a> {
        let call = member.group.all_reduce(&buffers.input).into(&buffers.output);
        call.op(self.op).algorithm(self.algorithm)
    }

    /// Checks, measures and checks again one size of what `issue` does with the buffers.
    pub fn row(
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
