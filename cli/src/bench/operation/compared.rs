//! An all-reduce beside something else, measured in turns.

use symmem::hal::types::Bytes;

use super::{AllReduce, Operation, Sweep};
use crate::bench::member::{Member, RankError};
use crate::bench::report::Report;

/// What an all-reduce is measured beside.
pub trait Comparison: Sync {
    /// Its name on the command line and in files.
    fn name(&self) -> &'static str;

    /// What exactly is measured, for people, of an all-reduce that is described so.
    fn describe(&self, all_reduce: &str) -> String;

    /// What an isolated iteration is, for people.
    fn isolated(&self) -> &'static str;

    /// What is checked where anything is, for people.
    fn checked(&self) -> &'static str;

    /// How many all-reduces one of what is measured counts for.
    fn all_reduces(&self) -> u32 {
        1
    }

    /// One rank's part.
    fn measure(
        &self,
        sweep: &Sweep<AllReduce>,
        member: &Member<'_>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), RankError>;
}

/// A comparison over message sizes.
#[derive(Clone, Debug)]
pub struct Compared<C> {
    pub with: C,
    pub sweep: Sweep<AllReduce>,
}

impl<C: Comparison> Operation for Compared<C> {
    fn name(&self) -> &'static str {
        self.with.name()
    }

    fn dtype(&self) -> &'static str {
        self.sweep.dtype()
    }

    fn describe(&self) -> String {
        self.with.describe(&self.sweep.describe())
    }

    fn isolated(&self) -> &'static str {
        self.with.isolated()
    }

    fn checked(&self) -> &'static str {
        if self.sweep.check { self.with.checked() } else { self.sweep.checked() }
    }

    fn sizes(&self) -> &[Bytes] {
        self.sweep.sizes()
    }

    fn variants(&self) -> usize {
        2
    }

    fn bus_factor(&self, ranks: usize) -> f64 {
        f64::from(self.with.all_reduces()) * self.sweep.bus_factor(ranks)
    }

    fn measure(
        &self,
        member: &Member<'_>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), RankError> {
        self.with.measure(&self.sweep, member, report)
    }
}
