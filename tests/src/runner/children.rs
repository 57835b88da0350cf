//! The processes of a pool.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, ExitStatus};

use super::inherit;
use super::place::{Mode, Place};

/// The processes that hold the ranks of a place. Dropping it kills them.
#[derive(Debug)]
pub(super) enum Children {
    /// One, which holds all ranks or none.
    One(Child),
    /// One for each rank, in a run of their own.
    #[cfg(feature = "mem")]
    Job(symmem_mem::launch::Job),
}

/// What ranks need that share a GPU as threads: queues of their own, and that the driver loads no kernel of
/// its own later, which waits for those that run.
const SHARING: [(&str, &str); 2] =
    [("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("CUDA_MODULE_LOADING", "EAGER")];

impl Children {
    /// Re-executes the current program, `far` left open for it.
    pub(super) fn start(place: Place, far: &[UnixDatagram]) -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let variables = inherit::variables(place, far);
        match place.mode {
            Mode::Local | Mode::Threads => {
                let mut command = Command::new(program);
                let unset = |(name, _): &(&str, &str)| std::env::var_os(name).is_none();
                if place.one_device {
                    command.envs(SHARING.into_iter().filter(unset));
                }
                command.envs(variables).spawn().map(Children::One)
            }
            #[cfg(feature = "mem")]
            Mode::Processes => {
                let job = symmem_mem::launch::Processes::new(program, place.ranks);
                let job =
                    variables.into_iter().fold(job, |job, (name, value)| job.env(name, value));
                job.spawn().map(Children::Job).map_err(io::Error::other)
            }
            #[cfg(not(feature = "mem"))]
            Mode::Processes => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// How each process ended, `None` while it runs.
    pub(super) fn poll(&mut self) -> io::Result<Vec<Option<ExitStatus>>> {
        match self {
            Children::One(child) => Ok(vec![child.try_wait()?]),
            #[cfg(feature = "mem")]
            Children::Job(job) => job.poll().map_err(io::Error::other),
        }
    }

    /// The process that holds a rank, by index in [`poll`](Self::poll).
    pub(super) fn holder(&self, rank: usize) -> usize {
        if matches!(self, Children::One(_)) { 0 } else { rank }
    }

    /// The ids of the processes, in the order of [`poll`](Self::poll).
    pub(super) fn ids(&mut self) -> Vec<u32> {
        match self {
            Children::One(child) => vec![child.id()],
            #[cfg(feature = "mem")]
            Children::Job(job) => {
                (0..job.ranks()).filter_map(|rank| Some(job.child(rank)?.id())).collect()
            }
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        match self {
            Children::One(child) => {
                // Fails for one that has ended, which is as well.
                let _ = child.kill();
                let _ = child.wait();
            }
            #[cfg(feature = "mem")]
            Children::Job(_) => {}
        }
    }
}
