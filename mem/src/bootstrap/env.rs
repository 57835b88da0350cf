//! torchrun's variables.

use std::str::FromStr;

use symmem_hal::{Fault, Kind};
use thiserror::Error;

use super::{Bootstrap, RunId, StoreAddress, StoreHost};

const RANK: &str = "RANK";
const WORLD_SIZE: &str = "WORLD_SIZE";
const LOCAL_RANK: &str = "LOCAL_RANK";
const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";
const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
const USE_AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// What every launcher of this kind sets.
const REQUIRED: [&str; 4] = [RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT];

/// Why the environment does not describe a rank.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnvError {
    /// No launcher's variables are there.
    #[error("no launcher: none of {} is set; start the program under torchrun or `symmem run`", REQUIRED.join(", "))]
    NotLaunched,
    /// Some variables are there, this one is not.
    #[error("{variable} is not set, though {} is; expected {expected}", present.join(", "))]
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
    /// Two variables contradict each other.
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
}

impl Fault for EnvError {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}

pub(super) fn torchrun(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Bootstrap, EnvError> {
    let env = Env { lookup };
    if REQUIRED.iter().all(|variable| env.text(variable).is_none()) {
        return Err(EnvError::NotLaunched);
    }
    const COUNT: &str = "a decimal number from 1";
    const INDEX: &str = "a decimal number from 0";
    let rank = env.required(RANK, INDEX, |_: &usize| true)?;
    let world_size = env.required(WORLD_SIZE, COUNT, |n| *n > 0)?;
    let local_rank = env.optional(LOCAL_RANK, INDEX, |_: &usize| true)?;
    let local_world_size = env.optional(LOCAL_WORLD_SIZE, COUNT, |n| *n > 0)?;
    let host = env.required(MASTER_ADDR, "a host name or address", |_: &String| true)?;
    let port = env.required(MASTER_PORT, "a port from 1 to 65535", |port| *port != 0)?;
    let restart = env.optional(RESTART_COUNT, INDEX, |_: &u32| true)?.unwrap_or(0);
    let agent_hosts = match env.text(USE_AGENT_STORE).as_deref() {
        Some("True") => true,
        Some("False") | None => false,
        Some(found) => {
            let (variable, found) = (USE_AGENT_STORE, found.to_owned());
            return Err(EnvError::Invalid { variable, found, expected: "True or False" });
        }
    };

    let world = (WORLD_SIZE, world_size);
    require(rank < world_size, (RANK, rank), world, "a rank is below the number of ranks")?;
    if let Some(n) = local_world_size {
        let rule = "a host has no more ranks than the run";
        require(n <= world_size, (LOCAL_WORLD_SIZE, n), world, rule)?;
    }
    if let Some(local) = local_rank {
        let of = local_world_size.map_or(world, |n| (LOCAL_WORLD_SIZE, n));
        let rule = "a local rank is below the number of ranks on its host";
        require(local < of.1, (LOCAL_RANK, local), of, rule)?;
    }

    Ok(Bootstrap {
        rank,
        world_size,
        local_rank,
        local_world_size,
        run: RunId { launcher: env.text(RUN_ID).filter(|id| id != "none"), restart },
        store: StoreAddress { host, port },
        host: if agent_hosts { StoreHost::Launcher } else { StoreHost::RankZero },
    })
}

struct Env<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Env<'_> {
    /// A variable's value; an empty one counts as absent, as launchers and shells treat it.
    fn text(&self, variable: &str) -> Option<String> {
        (self.lookup)(variable).filter(|value| !value.is_empty())
    }

    fn optional<T: FromStr>(
        &self,
        variable: &'static str,
        expected: &'static str,
        valid: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, EnvError> {
        let Some(found) = self.text(variable) else { return Ok(None) };
        match found.parse() {
            Ok(value) if valid(&value) => Ok(Some(value)),
            _ => Err(EnvError::Invalid { variable, found, expected }),
        }
    }

    fn required<T: FromStr>(
        &self,
        variable: &'static str,
        expected: &'static str,
        valid: impl Fn(&T) -> bool,
    ) -> Result<T, EnvError> {
        self.optional(variable, expected, valid)?.ok_or_else(|| EnvError::Missing {
            variable,
            expected,
            present: REQUIRED.into_iter().filter(|name| self.text(name).is_some()).collect(),
        })
    }
}

/// A variable and its value.
type Named = (&'static str, usize);

fn require(holds: bool, first: Named, second: Named, rule: &'static str) -> Result<(), EnvError> {
    if holds {
        return Ok(());
    }
    let ((first, first_value), (second, second_value)) = (first, second);
    Err(EnvError::Conflict { first, first_value, second, second_value, rule })
}
