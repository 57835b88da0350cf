//! The operations that can be measured.

mod all_reduce;
mod barrier;

pub use all_reduce::AllReduce;
pub use barrier::Barrier;

use symmem::hal::types::Bytes;

use super::member::{Member, RankError};
use super::report::Report;

/// An operation with everything that was asked about it; one and the same for all ranks.
pub trait Operation: Sync {
    /// Its name on the command line and in files.
    fn name(&self) -> &'static str;

    /// The element type's name; `-` where it has none.
    fn dtype(&self) -> &'static str;

    /// What exactly is measured, for people.
    fn describe(&self) -> String;

    /// What an isolated iteration is, for people.
    fn isolated(&self) -> &'static str;

    /// What is checked, for people.
    fn checked(&self) -> &'static str;

    /// The sizes to measure, ascending: the larger of a rank's send and receive buffer.
    fn sizes(&self) -> &[Bytes];

    /// What the bandwidth is multiplied with to compare it with the hardware's, as nccl-tests does.
    fn bus_factor(&self, ranks: usize) -> f64;

    /// One rank's part: for each size in turn checks, measures, checks again and reports.
    fn measure(&self, member: &Member<'_>, report: &mut dyn FnMut(Report))
    -> Result<(), RankError>;
}
