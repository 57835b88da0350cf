//! How a process learns which rank it is and where the others meet.
//!
//! Does: reads the variables that launchers set ([`Bootstrap::from_env`]), and hosts or joins the
//! store that they name ([`Bootstrap::connect`]). [`Bootstrap::on_this_host`] is the run of one
//! host's ranks alone.
//!
//! Does not: start processes, or guess: a variable that is missing, malformed or in conflict with
//! another is an error that shows what was found. It does not see that a rank of torchrun's has
//! started mpirun or srun itself, if torchrun ran on one host: those ranks must be started without
//! `RANK` (`env -u RANK -u WORLD_SIZE mpirun ...`), or all take themselves for that one rank, which
//! their group refuses.
//!
//! # Launchers
//!
//! | launcher | rank, size | on its host | host, hosts | the run's name |
//! |---|---|---|---|---|
//! | torchrun, `symmem run` | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `GROUP_RANK`, `GROUP_WORLD_SIZE` | `TORCHELASTIC_RUN_ID`, `_RESTART_COUNT`; torchrun's `none` is none |
//! | exported variables | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | | |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `_LOCAL_SIZE` | | `OMPI_MCA_ess_base_jobid` or `PMIX_NAMESPACE`, and a hash of the job's random key |
//! | Hydra (MPICH, Intel MPI) | `PMI_RANK`, `PMI_SIZE` beside `MPI_LOCAL*` or `HYDI_CONTROL_FD` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` | | of the process `hydra_pmi_proxy` that started it: on one host |
//! | srun | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` (`SLURM_NTASKS`), with a `SLURM_STEP_ID` | `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE` | `SLURM_NODEID`, `SLURM_STEP_NUM_NODES` | `SLURM_JOB_ID`, `SLURM_STEP_ID`, `SLURM_RESTART_COUNT` |
//! | another PMI | `PMI_RANK` or `PMI_ID`, `PMI_SIZE` | | | `PMI_JOBID` |
//!
//! Where all ranks are on one host, that is host 0 of 1, whatever the launcher.
//!
//! # Which one counts
//!
//! Launchers start each other, and hand their variables on. The innermost started the ranks:
//!
//! | found beside each other | counts | because |
//! |---|---|---|
//! | equal rank and size | the launcher; each says what the other does not | a script of its exports them for PyTorch; srun's plugins for PMI and PMIx set theirs |
//! | most `SLURM_*`, no `SLURM_STEP_ID` | all others; else no launcher | a batch script's and salloc's shell's look like rank 0 of the allocation's tasks |
//! | torchrun or `symmem run`, in a step of srun's | the former | srun started agents, or a shell in which somebody typed; ranks do not start srun |
//! | torchrun or `symmem run`, under mpirun or mpiexec of as many processes as there are agents; or of any number, with one agent | the former | one agent was started on each host; or each started a run of its own |
//! | `RANK` and `WORLD_SIZE` in equal blocks of the other's ranks: 4 to 7 of 16 under task 1 of 4 | the former | each task started several |
//! | Open MPI or Hydra, in a step of srun's | the former | under Slurm they start their daemons by srun: the step is that of the daemons |
//! | anything else that differs | an error, [`EnvError::Launchers`], with both | such as a stale `RANK` in a shell: four ranks would all take themselves for it |
//!
//! What marks torchrun and `symmem run` is `TORCHELASTIC_RUN_ID`. Among those that may be around
//! them, the order is Open MPI, Hydra, srun, another PMI.
//!
//! # The store
//!
//! It is at `MASTER_ADDR` and `MASTER_PORT`, with any launcher; torchrun's ranks must have both. Else:
//! - its host is `127.0.0.1` if all ranks are on one host, and the first of `SLURM_STEP_NODELIST`
//!   with srun on several. Others on several need `MASTER_ADDR`.
//! - its port is a hash of the run's name, from 20000 to 29499: the same for all ranks, and below
//!   `/proc/sys/net/ipv4/ip_local_port_range`, which begins at 32768 unless changed. A run without a
//!   name needs `MASTER_PORT`.
//!
//! Rank 0 serves it there, unless `TORCHELASTIC_USE_AGENT_STORE` is `True` beside both: then torchrun,
//! `symmem run` or `symmem store` does.
//!
//! Two runs on one host do not mix, whatever their ports: rank 0 of the later one finds a port taken,
//! and ends with an error that names `MASTER_PORT`; its launcher then ends the others. Those that
//! reached the earlier run's store look for their token under their own run's name, find none, and are no
//! members without it. What is numbered from 0 again (a step, a process) is in a name together with
//! what is not (its job, its start). Runs *without* a name differ by nothing but `MASTER_PORT`, which
//! is why they must have one.
//!
//! Choices:
//! - The environment is read through a function, so that tests and embedders need not change the
//!   process's own.
//! - torchrun's `none` as a run id means that nobody chose one; two such runs on a host would share
//!   it, so it counts as absent.
//! - Hydra's processes are looked for in `/proc`: the alternative, to ask it by `PMI_FD`, would answer in
//!   place of MPI in a program that uses that too.

mod connect;
mod env;
mod error;
mod launcher;
mod place;
mod sources;
#[cfg(test)]
mod tests;

use core::fmt;

use env::Env;

pub use connect::JoinError;
pub use error::EnvError;
pub use launcher::{Claim, Launcher, Variable};
pub(crate) use sources::SYMMEM_RUN;

/// This process's place in its run, as its launcher described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// This process's rank, below `world_size`.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This process's index among those of its host.
    pub local_rank: Option<usize>,
    /// The number of ranks on its host.
    pub local_world_size: Option<usize>,
    /// Its host's index among those of the run. Under torchrun its agent's: one a host, as a rule.
    pub node: Option<usize>,
    /// The number of hosts, or of torchrun's agents.
    pub nodes: Option<usize>,
    /// What started it.
    pub launcher: Launcher,
    /// Which run it belongs to.
    pub run: RunId,
    /// Where the store is.
    pub store: StoreAddress,
    /// Whose server the store is.
    pub host: StoreHost,
}

/// What tells one run from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunId {
    /// The launcher's id; `None` if it gave none, so that rank 0 must choose one.
    pub launcher: Option<String>,
    /// How often the launcher has restarted the ranks. Keys of an earlier attempt may still be in
    /// a store that outlives the ranks.
    pub restart: u32,
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// A name or an address.
    pub host: String,
    /// Its port, not 0.
    pub port: u16,
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreAddress { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Whose server a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHost {
    /// The launcher's: every rank is a client.
    Launcher,
    /// Rank 0's.
    RankZero,
}

impl fmt::Display for StoreHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreHost::Launcher => "the launcher",
            StoreHost::RankZero => "rank 0",
        })
    }
}

impl Bootstrap {
    /// Reads the variables of the launcher that started this process; [the module](self) has the
    /// order.
    ///
    /// # Errors
    ///
    /// [`EnvError::NotLaunched`] if none did; else what is missing, malformed or in conflict.
    pub fn from_env() -> Result<Self, EnvError> {
        let lookup =
            |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        sources::find(&Env { lookup: &lookup, hydra: &sources::nearest_hydra })
    }

    /// [`from_env`](Self::from_env) with `lookup` in place of the environment, and nothing else: a run
    /// of MPICH's mpiexec, named in no variable, then needs `MASTER_PORT`.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env); [`EnvError::NoPort`] where it needs that.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, EnvError> {
        sources::find(&Env { lookup, hydra: &|| None })
    }

    /// The run of this host's ranks alone, for a group of them that needs no other host: ranks and
    /// sizes are the local ones, and the run's name has the host's index in it. Its store is the
    /// launcher's where that hosts one, else one of the host's own, which its first rank serves at
    /// `127.0.0.1`. Where all ranks are on one host it is the run itself.
    ///
    /// # Errors
    ///
    /// [`EnvError::NoHost`] where the launcher did not say the local rank, the local number of ranks
    /// or the host's index: Open MPI and MPICH do not, across hosts.
    pub fn on_this_host(&self) -> Result<Self, EnvError> {
        place::of_host(self)
    }
}
