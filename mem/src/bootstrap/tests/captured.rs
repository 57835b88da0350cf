//! Environments of ranks as launchers made them, of which is left what a launcher's number could be
//! mistaken for: Open MPI 4.1.4, MPICH 4.0.2, Slurm 22.05.8 with two slurmd on one machine.
//!
//! Open MPI 5, Intel MPI and torchrun are as documented.

use super::super::env::Env;
use super::super::*;

/// A rank's variables, a line each; later ones replace earlier ones.
#[derive(Clone)]
pub struct Rank(Vec<(String, String)>);

impl Rank {
    pub fn of(lines: &str) -> Self {
        Rank(Vec::new()).with(lines)
    }

    /// With other variables, too; without a value, without those.
    pub fn with(&self, lines: &str) -> Self {
        let mut all = self.0.clone();
        for line in lines.split_whitespace() {
            let (name, value) = line.split_once('=').unwrap();
            all.retain(|(n, _)| n != name);
            all.push((name.to_owned(), value.to_owned()));
        }
        Rank(all)
    }

    pub fn read(&self) -> Result<Bootstrap, EnvError> {
        self.read_under(None)
    }

    /// With a process of Hydra's above it.
    pub fn read_under(&self, hydra: Option<&str>) -> Result<Bootstrap, EnvError> {
        let lookup =
            |name: &str| self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        sources::find(&Env { lookup: &lookup, hydra: &|| hydra.map(str::to_owned) })
    }
}

/// `mpirun -n 2`, rank 1.
pub const OPEN_MPI: &str = "
    OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1
    OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_MCA_ess_base_jobid=1927872513
    OMPI_MCA_ess_base_vpid=1 OMPI_MCA_orte_num_nodes=1 OMPI_UNIVERSE_SIZE=2
    OMPI_MCA_orte_precondition_transports=8d2498ccc669ecbf-7bf1d85124b7d3db
    PMIX_ID=1927872513.1 PMIX_NAMESPACE=1927872513 PMIX_RANK=1";

/// `mpirun -n 4` in a batch script of two hosts, rank 3: under a step of Open MPI's daemons.
pub const OPEN_MPI_UNDER_SLURM: &str = "
    OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1
    OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_MCA_ess_base_jobid=1573257217
    OMPI_MCA_orte_num_nodes=2
    OMPI_MCA_orte_precondition_transports=dcb6dcc169a1c66e-8c42cc5ec88abebb
    PMIX_ID=1573257217.3 PMIX_NAMESPACE=1573257217 PMIX_RANK=3
    SLURM_DISTRIBUTION=cyclic SLURM_JOBID=3 SLURM_JOB_ID=3 SLURM_LOCALID=0 SLURM_NNODES=2
    SLURM_NODEID=1 SLURM_NPROCS=2 SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=1 SLURM_PROCID=1
    SLURM_STEPID=2 SLURM_STEP_ID=2 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2
    SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_TASKS_PER_NODE=1(x2)";

/// `mpiexec -n 2` of MPICH, rank 1.
pub const MPICH: &str = "
    HYDI_CONTROL_FD=7 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_FD=8 PMI_RANK=1 PMI_SIZE=2
    MPIR_CVAR_CH3_INTERFACE_HOSTNAME=vm GFORTRAN_UNBUFFERED_PRECONNECTED=y";

/// `mpiexec -pmi-port -n 2` of MPICH, rank 1: no size.
pub const MPICH_BY_PORT: &str = "
    HYDI_CONTROL_FD=7 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_ID=1 PMI_PORT=vm:33829";

/// `mpiexec -n 4` of MPICH in a batch script of two hosts, rank 3: `SLURM_NTASKS` is the batch's.
pub const MPICH_UNDER_SLURM: &str = "
    MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_FD=6 PMI_RANK=3 PMI_SIZE=4
    SLURM_DISTRIBUTION=cyclic SLURM_JOBID=3 SLURM_JOB_ID=3 SLURM_LOCALID=0 SLURM_NNODES=2
    SLURM_NODEID=1 SLURM_NPROCS=2 SLURM_NTASKS=4 SLURM_PROCID=1 SLURM_STEPID=3 SLURM_STEP_ID=3
    SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2
    SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_TASKS_PER_NODE=1(x2)";

/// `srun -N2 -n3`, rank 2.
pub const SRUN: &str = "
    SLURM_JOBID=1 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=0
    SLURM_NNODES=2 SLURM_NODEID=1 SLURM_NODELIST=n[1-2] SLURM_NPROCS=3 SLURM_NTASKS=3
    SLURM_PROCID=2 SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2]
    SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1
    SLURM_TASKS_PER_NODE=2,1 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1";

/// What `srun --mpi=pmi2 -N2 -n3` has beside that.
pub const SRUN_PMI2: &str = "PMI_FD=11 PMI_JOBID=2.0 PMI_RANK=2 PMI_SIZE=3";

/// A batch script of `sbatch -N2 -n4`.
pub const BATCH: &str = "
    SLURM_JOBID=3 SLURM_JOB_ID=3 SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=0 SLURM_NPROCS=4
    SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_TASKS_PER_NODE=2(x2) SLURM_NODELIST=n[1-2]";

/// `srun -N1 -n1` in a batch script of `sbatch -N2 -n4`.
pub const SRUN_OF_ONE: &str = "
    SLURM_DISTRIBUTION=cyclic SLURM_JOBID=3 SLURM_JOB_ID=3 SLURM_LOCALID=0 SLURM_NNODES=1
    SLURM_NODEID=0 SLURM_NPROCS=1 SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_STEPID=1 SLURM_STEP_ID=1
    SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1
    SLURM_STEP_TASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=1";

/// A shell of `salloc -n2`.
pub const SALLOC: &str = "SLURM_JOB_ID=5 SLURM_NTASKS=2 SLURM_NPROCS=2 SLURM_TASKS_PER_NODE=2";

/// torchrun on two hosts with four ranks each, rank 5.
pub const TORCHRUN: &str = "
    RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2
    ROLE_RANK=5 ROLE_WORLD_SIZE=8 MASTER_ADDR=n1 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=job-7
    TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_USE_AGENT_STORE=True";
