//! What a test's body is given.

use core::fmt;
use std::time::Duration;

use symmem_hal::Device;
use symmem_hal::types::BackendKind;

use super::error::TestError;
use super::link::{Command, Link, Report, Soak, text};
use super::place::{Mode, Place};

#[cfg(feature = "mem")]
use {
    symmem_hal::Wait,
    symmem_hal::types::{Bytes, Rank},
    symmem_mem::{Group, Options},
};

/// One rank's view of a running test.
#[derive(Debug)]
pub struct Context {
    pub(super) place: Place,
    pub(super) rank: usize,
    pub(super) device: Device,
    pub(super) seed: u64,
    pub(super) soak: Soak,
    pub(super) link: Link,
    #[cfg(feature = "mem")]
    pub(super) world: Option<Group>,
}

impl Context {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.place.ranks
    }

    /// What ranks are.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.place.mode
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        self.place.backend
    }

    /// This rank's device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What random data is made from: the same on every rank.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether long runs were asked for.
    #[must_use]
    pub fn soak(&self) -> bool {
        self.soak.asked
    }

    /// For how long, where that was said: for tests that can end by the clock.
    #[must_use]
    pub fn soak_time(&self) -> Option<Duration> {
        self.soak.seconds.map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// Says what this rank is about to do: what is reported should it hang or die there.
    pub fn step(&self, step: impl fmt::Display) {
        self.tell(&Report::Step(text(step.to_string())));
    }

    /// Says something that every rank is to find the same. The runner compares, since ranks at odds
    /// may not be able to.
    pub fn same(&self, key: impl fmt::Display, value: impl fmt::Display) {
        self.tell(&Report::Same { key: text(key.to_string()), value: text(value.to_string()) });
    }

    /// Says what came of the test on this rank, for people: it is in the file of `--findings`.
    pub fn found(&self, what: impl fmt::Display) {
        self.tell(&Report::Found { what: text(what.to_string()) });
    }

    /// As [`found`](Self::found), of what a call has told, and when it began.
    #[cfg(feature = "mem")]
    pub fn told(&self, error: impl fmt::Display, since: std::time::Instant) {
        self.found(format_args!(
            "{error}; told after {:.1} ms",
            since.elapsed().as_secs_f64() * 1e3
        ));
    }

    /// Says that this rank's process is about to die, as the test wants.
    pub fn dying(&self) {
        self.tell(&Report::Dying);
    }

    /// Waits until every rank that still runs the test has come here. The ranks meet at the runner:
    /// nothing under test has a part in it.
    ///
    /// # Errors
    ///
    /// [`TestError::GaveUp`] where another rank has failed.
    #[track_caller]
    pub fn meet(&self) -> Result<(), TestError> {
        self.link.send(&Report::Met)?;
        match self.link.receive()? {
            Command::Go => Ok(()),
            _ => Err(TestError::GaveUp),
        }
    }

    fn tell(&self, report: &Report) {
        // A runner that is gone takes its ranks along.
        let _ = self.link.send(report);
    }
}

#[cfg(feature = "mem")]
impl Context {
    /// The group of all ranks that the test's groups are made from. It outlives the test: leave it
    /// as it is.
    ///
    /// # Errors
    ///
    /// In a test without ranks.
    #[track_caller]
    pub fn world(&self) -> Result<&Group, TestError> {
        self.world.as_ref().ok_or_else(|| TestError::failed("a test without ranks has no group"))
    }

    /// A new group of all ranks, with the suite's options. Collective.
    ///
    /// # Errors
    ///
    /// Where it cannot be made.
    #[track_caller]
    pub fn group(&self) -> Result<Group, TestError> {
        self.group_with(&options(self.size()))
    }

    /// A new group of all ranks, with other options. Collective.
    ///
    /// # Errors
    ///
    /// Where it cannot be made.
    #[track_caller]
    pub fn group_with(&self, options: &Options) -> Result<Group, TestError> {
        let world = self.world()?;
        let group = world.subgroup(world.ranks()).options(options.clone()).create(&world.wait())?;
        self.prepare(&group)?;
        self.ready()?;
        Ok(group)
    }

    /// Whether ranks are threads that share a GPU. To load code, or to make a group or a graph, can wait
    /// there for the kernels that run, and those may wait for whoever does so.
    #[must_use]
    pub(crate) fn waits_for_kernels(&self) -> bool {
        self.place.one_device && self.place.mode == Mode::Threads
    }

    /// Loads whatever a group may call, before one of its ranks waits for another.
    pub(crate) fn prepare(&self, group: &Group) -> Result<(), TestError> {
        #[cfg(all(feature = "cuda", feature = "collectives"))]
        if self.waits_for_kernels() {
            use symmem_collectives::Collectives as _;
            use symmem_hal::types::{DType, ReduceOp};

            let all = DType::ALL.into_iter().flat_map(|t| ReduceOp::ALL.map(|op| (t, op)));
            let all: Vec<_> = all.filter(|(dtype, op)| op.check(*dtype).is_ok()).collect();
            group.prepare(&all)?;
        }
        #[cfg(all(feature = "cuda", feature = "moe"))]
        if self.waits_for_kernels() {
            symmem_moe::Moe::prepare_moe(group)?;
        }
        let _ = group;
        Ok(())
    }

    /// Every rank has loaded and made what it needs: now some may wait in kernels for others.
    #[track_caller]
    pub(crate) fn ready(&self) -> Result<(), TestError> {
        if self.waits_for_kernels() { self.meet() } else { Ok(()) }
    }

    /// A time for waits that are to be in vain: enough for every rank to come to the call, so that
    /// none but those who stay away are missed.
    #[must_use]
    pub fn brief(&self) -> Duration {
        Duration::from_millis(150 + 40 * self.size() as u64)
    }

    /// The rank `by` places after this one, around the group.
    ///
    /// # Errors
    ///
    /// Never for a group of this test's ranks.
    #[track_caller]
    pub fn neighbour(&self, group: &Group, by: usize) -> Result<Rank, TestError> {
        Ok(group.rank_at((group.rank().index() + by) % group.size())?)
    }
}

/// The suite's options: checked, a small workspace so that operations have many chunks, and time
/// for ranks that share cores.
#[cfg(feature = "mem")]
#[must_use]
pub fn options(ranks: usize) -> Options {
    let workspace = if ranks <= 8 { Bytes::kib(512) } else { Bytes::mib(1) };
    Options { workspace, checked: true, deadline: Duration::from_secs(20), ..Options::default() }
}

/// The bound on what is expected to happen, whatever the machine does beside.
#[cfg(feature = "mem")]
pub const PATIENT: Wait = Wait::seconds(20);
