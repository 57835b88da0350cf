//! Why the environment does not describe a rank.

use symmem_hal::{Fault, Kind};
use thiserror::Error;

use super::launcher::{Claim, Launcher};

/// Why the environment does not describe a rank.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnvError {
    /// No launcher's variables are there.
    #[error(
        "no launcher started this process: there is no RANK or WORLD_SIZE (torchrun, symmem run), \
         no OMPI_COMM_WORLD_RANK (Open MPI's mpirun), no SLURM_PROCID of a step (srun; a batch \
         script's own is none), no PMI_RANK (mpiexec of MPICH and Intel MPI); start it by one of \
         them, such as `symmem run --ranks 4 -- PROGRAM`"
    )]
    NotLaunched,
    /// Some variables are there, this one is not.
    #[error("{variable} is not set, beside {}; expected {expected}", present.join(", "))]
    Missing {
        /// The variable.
        variable: &'static str,
        /// What it should be.
        expected: &'static str,
        /// The variables that are set.
        present: Vec<&'static str>,
    },
    /// A variable's value is malformed or out of its range.
    #[error("{variable} is {found:?}; expected {expected}")]
    Invalid {
        /// The variable.
        variable: &'static str,
        /// Its value.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Two variables of one launcher contradict each other.
    #[error("{first} is {first_value} and {second} is {second_value}: {rule}")]
    Conflict {
        /// One variable.
        first: &'static str,
        /// Its value.
        first_value: usize,
        /// The other.
        second: &'static str,
        /// Its value.
        second_value: usize,
        /// What must hold.
        rule: &'static str,
    },
    /// Two launchers' variables are there, which differ, and none is plainly around the other.
    #[error(
        "two launchers differ about this process: {first}, {second}; take out those of the one \
         that did not start it, by {} or {}",
        unset(first),
        unset(second)
    )]
    Launchers {
        /// What the one that would go first says.
        first: Claim,
        /// What the other says.
        second: Claim,
    },
    /// The ranks are on several hosts, and nothing says which of them has rank 0.
    #[error(
        "{world_size} ranks, {} of them on this host, by {launcher}, which does not say where rank 0 \
         is: set MASTER_ADDR to a name or an address of its host, the same on all ranks",
        local_world_size.map_or("an unknown number".to_owned(), |n| n.to_string())
    )]
    NoAddress {
        /// Who started the ranks.
        launcher: Launcher,
        /// Ranks of the run.
        world_size: usize,
        /// Ranks on this host.
        local_world_size: Option<usize>,
    },
    /// Nothing names the run, so that no port can be made of its name.
    #[error(
        "{launcher} gives this run no name of which a port could be made: set MASTER_PORT to a free \
         port of rank 0's host, the same on all ranks"
    )]
    NoPort {
        /// Who started the ranks.
        launcher: Launcher,
    },
    /// The ranks of this host cannot be told from those of others.
    #[error(
        "a group of this host's ranks needs {unknown}, which is not known of a rank of {launcher}: \
         make a group of all, or start the ranks by torchrun or srun"
    )]
    NoHost {
        /// Who started the ranks.
        launcher: Launcher,
        /// What is not known.
        unknown: &'static str,
    },
}

impl Fault for EnvError {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}

/// The command that takes a claim out of a program's environment.
fn unset(claim: &Claim) -> String {
    let names: Vec<_> = claim.variables().map(|v| format!("-u {}", v.name)).collect();
    format!("`env {}`", names.join(" "))
}
