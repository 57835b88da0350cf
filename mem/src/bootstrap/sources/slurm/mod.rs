//! Slurm's variables: those of a step that srun started.
//!
//! A batch script, and a shell of salloc's, have most of them too, as if they were the first of as
//! many ranks as the allocation has tasks. They have no step.

mod lists;

use super::super::EnvError;
use super::super::env::{COUNT, Env, INDEX};
use super::super::launcher::{Launcher, Variable};
use super::Found;

pub(crate) use lists::{first_host, tasks_on};

const RANK: &str = "SLURM_PROCID";
const STEP: &str = "SLURM_STEP_ID";
const STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS";
const TASKS: &str = "SLURM_NTASKS";
const TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
const NODE_LIST: &str = "SLURM_STEP_NODELIST";
const NODE: &str = "SLURM_NODEID";

/// The steps that are no srun's have numbers from here on: batch scripts, interactive shells of
/// salloc's, containers of outside processes.
const SPECIAL_STEPS: u32 = 0xffff_fff0;

/// What is said of a task of a step, if this is one.
pub(super) fn read(env: &Env<'_>) -> Result<Option<Found>, EnvError> {
    let step = env.parse(STEP, INDEX, |_: &u32| true)?.filter(|step| *step < SPECIAL_STEPS);
    let (Some(step), Some(rank)) = (step, env.index(RANK)?) else { return Ok(None) };
    // The second may be the batch script's, which Hydra hands to its own step. An srun has both.
    let size = match env.count(STEP_TASKS)? {
        None => env.count(TASKS)?,
        size => size,
    };
    let Some(size) = size else { return Err(env.missing(STEP_TASKS, COUNT, &[RANK, STEP])) };
    let node = env.index(NODE)?;
    Ok(Some(Found {
        local_rank: env.index("SLURM_LOCALID")?,
        local_world_size: match node {
            Some(node) => tasks_on_own(env, node)?,
            None => None,
        },
        node,
        nodes: env.count("SLURM_STEP_NUM_NODES")?,
        id: env.text("SLURM_JOB_ID").map(|job| format!("slurm-{job}.{step}")),
        restart: env.parse("SLURM_RESTART_COUNT", INDEX, |_| true)?.unwrap_or(0),
        ..Found::new(Launcher::Slurm, Some(rank), Some(size))
    }))
}

fn tasks_on_own(env: &Env<'_>, node: Variable) -> Result<Option<Variable>, EnvError> {
    let Some(found) = env.text(TASKS_PER_NODE) else { return Ok(None) };
    match tasks_on(&found, node.value) {
        Some(value) => Ok(Some(Variable { name: TASKS_PER_NODE, value })),
        None => Err(EnvError::Invalid {
            variable: TASKS_PER_NODE,
            found,
            expected: "tasks of each host, such as 4(x2),3, with this one's (SLURM_NODEID) among them",
        }),
    }
}

/// The host of rank 0: the step's first, for which the list is in order of the hosts' indices.
pub(crate) fn host_of_rank_zero(env: &Env<'_>) -> Result<Option<String>, EnvError> {
    let Some(found) = env.text(NODE_LIST) else { return Ok(None) };
    match first_host(&found) {
        Some(host) => Ok(Some(host)),
        None => Err(EnvError::Invalid {
            variable: NODE_LIST,
            found,
            expected: "hosts, such as node[01-03,7],other; or set MASTER_ADDR to rank 0's",
        }),
    }
}
