//! Starting the ranks, and hearing from them.

mod collector;
mod processes;
mod threads;

pub use collector::{Collected, RankFault};
pub use processes::{join, processes, say, serve};
pub use threads::threads;

use std::time::Duration;

use symmem::hal::DeviceError;
use symmem::hal::types::{BackendKind, Bytes};
use symmem::launch::{self, JobError, NoRoom, SpawnError, StartError};
use symmem::mem::RendezvousError;
use symmem::prelude::*;

use super::devices::{Backend, Devices};
use super::member::Member;
use super::operation::Operation;
use super::report::Report;

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    #[error("the path of this executable is unknown: {0}")]
    Executable(std::io::Error),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A rank did not do its part.
    #[error("rank {rank}: {fault}")]
    Rank { rank: usize, fault: RankFault },
}

/// Why a process cannot be a rank.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Start(#[from] StartError),
}

impl Fault for JoinError {
    fn kind(&self) -> Kind {
        match self {
            JoinError::Device(error) => error.kind(),
            JoinError::Start(error) => error.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            JoinError::Device(error) => error.ranks(),
            JoinError::Start(error) => error.ranks(),
        }
    }
}

/// The group's options: defaults, and the time that a rank may need to check a large result on a
/// busy machine while the others wait for it.
fn options() -> Options {
    Options { deadline: Duration::from_secs(60), ..Options::default() }
}

/// That this machine has the memory for the ranks' groups, where it is this machine's.
pub fn check_room(devices: Devices, ranks: usize) -> Result<(), DriveError> {
    if devices.backend == Backend::Cuda {
        return Ok(());
    }
    let each = options().on(BackendKind::Host).region().unwrap_or(Bytes(u64::MAX));
    Ok(launch::check_room(ranks, each)?)
}

/// One rank's part. Returns whether all went well.
fn measure(group: &Group, operation: &dyn Operation, report: &mut dyn FnMut(Report)) -> bool {
    let measured = Member::new(group).and_then(|member| operation.measure(&member, report));
    match measured {
        Ok(()) => true,
        Err(error) => {
            report(error.into());
            false
        }
    }
}
