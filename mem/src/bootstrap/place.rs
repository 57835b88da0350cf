//! Where a run's store is.

use std::net::Ipv4Addr;
use std::ops::Range;

use sha2::{Digest, Sha256};

use super::env::Env;
use super::launcher::Launcher;
use super::sources::{MASTER_ADDR, MASTER_PORT, PORT, slurm};
use super::{Bootstrap, EnvError, RunId, StoreAddress, StoreHost};

/// The ports that are made of names: below those that Linux hands out (from 32768 on) and that
/// Kubernetes does (from 30000 on), and below torchrun's own 29500.
pub(super) const PORTS: Range<u16> = 20_000..29_500;

/// Where the store of a rank's run is; all else of it is known.
pub(super) fn store(env: &Env<'_>, of: &Bootstrap) -> Result<StoreAddress, EnvError> {
    let host = match env.text(MASTER_ADDR) {
        Some(host) => host,
        None => host(env, of)?,
    };
    let port = match (env.parse(MASTER_PORT, PORT, |port| *port != 0)?, &of.run.launcher) {
        (Some(port), _) => port,
        (None, Some(name)) => port(name, of.run.restart),
        (None, None) => return Err(EnvError::NoPort { launcher: of.launcher }),
    };
    Ok(StoreAddress { host, port })
}

fn host(env: &Env<'_>, of: &Bootstrap) -> Result<String, EnvError> {
    let &Bootstrap { launcher, world_size, local_world_size, .. } = of;
    if local_world_size == Some(world_size) {
        return Ok(Ipv4Addr::LOCALHOST.to_string());
    }
    let unknown = EnvError::NoAddress { launcher, world_size, local_world_size };
    // Tasks that a user has dealt out to hosts may begin on any of them.
    if launcher != Launcher::Slurm || (of.rank == 0 && of.node != Some(0)) {
        return Err(unknown);
    }
    slurm::host_of_rank_zero(env)?.ok_or(unknown)
}

/// The same for all ranks of a run, and another one for most others.
fn port(name: &str, restart: u32) -> u16 {
    let mut hash = Sha256::new();
    hash.update(b"symmem store's port");
    hash.update(name.as_bytes());
    hash.update(restart.to_le_bytes());
    let hash = hash.finalize();
    let number = hash.iter().take(4).fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    let within = number % (u32::from(PORTS.end) - u32::from(PORTS.start));
    PORTS.start + u16::try_from(within).unwrap_or(0)
}

/// The run of one host's ranks.
pub(super) fn of_host(all: &Bootstrap) -> Result<Bootstrap, EnvError> {
    let unknown = |unknown| EnvError::NoHost { launcher: all.launcher, unknown };
    let rank = all.local_rank.ok_or_else(|| unknown("this process's rank on its host"))?;
    let size = all.local_world_size.ok_or_else(|| unknown("the number of ranks on this host"))?;
    let node = all.node.ok_or_else(|| unknown("this host's index"))?;
    if size == all.world_size {
        return Ok(all.clone());
    }
    // Runs without a name differ by their stores.
    let name = all.run.launcher.clone().unwrap_or_else(|| all.store.to_string());
    let name = format!("{name}.host{node}");
    let restart = all.run.restart;
    let store = match all.host {
        StoreHost::Launcher => all.store.clone(),
        // Of its own: rank 0 of all may be elsewhere, and not there yet.
        StoreHost::RankZero => {
            let port = match port(&name, restart) {
                // There rank 0 may serve all.
                port if port == all.store.port => port - 1,
                port => port,
            };
            StoreAddress { host: Ipv4Addr::LOCALHOST.to_string(), port }
        }
    };
    Ok(Bootstrap {
        rank,
        world_size: size,
        local_rank: Some(rank),
        local_world_size: Some(size),
        node: Some(0),
        nodes: Some(1),
        launcher: all.launcher,
        run: RunId { launcher: Some(name), restart },
        store,
        host: all.host,
    })
}
