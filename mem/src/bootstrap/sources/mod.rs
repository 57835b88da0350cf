//! Which launcher's variables count.
//!
//! Does: reads every launcher's, decides which of them started this process, and refuses what cannot
//! be decided. The table is in the documentation of [`bootstrap`](super).
//!
//! Choices:
//! - What surrounds is told from what contradicts by the variables alone. Who could look at parent
//!   processes would know more, but not in containers, and not of another user's daemons.
//! - A launcher that would win is still held against the others: a stale `RANK` in a shell, and four
//!   ranks that all take themselves for the first, are found before any of them waits.

mod hydra;
mod mpi;
pub(crate) mod slurm;
mod torchrun;

use super::env::{Env, require};
use super::launcher::{Claim, Launcher, Variable};
use super::{Bootstrap, EnvError, RunId, StoreAddress, place};

pub(super) use hydra::nearest as nearest_hydra;
pub(crate) use torchrun::SYMMEM_RUN;
pub(super) use torchrun::{MASTER_ADDR, MASTER_PORT, PORT};

/// What one launcher's variables say, as far as they do.
#[derive(Clone, Debug)]
struct Found {
    claim: Claim,
    local_rank: Option<Variable>,
    local_world_size: Option<Variable>,
    node: Option<Variable>,
    nodes: Option<Variable>,
    id: Option<String>,
    restart: u32,
}

impl Found {
    fn new(launcher: Launcher, rank: Option<Variable>, world_size: Option<Variable>) -> Self {
        Found {
            claim: Claim { launcher, rank, world_size },
            local_rank: None,
            local_world_size: None,
            node: None,
            nodes: None,
            id: None,
            restart: 0,
        }
    }

    fn launcher(&self) -> Launcher {
        self.claim.launcher
    }
}

/// This process's place in its run.
pub(super) fn find(env: &Env<'_>) -> Result<Bootstrap, EnvError> {
    let found = match (torchrun::read(env)?, started(env)?) {
        (None, None) => return Err(torchrun::absent(env)),
        (None, Some(started)) => started,
        (Some(exported), None) => torchrun::complete(env, exported)?,
        (Some(exported), Some(started)) if exported.claim.agrees(&started.claim) => {
            torchrun::merged(exported, started)
        }
        (Some(exported), Some(started)) if torchrun::is_inside(&exported, &started) => {
            torchrun::complete(env, exported)?
        }
        (Some(exported), Some(started)) => {
            return Err(EnvError::Launchers { first: exported.claim, second: started.claim });
        }
    };
    bootstrap(env, found)
}

/// What a launcher says that starts processes from outside, other than by torchrun's variables.
fn started(env: &Env<'_>) -> Result<Option<Found>, EnvError> {
    let pmi = mpi::pmi(env)?;
    let is_hydra = pmi.as_ref().is_some_and(|found| found.launcher() == Launcher::Hydra);
    let (hydra, pmi) = if is_hydra { (pmi, None) } else { (None, pmi) };
    let all = [mpi::open_mpi(env)?, hydra, slurm::read(env)?, pmi, mpi::pmix(env)?];
    let all: Vec<Found> = all.into_iter().flatten().collect();
    let Some(first) = all.first() else { return Ok(None) };
    for (i, other) in all.iter().enumerate().skip(1) {
        // Both start their daemons by srun, and then ranks by the daemons, which pass the step on.
        let mpi = matches!(first.launcher(), Launcher::OpenMpi | Launcher::Hydra);
        let outside = mpi && other.launcher() == Launcher::Slurm;
        // PMI's variables may be the step's.
        let same = all.iter().take(i).any(|earlier| earlier.claim.agrees(&other.claim));
        if !outside && !same {
            return Err(EnvError::Launchers { first: first.claim, second: other.claim });
        }
    }
    Ok(all.into_iter().next())
}

fn bootstrap(env: &Env<'_>, found: Found) -> Result<Bootstrap, EnvError> {
    let Claim { launcher, rank, world_size } = found.claim;
    let (Some(rank), Some(world_size)) = (rank, world_size) else {
        return Err(mpi::incomplete(env, &found.claim));
    };
    check(rank, world_size, &found)?;
    let alone = found.local_world_size.is_some_and(|local| local.value == world_size.value);
    let value = |variable: Option<Variable>| variable.map(|variable| variable.value);
    let mut bootstrap = Bootstrap {
        rank: rank.value,
        world_size: world_size.value,
        local_rank: value(found.local_rank),
        local_world_size: value(found.local_world_size),
        node: value(found.node).or(alone.then_some(0)),
        nodes: value(found.nodes).or(alone.then_some(1)),
        launcher,
        run: RunId { launcher: found.id, restart: found.restart },
        // Made of the rest, below.
        store: StoreAddress { host: String::new(), port: 0 },
        host: torchrun::store_host(env)?,
    };
    bootstrap.store = place::store(env, &bootstrap)?;
    Ok(bootstrap)
}

/// Refuses numbers that cannot all be true.
fn check(rank: Variable, world: Variable, found: &Found) -> Result<(), EnvError> {
    require(rank.value < world.value, rank, world, "a rank is below the number of ranks")?;
    if let Some(n) = found.local_world_size {
        require(n.value <= world.value, n, world, "a host has no more ranks than the run")?;
    }
    if let Some(local) = found.local_rank {
        let of = found.local_world_size.unwrap_or(world);
        let rule = "a local rank is below the number of ranks on its host";
        require(local.value < of.value, local, of, rule)?;
    }
    if let Some(nodes) = found.nodes {
        require(nodes.value <= world.value, nodes, world, "a run has a rank on each of its hosts")?;
        if let Some(node) = found.node {
            require(node.value < nodes.value, node, nodes, "a host's index is below their number")?;
        }
        if let Some(local) = found.local_world_size {
            let rest = world.value - local.value;
            let holds = if nodes.value == 1 { rest == 0 } else { rest >= nodes.value - 1 };
            require(holds, local, nodes, "the other hosts have the other ranks")?;
        }
    }
    Ok(())
}
