//! Variables of MPI's launchers: Open MPI's, and PMI's, which MPICH, Intel MPI and others set.

use sha2::{Digest, Sha256};

use super::super::EnvError;
use super::super::env::{COUNT, Env};
use super::super::launcher::{Claim, Launcher};
use super::Found;

/// Open MPI's mpirun: it alone sets these. A program that srun starts has none of them.
pub(super) fn open_mpi(env: &Env<'_>) -> Result<Option<Found>, EnvError> {
    const RANK: &str = "OMPI_COMM_WORLD_RANK";
    const SIZE: &str = "OMPI_COMM_WORLD_SIZE";
    let Some(rank) = env.index(RANK)? else { return Ok(None) };
    let Some(size) = env.count(SIZE)? else { return Err(env.missing(SIZE, COUNT, &[RANK])) };
    // A job's number in Open MPI 4 has 16 bits of a hash of mpirun's host and process, so two jobs of
    // a host can have one. Its key is random. It is also a key, of some networks: of it we show a hash.
    let job = env.text("OMPI_MCA_ess_base_jobid").or_else(|| env.text("PMIX_NAMESPACE"));
    let key = env.text("OMPI_MCA_orte_precondition_transports").map(|key| fingerprint(&key));
    let id = job.map(|job| match key {
        Some(key) => format!("openmpi-{job}-{key}"),
        None => format!("openmpi-{job}"),
    });
    Ok(Some(Found {
        local_rank: env.index("OMPI_COMM_WORLD_LOCAL_RANK")?,
        local_world_size: env.count("OMPI_COMM_WORLD_LOCAL_SIZE")?,
        id,
        ..Found::new(Launcher::OpenMpi, Some(rank), Some(size))
    }))
}

fn fingerprint(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().take(4).map(|b| format!("{b:02x}")).collect()
}

const PMI_RANK: &str = "PMI_RANK";
const PMI_SIZE: &str = "PMI_SIZE";
/// In place of the rank, where Hydra's processes reach it by a port (`-pmi-port`): without a size.
const PMI_ID: &str = "PMI_ID";
const LOCAL_RANK: &str = "MPI_LOCALRANKID";
const LOCAL_SIZE: &str = "MPI_LOCALNRANKS";

/// PMI's variables: Hydra's where those stand beside them that only it sets, else of another process
/// manager, such as Slurm's step itself.
pub(super) fn pmi(env: &Env<'_>) -> Result<Option<Found>, EnvError> {
    let Some(rank) =
        env.index(PMI_RANK)?.map_or_else(|| env.index(PMI_ID), |rank| Ok(Some(rank)))?
    else {
        return Ok(None);
    };
    let size = env.count(PMI_SIZE)?;
    if ![LOCAL_RANK, LOCAL_SIZE, "HYDI_CONTROL_FD"].iter().any(|name| env.has(name)) {
        let id = env.text("PMI_JOBID").map(|job| format!("pmi-{job}"));
        return Ok(Some(Found { id, ..Found::new(Launcher::Pmi, Some(rank), size) }));
    }
    let local_size = env.count(LOCAL_SIZE)?;
    // Another host's process would give another name.
    let one_host = size.is_some_and(|n| local_size.is_some_and(|local| local.value == n.value));
    Ok(Some(Found {
        local_rank: env.index(LOCAL_RANK)?,
        local_world_size: local_size,
        id: if one_host { (env.hydra)() } else { None },
        ..Found::new(Launcher::Hydra, Some(rank), size)
    }))
}

/// PMIx's: a rank alone.
pub(super) fn pmix(env: &Env<'_>) -> Result<Option<Found>, EnvError> {
    let rank = env.index("PMIX_RANK")?;
    let id = env.text("PMIX_NAMESPACE").map(|name| format!("pmix-{name}"));
    Ok(rank.map(|rank| Found { id, ..Found::new(Launcher::Pmix, Some(rank), None) }))
}

/// The error of what lacks a number that no launcher said.
pub(super) fn incomplete(env: &Env<'_>, claim: &Claim) -> EnvError {
    let size = match claim.launcher {
        Launcher::Pmi | Launcher::Hydra => PMI_SIZE,
        _ => "WORLD_SIZE",
    };
    let present: Vec<_> = claim.variables().map(|variable| variable.name).collect();
    env.missing(size, COUNT, &present)
}
