//! Who starts processes, and what its variables say of one.

use core::fmt;

/// What started a process as a rank, as its variables tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// PyTorch's torchrun, or another user of its elastic agent.
    Torchrun,
    /// `symmem run`, or [`launch::Processes`](crate::launch::Processes).
    SymmemRun,
    /// Variables named as torchrun's, without its mark: of a cluster's operator, a script, by hand.
    Exported,
    /// Open MPI's mpirun.
    OpenMpi,
    /// Hydra: mpiexec of MPICH and Intel MPI.
    Hydra,
    /// Slurm's srun.
    Slurm,
    /// A process manager that sets PMI's variables, and no others that are known.
    Pmi,
    /// A process manager that sets PMIx's variables, which have no number of ranks.
    Pmix,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Torchrun => "torchrun",
            Launcher::SymmemRun => "symmem run",
            Launcher::Exported => "exported variables",
            Launcher::OpenMpi => "Open MPI's mpirun",
            Launcher::Hydra => "MPICH's or Intel MPI's mpiexec",
            Launcher::Slurm => "Slurm's srun",
            Launcher::Pmi => "a PMI process manager",
            Launcher::Pmix => "a PMIx process manager",
        })
    }
}

/// A variable of the environment that holds a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: usize,
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// Which rank a process is, by one launcher's variables. One of the two is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Whose variables.
    pub launcher: Launcher,
    /// This process's rank.
    pub rank: Option<Variable>,
    /// The number of ranks.
    pub world_size: Option<Variable>,
}

impl Claim {
    /// Whether both can be true of one rank of one run. What one does not say, it does not deny.
    pub(super) fn agrees(&self, other: &Claim) -> bool {
        let equal = |a: Option<Variable>, b: Option<Variable>| match (a, b) {
            (Some(a), Some(b)) => a.value == b.value,
            _ => true,
        };
        equal(self.rank, other.rank) && equal(self.world_size, other.world_size)
    }

    /// Its variables.
    pub(super) fn variables(&self) -> impl Iterator<Item = Variable> {
        [self.rank, self.world_size].into_iter().flatten()
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, variable) in self.variables().enumerate() {
            if i > 0 {
                f.write_str(" and ")?;
            }
            write!(f, "{variable}")?;
        }
        write!(f, " ({})", self.launcher)
    }
}
