//! torchrun's variables, which `symmem run` and others set as well.

use super::super::env::{COUNT, Env, INDEX};
use super::super::launcher::{Launcher, Variable};
use super::super::{EnvError, StoreHost};
use super::Found;

const RANK: &str = "RANK";
const WORLD_SIZE: &str = "WORLD_SIZE";
pub(crate) const MASTER_ADDR: &str = "MASTER_ADDR";
pub(crate) const MASTER_PORT: &str = "MASTER_PORT";
const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
const USE_AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// What a launcher of this kind sets.
const REQUIRED: [&str; 4] = [RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT];

/// What the ids of `symmem run` begin with; 16 hexadecimal digits follow.
pub(crate) const SYMMEM_RUN: &str = "symmem-";

/// What is said by variables of these names, if by any.
pub(super) fn read(env: &Env<'_>) -> Result<Option<Found>, EnvError> {
    let (rank, world_size) = (env.index(RANK)?, env.count(WORLD_SIZE)?);
    if rank.or(world_size).is_none() {
        return Ok(None);
    }
    let id = env.text(RUN_ID);
    let marked = id.is_some();
    let launcher = match &id {
        Some(id) if is_symmem_run(id) => Launcher::SymmemRun,
        _ if marked => Launcher::Torchrun,
        _ => Launcher::Exported,
    };
    Ok(Some(Found {
        local_rank: env.index("LOCAL_RANK")?,
        local_world_size: env.count("LOCAL_WORLD_SIZE")?,
        // Without the mark they may be those of a launcher outside.
        node: if marked { env.index("GROUP_RANK")? } else { None },
        nodes: if marked { env.count("GROUP_WORLD_SIZE")? } else { None },
        id: id.filter(|id| id != "none"),
        restart: env.parse(RESTART_COUNT, INDEX, |_| true)?.unwrap_or(0),
        ..Found::new(launcher, rank, world_size)
    }))
}

/// Who serves the store at the address that is set, whatever started the ranks: a server that outlives
/// them, such as `symmem store`, is told by torchrun's variable. One of torchrun's own does as well for
/// ranks that have been started by a rank of its.
pub(super) fn store_host(env: &Env<'_>) -> Result<StoreHost, EnvError> {
    let known = env.has(MASTER_ADDR) && env.has(MASTER_PORT);
    match env.text(USE_AGENT_STORE).as_deref() {
        Some("True") if known => Ok(StoreHost::Launcher),
        Some("True" | "False") | None => Ok(StoreHost::RankZero),
        Some(found) => {
            let (variable, found) = (USE_AGENT_STORE, found.to_owned());
            Err(EnvError::Invalid { variable, found, expected: "True or False" })
        }
    }
}

fn is_symmem_run(id: &str) -> bool {
    id.strip_prefix(SYMMEM_RUN)
        .is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Why there is no rank where neither these nor another launcher's variables say one: the address
/// of a store alone is what is left of somebody's.
pub(super) fn absent(env: &Env<'_>) -> EnvError {
    if env.has(MASTER_ADDR) || env.has(MASTER_PORT) {
        env.missing(RANK, INDEX, &REQUIRED)
    } else {
        EnvError::NotLaunched
    }
}

/// Refuses what lacks a variable that all launchers of this kind set.
pub(super) fn complete(env: &Env<'_>, found: Found) -> Result<Found, EnvError> {
    for (variable, expected) in REQUIRED.into_iter().zip([INDEX, COUNT, HOST, PORT]) {
        if !env.has(variable) {
            return Err(env.missing(variable, expected, &REQUIRED));
        }
    }
    Ok(found)
}

const HOST: &str = "a host name or address";
pub(crate) const PORT: &str = "a port from 1 to 65535";

/// Both, where they agree: what these do not say, the other launcher does, such as where a script
/// under mpirun or srun exports the rank for PyTorch.
pub(super) fn merged(exported: Found, started: Found) -> Found {
    let by_hand = exported.launcher() == Launcher::Exported;
    let mut claim = if by_hand { started.claim } else { exported.claim };
    claim.rank = claim.rank.or(exported.claim.rank).or(started.claim.rank);
    claim.world_size = claim.world_size.or(exported.claim.world_size).or(started.claim.world_size);
    Found {
        claim,
        local_rank: exported.local_rank.or(started.local_rank),
        local_world_size: exported.local_world_size.or(started.local_world_size),
        node: exported.node.or(started.node),
        nodes: exported.nodes.or(started.nodes),
        id: exported.id.or(started.id),
        restart: if by_hand { started.restart } else { exported.restart },
    }
}

/// Whether the other launcher plainly started what set these variables, such as one torchrun on
/// each host.
pub(super) fn is_inside(exported: &Found, started: &Found) -> bool {
    let marked = exported.launcher() != Launcher::Exported;
    let (inner, outer) = (&exported.claim, &started.claim);
    let (Some(rank), Some(ranks)) = (inner.rank, inner.world_size) else { return false };
    let Some(tasks) = outer.world_size.map(|tasks| tasks.value) else { return marked };
    let (rank, ranks) = (rank.value, ranks.value);
    // Its ranks are its tasks' in turn, several of each.
    let share = ranks / tasks;
    let divides = ranks > tasks && ranks.is_multiple_of(tasks);
    if divides && outer.rank.is_some_and(|task| task.value == rank / share) {
        return true;
    }
    let one_host = exported.local_world_size.is_some_and(|local| local.value == ranks);
    let agents = exported.nodes.map(|nodes: Variable| nodes.value).or(one_host.then_some(1));
    let fits = agents.is_some_and(|agents| agents == 1 || agents == tasks);
    // An interactive step may have any number of tasks, in the first of which somebody types.
    marked && (fits || started.launcher() == Launcher::Slurm)
}
